"""The pump of a real process: two threads, what each waits for, and how both end."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest
from wal_fake_disk import FakeDisk
from wal_harness import Gate, PumpBench, a_wal, add, add_many

from streamhouse.log.wal.files import NoRoomError
from streamhouse.log.wal.state import PrepareSpare
from streamhouse.log.wal.thread_pump import ThreadPump


async def test_no_thread_outlives_its_wal(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    async with a_wal(tmp_path) as (wal, _):
        await wal.wait_synced(add(wal))
        assert {thread.name for thread in set(threading.enumerate()) - before} >= {"wal-writer", "wal-tidier"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wal-")]


async def test_appending_never_blocks_on_a_disk_that_hangs() -> None:
    disk, gate = FakeDisk(), Gate()
    async with a_wal(disk) as (wal, _):
        for operation in ("fdatasync", "create", "rename"):
            disk.before[operation] = gate.block
        lsns = add_many(wal, 100)
        wal.settle(lsns[:50])
        assert (wal.synced_lsn, len(lsns), wal.health.ok) == (0, 100, True)
        gate.opened.set()
        await wal.wait_synced(lsns[-1])


SPARE = PrepareSpare(number=5, size_bytes=PumpBench.FILE_BYTES)


async def test_reports_come_on_the_event_loop() -> None:
    bench = PumpBench(ThreadPump())
    bench.add(b"one")
    bench.pump.add_chore(SPARE)
    await bench.until(lambda: bool(bench.synced and bench.room))
    assert bench.threads == {threading.current_thread().name}
    assert bench.written() == b"one"
    await bench.pump.stop()


async def test_a_file_waits_for_the_spare_that_the_other_thread_makes_and_takes_it() -> None:
    bench, gate = PumpBench(ThreadPump()), Gate()
    bench.disk.before["create"] = gate.block
    bench.pump.add_chore(SPARE)
    bench.add_file(spare=5)
    bench.add(b"in the spare")
    await gate.wait_reached()
    assert bench.synced == []
    gate.opened.set()
    await bench.until(lambda: bench.synced == [1])
    assert bench.written(2) == b"in the spare"
    assert bench.room == [(5, True)], "no other file was made"
    assert bench.disk.calls["create"] == 2
    await bench.pump.stop()


async def test_a_file_whose_spare_found_no_room_is_made_without_it() -> None:
    bench = PumpBench(ThreadPump())
    bench.disk.fail("create", code=errno.ENOSPC)
    bench.pump.add_chore(SPARE)
    bench.add_file(spare=5)
    bench.add(b"late")
    await bench.until(lambda: (None, False) in bench.room)
    assert (bench.room[0], bench.synced) == ((5, False), [])
    bench.disk.fail_at.clear()
    await bench.until(lambda: bench.synced == [1])
    assert (bench.written(2), bench.room[-1], bench.failures) == (b"late", (None, True), [])
    await bench.pump.stop()


async def test_frames_before_a_file_that_cannot_be_made_are_synced_without_it() -> None:
    bench, gate = PumpBench(ThreadPump()), Gate()
    bench.disk.before["pwritev"] = gate.block
    bench.add(b"first")
    await gate.wait_reached()
    bench.disk.fail("create", code=errno.ENOSPC)
    bench.add(b" before")
    bench.add_file()
    bench.add(b"behind")
    gate.opened.set()
    await bench.until(lambda: bench.room.count((None, False)) == 3)
    assert (bench.synced, bench.written(1)) == ([1, 2], b"first before")
    bench.disk.fail_at.clear()
    await bench.until(lambda: bench.synced == [1, 2, 3])
    await bench.pump.stop()


async def test_a_stop_writes_what_is_queued_and_ends_both_threads() -> None:
    before = set(threading.enumerate())
    bench, gate = PumpBench(ThreadPump()), Gate()
    bench.disk.before["fdatasync"] = gate.block
    bench.add(b"one ")
    await gate.wait_reached()
    bench.add(b"two")
    stopping = asyncio.create_task(bench.pump.stop())
    gate.opened.set()
    await stopping
    assert bench.written() == b"one two"
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("wal-")]


async def test_a_stop_does_not_wait_for_room() -> None:
    bench = PumpBench(ThreadPump())
    bench.disk.fail("create", code=errno.ENOSPC)
    bench.add_file()
    bench.add()
    await bench.until(lambda: (None, False) in bench.room)
    await bench.pump.stop()
    await bench.until(lambda: bool(bench.failures))
    assert [type(each) for each in bench.failures] == [NoRoomError]


@pytest.mark.parametrize("operation", ["fdatasync", "create"])
async def test_r11_the_first_failure_of_either_thread_is_told_once_and_ends_both(operation: str) -> None:
    """The writer waits for a spare that is never made, or the other thread for a chore that never comes."""
    bench = PumpBench(ThreadPump())
    bench.disk.fail(operation)
    if operation == "create":
        bench.add_file(spare=5)
        bench.add()
        bench.pump.add_chore(SPARE)
    else:
        bench.add()
    await bench.until(lambda: bool(bench.failures))
    bench.disk.fail_at.clear()
    bench.add()
    bench.pump.add_chore(SPARE)
    await bench.pump.stop()
    assert [str(each) for each in bench.failures] == ["[Errno 5] EIO"]
    assert (bench.synced, bench.room) == ([], [])


async def test_a_loop_that_was_closed_is_not_called_any_more() -> None:
    """A process that ends without closing its WAL: its threads must not complain about the loop that is gone."""
    pump = ThreadPump()
    told: list[int] = []
    pump._loop = asyncio.new_event_loop()
    pump._loop.close()
    pump._post(told.append, 1)
    assert told == []
