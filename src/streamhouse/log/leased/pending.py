"""A batch between its offsets and its commit, and who waits for it. No IO, no awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from streamhouse.log.leased.waiters import fail
from streamhouse.wire.batch import BatchHeader


@dataclass(slots=True, kw_only=True, eq=False)
class Pending:
    """A batch that has its offsets and is not committed yet."""

    base_offset: int
    next_offset: int
    data: bytearray | memoryview
    """The batch with offset and epoch patched in; nobody changes it from here on."""
    header: BatchHeader
    lsn: int
    acks: int
    appended_ms: int
    timestamp_ms: int
    waits_for_commit: bool
    done: asyncio.Future[None] | None
    """None once it is acknowledged, and for a replayed batch: nobody waits. A batch lives on until its commit, and what
    it need not keep is spared the garbage collector."""
    acknowledged: bool = False
    refused: bool = False
    """Its producer was told that it was not written: now, or, of a replayed batch, by an earlier leadership."""
    repeats: tuple[asyncio.Future[None], ...] = ()
    """Who sent it again meanwhile."""

    def repeat(self) -> asyncio.Future[None]:
        """For one who sent it again: done with the batch, whatever becomes of those who waited before."""
        future = asyncio.get_running_loop().create_future()
        if self.acknowledged:
            future.set_result(None)
        else:
            self.repeats = (*(each for each in self.repeats if not each.done()), future)
        return future

    def acknowledge(self) -> None:
        self.acknowledged = True
        done, self.done = self.done, None
        if done is not None and not done.done():
            done.set_result(None)
        if self.repeats:
            repeats, self.repeats = self.repeats, ()
            for future in repeats:
                if not future.done():
                    future.set_result(None)

    def fail(self, error: Exception) -> None:
        if self.acknowledged:
            return
        self.refused = self.refused or self.done is not None
        repeats, self.repeats = self.repeats, ()
        for future in repeats if self.done is None else (self.done, *repeats):
            fail(future, error)


def lsns_of(batches: Sequence[Pending]) -> list[int]:
    return [batch.lsn for batch in batches]
