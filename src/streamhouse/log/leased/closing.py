"""How long a stop waits for batches that are not committed yet.

Where the WAL is the durability, it holds everything, and the next start replays it. A stop waits for flushes while they
work, so that readers of objects see everything. It stops waiting as soon as the object store, the metadata store or the
WAL fails; without the WAL a flush may wait for a sync that never comes. In object mode a stop waits for the whole time
it is given: what only the WAL holds may have to be written again as new records, or is dropped (R4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from streamhouse.core.errors import StoreUnavailable
from streamhouse.core.tasks import retrieve
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.protocols import WriteAheadLog


@dataclass(slots=True, kw_only=True)
class Closing:
    wal: WriteAheadLog
    failing: asyncio.Event
    wal_is_durable: bool
    _deadline_s: float | None = None
    _wal_failed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.wal.on_failed(lambda failure: self._wal_failed.set())

    def limit(self, timeout_s: float) -> None:
        self._deadline_s = asyncio.get_running_loop().time() + timeout_s

    async def wait_for(self, partition: PartitionLog, flush: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Raises what the flush raises, or StoreUnavailable when the wait ends first."""
        if self._deadline_s is None or not partition.uncommitted():
            await flush()
            return
        flushing = asyncio.create_task(flush())
        flushing.add_done_callback(retrieve)
        given_up = asyncio.create_task(self._given_up(self._deadline_s))
        try:
            await asyncio.wait((flushing, given_up), return_when=asyncio.FIRST_COMPLETED)
            if flushing.done():
                flushing.result()
                return
        finally:
            flushing.cancel()
            given_up.cancel()
        uncommitted = partition.uncommitted()
        await self.wal.wait_synced(max((batch.lsn for batch in uncommitted), default=0))
        raise StoreUnavailable(
            f"{partition}: {len(uncommitted)} batches are not in the log; the write-ahead log keeps them",
            hint="start this agent again when the object store and the metadata store work",
        )

    async def _given_up(self, deadline_s: float) -> None:
        reasons = [self.failing, self._wal_failed] if self.wal_is_durable else []
        waits = [asyncio.create_task(reason.wait()) for reason in (*reasons, asyncio.Event())]
        try:
            await asyncio.wait(
                waits,
                timeout=max(0.0, deadline_s - asyncio.get_running_loop().time()),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()
