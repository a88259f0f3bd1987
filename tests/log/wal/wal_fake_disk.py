"""A disk in memory that forgets in a crash what was not synced, fails on demand, and can rot.

A crash keeps any part of what was written since a file's last sync, in sectors, and any part of the directory's changes
since its last sync: often the first few of them, as a journal would, and sometimes any that are possible without the
others. What is forgotten is gone for good. ``survivor`` is the disk as the next process finds it.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamhouse.core.errors import WalInUse
from streamhouse.log.wal import Listed
from streamhouse.wire.buffers import BytesLike, byte_view

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The machine went off in the middle of this call; nothing of it was done."""


class Inode:
    def __init__(self, size_bytes: int) -> None:
        self.data = bytearray(size_bytes)
        self.durable = bytearray(size_bytes)
        self.dirty: set[int] = set()

    def write(self, data: bytes, position: int) -> None:
        if position + len(data) > len(self.data):
            raise AssertionError(
                f"a write of {len(data)} bytes at {position} goes beyond the {len(self.data)} reserved"
            )
        self.data[position : position + len(data)] = data
        self.dirty.update(range(position // SECTOR_BYTES, -(-(position + len(data)) // SECTOR_BYTES)))

    def sync(self) -> None:
        for sector in self.dirty:
            self._persist(sector)
        self.dirty.clear()

    def crash(self, rng: random.Random) -> None:
        keep = rng.choice([0.0, 0.2, 0.8, 1.0])
        for sector in sorted(self.dirty):
            if rng.random() < keep:
                self._persist(sector)
        self.data = bytearray(self.durable)
        self.dirty.clear()

    def _persist(self, sector: int) -> None:
        span = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
        self.durable[span] = self.data[span]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameChange:
    old: str | None = None
    new: str | None = None
    created: Inode | None = None

    def apply(self, names: dict[str, Inode]) -> None:
        inode = self.created if self.old is None else names.pop(self.old, None)
        if inode is not None and self.new is not None:
            names[self.new] = inode


class FakeFile:
    def __init__(self, disk: FakeDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self.closed = False

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> None:
        assert not self.closed, "a write into a closed file"
        if position == 0:
            self._disk.check_name_is_durable(self._inode)
        data = b"".join(map(bytes, buffers))
        failure = self._disk.attempt("pwritev")
        if failure is not None:
            self._inode.write(data[: len(data) // 2], position)
            raise failure
        self._inode.write(data, position)

    def fdatasync(self) -> None:
        assert not self.closed, "a sync of a closed file"
        failure = self._disk.attempt("fdatasync")
        if failure is not None:
            self._inode.dirty.clear()  # as Linux does: the pages count as clean, and the next sync would succeed
            raise failure
        self._inode.sync()

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


class FakeDisk:
    place = "/fake"

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self._changes: list[NameChange] = []
        self._lock = threading.Lock()
        self.locked = False
        self.calls: dict[str, int] = {}
        self.fail_at: dict[str, tuple[int, OSError]] = {}
        """Operation → the number of the call from which on it fails, and how."""
        self.operations_left = 1 << 62
        """How many more calls there are until the machine goes off."""
        self.before: dict[str, Callable[[], None]] = {}
        """Operation → something that happens first: a wait, for instance."""

    def fail(self, operation: str, *, code: int = errno.EIO, after: int = 0) -> None:
        number = self.calls.get(operation, 0) + after
        self.fail_at[operation] = (number, OSError(code, errno.errorcode[code]))

    def attempt(self, operation: str) -> OSError | None:
        if operation in self.before:
            self.before[operation]()
        with self._lock:
            number = self.calls.get(operation, 0)
            self.calls[operation] = number + 1
            self.operations_left -= 1
        if self.operations_left < 0:
            raise PowerCut
        at, failure = self.fail_at.get(operation, (number + 1, None))
        return failure if number >= at else None

    def survivor(self, rng: random.Random) -> FakeDisk:
        names = dict(self.durable_names)
        first_few = self._changes[: rng.randint(0, len(self._changes))]
        any_of_them = [change for change in self._changes if rng.random() < 0.5]
        for change in rng.choice([first_few, any_of_them]):
            change.apply(names)
        after = FakeDisk()
        after.names = names
        after.durable_names = dict(names)
        for inode in {id(inode): inode for inode in names.values()}.values():
            inode.crash(rng)
        return after

    def check_name_is_durable(self, inode: Inode) -> None:
        """Else a crash would bring the new header back under the old name (R12)."""
        stale = [
            name for name, other in self.durable_names.items() if other is inode and self.names.get(name) is not inode
        ]
        assert not stale, f"a header is written into what a crash would still call {stale}"

    def rot(self, name: str, position: int, bit: int = 0) -> None:
        inode = self.names[name]
        inode.data[position] ^= 1 << bit
        inode.durable[position] ^= 1 << bit

    def log_files(self) -> list[str]:
        return sorted(name for name in self.names if name.endswith(".wal"))

    # The protocol.

    def lock(self) -> None:
        if self.locked:
            raise WalInUse(f"the write-ahead log in {self.place} is in use")
        self.locked = True

    def unlock(self) -> None:
        self.locked = False

    def listing(self) -> Sequence[Listed]:
        return [Listed(name=name, size_bytes=len(inode.data)) for name, inode in self.names.items()]

    def create(self, name: str, size_bytes: int) -> None:
        self._raise("create")
        assert name not in self.names, f"{name} exists"
        self._change(NameChange(new=name, created=Inode(size_bytes)))

    def open(self, name: str) -> FakeFile:
        return FakeFile(self, self.names[name])

    def read(self, name: str) -> memoryview:
        return byte_view(bytes(self.names[name].data))

    def rename(self, old: str, new: str) -> None:
        self._raise("rename")
        assert old in self.names, f"{old} is not there"
        assert new not in self.names, f"{new} exists"
        self._change(NameChange(old=old, new=new))

    def remove(self, name: str) -> None:
        self._raise("remove")
        assert name in self.names, f"{name} is not there"
        self._change(NameChange(old=name))

    def sync_directory(self) -> None:
        self._raise("sync_directory")
        with self._lock:
            self.durable_names = dict(self.names)
            self._changes.clear()

    def _change(self, change: NameChange) -> None:
        with self._lock:
            change.apply(self.names)
            self._changes.append(change)

    def _raise(self, operation: str) -> None:
        failure = self.attempt(operation)
        if failure is not None:
            raise failure
