"""Trapdoors on the write path: the process stops or dies by its own hand at a named point, the nth time it gets there.

A kill from outside hits any instant; a trap hits the narrow ones (between a commit and its reply, say) every time. Only
seams that the rooms offer each other are wrapped, so a trap never reaches into how a room does its work.

The WAL's disk can be made slow: an acknowledgement that does not wait for it then has the time to reach its client.
That, and the traps around a write, need the pump that is written in Python; the compiled one has no seam there, and is
caught just before and just after.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import wraps
from inspect import getattr_static
from typing import Any, Final

from streamhouse.log.wal import opening
from streamhouse.log.wal.local_disk import LocalDisk, LocalFile
from streamhouse.log.wal.wal import Wal
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.retries import RetryingStore

TRAP_VARIABLE: Final = "E2E_TRAP"
"""Armed from the first moment: "point:count:signal"."""

PUMP_VARIABLE: Final = "E2E_PUMP"
""""thread": without the compiled lane."""

WRITE_POINTS: Final = (
    "append.after",  # queued for the WAL
    "write.before",  # a batch of frames that only this process knows
    "write.after",  # with the kernel, not synced
    "rename.before",  # a file of the WAL is opened or recycled
    "rename.after",
    "synced.before",  # on the disk, and no client was told
    "synced.after",  # acknowledged, the answers hardly sent
    "put.before",
    "put.after",  # an object that nothing refers to
    "commit.before",
    "commit.after",  # committed, and this process has not heard of it
    "settle.before",
    "settle.after",
)
RECOVERY_POINTS: Final = (
    "acquire.after",  # a new epoch that no agent serves
    "producers.before",
    "producers.after",  # in the middle of opening partitions
)

_NEXT_TO_IT: Final = {"write.before": "append.after", "write.after": "synced.before"}
_MOST: Final = {"append": 40, "synced": 20, "write": 10, "rename": 1}


def some_count(point: str, rng: random.Random) -> int:
    """How often to let it pass: few seconds' worth of writing at most."""
    return rng.randint(1, _MOST.get(point.partition(".")[0], 4))


class Traps:
    def __init__(self) -> None:
        self.slow_disk_s = 0.0
        """What every write to the WAL takes longer."""
        self._compiled = opening.has_lanes() and os.environ.get(PUMP_VARIABLE) != "thread"
        self._point = ""
        self._count = 0
        self._signal = signal.SIGKILL

    def arm(self, point: str, *, count: int, signal_name: str) -> None:
        if point not in WRITE_POINTS + RECOVERY_POINTS:
            raise ValueError(f"there is no point {point!r}")
        if self._compiled:
            point = _NEXT_TO_IT.get(point, point)
        self._point, self._count, self._signal = point, count, signal.Signals[signal_name]

    def reached(self, point: str) -> None:
        if point != self._point:
            return
        self._count -= 1
        if self._count == 0:
            self._point = ""
            os.kill(os.getpid(), self._signal)

    def install(self) -> None:
        if not self._compiled:
            opening.has_lanes = lambda: False
        self._around(LocalFile, "pwritev", "write", slow=lambda: self.slow_disk_s)
        self._around(LocalDisk, "rename", "rename")
        self._around(Wal, "append", "append")
        self._around(Wal, "settle", "settle")
        self._around_async(RetryingStore, "put", "put")
        for store in (SqliteMetadata, PostgresMetadata):
            self._around_async(store, "commit_leased", "commit")
            self._around_async(store, "acquire_leases", "acquire")
            self._around_async(store, "load_producers", "producers")
        self._around_callbacks(Wal, "on_synced", "synced")

    def _around(self, owner: type, name: str, point: str, *, slow: Callable[[], float] = lambda: 0.0) -> None:
        inner = getattr(owner, name)

        @wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            time.sleep(slow())
            self.reached(f"{point}.before")
            result = inner(*args, **kwargs)
            self.reached(f"{point}.after")
            return result

        setattr(owner, name, outer)

    def _around_async(self, owner: type, name: str, point: str) -> None:
        inner = getattr_static(owner, name)  # a function, or a descriptor that makes one

        async def outer(subject: Any, *args: Any, **kwargs: Any) -> Any:
            self.reached(f"{point}.before")
            result = await inner.__get__(subject, owner)(*args, **kwargs)
            self.reached(f"{point}.after")
            return result

        setattr(owner, name, outer)

    def _around_callbacks(self, owner: type, name: str, point: str) -> None:
        """Set a trap at a method that registers a callback: the trap stands around each call of it."""
        inner = getattr(owner, name)

        @wraps(inner)
        def outer(subject: Any, callback: Callable[[Any], None]) -> None:
            def called(argument: Any) -> None:
                self.reached(f"{point}.before")
                callback(argument)
                self.reached(f"{point}.after")

            inner(subject, called)

        setattr(owner, name, outer)
