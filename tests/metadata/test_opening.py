"""A URL gives a store, or an error that says what to write instead."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import ConfigError
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import MetadataStore
from streamhouse.metadata.opening import open_metadata


def from_url(url: str) -> MetadataStore:
    return open_metadata(url, clock=ManualClock(), randomness=SeededRandomness(1))


async def test_a_file(tmp_path: Path) -> None:
    async with from_url(f"sqlite://{tmp_path}/meta%20data.db") as store:
        assert (await store.cluster_info()).backend.startswith("SQLite ")
        assert (tmp_path / "meta data.db").exists()


async def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with from_url("sqlite:///:memory:") as store:
        assert await store.list_topics() == []
    assert os.listdir(tmp_path) == []


async def test_postgres(postgres_database: str) -> None:
    async with from_url(postgres_database) as store:
        assert (await store.cluster_info()).backend.startswith("PostgreSQL ")


def test_postgres_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("streamhouse.metadata.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match=r"streamhouse\[postgres\]"):
        from_url("postgresql://localhost/x")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("oxia://host:6648/ns", "not built yet"),
        ("mysql://user:hunter2@host/db", "names no metadata store"),
        ("metadata.db", "names no metadata store"),
        ("", "names no metadata store"),
        ("sqlite://host/metadata.db", "no absolute local path"),
        ("sqlite:metadata.db", "no absolute local path"),
    ],
)
def test_what_cannot_be_opened(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_url(url)
    assert caught.value.hint
    assert "hunter2" not in str(caught.value)
