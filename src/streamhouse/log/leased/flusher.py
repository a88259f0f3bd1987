"""The flush loop: starts flushes when plan.py says that they are due, with a bound on those that run at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from streamhouse.core.clock import Clock
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.commit import Committer
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.plan import FlushRules, plan_flush


class Flusher:
    def __init__(
        self,
        committer: Committer,
        rules: FlushRules,
        *,
        clock: Clock,
        max_in_flight: int,
        max_chunk_bytes: int,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self.flushes = 0
        self._committer = committer
        self._rules = rules
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._max_chunk_bytes = max_chunk_bytes
        self._on_bug = on_bug
        self._enough_bytes = rules.enough_bytes(busy=False)
        self._dirty: dict[PartitionKey, PartitionLog] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._kick = asyncio.Event()
        self._last_flush_ms = -(2**62)
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def start(self) -> None:
        self._loop_task = asyncio.create_task(self._loop(), name="leased-flush-loop")
        self._loop_task.add_done_callback(self._loop_ended)

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._loop_task] if self._loop_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def grew(self, partition: PartitionLog) -> None:
        """A batch was added. Wakes the loop only if a flush may be due earlier now."""
        first = not self._dirty
        if not partition.dirty:
            partition.dirty = True
            self._dirty[partition.key] = partition
        if first or partition.wanted or partition.pending_bytes >= self._enough_bytes:
            self._kick.set()

    def forget(self, partition: PartitionLog) -> None:
        if partition.dirty:
            partition.dirty = False
            del self._dirty[partition.key]

    def wake(self) -> None:
        """Something became wanted or urgent."""
        self._kick.set()

    async def _loop(self) -> None:
        while True:
            plan = plan_flush(
                self._dirty.values(),
                self._rules,
                now_ms=self._clock.boot_ms(),
                last_flush_ms=self._last_flush_ms,
                busy=bool(self._tasks),
            )
            if plan.empty:
                await self._sleep_until(plan.next_due_ms)
            elif len(self._tasks) >= self._max_in_flight:
                self._room.clear()
                await self._room.wait()
            else:
                self._start(plan.large, plan.small)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        """The loop ends only by cancellation or by a bug. After a bug it starts again: writes wait for flushes."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)
            self.start()

    async def _sleep_until(self, due_ms: int | None) -> None:
        self._kick.clear()
        timeout_s = None if due_ms is None else max(0, due_ms - self._clock.boot_ms()) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._kick.wait()

    def _start(self, large: Sequence[PartitionLog], small: Sequence[PartitionLog]) -> None:
        self._last_flush_ms = self._clock.boot_ms()
        self.flushes += 1
        large_chunks = [partition.freeze(self._max_chunk_bytes) for partition in large]
        small_chunks = [partition.freeze(self._max_chunk_bytes) for partition in small]
        for partition in (*large, *small):
            if not partition.pending:
                self.forget(partition)
        turn = self._committer.next_turn()
        task = asyncio.create_task(self._committer.flush(large_chunks, small_chunks, turn), name="leased-flush")
        self._tasks.add(task)
        self._enough_bytes = self._rules.enough_bytes(busy=True)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.set()
        if not self._tasks:
            self._enough_bytes = self._rules.enough_bytes(busy=False)
            self._kick.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)
