"""The disk of a simulated machine (log/wal/disk.py), with the crashes that real disks have.

    kill          the process is gone, the page cache is not: everything written is there, synced or not
    power cut     of what was written since a file's last sync any sectors survive, of the directory's changes since its
                  last sync any first few (a journal is replayed from its beginning)
    wipe          all is gone, as on a machine that was replaced
    rot           a bit flips in what had been synced

Disks also fail while in use: a full disk, a sync that fails and forgets what it should have written. Pure except for
the dice; the pump simulates the latency of a sync.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from simulator.dice import Dice
from streamhouse.core.errors import WalInUse
from streamhouse.log.wal.disk import Listed
from streamhouse.wire.buffers import BytesLike

_SECTOR_BYTES = 512


class _Inode:
    """``data`` is what processes see; sectors in ``dirty`` still have their old content on the platter."""

    __slots__ = ("data", "dirty")

    def __init__(self, size_bytes: int) -> None:
        self.data = bytearray(size_bytes)
        self.dirty: dict[int, bytes] = {}

    def write(self, data: bytes, position: int) -> None:
        end = position + len(data)
        if end > len(self.data):
            raise AssertionError(
                f"a write of {len(data)} bytes at {position} goes beyond the {len(self.data)} reserved"
            )
        for sector in range(position // _SECTOR_BYTES, -(-end // _SECTOR_BYTES)):
            if sector not in self.dirty:
                start = sector * _SECTOR_BYTES
                self.dirty[sector] = bytes(self.data[start : start + _SECTOR_BYTES])
        self.data[position:end] = data

    def sync(self) -> None:
        self.dirty.clear()

    def lose_unsynced(self, dice: Dice) -> None:
        keep = dice.pick((0.0, 0.0, 0.3, 0.8, 1.0))
        for sector, old in self.dirty.items():
            if not dice.chance(keep):
                start = sector * _SECTOR_BYTES
                self.data[start : start + len(old)] = old
        self.dirty.clear()


class _File:
    __slots__ = ("_disk", "_inode", "_lock")

    def __init__(self, disk: SimDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._lock = disk.lock_number

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> None:
        data = b"".join(buffers)
        self._disk.require(self._lock)
        if self._disk.failing == "write":
            self._inode.write(data[: len(data) // 2], position)
        self._disk.fail_if("write")
        self._inode.write(data, position)

    def fdatasync(self) -> None:
        self._disk.require(self._lock)
        if self._disk.failing == "sync":
            self._inode.lose_unsynced(self._disk.dice)  # as Linux does: the pages count as clean afterwards
        self._disk.fail_if("sync")
        self._inode.sync()

    def close(self) -> None:
        pass


class SimDisk:
    """One machine's. ``failing`` makes one kind of operation fail: "write", "sync" or "create"."""

    def __init__(self, place: str, dice: Dice) -> None:
        self.place = place
        self.dice = dice
        self.failing = ""
        self.lock_number = 0
        self._locked = False
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._changes: list[Callable[[dict[str, _Inode]], object]] = []

    # What happens to it.

    def process_died(self) -> None:
        """Frees the lock; from here on no handle of the dead process writes any more."""
        self._locked = False
        self.lock_number += 1
        if self.failing != "create":  # a full disk is full for the next process too
            self.failing = ""

    def power_cut(self) -> None:
        names = dict(self._durable_names)
        for change in self._changes[: self.dice.between(0, len(self._changes))]:
            change(names)
        for inode in names.values():
            inode.lose_unsynced(self.dice)
        self._names, self._durable_names = names, dict(names)
        self._changes.clear()

    def wipe(self) -> None:
        self._names, self._durable_names = {}, {}
        self._changes.clear()

    def rot(self) -> None:
        """One bit, in the first half of a log file, where the frames are."""
        files = [inode for name, inode in sorted(self._names.items()) if name.endswith(".wal")]
        if files:
            inode = self.dice.pick(files)
            inode.data[self.dice.below(len(inode.data))] ^= 1 << self.dice.below(8)

    # What the WAL does with it.

    def lock(self) -> None:
        if self._locked:
            raise WalInUse(f"the write-ahead log in {self.place} is in use")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def listing(self) -> Sequence[Listed]:
        return [Listed(name=name, size_bytes=len(inode.data)) for name, inode in self._names.items()]

    def create(self, name: str, size_bytes: int) -> None:
        self.fail_if("create")
        assert name not in self._names, f"{name} exists"
        inode = _Inode(size_bytes)
        self._change(lambda names: names.__setitem__(name, inode))

    def open(self, name: str) -> _File:
        return _File(self, self._names[name])

    def read(self, name: str) -> memoryview:
        return memoryview(bytes(self._names[name].data))

    def rename(self, old: str, new: str) -> None:
        assert new not in self._names, f"{new} exists"
        self._change(lambda names: names.__setitem__(new, names.pop(old)))

    def remove(self, name: str) -> None:
        self._change(lambda names: names.pop(name))

    def sync_directory(self) -> None:
        self._durable_names = dict(self._names)
        self._changes.clear()

    def require(self, lock_number: int) -> None:
        assert lock_number == self.lock_number, f"a dead process writes to {self.place}"

    def fail_if(self, operation: str) -> None:
        if self.failing == operation:
            code = errno.ENOSPC if operation == "create" else errno.EIO
            raise OSError(code, errno.errorcode[code])

    def _change(self, change: Callable[[dict[str, _Inode]], object]) -> None:
        change(self._names)
        self._changes.append(change)
