"""The pump of the simulator: the steps of the real one, in a task that exists only while there is work."""

from __future__ import annotations

import asyncio
import errno

import pytest
from wal_harness import PumpBench, hang

from streamhouse.log.wal.files import NoRoomError
from streamhouse.log.wal.state import PrepareSpare, Retire
from streamhouse.log.wal.task_pump import TaskPump

SPARE = PrepareSpare(number=5, size_bytes=PumpBench.FILE_BYTES)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_queued_together_is_written_in_order_and_synced_once() -> None:
    bench = PumpBench(TaskPump())
    for data in (b"one ", b"two ", b"three"):
        bench.add(data)
    assert (bench.written(), bench.synced) == (b"", []), "the caller is never held up"
    await bench.until(lambda: bool(bench.synced))
    assert (bench.written(), bench.synced) == (b"one two three", [3])


async def test_a_task_exists_only_while_there_is_something_to_do() -> None:
    pump = TaskPump()
    bench = PumpBench(pump)
    states = [pump.task and pump.task.done()]
    for _ in range(2):
        await bench.until_synced(bench.add())
        await turns()
        states.append(pump.task and pump.task.done())
    assert states == [None, True, True]


async def test_frames_of_two_files_are_one_sync_and_land_each_in_its_own() -> None:
    bench = PumpBench(TaskPump())
    bench.add(b"old")
    bench.add_file()
    bench.add(b"new")
    await bench.until(lambda: bench.synced == [2])
    assert (bench.written(1), bench.written(2)) == (b"old", b"new")
    assert bench.room == [(None, True)], "the file had to be made"


async def test_a_killed_pump_writes_and_reports_nothing_more() -> None:
    pump = TaskPump(pause=hang)
    bench = PumpBench(pump)
    bench.add(b"in the page cache")
    await turns()
    pump.kill()
    bench.add(b"never written")
    await turns()
    assert pump.task is not None
    assert pump.task.cancelled()
    assert (bench.written(), bench.synced, bench.failures) == (b"", [], [])


async def test_r11_a_report_that_is_under_way_when_the_process_dies_does_not_arrive() -> None:
    pump = TaskPump()
    bench = PumpBench(pump)

    def die_soon() -> None:
        asyncio.get_running_loop().call_soon(pump.kill)

    bench.disk.before["fdatasync"] = die_soon
    bench.add(b"synced")
    await turns()
    assert (bench.written(), bench.synced) == (b"synced", [])


async def test_r11_a_failure_is_told_once_and_ends_the_pump() -> None:
    bench = PumpBench(TaskPump())
    bench.disk.fail("fdatasync")
    bench.add()
    await bench.until(lambda: bool(bench.failures))
    bench.disk.fail_at.clear()
    bench.add()
    bench.pump.add_chore(SPARE)
    await turns()
    assert (len(bench.failures), bench.synced, bench.room) == (1, [], [])
    await bench.pump.stop()


async def test_a_spare_is_made_or_its_want_of_room_is_told_and_nothing_fails() -> None:
    bench = PumpBench(TaskPump())
    bench.disk.fail("create", code=errno.ENOSPC)
    bench.pump.add_chore(SPARE)
    await bench.until(lambda: bench.room == [(5, False)])
    bench.disk.fail_at.clear()
    bench.pump.add_chore(SPARE)
    await bench.until(lambda: bench.room == [(5, False), (5, True)])
    bench.add()
    await bench.until(lambda: bench.synced == [1])
    assert bench.failures == []


async def test_frames_wait_for_a_file_that_cannot_be_made_and_those_before_it_do_not() -> None:
    bench = PumpBench(TaskPump())
    bench.disk.fail("create", code=errno.ENOSPC)
    bench.add(b"before")
    bench.add_file()
    bench.add(b"behind")
    await bench.until(lambda: bench.room.count((None, False)) == 3)
    assert (bench.synced, bench.written(1)) == ([1], b"before")
    bench.disk.fail_at.clear()
    await bench.until(lambda: bench.synced == [1, 2])
    assert (bench.written(2), bench.room[-1]) == (b"behind", (None, True))


async def test_housekeeping_goes_on_while_frames_wait_for_room() -> None:
    """It is what makes room."""
    bench = PumpBench(TaskPump())
    bench.disk.fail("create", code=errno.ENOSPC)
    bench.add_file()
    bench.add()
    await bench.until(lambda: bool(bench.room))
    bench.pump.add_chore(Retire(generation=1, becomes_spare=None))
    await bench.until(lambda: len(bench.room) > 3)
    assert "00000000000000000001.wal" not in bench.disk.names
    bench.disk.fail_at.clear()
    await bench.until(lambda: bench.synced == [1])


async def test_a_stop_writes_what_is_queued_and_does_not_wait_for_room() -> None:
    bench = PumpBench(TaskPump())
    bench.add(b"queued")
    await bench.pump.stop()
    assert bench.written() == b"queued"
    full = PumpBench(TaskPump())
    full.disk.fail("create", code=errno.ENOSPC)
    full.add_file()
    full.add()
    await full.pump.stop()
    await full.until(lambda: bool(full.failures))
    assert [type(each) for each in full.failures] == [NoRoomError]


@pytest.mark.parametrize("age_ms", [0, 50])
async def test_with_a_batch_age_frames_that_come_later_share_the_first_sync(age_ms: int) -> None:
    bench = PumpBench(TaskPump(), max_batch_age_ms=age_ms)
    bench.add()
    await turns(5)
    bench.add()
    await bench.until(lambda: bench.synced[-1:] == [2])
    assert bench.synced == ([2] if age_ms else [1, 2])


async def test_a_lazy_frame_alone_is_not_written_until_the_pump_is_told_to_hurry() -> None:
    bench = PumpBench(TaskPump())
    bench.add(b"lazy ", lazy=True)
    await turns()
    assert (bench.written(), bench.synced) == (b"", [])
    bench.pump.hurry()
    await bench.until(lambda: bench.synced == [1])
    bench.pump.hurry()
    await turns()
    assert bench.synced == [1], "there was nothing to write"
