"""What the WAL needs of a disk. local_disk.py is the real implementation; the simulator and tests have their own.

Every call blocks and is made by a pump, never by the event loop. Failures are OSError. A crash may undo, and a
simulated disk should undo:

    written, not fdatasynced      any part of it, in any order
    created, renamed, removed     until sync_directory returns

Must not import os: in this package only local_disk.py uses the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streamhouse.wire.buffers import BytesLike


class WalFile(Protocol):
    """One file, open for writing. It stays the same file when it is renamed."""

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> None:
        """Write all of the buffers, one after the other, or raise."""
        ...

    def fdatasync(self) -> None:
        """If it fails, what was written counts as lost: a second call may succeed without having written anything."""
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
        """The name for messages."""
        ...

    def lock(self) -> None:
        """Make the directory if it does not exist, and lock it for this process. Raises WalInUse."""
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
        """The whole file, read-only. The view stays valid when the file is renamed or removed."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync_directory(self) -> None:
        """Make every create, rename and remove so far durable."""
        ...
