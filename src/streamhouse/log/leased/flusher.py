"""The flush loop: starts flushes when they are due, with a bound on those that run at a time.

When is decided by log/flush_policy.py and plan.py. Large partitions and the blob of the small ones are flushes of their
own, so that a small write does not wait for the upload of a large one, and one of the places is kept for small ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.ids import PartitionKey
from streamhouse.log.flush_policy import PutBudget, RoundTime, due_ms
from streamhouse.log.leased.commit import Committer
from streamhouse.log.leased.demand import Demand
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.pending import PendingBatch
from streamhouse.log.leased.plan import NEVER_MS, FlushPlan, FlushRules, plan_flush, take_all

_LARGE_FLUSH_BYTES: Final = 4 << 20
"""A flush of this size or more is large: its upload takes longer than a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushFigures:
    """What operators see of the pace of flushes."""

    puts: int
    """Objects that flushes have put; repeats after an error are not counted."""
    held_back: int
    """Flushes that were due and had to wait for the budget of PUTs."""
    puts_per_second: float
    """What the budget allows. 0: there is no budget."""
    budget_left: float
    round_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """A flush under way."""

    started_ms: int
    large: bool
    retries: int
    """How often flushes had been repeated when it started, all together."""


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
        self._puts = 0
        self._held_back = 0
        self._committer = committer
        self._rules = rules
        self._pace = rules.pace
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._max_chunk_bytes = min(max_chunk_bytes, rules.chunk_bytes)
        self._on_bug = on_bug
        self._enough_bytes = rules.enough_bytes(busy=False)
        self._dirty: dict[PartitionKey, PartitionLog] = {}
        self._demand = Demand()
        self._budget = PutBudget(rules.pace.puts_per_second) if rules.pace else None
        self._round = RoundTime()
        self._flights: dict[asyncio.Task[None], _Flight] = {}
        self._room = asyncio.Event()
        self._kick = asyncio.Event()
        self._last_flush_ms = -NEVER_MS
        self._look_again_ms = NEVER_MS
        """When a partition may be due by itself; the loop looks at all of them then. 0: at once."""
        self._is_held_back = False
        self._waits_for_place = False
        """Only large partitions are due, and the place that is left is kept for small ones."""
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> int:
        return len(self._flights)

    def figures(self) -> FlushFigures:
        return FlushFigures(
            puts=self._puts,
            held_back=self._held_back,
            puts_per_second=0.0 if self._pace is None else self._pace.puts_per_second,
            budget_left=0.0 if self._budget is None else self._budget.available(self._clock.boot_ms()),
            round_ms=self._round.estimate_ms,
        )

    def start(self) -> None:
        self._loop_task = asyncio.create_task(self._loop(), name="leased-flush-loop")
        self._loop_task.add_done_callback(self._loop_ended)

    async def close(self) -> None:
        tasks = [*self._flights, *([self._loop_task] if self._loop_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def grew(self, partition: PartitionLog, batch: PendingBatch) -> None:
        """A batch was added. Wakes the loop only if a flush may be due earlier now."""
        first = not self._dirty
        if not partition.dirty:
            partition.dirty = True
            self._dirty[partition.key] = partition
            self._look_again_ms = min(self._look_again_ms, batch.appended_ms + self._rules.segment_max_age_ms)
        if self._pace is None:
            if first or partition.wanted or partition.pending_bytes >= self._enough_bytes:
                self._kick.set()
            return
        demand = self._demand
        was_waiting = demand.is_waiting
        demand.add(partition, batch)
        if partition.urgent or partition.readers_waiting or partition.pending_bytes >= self._enough_bytes:
            self.wake()
        elif (
            first
            or not was_waiting
            or self._waits_for_place
            or demand.windows_full
            or demand.size_bytes >= self._pace.enough_bytes
        ):
            self._kick.set()

    def forget(self, partition: PartitionLog) -> None:
        if partition.dirty:
            partition.dirty = False
            del self._dirty[partition.key]
            if self._pace is not None:
                self._demand.gone(partition)

    def wake(self) -> None:
        """Something became wanted or urgent."""
        self._look_again_ms = 0
        self._kick.set()

    async def _loop(self) -> None:
        while True:
            now_ms = self._clock.boot_ms()
            plan = self._plan(now_ms) if self._pace is None else self._plan_in_budget(now_ms)
            if plan.empty:
                await self._sleep_until(plan.next_due_ms)
            elif len(self._flights) >= self._max_in_flight:
                self._room.clear()
                await self._room.wait()
            else:
                self._start(plan.large, plan.small)

    def _plan(self, now_ms: int) -> FlushPlan:
        return plan_flush(
            self._dirty.values(),
            self._rules,
            now_ms=now_ms,
            last_flush_ms=self._last_flush_ms,
            busy=bool(self._flights),
        )

    def _plan_in_budget(self, now_ms: int) -> FlushPlan:
        """What is due, by itself or because clients wait, as far as the budget of PUTs allows it."""
        pace, budget = self._pace, self._budget
        assert pace is not None
        assert budget is not None
        if not self._dirty:
            return FlushPlan(large=(), small=(), next_due_ms=None)
        started = [flight.started_ms for flight in self._flights.values()]
        waiting_ms = due_ms(
            self._demand.waiting(),
            pace,
            budget=budget,
            round_ms=self._round.estimate_ms,
            last_start_ms=max(started, default=None),
            now_ms=now_ms,
        )
        if waiting_ms is not None and waiting_ms <= now_ms:
            return self._take(now_ms)
        if self._look_again_ms <= now_ms:
            plan = self._plan(now_ms)
            if plan.urgent:
                return plan
            if plan.full and not plan.small:
                # A segment's worth does not wait for the budget. If clients wait, the policy says when it goes.
                if waiting_ms is None:
                    return self._take(now_ms)
                self._look_again_ms = NEVER_MS if plan.next_due_ms is None else plan.next_due_ms
            elif not plan.empty:
                ready_ms = budget.ready_ms(now_ms)
                if ready_ms <= now_ms:
                    return self._take(now_ms)
                self._look_again_ms = _whole_ms(ready_ms)
                self._hold_back()
            else:
                self._look_again_ms = NEVER_MS if plan.next_due_ms is None else plan.next_due_ms
        if waiting_ms is not None and waiting_ms == budget.ready_ms(now_ms) > now_ms:
            self._hold_back()
        due = self._look_again_ms if waiting_ms is None else min(self._look_again_ms, _whole_ms(waiting_ms))
        return FlushPlan(large=(), small=(), next_due_ms=due if due < NEVER_MS else None)

    def _take(self, now_ms: int) -> FlushPlan:
        """Everything that waits; large partitions only as far as there are tokens and places for them."""
        assert self._budget is not None
        tokens = int(self._budget.available(now_ms))
        plan = take_all(self._dirty.values(), self._rules, most_large=max(tokens - 1, 1))
        large_under_way = sum(flight.large for flight in self._flights.values())
        self._waits_for_place = bool(plan.large) and large_under_way >= max(self._max_in_flight - 1, 1)
        return FlushPlan(large=(), small=plan.small, next_due_ms=None) if self._waits_for_place else plan

    def _hold_back(self) -> None:
        if not self._is_held_back:
            self._is_held_back = True
            self._held_back += 1

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
        now_ms = self._last_flush_ms = self._clock.boot_ms()
        self._is_held_back = False
        apart = self._pace is not None and large and small and len(self._flights) + 1 < self._max_in_flight
        if apart:
            self._flush(small=small, now_ms=now_ms)
            self._flush(large=large, now_ms=now_ms)
        else:
            self._flush(large=large, small=small, now_ms=now_ms)
        self._enough_bytes = self._rules.enough_bytes(busy=True)

    def _flush(self, *, large: Sequence[PartitionLog] = (), small: Sequence[PartitionLog] = (), now_ms: int) -> None:
        large_chunks = [partition.freeze(self._max_chunk_bytes) for partition in large]
        small_chunks = [partition.freeze(self._max_chunk_bytes) for partition in small]
        size_bytes = sum(chunk.size_bytes for chunk in (*large_chunks, *small_chunks))
        puts = len(large_chunks) + bool(small_chunks)
        self.flushes += 1
        self._puts += puts
        if self._budget is not None:
            self._budget.spend(puts, now_ms)
            self._demand.took(size_bytes, (each for each in self._dirty.values() if each.pending))
        for partition in (*large, *small):
            if not partition.pending:
                self.forget(partition)
            else:
                self._look_again_ms = 0
        turn = self._committer.next_turn([partition.key for partition in (*large, *small)])
        task = asyncio.create_task(self._committer.flush(large_chunks, small_chunks, turn), name="leased-flush")
        self._flights[task] = _Flight(
            started_ms=now_ms, large=size_bytes >= _LARGE_FLUSH_BYTES, retries=self._retries()
        )
        task.add_done_callback(self._ended)

    def _retries(self) -> int:
        health = self._committer.health
        return health.uploads_retried + health.commits_retried + health.objects_stale

    def _ended(self, task: asyncio.Task[None]) -> None:
        flight = self._flights.pop(task)
        self._room.set()
        if not self._flights:
            self._enough_bytes = self._rules.enough_bytes(busy=False)
        if not self._flights or self._pace is not None:
            self._kick.set()
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._on_bug(error)
        elif flight.retries == self._retries():
            self._round.observe(self._clock.boot_ms() - flight.started_ms)


def _whole_ms(at_ms: float) -> int:
    """Not earlier: waking before the time would mean to wake again."""
    return -int(-at_ms // 1)
