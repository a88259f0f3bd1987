"""R11: a disk that fails ends acknowledgements at once and for good, and everybody hears of it."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Any

import pytest
from wal_fake_disk import FakeDisk
from wal_harness import PUMPS, SMALL, Gate, a_wal, add, add_many, contents, opened

from streamhouse.core.errors import WalFailed, WalOutcomeUnknown
from streamhouse.log.wal import TaskPump, ThreadPump, Wal
from streamhouse.log.wal.files import WalFiles
from streamhouse.log.wal.pump import Reports, SyncReport
from streamhouse.log.wal.state import PrepareSpare

pytestmark = pytest.mark.parametrize("kind", PUMPS)


async def until_failed(wal: Wal) -> None:
    """Keep it busy in every way: new files, emptied files, prepared ones."""
    failed = asyncio.Event()
    wal.on_failed(lambda failure: failed.set())
    while wal.health.ok:
        try:
            lsns = add_many(wal, 12)
            await wal.wait_synced(lsns[-1])
            wal.settle(lsns)
        except WalFailed:
            break
    await failed.wait()


async def test_r11_after_a_failed_fdatasync_nothing_is_acknowledged_any_more(kind: str) -> None:
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=PUMPS[kind]())
    heard: list[int] = []
    failures: list[WalFailed] = []
    wal.on_synced(heard.append)
    wal.on_failed(failures.append)
    await wal.wait_synced(add(wal, b"good"))
    disk.fail("fdatasync")
    lost = [add(wal, b"lost"), add(wal, b"lost too")]
    with pytest.raises(WalOutcomeUnknown, match=r"/fake failed: \[Errno 5\] EIO") as failure:
        await wal.wait_synced(lost[0])
    assert (failure.value.kafka_code, failure.value.retriable) == (20, True)
    assert [type(each) for each in failures] == [WalFailed]

    disk.fail_at.clear()  # the next fsync would succeed, and mean nothing
    syncs = disk.calls["fdatasync"]
    with pytest.raises(WalFailed, match="EIO") as refused:
        add(wal)
    assert (refused.value.kafka_code, type(refused.value)) == (56, WalFailed)
    with pytest.raises(WalOutcomeUnknown):
        await wal.wait_synced(lost[1])
    await wal.wait_synced(1)
    assert (heard, wal.synced_lsn) == ([1], 1)
    assert not wal.health.ok
    assert "EIO" in (wal.health.reason or "")
    await wal.close()
    assert (disk.calls["fdatasync"], disk.locked) == (syncs, False), "an fsync is never tried again"

    async with a_wal(disk.survivor(random.Random(0)), pump=PUMPS[kind]()) as (_, recovered):
        assert contents(recovered)[1] == b"good"


async def test_r11_a_frame_that_finds_the_disk_full_half_way_stops_acknowledgements(kind: str) -> None:
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=PUMPS[kind]())
    await wal.wait_synced(add(wal))
    disk.fail("pwritev", code=errno.ENOSPC)
    with pytest.raises(WalOutcomeUnknown, match=r"ENOSPC.*repair or replace the disk"):
        await wal.wait_synced(add(wal))
    assert wal.synced_lsn == 1
    await wal.close()


@pytest.mark.parametrize("operation", ["create", "rename", "sync_directory", "pwritev", "fdatasync", "remove"])
@pytest.mark.parametrize("after", [0, 1, 2, 5])
async def test_r11_whichever_call_fails_the_wal_does(kind: str, operation: str, after: int) -> None:
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=PUMPS[kind]())
    if operation == "remove":
        large = add(wal, bytes(40_000))
        await wal.wait_synced(large)
        wal.settle([large])
    if operation == "create":
        # Files are recycled here and rarely made; hold them all, so that more are needed.
        add(wal)
    disk.fail(operation, after=after, code=errno.EIO)
    heard: list[int] = []
    wal.on_synced(heard.append)
    if operation in ("create", "remove"):
        failed = asyncio.Event()
        wal.on_failed(lambda failure: failed.set())
        while wal.health.ok and not wal.is_full(60_000):
            lsn = add(wal, bytes(60_000))
            if operation == "remove":
                wal.settle([lsn])
            await asyncio.sleep(0.001)
        await failed.wait()
    else:
        await until_failed(wal)
    assert not wal.health.ok
    told = len(heard)
    disk.fail_at.clear()
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert len(heard) == told
    with pytest.raises(WalFailed):
        add(wal)
    await wal.close()
    assert not disk.locked


async def test_r11_every_waiter_is_told_and_none_hangs(kind: str) -> None:
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=PUMPS[kind]())
    disk.fail("pwritev")
    waiters = [asyncio.create_task(wal.wait_synced(lsn)) for lsn in add_many(wal, 50)]
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {WalOutcomeUnknown}
    await wal.close()


async def test_a_disk_that_fails_while_closing_is_not_hidden(kind: str) -> None:
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=PUMPS[kind]())
    add(wal)
    disk.fail("fdatasync")
    with pytest.raises(WalFailed, match="EIO"):
        await wal.close()
    assert not disk.locked
    with pytest.raises(WalFailed, match="EIO"):
        await wal.close()


async def test_an_error_nobody_foresaw_is_a_failure_too(kind: str) -> None:
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=PUMPS[kind]())

    def broken() -> None:
        raise RuntimeError("a bug in a driver")

    disk.before["pwritev"] = broken
    with pytest.raises(WalOutcomeUnknown, match="a bug in a driver"):
        await wal.wait_synced(add(wal))
    await wal.close()


async def test_r11_a_report_that_comes_late_is_not_believed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lane fails while the other's success is already on its way to the event loop."""
    heard: list[int] = []

    told: list[Reports] = []
    pump = PUMPS[kind]()
    start = pump.start

    def recording(files: WalFiles, reports: Reports, **given: Any) -> None:
        told.append(reports)
        start(files, reports, **given)

    monkeypatch.setattr(pump, "start", recording)
    wal, _ = await opened(FakeDisk(), pump=pump)
    wal.on_synced(heard.append)
    add(wal)
    told[0].on_failed(OSError(errno.EIO, "the other lane"))
    told[0].on_synced(SyncReport(lsn=1, generation=1, sync_seconds=0.0, longest_sync_seconds=0.0))
    assert (heard, wal.synced_lsn) == ([], 0)
    await wal.close()


async def test_r11_when_one_lane_fails_the_other_stops_too(kind: str) -> None:
    """The tidying lane fails during a sync: that sync is not reported, and what waits behind it is not written."""
    disk, gate = FakeDisk(), Gate()
    pump = ThreadPump() if kind == "thread" else TaskPump(pause=gate.pause)
    wal, _ = await opened(disk, pump=pump)
    heard: list[int] = []
    failed = asyncio.Event()
    wal.on_synced(heard.append)
    wal.on_failed(lambda failure: failed.set())
    if kind == "thread":
        disk.before["fdatasync"] = gate.block
    add(wal, b"in the sync")
    await gate.wait_reached()
    writes = disk.calls["pwritev"]
    add(wal, b"behind it")
    disk.fail("create")
    pump.add_chore(PrepareSpare(number=99, size_bytes=SMALL.file_bytes))
    if kind == "thread":
        await failed.wait()
    gate.opened.set()
    await failed.wait()
    await wal.close()
    assert (disk.calls["pwritev"], heard) == (writes, [])
