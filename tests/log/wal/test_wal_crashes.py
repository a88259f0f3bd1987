"""Power cuts at any point, over many lives of one disk, judged against a model without code of the WAL."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from wal_fake_disk import FakeDisk, PowerCut
from wal_harness import add, contents, opened

from streamhouse.core.errors import BackPressureRejected
from streamhouse.core.limits import KIB
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
