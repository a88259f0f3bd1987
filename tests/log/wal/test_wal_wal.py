"""Appending, syncing, settling: the same on a real thread with real files and on a task with a simulated disk."""

from __future__ import annotations

import asyncio

import pytest
from wal_fake_disk import FakeDisk
from wal_harness import PUMPS, SMALL, Gate, Place, a_wal, add, add_many, contents, opened

from streamhouse.core.errors import (
    BackPressureRejected,
    InvalidRequest,
    LimitExceeded,
    WalFailed,
)
from streamhouse.core.limits import KIB
from streamhouse.log.wal import Pump, TaskPump, ThreadPump, WalOptions


async def test_lsns_count_up_from_one_and_are_synced(place: Place) -> None:
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, _):
        lsns = add_many(wal, 40)
        assert lsns == list(range(1, 41))
        await wal.wait_synced(40)
        assert wal.synced_lsn == 40
        await wal.wait_synced(7)


async def test_every_pump_and_disk_leaves_the_same_log(place: Place) -> None:
    disk, pump = place()
    batches = [bytes([number]) * (number * 997 % 6000) for number in range(80)]
    async with a_wal(disk, pump=pump) as (wal, _):
        for number, batch in enumerate(batches):
            add(wal, memoryview(batch) if number % 2 else batch, offset=number)
            if number % 9 == 0:
                await asyncio.sleep(0)
        wal.settle(range(1, 31))
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, recovered):
        found = contents(recovered)
        assert {lsn: batch for lsn, batch in found.items() if lsn > 30} == dict(
            zip(range(31, 81), batches[30:], strict=True)
        )
        assert add(wal) == 83, "two marks: one of the clean stop, one of the start"


async def test_the_loop_hears_of_each_sync_once_and_before_those_who_wait(place: Place) -> None:
    disk, pump = place()
    heard: list[object] = []
    async with a_wal(disk, pump=pump) as (wal, _):
        wal.on_synced(heard.append)

        async def wait(lsn: int) -> None:
            await wal.wait_synced(lsn)
            heard.append(f"waiter of {lsn}")

        for _ in range(3):
            lsn = add(wal)
            await wait(lsn)
        assert heard == [1, "waiter of 1", 2, "waiter of 2", 3, "waiter of 3"]
        assert wal.metrics.syncs == 3


async def test_a_callback_that_fails_disturbs_nobody(place: Place) -> None:
    disk, pump = place()
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    heard: list[int] = []

    def broken(lsn: int) -> None:
        raise ValueError(lsn)

    async with a_wal(disk, pump=pump) as (wal, _):
        wal.on_synced(broken)
        wal.on_synced(heard.append)
        await wal.wait_synced(add(wal))
        assert (heard, wal.health.ok) == ([1], True)
    assert [context["message"] for context in complaints] == ["a WAL callback failed"] * 2


async def test_waiters_may_give_up_and_may_not_ask_for_the_future(place: Place) -> None:
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, _):
        impatient = asyncio.create_task(wal.wait_synced(add(wal)))
        await asyncio.sleep(0)
        impatient.cancel()
        await wal.wait_synced(add(wal))
        assert impatient.cancelled()
        with pytest.raises(InvalidRequest, match="LSN 3 was never assigned"):
            await wal.wait_synced(3)


@pytest.mark.parametrize("kind", PUMPS)
async def test_s3_14_what_arrives_during_one_sync_shares_the_next(kind: str) -> None:
    disk, gate = FakeDisk(), Gate()
    pump: Pump = ThreadPump() if kind == "thread" else TaskPump(pause=gate.pause)
    async with a_wal(disk, pump=pump) as (wal, _):
        if kind == "thread":
            disk.before["fdatasync"] = gate.block
        first = add(wal)
        await gate.wait_reached()
        later = add_many(wal, 10, size_bytes=500)
        assert (wal.synced_lsn, wal.metrics.syncs) == (0, 0)
        gate.opened.set()
        await wal.wait_synced(later[-1])
        assert (first, wal.synced_lsn, wal.metrics.syncs) == (1, 11, 2)


@pytest.mark.parametrize("kind", PUMPS)
async def test_s3_14_with_a_batch_age_appends_wait_for_company(kind: str) -> None:
    patient = WalOptions(file_bytes=16 * KIB, max_bytes=256 * KIB, max_batch_age_ms=400)
    async with a_wal(FakeDisk(), pump=PUMPS[kind](), options=patient) as (wal, _):
        add(wal)
        await asyncio.sleep(0.02)
        await wal.wait_synced(add(wal))
        assert wal.metrics.syncs == 1


