"""R23: an older copy of the SQLite metadata beside a newer WAL or object store is refused, and says what it would lose.

With real files: the metadata is copied while the platform runs, more is written, and the copy is put back.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from streamhouse.app.platform import StreamHouse
from streamhouse.core.errors import MetadataTooOld
from streamhouse.core.randomness import SystemRandomness
from streamhouse.maintenance.metadata_progress import MARK_FILE, Mark, MetadataProgress

PREFIX = "metadata-progress"


def copy_metadata(data_dir: Path, target: Path) -> None:
    """Copy the metadata as ``sqlite3 .backup`` does, while the platform runs."""
    with closing(sqlite3.connect(data_dir / "metadata.db")) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def put_back(copy: Path, data_dir: Path) -> None:
    for path in data_dir.glob("metadata.db*"):
        path.unlink()
    shutil.copy(copy, data_dir / "metadata.db")


async def copy_running(data_dir: Path, target: Path, *without: str) -> None:
    """What a crash at this moment would leave. Nothing is being written; files may still be tidied up."""
    for _ in range(100):
        try:
            shutil.copytree(data_dir, target, ignore=shutil.ignore_patterns("*.lock", *without))
            return
        except shutil.Error:
            shutil.rmtree(target)
            await asyncio.sleep(0.05)
    raise AssertionError(f"{data_dir} does not come to rest")


async def write(sh: StreamHouse, count: int, topic: str = "orders", partition: int = 0) -> None:
    for number in range(count):
        await sh.produce(topic, f"{number}".encode(), partition=partition)


async def write_around_a_copy(data_dir: Path, copy: Path, **settings: str) -> None:
    """Three records, a copy, four more."""
    async with StreamHouse.open(data_dir=str(data_dir), **settings) as sh:
        await sh.create_topic("orders", 2)
        await write(sh, 3)
        await sh.flush()
        copy_metadata(data_dir, copy)
        await write(sh, 4)


async def count_records(data_dir: Path, **settings: str) -> int:
    async with StreamHouse.open(data_dir=str(data_dir), **settings) as sh:
        return len(await sh.read("orders", 0, 0))


@pytest.mark.parametrize("durability", ["wal", "object"])
async def test_r23_an_older_copy_is_refused_and_names_what_it_would_lose(tmp_path: Path, durability: str) -> None:
    data_dir, copy, newer = tmp_path / "data", tmp_path / "copy.db", tmp_path / "newer.db"
    await write_around_a_copy(data_dir, copy, durability=durability)
    shutil.copy(data_dir / "metadata.db", newer)
    put_back(copy, data_dir)
    for _ in range(2):  # a refused start changes nothing
        with pytest.raises(MetadataTooOld, match=r"orders/0 offsets 3 to 6") as refused:
            await count_records(data_dir, durability=durability)
        assert "bring the newer metadata back" in str(refused.value.hint)
    put_back(newer, data_dir)
    assert await count_records(data_dir, durability=durability) == 7


async def test_r23_the_wal_directory_alone_is_enough_to_refuse(tmp_path: Path) -> None:
    """The case of a bucket that was lost, or restored with the metadata."""
    data_dir, copy = tmp_path / "data", tmp_path / "copy.db"
    await write_around_a_copy(data_dir, copy)
    put_back(copy, data_dir)
    shutil.rmtree(data_dir / "objects" / PREFIX)
    with pytest.raises(MetadataTooOld, match=r"the write-ahead log in .*orders/0 offsets 3 to 6"):
        await count_records(data_dir)


async def test_r23_the_object_store_alone_is_enough_to_refuse(tmp_path: Path) -> None:
    """The case of a WAL directory that was restored with the metadata, or is on a new machine."""
    data_dir, copy = tmp_path / "data", tmp_path / "copy.db"
    await write_around_a_copy(data_dir, copy, durability="object")
    put_back(copy, data_dir)
    shutil.rmtree(data_dir / "wal")
    with pytest.raises(MetadataTooOld, match=r"the object store file://.*orders/0 offsets 3 to 6"):
        await count_records(data_dir, durability="object")


async def test_r23_a_topic_that_the_copy_does_not_know_is_named(tmp_path: Path) -> None:
    data_dir, copy = tmp_path / "data", tmp_path / "copy.db"
    async with StreamHouse.open(data_dir=str(data_dir)) as sh:
        await sh.create_topic("orders", 1)
        copy_metadata(data_dir, copy)
        await sh.create_topic("payments", 12)
        for partition in range(12):
            await write(sh, 1, "payments", partition)
    put_back(copy, data_dir)
    with pytest.raises(MetadataTooOld, match=r"payments/0 offsets 0 to 0, .*, and of 2 more partitions"):
        await count_records(data_dir)


async def test_r23_after_a_crash_the_marks_left_on_the_way_count(tmp_path: Path) -> None:
    """No stop leaves the last marks: the one that was left while it ran refuses the copy."""
    data_dir, copy, crashed = tmp_path / "data", tmp_path / "copy.db", tmp_path / "crashed"
    async with StreamHouse.open(data_dir=str(data_dir)) as sh:
        await sh.create_topic("orders", 1)
        copy_metadata(data_dir, copy)
        await write(sh, 3)
        await sh.flush()
        progress = MetadataProgress(
            metadata=sh.stores.metadata,
            objects=sh.stores.objects,
            wal_dir=data_dir / "wal",
            cluster_id=(await sh.stores.metadata.cluster_info()).cluster_id,
            clock=sh.clock,
            randomness=SystemRandomness(),
        )
        await progress.leave_marks()
        await copy_running(data_dir, crashed)
    assert await count_records(crashed) == 3
    put_back(copy, crashed)
    with pytest.raises(MetadataTooOld, match=r"orders/0 offsets 0 to 2"):
        await count_records(crashed)


async def test_r2_frames_that_begin_above_the_watermark_refuse_the_start(tmp_path: Path) -> None:
    """There is no mark: the WAL itself shows that the metadata is older."""
    data_dir, copy, crashed = tmp_path / "data", tmp_path / "copy.db", tmp_path / "crashed"
    async with StreamHouse.open(data_dir=str(data_dir)) as sh:
        await sh.create_topic("orders", 1)
        copy_metadata(data_dir, copy)
        await write(sh, 3)
    (committed,) = data_dir.rglob("*.wal")
    async with StreamHouse.open(data_dir=str(data_dir), segment_max_age="1h") as sh:
        await write(sh, 2)
        while committed.exists():  # noqa: ASYNC110 - a thread removes it; with it, the copy would have every record
            await asyncio.sleep(0.01)
        await copy_running(data_dir, crashed, MARK_FILE, PREFIX)
    put_back(copy, crashed)
    with pytest.raises(MetadataTooOld, match=r"ends before the write-ahead log begins.*orders/0 offsets 0 to 2"):
        await count_records(crashed)


async def test_r23_a_copy_of_everything_starts(tmp_path: Path) -> None:
    data_dir, copied = tmp_path / "data", tmp_path / "copied"
    async with StreamHouse.open(data_dir=str(data_dir)) as sh:
        await sh.create_topic("orders", 1)
        await write(sh, 3)
    shutil.copytree(data_dir, copied)
    async with StreamHouse.open(data_dir=str(data_dir)) as sh:
        await write(sh, 4)
    assert (await count_records(copied), await count_records(data_dir)) == (3, 7)


async def test_r23_metadata_ahead_of_its_marks_starts(tmp_path: Path) -> None:
    """The state after a crash between the metadata's commit and the marks."""
    data_dir, marks = tmp_path / "data", tmp_path / "marks"
    async with StreamHouse.open(data_dir=str(data_dir)) as sh:
        await sh.create_topic("orders", 1)
        await write(sh, 3)
    shutil.copytree(data_dir / "objects" / PREFIX, marks)
    shutil.copy(data_dir / "wal" / MARK_FILE, marks / MARK_FILE)
    async with StreamHouse.open(data_dir=str(data_dir)) as sh:
        await write(sh, 4)
    shutil.copy(marks / MARK_FILE, data_dir / "wal" / MARK_FILE)
    shutil.rmtree(data_dir / "objects" / PREFIX)
    shutil.copytree(marks, data_dir / "objects" / PREFIX, ignore=shutil.ignore_patterns(MARK_FILE))
    assert await count_records(data_dir) == 7


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe", b'{"format": "streamhouse metadata progress 2"}'])
async def test_a_damaged_mark_refuses_nothing_and_is_replaced(tmp_path: Path, damage: bytes) -> None:
    data_dir = tmp_path / "data"
    async with StreamHouse.open(data_dir=str(data_dir)) as sh:
        await sh.create_topic("orders", 1)
        await write(sh, 3)
    (data_dir / "wal" / MARK_FILE).write_bytes(damage)
    assert await count_records(data_dir) == 3
    mark = Mark.from_bytes((data_dir / "wal" / MARK_FILE).read_bytes())
    assert mark is not None
    assert mark.watermarks == {("orders", 0): 3}


