"""What the WAL asks of a disk. One real implementation (local_disk.py); simulators and tests bring their own.

Every call blocks and is made by a pump, never by the event loop's own code. Failures are OSError. What a crash may
undo, and a simulated disk should undo:

    written, not fdatasynced      any part of it, in any order
    created, renamed, removed     until sync_directory returns

Owns the protocol. Must not import os: nothing in this package but local_disk.py touches the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streamhouse.wire.buffers import BytesLike


class WalFile(Protocol):
    """One file, open for writing. It stays the same file when it is renamed."""

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> None:
        """Write all of the buffers, one behind the other, or raise."""
        ...

    def fdatasync(self) -> None:
        """Once it failed, what was written is lost for good: a second call may succeed and mean nothing."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    name: str
    size_bytes: int


class Disk(Protocol):
    """One directory that holds one WAL."""

    @property
    def place(self) -> str:
        """For messages."""
        ...

    def lock(self) -> None:
        """Make the directory if there is none, and take it for this process. Raises WalInUse."""
        ...

    def unlock(self) -> None: ...

    def listing(self) -> Sequence[Listed]:
        """Plain files, in any order."""
        ...

    def create(self, name: str, size_bytes: int) -> None:
        """A file of zeros, every block written and synced, so that later fdatasyncs have no metadata to write.

        If it fails, no file is left.
        """
        ...

    def open(self, name: str) -> WalFile: ...

    def read(self, name: str) -> memoryview:
        """The whole file, read-only. The view stays good when the file is renamed or removed."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync_directory(self) -> None:
        """Make every create, rename and remove so far durable."""
        ...
