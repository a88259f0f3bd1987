"""What an earlier run left: every frame that was synced and not settled, and R12 on what is found damaged."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from wal_fake_disk import FakeDisk
from wal_harness import TOPIC, a_wal, add, add_many, contents, frames_of, hang, opened

from streamhouse.core.errors import (
    CorruptFrame,
)
from streamhouse.formats.wal_frame_v1 import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from streamhouse.log.wal import TaskPump
from streamhouse.log.wal.names import log_name


async def test_a_batch_that_was_damaged_on_the_disk_is_not_read_back(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        await wal.wait_synced(add_many(wal, 3)[-1])
        damage(tmp_path, b"000001")
        assert list(await wal.read_batches([1, 3])) == [1, 3]
        with pytest.raises(CorruptFrame, match="LSN 2"):
            await wal.read_batches([2])


def damage(directory: Path, batch: bytes) -> None:
    (file,) = [path for path in directory.glob("*.wal") if batch in path.read_bytes()]
    data = bytearray(file.read_bytes())
    data[data.index(batch) + 500] ^= 1
    file.write_bytes(data)


async def test_a_frame_comes_back_as_it_was(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, recovered):
        assert (recovered.frame_count, str(recovered)) == (0, "a new write-ahead log")
        lsn = wal.append(
            topic_id=TOPIC, partition=7, epoch=9, base_offset=1 << 40, timestamp_ms=123, acks=-1, batch=b"the batch"
        )
        wal_id = wal.wal_id
    async with a_wal(tmp_path) as (_, recovered):
        [frame] = frames_of(recovered)
        assert (frame.lsn, bytes(frame.payload)) == (lsn, b"the batch")
        assert (frame.topic_id, frame.partition, frame.epoch) == (TOPIC, 7, 9)
        assert (frame.base_offset, frame.timestamp_ms, frame.acks) == (1 << 40, 123, -1)
        assert (recovered.wal_id, frame.wal_id) == (wal_id, wal_id)
        assert str(recovered) == "write-ahead log recovered: 1 batches (9B) in 1 files"


async def test_what_is_recovered_is_in_lsn_order_over_all_files(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        lsns = add_many(wal, 60)
    async with a_wal(tmp_path) as (_, recovered):
        frames = frames_of(recovered)
        assert [frame.lsn for frame in frames] == lsns
        assert [frame.base_offset for frame in frames] == list(range(60))
        assert (recovered.frame_count, recovered.batch_bytes, recovered.file_count) == (60, 60_000, 6)


async def test_views_of_a_recovered_batch_outlive_its_file(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        add_many(wal, 5)
    async with a_wal(tmp_path) as (wal, recovered):
        frames = frames_of(recovered)
        wal.settle([frame.lsn for frame in frames])
        add_many(wal, 60)
    assert [bytes(frame.payload[:6]) for frame in frames] == [b"%06d" % number for number in range(5)]
    assert frames_of(recovered) == [], "the WAL itself has let go of it"


async def test_r12_a_renamed_file_is_refused(tmp_path: Path) -> None:
    async with a_wal(tmp_path):
        pass
    (tmp_path / log_name(1)).rename(tmp_path / log_name(4))
    with pytest.raises(CorruptFrame, match="its header is of generation 1, its name says 4"):
        await opened(tmp_path)


async def test_r12_a_log_file_without_an_intact_header_is_damage(tmp_path: Path) -> None:
    """Also where its frames are older than others', so that the scan alone would take it for an emptied one."""
    async with a_wal(tmp_path) as (wal, _):
        add_many(wal, 30)
    path = tmp_path / log_name(1)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFrame, match=r"0001\.wal: WAL file header.*do not start"):
        await opened(tmp_path)


async def test_r12_a_missing_file_in_the_middle_is_damage(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        for _ in range(3):
            await wal.wait_synced(add_many(wal, 12)[-1])
    (tmp_path / log_name(2)).unlink()
    with pytest.raises(CorruptFrame, match="had been synced"):
        await opened(tmp_path)


async def test_r12_what_was_recovered_is_synced_before_anyone_relies_on_it() -> None:
    """Killed with frames in the page cache only; replayed; then the power goes."""
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=(pump := TaskPump(pause=hang)))
    lsns = add_many(wal, 5)
    await asyncio.sleep(0)
    pump.kill()
    disk.unlock()
    second, recovered = await opened(disk, pump=TaskPump(pause=hang))
    assert list(contents(recovered)) == lsns
    disk = disk.survivor(random.Random(1))
    async with a_wal(disk, pump=TaskPump()) as (_, recovered):
        assert list(contents(recovered)) == lsns
    assert second.synced_lsn == lsns[-1]


