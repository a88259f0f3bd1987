"""The flush loop: starts flushes when they are due, with a bound on those that run at a time.

Where clients wait for commits, there are two lanes, so that a small write does not wait for the upload of a large one:

    small    partitions with less than a segment. They share blobs, within the budget of PUTs
    large    a partition with a segment's worth or more, until its uploads have ended. Each flush is one segment of one
             partition, and takes nothing of the budget

Each lane has its own places for flushes under way. A commit waits only for earlier flushes of its own partitions, and a
partition whose segment is under way puts nothing into a blob, so a blob never waits for a segment. When a flush is due
is decided by log/flush_policy.py and plan.py.

Where the WAL is the durability, no client waits: one lane takes all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from streamhouse.core.clock import Clock
from streamhouse.core.ids import PartitionKey
from streamhouse.log.flush_policy import FlushPace, PutBudget, RoundTime, Waiting, affordable_ms, due_ms
from streamhouse.log.leased.commit import Committer
from streamhouse.log.leased.demand import Demand
from streamhouse.log.leased.partition import Chunk, PartitionLog
from streamhouse.log.leased.pending import PendingBatch
from streamhouse.log.leased.plan import NEVER_MS, FlushRules, plan_flush, read_due_ms


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
    retries: int
    """How often flushes had been repeated when it started, all together."""
    segment_of: PartitionLog | None = None


@dataclass(slots=True, kw_only=True)
class _Lane:
    partitions: dict[PartitionKey, PartitionLog] = field(default_factory=dict)
    flights: dict[asyncio.Task[None], _Flight] = field(default_factory=dict)
    round: RoundTime = field(default_factory=RoundTime)

    def holds(self, partition: PartitionLog) -> bool:
        """Not another leadership of the same partition."""
        return self.partitions.get(partition.key) is partition

    @property
    def last_start_ms(self) -> int | None:
        return max((flight.started_ms for flight in self.flights.values()), default=None)


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
        """``max_in_flight``: in each lane."""
        self.flushes = 0
        self._puts = 0
        self._held_back = 0
        self._committer = committer
        self._rules = rules
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._max_chunk_bytes = min(max_chunk_bytes, rules.chunk_bytes)
        self._on_bug = on_bug
        self._small = _Lane()
        self._large = _Lane()
        self._demand = Demand()
        """What waits in the small lane."""
        self._pace = rules.pace
        self._budget = PutBudget(rules.pace.puts_per_second if rules.pace else 0.0)
        self._enough_bytes = rules.enough_bytes(busy=False)
        self._kick = asyncio.Event()
        self._last_flush_ms = -NEVER_MS
        self._own_due_ms = NEVER_MS
        """When a small partition may be due by itself; the loop looks at all of them then. 0: at once."""
        self._sleeps_until_ms = NEVER_MS
        self._is_held_back = False
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> int:
        return len(self._small.flights) + len(self._large.flights)

    def figures(self) -> FlushFigures:
        return FlushFigures(
            puts=self._puts,
            held_back=self._held_back,
            puts_per_second=self._pace.puts_per_second if self._pace else 0.0,
            budget_left=self._budget.available(self._clock.boot_ms()),
            round_ms=self._small.round.estimate_ms,
        )

    def start(self) -> None:
        self._loop_task = asyncio.create_task(self._loop(), name="leased-flush-loop")
        self._loop_task.add_done_callback(self._loop_ended)

    async def close(self) -> None:
        flights = [*self._small.flights, *self._large.flights]
        tasks = [*flights, *([self._loop_task] if self._loop_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def grew(self, partition: PartitionLog, batch: PendingBatch) -> None:
        """A batch was added. Wakes the loop only if a flush may be due earlier now."""
        if self._pace is not None:
            self._grew_in_lane(partition, batch, self._pace)
            return
        first = not self._small.partitions
        if not partition.dirty:
            partition.dirty = True
            self._small.partitions[partition.key] = partition
        if first or partition.wanted or partition.pending_bytes >= self._enough_bytes:
            self._kick.set()

    def forget(self, partition: PartitionLog) -> None:
        """It has nothing to flush any more, or its leadership has ended."""
        if not partition.dirty:
            return
        partition.dirty = False
        if self._large.holds(partition):
            del self._large.partitions[partition.key]
        elif self._small.holds(partition):
            del self._small.partitions[partition.key]
            if self._pace is not None:
                self._demand.remove(partition, partition.pending_bytes)

    def wake(self) -> None:
        """Something became wanted or urgent."""
        self._own_due_ms = 0
        self._kick.set()

    def _grew_in_lane(self, partition: PartitionLog, batch: PendingBatch, pace: FlushPace) -> None:
        if self._large.holds(partition):
            self._kick.set()
            return
        demand = self._demand
        if not partition.dirty:
            partition.dirty = True
            self._small.partitions[partition.key] = partition
            self._due_by_itself(batch.appended_ms + self._rules.segment_max_age_ms)
        was_waiting, was_bytes = demand.is_waiting, demand.size_bytes
        demand.add(partition, batch)
        if partition.pending_bytes >= self._rules.segment_max_bytes:
            demand.remove(partition, partition.pending_bytes)
            del self._small.partitions[partition.key]
            self._large.partitions[partition.key] = partition
            self._kick.set()
            return
        if partition.urgent:
            self.wake()
        elif partition.readers_waiting:
            self._due_by_itself(read_due_ms(batch.appended_ms, self._rules, pace, self._last_flush_ms))
        crossed = was_bytes < pace.unbudgeted_bytes <= demand.size_bytes
        if not was_waiting or demand.windows_full or crossed or demand.size_bytes >= pace.enough_bytes:
            self._kick.set()

    def _due_by_itself(self, at_ms: int) -> None:
        self._own_due_ms = min(self._own_due_ms, at_ms)
        if at_ms < self._sleeps_until_ms:
            self._kick.set()

    async def _loop(self) -> None:
        while True:
            now_ms = self._clock.boot_ms()
            if self._pace is None:
                await self._sleep_until(self._start_without_pace(now_ms))
            else:
                segments_ms = self._start_segments(now_ms, self._pace)
                await self._sleep_until(_earliest(segments_ms, self._start_blob(now_ms, self._pace)))

    def _start_without_pace(self, now_ms: int) -> int | None:
        """Returns when to look again; None: when something changes."""
        lane = self._small
        if len(lane.flights) >= self._max_in_flight:
            return None
        plan = plan_flush(
            lane.partitions.values(),
            self._rules,
            now_ms=now_ms,
            last_flush_ms=self._last_flush_ms,
            busy=bool(lane.flights),
        )
        if plan.empty:
            return plan.next_due_ms
        self._last_flush_ms = now_ms
        large = [self._freeze(partition) for partition in plan.large]
        small = [self._freeze(partition) for partition in plan.small]
        for partition in (*plan.large, *plan.small):
            if not partition.pending:
                self.forget(partition)
        self._fly(lane, large, small, now_ms=now_ms)
        self._enough_bytes = self._rules.enough_bytes(busy=True)
        return now_ms

    def _start_segments(self, now_ms: int, pace: FlushPace) -> float | None:
        """Flush the large partitions that are due. Returns when to look again; None: when something changes."""
        lane = self._large
        next_ms: float | None = None
        for partition in list(lane.partitions.values()):
            at_ms = self._segment_due_ms(partition, pace, now_ms)
            if at_ms is not None and at_ms <= now_ms:
                if len(lane.flights) >= self._max_in_flight:
                    return None  # the end of a flight wakes the loop
                del lane.partitions[partition.key]  # to the end: all have their turn
                lane.partitions[partition.key] = partition
                self._fly(lane, [self._freeze(partition)], [], now_ms=now_ms, segment_of=partition)
                at_ms = now_ms  # it may hold more
            next_ms = _earliest(next_ms, at_ms)
        return next_ms

    def _segment_due_ms(self, partition: PartitionLog, pace: FlushPace, now_ms: int) -> float | None:
        """None: nothing of it is due until its segment under way has ended."""
        if partition.pending and partition.urgent:
            return now_ms
        if partition.pending_bytes < self._rules.segment_max_bytes:
            return None
        if not partition.wanted:
            return now_ms
        waiting = Waiting(
            size_bytes=partition.pending_bytes,
            oldest_ms=partition.oldest_pending_ms,
            newest_ms=partition.pending[-1].appended_ms,
        )
        return due_ms(waiting, pace, round_ms=self._large.round.estimate_ms, last_start_ms=None, now_ms=now_ms)

    def _start_blob(self, now_ms: int, pace: FlushPace) -> float | None:
        """Flush the small partitions if one is due. Returns when to look again; None: when something changes."""
        lane = self._small
        at_ms = self._blob_due_ms(now_ms, pace)
        if at_ms is None or at_ms > now_ms:
            return at_ms
        if len(lane.flights) >= self._max_in_flight:
            return None  # the end of a flight wakes the loop
        self._last_flush_ms = now_ms
        self._is_held_back = False
        chunks: list[Chunk] = []
        size_bytes = 0
        for partition in list(lane.partitions.values()):
            chunks.append(chunk := self._freeze(partition))
            self._demand.remove(partition, chunk.size_bytes)
            size_bytes += chunk.size_bytes
            if not partition.pending:
                self.forget(partition)
            if size_bytes >= pace.enough_bytes:
                break
        if size_bytes < pace.unbudgeted_bytes:
            self._budget.spend(now_ms)
        self._own_due_ms = 0 if lane.partitions else NEVER_MS
        self._fly(lane, [], chunks, now_ms=now_ms)
        return now_ms if lane.partitions else None

    def _blob_due_ms(self, now_ms: int, pace: FlushPace) -> float | None:
        lane, budget = self._small, self._budget
        if not lane.partitions:
            return None
        waiting = self._demand.waiting(lane.partitions.values())
        wish_ms = due_ms(
            waiting, pace, round_ms=lane.round.estimate_ms, last_start_ms=lane.last_start_ms, now_ms=now_ms
        )
        if self._own_due_ms <= now_ms:
            plan = plan_flush(lane.partitions.values(), self._rules, now_ms=now_ms, last_flush_ms=self._last_flush_ms)
            if plan.urgent:
                return now_ms
            if not plan.empty:
                wish_ms = now_ms
            else:
                self._own_due_ms = NEVER_MS if plan.next_due_ms is None else plan.next_due_ms
        if self._own_due_ms > now_ms:
            wish_ms = _earliest(wish_ms, self._own_due_ms if self._own_due_ms < NEVER_MS else None)
        if wish_ms is None:
            return None
        at_ms = affordable_ms(wish_ms, waiting.size_bytes, pace, budget=budget, now_ms=now_ms)
        if wish_ms <= now_ms < at_ms and not self._is_held_back:
            self._is_held_back = True
            self._held_back += 1
        return at_ms

    def _freeze(self, partition: PartitionLog) -> Chunk:
        return partition.freeze(self._max_chunk_bytes)

    def _fly(
        self,
        lane: _Lane,
        large: Sequence[Chunk],
        small: Sequence[Chunk],
        *,
        now_ms: int,
        segment_of: PartitionLog | None = None,
    ) -> None:
        self.flushes += 1
        self._puts += len(large) + bool(small)
        turn = self._committer.next_turn([chunk.partition.key for chunk in (*large, *small)])
        task = asyncio.create_task(self._committer.flush(large, small, turn), name="leased-flush")
        lane.flights[task] = _Flight(started_ms=now_ms, retries=self._retries(), segment_of=segment_of)
        task.add_done_callback(lambda task: self._ended(lane, task))

    def _retries(self) -> int:
        health = self._committer.health
        return health.uploads_retried + health.commits_retried + health.objects_stale

    def _ended(self, lane: _Lane, task: asyncio.Task[None]) -> None:
        flight = lane.flights.pop(task)
        if not self._small.flights:
            self._enough_bytes = self._rules.enough_bytes(busy=False)
        if flight.segment_of is not None:
            self._segment_ended(flight.segment_of)
        self._kick.set()
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._on_bug(error)
        elif flight.retries == self._retries():
            lane.round.observe(self._clock.boot_ms() - flight.started_ms)

    def _segment_ended(self, partition: PartitionLog) -> None:
        """What is left of a large partition goes back to the small ones, once none of its segments is under way."""
        under_way = any(flight.segment_of is partition for flight in self._large.flights.values())
        if under_way or not self._large.holds(partition) or partition.pending_bytes >= self._rules.segment_max_bytes:
            return
        if not partition.pending:
            self.forget(partition)
            return
        del self._large.partitions[partition.key]
        self._small.partitions[partition.key] = partition
        self._demand.put_back(partition)
        self._own_due_ms = 0

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        """The loop ends only by cancellation or by a bug. After a bug it starts again: writes wait for flushes."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)
            self.start()

    async def _sleep_until(self, at_ms: float | None) -> None:
        self._kick.clear()
        due_ms = None if at_ms is None else _whole_ms(at_ms)
        self._sleeps_until_ms = NEVER_MS if due_ms is None else due_ms
        timeout_s = None if due_ms is None else max(0, due_ms - self._clock.boot_ms()) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._kick.wait()


def _earliest(one_ms: float | None, other_ms: float | None) -> float | None:
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)


def _whole_ms(at_ms: float) -> int:
    """Not earlier: waking before the time would mean to wake again."""
    return -int(-at_ms // 1)
