"""The names in a WAL's directory: built, parsed and sorted; a name that only looks like one is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from wal_harness import a_wal, opened

from streamhouse.core.errors import CorruptFrame
from streamhouse.log.wal.names import log_name


async def test_a_log_file_under_a_name_of_no_meaning_is_refused_and_strangers_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep me")
    async with a_wal(tmp_path):
        pass
    assert (tmp_path / "notes.txt").read_text() == "keep me"
    shutil.copy(tmp_path / log_name(1), tmp_path / "copy of 1.wal")
    with pytest.raises(CorruptFrame, match=r"copy of 1\.wal, which is no name of a WAL file"):
        await opened(tmp_path)