async def test_the_documented_way_to_go_on_with_the_older_copy(tmp_path: Path) -> None:
    """The marks are deleted by hand, and the WAL, which holds nothing below the copy's end, is kept."""
    data_dir, copy = tmp_path / "data", tmp_path / "copy.db"
    await write_around_a_copy(data_dir, copy, durability="object")
    put_back(copy, data_dir)
    (data_dir / "wal" / MARK_FILE).unlink()
    shutil.rmtree(data_dir / "objects" / PREFIX)
    assert await count_records(data_dir, durability="object") >= 3


async def test_one_mark_is_kept_in_the_object_store(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    for start in range(3):
        async with StreamHouse.open(data_dir=str(data_dir)) as sh:
            if start == 0:
                await sh.create_topic("orders", 1)
            await write(sh, 1)
    assert len(list((data_dir / "objects" / PREFIX).iterdir())) == 1


async def test_a_store_without_records_has_no_marks(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        await sh.create_topic("orders", 1)
    assert not (tmp_path / "objects" / PREFIX).exists()
    assert not (tmp_path / "wal" / MARK_FILE).exists()


async def test_postgresql_has_no_marks(tmp_path: Path, postgres_database: str) -> None:
    """A fail-over there may lose commits, and the log opens all the same (R23)."""
    async with StreamHouse.open(data_dir=str(tmp_path), metadata_url=postgres_database) as sh:
        await sh.create_topic("orders", 1)
        await sh.agent.wait_leading((await sh.topic("orders")).partition_keys(), timeout_s=30)
        await write(sh, 1)
    assert not (tmp_path / "objects" / PREFIX).exists()
    assert not (tmp_path / "wal" / MARK_FILE).exists()


def test_a_mark_is_read_as_it_was_written() -> None:
    mark = Mark(
        progress=7, cluster_id=SystemRandomness().uuid(), at_ms=1_700_000_000_000, watermarks={("a", 0): 5, ("ü", 1): 0}
    )
    assert Mark.from_bytes(mark.to_bytes()) == mark
