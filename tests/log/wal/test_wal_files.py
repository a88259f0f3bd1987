"""The orders of the state on a disk: each step durable before the next, and nothing changed when there is no room."""

from __future__ import annotations

import errno
import random
from uuid import UUID

import pytest
from wal_fake_disk import FakeDisk, PowerCut

from streamhouse.core.clock import ManualClock
from streamhouse.formats.wal_frame_v1 import FILE_HEADER_BYTES, read_file_header
from streamhouse.log.wal.files import FrameRun, NoRoomError, WalFiles
from streamhouse.log.wal.names import log_name, spare_name
from streamhouse.log.wal.state import NewFile, PrepareSpare, RemoveSpare, Retire

WAL_ID = UUID(int=7)
SIZE = 8192


def files_on(disk: FakeDisk, *, spares: tuple[int, ...] = ()) -> WalFiles:
    for number in spares:
        disk.create(spare_name(number), SIZE)
    disk.sync_directory()
    return WalFiles(disk, wal_id=WAL_ID, clock=ManualClock(), ready_spares=spares)


def new_file(generation: int = 1, *, spare: int | None = None, first_lsn: int = 1) -> NewFile:
    return NewFile(generation=generation, first_lsn=first_lsn, size_bytes=SIZE, spare=spare)


def run(data: bytes, *, position: int = FILE_HEADER_BYTES, lsn: int = 1) -> FrameRun:
    return FrameRun(opens=None, position=position, buffers=[data], last_lsn=lsn)


def content(disk: FakeDisk, name: str) -> bytes:
    return bytes(disk.names[name].data)


@pytest.mark.parametrize("spare", [None, 3])
def test_r12_a_file_has_a_durable_header_before_it_has_its_name(spare: int | None) -> None:
    """Whatever a power cut undoes, a log file without an intact header is never there."""
    for cut_at in range(12):
        for seed in range(10):
            disk = FakeDisk()
            files = files_on(disk, spares=() if spare is None else (spare,))
            disk.operations_left = cut_at
            try:
                made = files.open_new(new_file(9, spare=spare, first_lsn=40))
            except PowerCut:
                disk.operations_left = 0
            else:
                assert made is (spare is None)
                assert log_name(9) in disk.durable_names
            after = disk.survivor(random.Random(seed))
            if log_name(9) in after.names:
                header = read_file_header(content(after, log_name(9)))
                assert (header.wal_id, header.generation, header.first_lsn) == (WAL_ID, 9, 40)


def test_what_is_written_is_durable_after_the_sync_and_not_before() -> None:
    disk = FakeDisk()
    files = files_on(disk)
    files.open_new(new_file())
    files.write(run(b"frames"))
    inode = disk.names[log_name(1)]
    span = slice(FILE_HEADER_BYTES, FILE_HEADER_BYTES + 6)
    assert (bytes(inode.data[span]), bytes(inode.durable[span])) == (b"frames", bytes(6))
    files.sync()
    assert bytes(inode.durable[span]) == b"frames"


def test_r12_an_earlier_file_is_synced_before_a_later_one() -> None:
    """Else a power cut could leave frames behind a hole."""
    disk = FakeDisk()
    files = files_on(disk)
    files.open_new(new_file(1))
    files.write(run(b"one"))
    files.open_new(new_file(2, first_lsn=2))
    files.write(run(b"two", lsn=2))
    first, second = disk.names[log_name(1)], disk.names[log_name(2)]
    disk.fail("fdatasync", after=1)
    with pytest.raises(OSError, match="EIO"):
        files.sync()
    assert bytes(first.durable[FILE_HEADER_BYTES:][:3]) == b"one"
    assert bytes(second.durable[FILE_HEADER_BYTES:][:3]) == bytes(3)
    assert files.generation == 2


