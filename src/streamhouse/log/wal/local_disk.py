"""The real disk: one directory of a local file system. The only module of the WAL that uses the operating system."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from streamhouse.core.errors import WalInUse
from streamhouse.core.limits import MAX_WAL_IOVECS, MIB
from streamhouse.log.wal.disk import Listed
from streamhouse.wire.buffers import BytesLike, byte_view

LOCK_FILE: Final = "wal.lock"
_ZEROS: Final = bytes(MIB)
# Linux has both; macOS, good enough for development, has neither of fdatasync and posix_fallocate.
_fdatasync: Final = getattr(os, "fdatasync", os.fsync)


class LocalFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> None:
        for first in range(0, len(buffers), MAX_WAL_IOVECS):
            position = _write_all(self._fd, buffers[first : first + MAX_WAL_IOVECS], position)

    def fdatasync(self) -> None:
        _fdatasync(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


class LocalDisk:
    def __init__(self, directory: Path) -> None:
        self.place = os.path.abspath(directory)
        self._lock_fd = -1

    def lock(self) -> None:
        _make_directory(self.place)
        fd = os.open(self._path(LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            os.close(fd)
            by = f"process {holder}" if holder else "another process"
            raise WalInUse(f"the write-ahead log in {self.place} is in use by {by}") from None
        except OSError:
            os.close(fd)
            raise
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def listing(self) -> Sequence[Listed]:
        with os.scandir(self.place) as entries:
            return [
                Listed(name=entry.name, size_bytes=entry.stat(follow_symlinks=False).st_size)
                for entry in entries
                if entry.is_file(follow_symlinks=False) and entry.name != LOCK_FILE
            ]

    def create(self, name: str, size_bytes: int) -> None:
        self._check_room(size_bytes)
        fd = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            # Reserving first finds a full disk before anything is written; the zeros then turn reserved blocks, which
            # every first write would have to convert, into plain ones.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size_bytes)
            for position in range(0, size_bytes, len(_ZEROS)):
                _write_all(fd, [memoryview(_ZEROS)[: size_bytes - position]], position)
            os.fsync(fd)
        except BaseException:
            os.unlink(self._path(name))  # other writers need what was reserved so far
            raise
        finally:
            os.close(fd)

    def _check_room(self, size_bytes: int) -> None:
        """Check before reserving: a failed attempt takes all the room for a moment, and other writers fail then."""
        found = os.statvfs(self.place)
        if found.f_bavail * found.f_frsize < size_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, name: str) -> LocalFile:
        return LocalFile(os.open(self._path(name), os.O_WRONLY | os.O_CLOEXEC))

    def read(self, name: str) -> memoryview:
        fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size == 0:  # which cannot be mapped
                return memoryview(b"")
            return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))

    def remove(self, name: str) -> None:
        os.unlink(self._path(name))

    def sync_directory(self) -> None:
        _sync_directory(self.place)

    def _path(self, name: str) -> str:
        return os.path.join(self.place, name)


def _write_all(fd: int, buffers: Sequence[BytesLike], position: int) -> int:
    """Returns the byte after the last one written."""
    rest: Sequence[BytesLike] = buffers
    while rest:
        written = os.pwritev(fd, rest, position)
        if written == 0 and any(map(len, rest)):
            raise OSError(errno.EIO, "the disk took nothing")
        position += written
        rest = _after(rest, written)
    return position


def _after(buffers: Sequence[BytesLike], written: int) -> Sequence[BytesLike]:
    """What a short write has left: one call writes at most 2 GiB, and may write less."""
    for index, buffer in enumerate(buffers):
        view = byte_view(buffer)
        if written < len(view):
            return [view[written:], *buffers[index + 1 :]]
        written -= len(view)
    return []


def _make_directory(path: str) -> None:
    """Make it with every missing parent; each is durable in its parent."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        os.makedirs(directory, exist_ok=True)
        _sync_directory(os.path.dirname(directory))


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