async def test_r12_damage_to_what_was_recovered_is_noticed_at_the_next_start(tmp_path: Path) -> None:
    """Nothing was appended in between: the mark that opening leaves behind tells."""
    async with a_wal(tmp_path) as (wal, _):
        add_many(wal, 3)
    async with a_wal(tmp_path):
        pass
    path = tmp_path / log_name(1)
    data = bytearray(path.read_bytes())
    data[FILE_HEADER_BYTES + 500] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFrame, match="had been synced"):
        await opened(tmp_path)


async def test_r12_a_torn_end_is_cut_off_and_told() -> None:
    """The last sync's frames are covered by no later frame, so damage to them is what a crash leaves."""
    disk, positions = await written(9, group=3)
    [name] = disk.log_files()
    disk.rot(name, positions[7] + 200)
    async with a_wal(disk, pump=TaskPump()) as (wal, recovered):
        assert list(contents(recovered)) == [1, 2, 3, 4, 5, 6, 7]
        assert (recovered.torn_bytes, recovered.discarded_file_count) == (404, 0)
        assert "a torn end of 404B cut off" in str(recovered)
        again = add(wal, b"after")
        assert again == 9, "eight is the mark that what was recovered is synced"
    async with a_wal(disk, pump=TaskPump()) as (_, recovered):
        assert list(contents(recovered)) == [1, 2, 3, 4, 5, 6, 7, 9]
        assert recovered.torn_bytes == 0, "told once"


async def test_r12_files_behind_an_unsynced_break_are_discarded() -> None:
    """Three files in one sync that never returns; the first loses a sector, the others reach the disk."""
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=(pump := TaskPump(pause=hang)))
    lsns = [add(wal, bytes([number]) * 4000) for number in range(6)]
    await asyncio.sleep(0)
    pump.kill()
    names = disk.log_files()
    assert len(names) == 3
    for inode in disk.names.values():
        inode.sync()
    disk.rot(names[0], FILE_HEADER_BYTES + 5000)
    disk = disk.survivor(random.Random(0))
    async with a_wal(disk, pump=TaskPump()) as (wal, recovered):
        assert list(contents(recovered)) == lsns[:1]
        assert recovered.discarded_file_count == 2
        assert str(recovered).endswith("a torn end of 4104B cut off, 2 files behind it discarded")
        assert set(names[1:]).isdisjoint(disk.durable_names)
        assert add(wal) == lsns[1] + 1


async def written(count: int, *, group: int = 1, clean: bool = False) -> tuple[FakeDisk, list[int]]:
    """A disk after a crash or a clean stop, and where its frames of 300 bytes begin."""
    disk, pump = FakeDisk(), TaskPump()
    wal, _ = await opened(disk, pump=pump)
    for first in range(0, count, group):
        lsns = [add(wal, bytes([number]) * 300) for number in range(first, min(count, first + group))]
        await wal.wait_synced(lsns[-1])
    if clean:
        await wal.close()
    return disk.survivor(random.Random(0)), [FILE_HEADER_BYTES + number * 404 for number in range(count)]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("at", [0, 30, FRAME_HEADER_BYTES, 403])
async def test_r12_rot_in_what_a_later_frame_covers_refuses_to_start(number: int, at: int) -> None:
    disk, positions = await written(6)
    [name] = disk.log_files()
    disk.rot(name, positions[number] + at)
    with pytest.raises(
        CorruptFrame, match=rf"/fake/{name}: LSN {number + 1} at byte .* had been synced .*do not start"
    ):
        await opened(disk, pump=TaskPump())
    assert not disk.locked


@pytest.mark.parametrize("number", range(6))
async def test_r12_after_a_clean_stop_rot_anywhere_refuses_to_start(number: int) -> None:
    disk, positions = await written(6, clean=True)
    [name] = disk.log_files()
    disk.rot(name, positions[number] + 150)
    with pytest.raises(CorruptFrame, match="had been synced"):
        await opened(disk, pump=TaskPump())
