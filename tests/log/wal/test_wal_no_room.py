"""R11: a disk without room for another WAL file. Writes are refused before anything is assigned, what there is stays,
and writes are taken again without a restart when there is room."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from wal_fake_disk import FakeDisk
from wal_harness import ON_REAL_FILES, PUMPS, SMALL, a_wal, add, contents, opened

from streamhouse.core.errors import BackPressureRejected, WalFailed, WalOutcomeUnknown
from streamhouse.log.wal import LocalDisk, Wal
from streamhouse.log.wal.state import PrepareSpare, Retire, WalState

SOON = replace(SMALL, room_pause_ms=5)
FULL = [errno.ENOSPC, errno.EDQUOT]


class Told:
    """What a WAL says about its room."""

    def __init__(self, wal: Wal) -> None:
        self.heard: list[BackPressureRejected | None] = []
        self.failures: list[WalFailed] = []
        self._changed = asyncio.Event()
        wal.on_room(self._hear)
        wal.on_failed(self.failures.append)

    def _hear(self, problem: BackPressureRejected | None) -> None:
        self.heard.append(problem)
        self._changed.set()

    async def until(self, condition: Callable[[], bool], *, look_every_s: float | None = None) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), look_every_s)


def fill(wal: Wal, size_bytes: int = 4000) -> tuple[list[int], BackPressureRejected]:
    """Append until it is refused."""
    lsns: list[int] = []
    while True:
        try:
            lsns.append(add(wal, bytes(size_bytes), offset=len(lsns)))
        except BackPressureRejected as refusal:
            return lsns, refusal


@pytest.mark.parametrize("code", FULL)
@pytest.mark.parametrize("kind", PUMPS)
async def test_r11_a_missing_spare_is_no_failure_and_writes_go_on_until_the_file_is_full(kind: str, code: int) -> None:
    disk = FakeDisk()
    disk.fail("create", code=code, after=2)  # the id and the first file can be made, a spare cannot
    async with a_wal(disk, pump=PUMPS[kind](), options=SOON) as (wal, _):
        told = Told(wal)
        await told.until(lambda: len(told.heard) >= 3)
        assert wal.health.ok
        assert wal.health.no_room is not None
        lsns, refusal = fill(wal)
        await wal.wait_synced(lsns[-1])
        assert len(lsns) == 2, "the present file was used up"
        assert "/fake, which needs 16384 bytes (16KiB)" in str(refusal)
        assert "free space on that disk" in str(refusal)
        assert (refusal.kafka_code, refusal.retriable) == (19, True)
        assert wal.is_full(4000)
        assert not wal.is_full(100), "a small batch still finds its place"
        before = wal.metrics
        assert (before.frames, before.files_not_made >= 3, before.spare_files) == (2, True, 0)

        disk.fail_at.clear()
        await told.until(lambda: told.heard[-1] is None)
        assert wal.health.no_room is None
        more = [add(wal, bytes(4000)) for _ in range(2)]
        assert more == [3, 4], "what was refused had been given nothing"
        await wal.wait_synced(more[-1])
    assert not told.failures
    async with a_wal(disk, pump=PUMPS[kind]()) as (_, recovered):
        assert sorted(contents(recovered)) == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", PUMPS)
async def test_r11_frames_with_a_place_in_a_file_that_cannot_be_made_wait_and_nothing_is_taken_behind_them(
    kind: str,
) -> None:
    """They were taken while the spare was on order, or are larger than any spare."""
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=PUMPS[kind](), options=replace(SOON, max_spare_files=0))
    told = Told(wal)
    before = add(wal, b"before it")
    disk.fail("create", code=errno.ENOSPC)
    large = add(wal, bytes(30_000))
    await told.until(lambda: len(told.heard) >= 2)
    with pytest.raises(BackPressureRejected, match="needs 34304 bytes"):
        add(wal, b"small enough for any file")
    await wal.wait_synced(before)
    assert wal.synced_lsn == before
    assert wal.health.ok

    disk.fail_at.clear()
    await wal.wait_synced(large)
    await told.until(lambda: told.heard[-1] is None)
    await wal.wait_synced(add(wal, b"after it"))
    await wal.close()
    assert not told.failures
    async with a_wal(disk.survivor(random.Random(1)), pump=PUMPS[kind]()) as (_, recovered):
        assert [len(batch) for batch in contents(recovered).values()] == [9, 30_000, 8]


@pytest.mark.parametrize("operation", ["create", "pwritev", "fdatasync", "rename"])
@pytest.mark.parametrize("kind", PUMPS)
async def test_r12_a_file_whose_opening_found_no_room_is_opened_again_from_its_beginning(
    kind: str, operation: str
) -> None:
    """Copy-on-write file systems want room even for what is reserved. No frame was in that file yet."""
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=PUMPS[kind](), options=replace(SOON, max_spare_files=0))
    told = Told(wal)
    await wal.wait_synced(add(wal, bytes(10_000)))
    disk.fail(operation, code=errno.ENOSPC)
    second = add(wal, bytes(10_000))
    await told.until(lambda: len(told.heard) >= 2)
    with pytest.raises(BackPressureRejected):
        add(wal, b"it would fit into the file that is not there")
    disk.fail_at.clear()
    await wal.wait_synced(second)
    await wal.close()
    assert not told.failures
    assert not [name for name in disk.names if name.endswith(".new")]
    async with a_wal(disk.survivor(random.Random(2)), pump=PUMPS[kind]()) as (_, recovered):
        assert sorted(contents(recovered)) == [1, 2]


@pytest.mark.parametrize("kind", PUMPS)
async def test_a_recycled_file_ends_the_refusals_although_none_can_be_made(kind: str) -> None:
    disk = FakeDisk()
    async with a_wal(disk, pump=PUMPS[kind](), options=SOON) as (wal, _):
        told = Told(wal)
        while wal.metrics.log_files < 2:
            await wal.wait_synced(add(wal, bytes(4000)))
        # A frame that got its place in a spare before that could not be made would wait for it. So let the next spare
        # be made, fail the one after it, and write on only when that is known.
        await told.until(lambda: any(name.endswith(".spare") for name in disk.names), look_every_s=0.001)
        disk.fail("create", code=errno.ENOSPC)
        lsns = []
        while wal.metrics.log_files < 3:
            lsns.append(add(wal, bytes(4000)))
            await wal.wait_synced(lsns[-1])
        await told.until(lambda: wal.health.no_room is not None, look_every_s=0.001)
        while not wal.is_full(4000):
            lsns.append(add(wal, bytes(4000)))
        await wal.wait_synced(lsns[-1])
        wal.settle(range(1, lsns[-1] + 1))
        await told.until(lambda: told.heard[-1] is None)
        await wal.wait_synced(add(wal, bytes(4000)))
        assert not told.failures


@pytest.mark.parametrize("kind", PUMPS)
async def test_spares_and_settled_files_make_room_for_a_file_that_frames_wait_for(kind: str) -> None:
    """The disk takes a file only after another one is gone."""
    disk = FakeDisk()
    async with a_wal(disk, pump=PUMPS[kind](), options=SOON) as (wal, _):
        told = Told(wal)
        await told.until(lambda: any(name.endswith(".spare") for name in disk.names), look_every_s=0.001)
        disk.fail("create", code=errno.ENOSPC)
        removed = asyncio.Event()

        loop = asyncio.get_running_loop()
        disk.before["remove"] = lambda: (loop.call_soon_threadsafe(removed.set), None)[1]
        large = add(wal, bytes(30_000))
        async with asyncio.timeout(30):
            await removed.wait()
        disk.fail_at.clear()
        await wal.wait_synced(large)
        await told.until(lambda: told.heard[-1] is None)
        assert not told.failures


@pytest.mark.parametrize("kind", PUMPS)
async def test_a_stop_does_not_wait_for_room_and_says_what_it_does_not_know(kind: str) -> None:
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=PUMPS[kind](), options=replace(SOON, max_spare_files=0))
    told = Told(wal)
    disk.fail("create", code=errno.ENOSPC)
    waiting = asyncio.create_task(wal.wait_synced(add(wal, bytes(30_000))))
    await told.until(lambda: len(told.heard) >= 2)
    with pytest.raises(WalFailed):
        async with asyncio.timeout(30):
            await wal.close()
    with pytest.raises(WalOutcomeUnknown, match="ENOSPC"):
        await waiting
    assert not disk.locked
    assert len(told.failures) == 1


@pytest.mark.parametrize("kind", PUMPS)
async def test_a_stop_that_finds_the_disk_full_does_not_wait_either(kind: str) -> None:
    disk = FakeDisk()
    wal, _ = await opened(disk, pump=PUMPS[kind](), options=replace(SOON, max_spare_files=0))
    disk.fail("create", code=errno.ENOSPC)
    add(wal, bytes(30_000))
    with pytest.raises(WalFailed):
        async with asyncio.timeout(30):
            await wal.close()
    assert not disk.locked


async def test_a_start_without_room_says_how_much_it_needs_and_where(tmp_path: Path) -> None:
    disk = FakeDisk()
    disk.fail("create", code=errno.ENOSPC, after=1)
    with pytest.raises(WalFailed, match=r"/fake.*16384 bytes \(16KiB\).*ENOSPC.*free space"):
        await opened(disk, options=SOON)
    assert not disk.locked


@pytest.mark.parametrize("kind", ON_REAL_FILES)
async def test_on_a_real_disk_refused_writes_come_back_with_every_pump(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = False
    reserve = os.posix_fallocate

    def fallocate(fd: int, offset: int, length: int) -> None:
        if full:
            os.pwrite(fd, b"\0" * 512, 0)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    async with a_wal(tmp_path / "wal", pump=ON_REAL_FILES[kind](), options=SOON) as (wal, _):
        told = Told(wal)
        lsns = [add(wal, bytes(4000))]
        full = True
        while wal.health.no_room is None or not wal.is_full(4000):
            if not wal.is_full(4000):
                lsns.append(add(wal, bytes(4000)))
            await asyncio.sleep(0.002)
        await wal.wait_synced(lsns[0])
        assert wal.health.ok
        left = [path.name for path in (tmp_path / "wal").glob("*.new")]
        full = False
        await told.until(lambda: told.heard[-1] is None)
        lsns.append(add(wal, b"there is room again"))
        await wal.wait_synced(lsns[-1])
        assert not told.failures
    assert len(left) <= 1, "a file that could not be made is removed; one may be under way"
    assert not list((tmp_path / "wal").glob("*.new"))
    async with a_wal(tmp_path / "wal", pump=ON_REAL_FILES[kind]()) as (_, recovered):
        assert sorted(contents(recovered)) == lsns


def test_too_little_free_space_is_found_before_any_of_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalDisk(tmp_path)
    found = os.statvfs(tmp_path)
    little = os.statvfs_result((found.f_bsize, 512, 100, 50, 20, *tuple(found)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: little)
    with pytest.raises(OSError, match="No space left") as failure:
        disk.create("00000000000000000001.spare.new", 20 * 512 + 1)
    assert failure.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())
    disk.create("00000000000000000001.spare.new", 20 * 512)


def test_while_there_may_be_no_room_no_frame_is_planned_for_a_spare_that_is_not_made() -> None:
    state = WalState(SMALL, next_lsn=1, next_generation=1, spares=[], next_spare=1)
    state.open_file(state.plan_first_file())
    (order,) = state.chores()
    assert isinstance(order, PrepareSpare)
    state.spare_not_made(order.number, "no room")
    assert state.chores() == []
    again = state.try_for_room()
    assert again is not None
    assert state.try_for_room() is None, "one attempt at a time"
    state.assign(11_000)
    with pytest.raises(BackPressureRejected, match="no room"):
        state.plan_file(8_000)
    state.spare_made(again.number)
    new = state.plan_file(8_000)
    assert new is not None
    assert new.spare == again.number


def test_while_frames_wait_for_a_file_settled_files_are_removed_and_not_kept_as_spares() -> None:
    state = WalState(SMALL, next_lsn=1, next_generation=1, spares=[], next_spare=1)
    for _ in range(3):
        new = state.plan_first_file()
        state.open_file(replace(new, spare=None))
        state.assign(11_000)
    state.synced(3, generation=3)
    state.file_not_made("no room")
    state.settle([1])
    assert state.chores() == [Retire(generation=1, becomes_spare=None)]
    state.file_made()
    state.settle([2])
    assert state.chores() == [Retire(generation=2, becomes_spare=1)]
