"""Power cuts at any point, over many lives of one disk, judged against a model without code of the WAL; and rot."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from wal_fake_disk import FakeDisk, PowerCut
from wal_harness import a_wal, add, contents, opened

from streamhouse.core.errors import BackPressureRejected, CorruptFrame
from streamhouse.core.limits import KIB
from streamhouse.formats.wal_frame_v1 import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from streamhouse.log.wal import Recovered, TaskPump, Wal, WalOptions

TINY = WalOptions(file_bytes=8 * KIB, max_bytes=96 * KIB, max_spare_files=2)


class Model:
    """What must be true after a crash: all that was reported and not settled, and nothing that was never appended."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.appended: dict[int, bytes] = {}
        self.reported = 0
        self.settled: set[int] = set()
        self.serial = 0

    def check(self, recovered: Recovered) -> None:
        found = contents(recovered)
        assert recovered.frame_count == len(found)
        assert list(found) == sorted(found)
        for lsn, batch in found.items():
            assert batch == self.appended[lsn], f"LSN {lsn} came back with other bytes"
        wanted = {lsn for lsn in self.appended if lsn <= self.reported} - self.settled
        assert wanted <= found.keys(), "acknowledged and gone"
        # What did not come back was never reported, and its LSNs are free for others.
        last = max(found, default=self.reported)
        self.appended = {lsn: batch for lsn, batch in self.appended.items() if lsn <= max(last, self.reported)}

    def append(self, wal: Wal) -> None:
        self.serial += 1
        size_bytes = self.rng.choice([0, 30, 400, 3000, 9000])
        batch = b"%d:" % self.serial + self.rng.randbytes(size_bytes)
        try:
            lsn = add(wal, batch)
        except BackPressureRejected:
            wal.settle(self.settle_some(everything=True))
            return
        assert lsn > self.reported
        assert lsn not in self.appended, "an LSN given twice"
        self.appended[lsn] = batch

    def settle_some(self, *, everything: bool = False) -> list[int]:
        chosen = [lsn for lsn in self.appended if everything or self.rng.random() < 0.5]
        self.settled.update(chosen)
        return chosen


def cutting_pause(rng: random.Random) -> TaskPump:
    async def pause() -> None:
        for _ in range(rng.randint(0, 3)):
            await asyncio.sleep(0)

    return TaskPump(pause=pause)


async def hang() -> None:
    await asyncio.Event().wait()


async def live(disk: FakeDisk, model: Model) -> None:
    """One life of a process: recover, work, end one way or another."""
    rng = model.rng
    pump = cutting_pause(rng)
    wal, recovered = await opened(disk, pump=pump, options=TINY)
    model.check(recovered)
    assert wal.synced_lsn >= model.reported
    model.reported = wal.synced_lsn  # what was recovered is durable from now on

    def reported(lsn: int) -> None:
        model.reported = lsn

    wal.on_synced(reported)
    if rng.random() < 0.7:
        model.settled.update(contents(recovered))
        wal.settle(contents(recovered))
    for _ in range(rng.randint(0, 100)):
        if rng.random() < 0.7:
            model.append(wal)
        if rng.random() < 0.3:
            wal.settle(model.settle_some())
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    if rng.random() < 0.3 and disk.operations_left > 1000:
        await wal.close()
    pump.kill()
    if pump.task is not None:
        await asyncio.gather(pump.task, return_exceptions=True)


@pytest.mark.parametrize("start", range(8))
async def test_r12_no_power_cut_loses_or_resurrects_a_frame(start: int) -> None:
    for seed in range(start * 20, start * 20 + 20):
        rng = random.Random(seed)
        disk, model = FakeDisk(), Model(rng)
        for _ in range(8):
            if rng.random() < 0.5:
                disk.operations_left = rng.choice([rng.randint(0, 30), rng.randint(0, 300)])
            with suppress(PowerCut):
                await live(disk, model)
            disk = disk.survivor(rng)


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
