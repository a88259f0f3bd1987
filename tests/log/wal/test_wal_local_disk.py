"""The real disk: whole writes, whole files, one owner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamhouse.core.errors import WalInUse
from streamhouse.core.limits import MAX_WAL_IOVECS, MIB
from streamhouse.log.wal import Listed, LocalDisk


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    disk = LocalDisk(tmp_path / "data" / "wal")
    disk.lock()
    return disk


def test_a_file_is_made_of_zeros_with_all_its_blocks(disk: LocalDisk) -> None:
    disk.create("a", 3 * MIB + 5)
    path = Path(disk.place) / "a"
    assert path.read_bytes() == bytes(3 * MIB + 5)
    assert path.stat().st_blocks * 512 >= 3 * MIB, "no holes"
    with pytest.raises(FileExistsError):
        disk.create("a", 10)


def test_more_buffers_than_one_call_takes_are_written_in_order(disk: LocalDisk) -> None:
    buffers = [b"%07d" % number for number in range(2 * MAX_WAL_IOVECS + 3)]
    disk.create("a", 100_000)
    file = disk.open("a")
    file.pwritev([*buffers, b"", bytearray(b"end"), memoryview(b"...")], 11)
    file.fdatasync()
    file.close()
    written = bytes(disk.read("a"))
    expected = b"".join(buffers) + b"end..."
    assert written == bytes(11) + expected + bytes(100_000 - 11 - len(expected))


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_a_short_write_is_continued_where_it_stopped(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    whole = os.pwritev

    def short(fd: int, buffers: Sequence[bytes], position: int) -> int:
        return whole(fd, [b"".join(map(bytes, buffers))[:most]], position)

    disk.create("a", 64)
    monkeypatch.setattr(os, "pwritev", short)
    file = disk.open("a")
    file.pwritev([b"abc", b"", b"defgh", memoryview(b"ij")], 5)
    file.close()
    assert bytes(disk.read("a")) == bytes(5) + b"abcdefghij" + bytes(49)


def test_a_disk_that_takes_nothing_is_an_error_and_no_endless_loop(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.create("a", 64)
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, position: 0)
    file = disk.open("a")
    with pytest.raises(OSError, match="took nothing"):
        file.pwritev([b"abc"], 0)
    file.close()


def test_an_open_file_and_a_view_outlive_rename_and_removal(disk: LocalDisk) -> None:
    disk.create("a", 10)
    file = disk.open("a")
    view = disk.read("a")
    disk.rename("a", "b")
    file.pwritev([b"x"], 0)
    file.close()
    assert bytes(view) == b"x" + bytes(9)
    disk.remove("b")
    disk.sync_directory()
    assert bytes(view) == b"x" + bytes(9)
    assert disk.listing() == []


def test_lists_plain_files_with_their_sizes(disk: LocalDisk) -> None:
    disk.create("a", 10)
    disk.create("b", 1)
    (Path(disk.place) / "lost+found").mkdir()
    assert sorted(disk.listing(), key=lambda listed: listed.name) == [
        Listed(name="a", size_bytes=10),
        Listed(name="b", size_bytes=1),
    ]


def test_an_empty_file_can_be_read(disk: LocalDisk) -> None:
    (Path(disk.place) / "empty").touch()
    assert bytes(disk.read("empty")) == b""


def test_r2_a_directory_has_one_owner(disk: LocalDisk) -> None:
    second = LocalDisk(Path(disk.place))
    with pytest.raises(WalInUse, match=f"in use by process {os.getpid()}"):
        second.lock()
    disk.unlock()
    disk.unlock()
    second.lock()
