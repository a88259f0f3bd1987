"""Metadata, object store and WAL that do not belong together are refused before anything is written or dropped (R2)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from streamhouse.app.platform import StreamHouse
from streamhouse.app.store_binding import bind_object_store
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import DurabilityMismatch, InvalidSetting, StoreMisconfigured
from streamhouse.core.randomness import SystemRandomness
from streamhouse.metadata.opening import open_metadata
from streamhouse.objectstore.keys import CLUSTER_ID_KEY
from streamhouse.objectstore.memory import MemoryStore


async def write_one(data_dir: Path, **settings: str) -> None:
    async with StreamHouse.open(data_dir=str(data_dir), **settings) as sh:
        await sh.create_topic("orders", 1)
        await sh.produce("orders", b"precious", partition=0)


async def values(data_dir: Path) -> list[bytes | None]:
    async with StreamHouse.open(data_dir=str(data_dir)) as sh:
        return [record.value for record in await sh.read("orders", 0, 0)]


def take_away(data_dir: Path, *names: str) -> Path:
    aside = data_dir.parent / "aside"
    aside.mkdir()
    for path in [path for name in names for path in data_dir.glob(name)]:
        shutil.move(path, aside / path.name)
    return aside


def bring_back(data_dir: Path, aside: Path) -> None:
    for path in aside.iterdir():
        if (data_dir / path.name).is_dir():
            shutil.rmtree(data_dir / path.name)
        shutil.move(path, data_dir / path.name)


@pytest.mark.parametrize(
    ("missing", "error", "words"),
    [
        (["metadata.db*"], StoreMisconfigured, "holds the records of cluster"),
        (["metadata.db*", "objects"], DurabilityMismatch, "holds records of cluster"),
    ],
    ids=["objects", "wal"],
)
async def test_r2_another_clusters_records_are_refused_and_kept(
    tmp_path: Path, missing: list[str], error: type[Exception], words: str
) -> None:
    data_dir = tmp_path / "data"
    await write_one(data_dir)
    aside = take_away(data_dir, *missing)
    with pytest.raises(error, match=words):
        await values(data_dir)
    for path in data_dir.glob("metadata.db*"):
        path.unlink()
    bring_back(data_dir, aside)
    assert await values(data_dir) == [b"precious"]


async def test_r2_a_missing_wal_is_refused_and_no_new_one_is_made_in_its_place(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    await write_one(data_dir)
    aside = take_away(data_dir, "wal")
    for _ in range(2):
        with pytest.raises(DurabilityMismatch, match="is bound to WAL"):
            await values(data_dir)
    assert not [path.name for path in (data_dir / "wal").iterdir() if path.name != "wal.lock"]
    bring_back(data_dir, aside)
    assert await values(data_dir) == [b"precious"]


async def test_a_second_object_store_beside_one_metadata_store_is_refused(tmp_path: Path) -> None:
    """This happens when only ``metadata.url`` is set: each agent's objects would be in its own directory."""
    shared = f"sqlite://{tmp_path}/shared.db"
    for _ in range(2):
        async with StreamHouse.open(data_dir=str(tmp_path / "one"), metadata_url=shared, agent_id="agent-1"):
            pass
    with pytest.raises(StoreMisconfigured, match="is not the one that has this cluster's records") as refused:
        await write_one(tmp_path / "two", metadata_url=shared, agent_id="agent-2")
    assert str(tmp_path / "one") in str(refused.value)
    assert not (tmp_path / "two" / "objects" / CLUSTER_ID_KEY).exists()


async def test_of_two_first_starts_with_two_object_stores_one_is_refused(tmp_path: Path) -> None:
    clock, randomness = SystemClock(), SystemRandomness()
    stores = [MemoryStore(clock=clock), MemoryStore(clock=clock)]
    async with (
        open_metadata(f"sqlite://{tmp_path}/m.db", clock=clock, randomness=randomness) as one,
        open_metadata(f"sqlite://{tmp_path}/m.db", clock=clock, randomness=randomness) as two,
    ):
        ended = await asyncio.gather(
            *(
                bind_object_store(metadata, store, randomness=randomness)
                for metadata, store in zip((one, two), stores, strict=True)
            ),
            return_exceptions=True,
        )
        assert sorted(type(each).__name__ for each in ended) == ["NoneType", "StoreMisconfigured"]
        right = stores[ended.index(None)]
        await bind_object_store(two, right, randomness=randomness)


async def test_a_mark_that_says_nothing_is_not_guessed_at(tmp_path: Path) -> None:
    clock, randomness = SystemClock(), SystemRandomness()
    store = MemoryStore(clock=clock)
    await store.put(CLUSTER_ID_KEY, b"streamhouse object store 1\nno id\n")
    async with open_metadata(f"sqlite://{tmp_path}/m.db", clock=clock, randomness=randomness) as metadata:
        with pytest.raises(StoreMisconfigured, match="does not say whose object store this is"):
            await bind_object_store(metadata, store, randomness=randomness)


async def test_an_object_store_that_forgets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"store\.url"):
        await write_one(tmp_path, store_url="memory://")