class TestLazyFrames:
    async def test_s3_14_a_lazy_frame_is_synced_although_nothing_follows_it(self, place: Place) -> None:
        disk, pump = place()
        async with a_wal(disk, pump=pump) as (wal, _):
            synced = asyncio.Event()
            wal.on_synced(lambda _: synced.set())
            lsns = [add(wal, lazy=True) for _ in range(50)]
            async with asyncio.timeout(60):
                while wal.synced_lsn < lsns[-1]:
                    synced.clear()
                    await synced.wait()
            assert wal.metrics.syncs <= 2, "they share a sync"

    async def test_a_frame_that_is_not_lazy_takes_those_before_it_along(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("streamhouse.log.wal.wal.LAZY_SYNC_MS", 3_600_000)
        disk, pump = place()
        async with a_wal(disk, pump=pump) as (wal, _):
            add(wal, lazy=True)
            synced = asyncio.get_running_loop().create_future()
            wal.on_synced(lambda lsn: lsn == 2 and not synced.done() and synced.set_result(None))
            add(wal)
            async with asyncio.timeout(60):
                await synced

    async def test_waiting_for_a_lazy_frame_starts_its_write(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("streamhouse.log.wal.wal.LAZY_SYNC_MS", 3_600_000)
        disk, pump = place()
        async with a_wal(disk, pump=pump) as (wal, _):
            lsn = add(wal, lazy=True)
            async with asyncio.timeout(60):
                await wal.wait_synced(lsn)

    async def test_a_close_writes_lazy_frames(self, place: Place) -> None:
        disk, pump = place()
        async with a_wal(disk, pump=pump) as (wal, _):
            add(wal, b"lazy", lazy=True)
        disk, pump = place()
        async with a_wal(disk, pump=pump) as (_, recovered):
            assert b"lazy" in contents(recovered).values()

    async def test_lazy_frames_go_through_all_files(self, place: Place) -> None:
        disk, pump = place()
        batches = [bytes([number]) * 3000 for number in range(40)]
        async with a_wal(disk, pump=pump) as (wal, _):
            for number, batch in enumerate(batches):
                add(wal, batch, offset=number, lazy=number % 7 != 0)
                if number % 9 == 0:
                    await asyncio.sleep(0)
            assert wal.metrics.log_files > 3
        disk, pump = place()
        async with a_wal(disk, pump=pump) as (_, recovered):
            assert [each for each in contents(recovered).values() if each] == batches


async def test_r11_a_full_log_pushes_back_before_an_lsn_is_assigned(place: Place) -> None:
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, _):
        lsns: list[int] = []
        while not wal.is_full(1000):
            lsns.append(add(wal, bytes(1000)))
        with pytest.raises(BackPressureRejected, match="the write-ahead log is full"):
            add(wal, bytes(1000))
        await wal.wait_synced(lsns[-1])
        assert wal.metrics.disk_bytes <= SMALL.max_bytes
        wal.settle(lsns[:20])
        assert not wal.is_full(1000)
        assert add(wal, bytes(1000)) == lsns[-1] + 1
        wal.settle(lsns)


async def test_r11_a_batch_that_can_never_fit_is_refused_for_good(place: Place) -> None:
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, _):
        assert not wal.is_full(256 * KIB), "there is nothing to wait for"
        with pytest.raises(LimitExceeded, match="does not fit into the write-ahead log"):
            add(wal, bytes(256 * KIB))
        with pytest.raises(InvalidRequest, match="acks 5"):
            wal.append(topic_id=wal.wal_id, partition=0, epoch=0, base_offset=0, timestamp_ms=0, acks=5, batch=b"x")  # type: ignore[arg-type]
        assert add(wal) == 1, "nothing was assigned"


async def test_batches_larger_than_a_file_come_back(place: Place) -> None:
    disk, pump = place()
    sizes = [100, 100 * KIB, 100, 20 * KIB, 100]
    async with a_wal(disk, pump=pump) as (wal, _):
        for number, size_bytes in enumerate(sizes):
            add(wal, bytes([number]) * size_bytes)
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, recovered):
        found = contents(recovered)
        assert list(found.values()) == [bytes([number]) * size for number, size in enumerate(sizes)]
        wal.settle(found)


