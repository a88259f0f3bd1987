"""Every pump and disk that a WAL can run on: a test that takes ``place`` runs on each."""

from __future__ import annotations

from pathlib import Path

import pytest
from wal_fake_disk import FakeDisk
from wal_harness import ON_REAL_FILES, Place

from streamhouse.log.wal import Disk


@pytest.fixture(
    params=[
        "thread and real files",
        "thread and fake disk",
        "task and fake disk",
        "task and real files",
        "native and real files",
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    pump, _, where = request.param.partition(" and ")
    disk: Disk | Path = tmp_path / "wal" if where == "real files" else FakeDisk()
    return lambda: (disk, ON_REAL_FILES[pump]())