def test_a_sync_closes_the_files_that_take_no_more_frames() -> None:
    disk = FakeDisk()
    files = files_on(disk)
    opened = []
    for generation in (1, 2, 3):
        files.open_new(new_file(generation, first_lsn=generation))
        opened.append(files.active)
    files.sync()
    assert [each.closed for each in opened] == [True, True, False]  # type: ignore[attr-defined]
    files.sync()
    files.close()
    assert all(each.closed for each in opened)  # type: ignore[attr-defined]


def test_a_settled_file_becomes_a_spare_or_goes() -> None:
    disk = FakeDisk()
    files = files_on(disk)
    for generation in (1, 2, 3):
        files.open_new(new_file(generation, first_lsn=generation))
    files.do_chore(Retire(generation=1, becomes_spare=5))
    files.do_chore(Retire(generation=2, becomes_spare=None))
    assert set(disk.durable_names) == {spare_name(5), log_name(3)}
    assert files.is_ready(new_file(4, spare=5))
    assert not files.open_new(new_file(4, spare=5, first_lsn=4)), "no file had to be made"
    assert set(disk.durable_names) == {log_name(3), log_name(4)}


def test_a_file_waits_for_the_spare_that_was_ordered_for_it() -> None:
    files = files_on(FakeDisk())
    assert files.is_ready(new_file(spare=None))
    assert not files.is_ready(new_file(spare=1))
    files.do_chore(PrepareSpare(number=1, size_bytes=SIZE))
    assert files.is_ready(new_file(spare=1))
    files.do_chore(RemoveSpare(number=1))
    assert not files.is_ready(new_file(spare=1))


@pytest.mark.parametrize("operation", ["create", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_r11_a_spare_without_room_leaves_nothing_behind_and_its_file_is_made_when_it_is_needed(
    operation: str, code: int
) -> None:
    disk = FakeDisk()
    files = files_on(disk)
    disk.fail(operation, code=code)
    with pytest.raises(NoRoomError) as caught:
        files.do_chore(PrepareSpare(number=1, size_bytes=SIZE))
    assert caught.value.size_bytes == SIZE
    assert disk.names == {}
    assert files.is_ready(new_file(spare=1)), "there is nothing to wait for"
    with pytest.raises(NoRoomError):
        files.open_new(new_file(spare=1))
    assert disk.names == {}
    disk.fail_at.clear()
    assert files.open_new(new_file(spare=1)), "made without the spare"
    assert set(disk.durable_names) == {log_name(1)}
    assert not files.is_ready(new_file(2, spare=1)), "the number may be ordered again"


@pytest.mark.parametrize("by_a_chore", [True, False])
def test_a_spare_that_is_not_wanted_any_more_is_not_taken_for_missing(by_a_chore: bool) -> None:
    disk = FakeDisk()
    files = files_on(disk)
    disk.fail("create", code=errno.ENOSPC)
    with pytest.raises(NoRoomError):
        files.do_chore(PrepareSpare(number=1, size_bytes=SIZE))
    if by_a_chore:
        files.do_chore(RemoveSpare(number=1))
    else:
        files.forget_missing(1)
    assert not files.is_ready(new_file(spare=1))


def test_r11_a_spare_stays_a_spare_when_there_is_no_room_to_open_it() -> None:
    disk = FakeDisk()
    files = files_on(disk, spares=(3,))
    disk.fail("rename", code=errno.ENOSPC)
    with pytest.raises(NoRoomError):
        files.open_new(new_file(spare=3))
    assert set(disk.names) == {spare_name(3)}
    disk.fail_at.clear()
    assert not files.open_new(new_file(spare=3))
    assert set(disk.names) == {log_name(1)}


def test_r11_every_other_error_is_no_want_of_room() -> None:
    disk = FakeDisk()
    files = files_on(disk)
    disk.fail("create", code=errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        files.open_new(new_file())
    with pytest.raises(OSError, match="EIO"):
        files.do_chore(PrepareSpare(number=1, size_bytes=SIZE))