async def test_r12_recycled_files_never_bring_back_their_past(place: Place) -> None:
    """Many times round the same few files; then only what was not settled is there, each batch once."""
    for life in range(3):
        disk, pump = place()
        async with a_wal(disk, pump=pump) as (wal, recovered):
            found = contents(recovered)
            if life:
                assert list(found.values())[-5:] == [b"last %d" % number for number in range(5)]
                assert len(found) < 20, "one file's worth"
                wal.settle(found)
            for _ in range(30):
                lsns = add_many(wal, 12, size_bytes=1100)
                await wal.wait_synced(lsns[-1])
                wal.settle(lsns)
            for number in range(5):
                add(wal, b"last %d" % number)
            assert wal.metrics.files_recycled > 20
            assert wal.metrics.files_created <= 4


async def test_s3_14_files_stay_while_one_frame_is_unsettled(place: Place) -> None:
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, _):
        lsns = add_many(wal, 60)
        await wal.wait_synced(lsns[-1])
        held = wal.metrics.log_files
        wal.settle(reversed(lsns[1:]))
        assert (wal.metrics.log_files, wal.oldest_unsettled_lsn) == (held, lsns[0])
        assert wal.unsettled_bytes == 1104
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, recovered):
        assert list(contents(recovered)) == lsns
        wal.settle(lsns[:1])
        assert wal.metrics.log_files == held + 1, "what was settled in an earlier run is not known here"
        wal.settle(lsns)
        assert (wal.metrics.log_files, wal.unsettled_bytes) == (1, 0)


async def test_frames_may_be_settled_before_they_are_synced(place: Place) -> None:
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, _):
        for _ in range(20):
            wal.settle(add_many(wal, 12))
        last = add(wal, b"kept")
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (_, recovered):
        assert contents(recovered)[last] == b"kept"


async def test_metrics_count(place: Place) -> None:
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, _):
        lsns = add_many(wal, 3)
        await wal.wait_synced(lsns[-1])
        metrics = wal.metrics
        assert (metrics.frames, metrics.bytes, metrics.unsettled_bytes) == (3, 3 * 1104, 3 * 1104)
        assert 1 <= metrics.syncs <= 3
        assert 0 <= metrics.sync_seconds_max <= metrics.sync_seconds_total
        assert (metrics.log_files, metrics.spare_files, metrics.disk_bytes) == (1, 1, 2 * SMALL.file_bytes)


async def test_closing_syncs_what_is_queued_and_frees_the_directory(place: Place) -> None:
    disk, pump = place()
    wal, _ = await opened(disk, pump=pump)
    lsns = add_many(wal, 40)
    await asyncio.gather(wal.close(), wal.close())
    await wal.close()
    assert wal.synced_lsn > lsns[-1]
    with pytest.raises(WalFailed, match="is closed"):
        add(wal)
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (_, recovered):
        assert list(contents(recovered)) == lsns


async def test_batches_that_are_not_settled_are_read_back_from_any_file(place: Place) -> None:
    disk, pump = place()
    async with a_wal(disk, pump=pump) as (wal, _):
        lsns = add_many(wal, 60)  # several files of 16 KiB
        await wal.wait_synced(lsns[-1])
        wal.settle([3, 59])
        wanted = [60, 2, 31, 17, 58]
        found = await wal.read_batches(wanted)
        assert {lsn: batch[:6] for lsn, batch in found.items()} == {lsn: b"%06d" % (lsn - 1) for lsn in wanted}
        assert all(len(batch) == 1000 for batch in found.values())
        assert await wal.read_batches([]) == {}
        with pytest.raises(InvalidRequest, match="frame 3 was settled"):
            await wal.read_batches([2, 3])


async def test_a_waiter_is_woken_by_the_sync_of_its_own_frame_and_not_by_an_earlier_one() -> None:
    disk_answers: asyncio.Queue[None] = asyncio.Queue()
    async with a_wal(FakeDisk(), pump=TaskPump(pause=disk_answers.get)) as (wal, _):
        early = add(wal)
        for _ in range(5):
            await asyncio.sleep(0)  # its sync is under way, so the others get the next one
        late = [add(wal), add(wal)]
        waiting = [asyncio.create_task(wal.wait_synced(lsn)) for lsn in (late[1], early, late[0])]
        disk_answers.put_nowait(None)
        await waiting[1]
        await asyncio.sleep(0)
        assert [each.done() for each in waiting] == [False, True, False]
        for _ in range(3):  # the last one is for the mark of the clean stop
            disk_answers.put_nowait(None)
        await asyncio.gather(*waiting)
