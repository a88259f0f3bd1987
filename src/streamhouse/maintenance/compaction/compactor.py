"""One pass of compaction over partitions (S2.8, S2.12, S2.13, S2.16).

    look     read the entries from the cursor on, plan. Nothing to do and nothing pending: go to the next partition
    claim    another process works on the partition: pass it over. This is scheduling only
    recover  finish or clear a compaction that was left pending (recovery.py)
    plan     once more, for the entries may have changed before the claim
    items    one after the other: rewrite, begin, apply (commit.py)

A process may die after any step, and any other goes on: what was committed stands, what is pending is recovered, and
the rest is planned again. A pass decides nothing about safety, it only decides what to work on.

An error of one partition does not stop the others. CompactionConflict is no error: the entries changed, so the
partition's plan is void, and the next pass makes another. When a store is away, no further partition is begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    CompactionConflict,
    ConfigError,
    DamagedObject,
    MetadataUnavailable,
    PartitionNotFound,
    StoreUnavailable,
    StreamHouseError,
    as_result,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.log.offload import Offload
from streamhouse.maintenance.compaction.claims import PartitionClaim
from streamhouse.maintenance.compaction.commit import ItemCompaction
from streamhouse.maintenance.compaction.looking import LogPlanner
from streamhouse.maintenance.compaction.memory import CompactorMemory
from streamhouse.maintenance.compaction.plan import CompactionItem, CompactionRules, PartitionPlan
from streamhouse.maintenance.compaction.recovery import RecoveryOutcome, recover_compaction
from streamhouse.maintenance.compaction.stats import (
    MAX_FAILURES_KEPT,
    CompactionStats,
    OnProgress,
    PartitionFailure,
    PassProgress,
    PassResult,
    unwatched,
)
from streamhouse.metadata.contract import MetadataStore, PartitionState
from streamhouse.objectstore.contract import ObjectStore

_log = logging.getLogger(__name__)

_MAX_PARALLEL: Final = 64
"""Items at a time: each has 8 MiB of reads and an upload of 32 MiB in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorOptions:
    rules: CompactionRules = field(default_factory=CompactionRules)
    max_parallel_items: int = 2
    """Items that are rewritten at a time, each of another partition."""
    claim_ttl_ms: int = 60_000
    """How long a partition stays claimed after its compactor has died."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_parallel_items <= _MAX_PARALLEL or self.claim_ttl_ms < 1_000:
            raise ConfigError(
                f"compaction of {self.max_parallel_items} items at a time, claimed for {self.claim_ttl_ms} ms",
                hint=f"let 1 ≤ items ≤ {_MAX_PARALLEL}, and claims last for a second at least",
            )


class Compactor:
    """``owner`` names this process in claims. Give each process a name of its own."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        store: ObjectStore,
        offload: Offload,
        clock: Clock,
        randomness: Randomness,
        owner: str,
        options: CompactorOptions | None = None,
        pace: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """``pace`` is awaited with the bytes of each piece that was read; it returns when the next may be read."""
        self.stats = CompactionStats()
        self._metadata = metadata
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._owner = owner
        self._options = options or CompactorOptions()
        self._pace = pace
        self._memory = CompactorMemory()
        self._planner = LogPlanner(metadata=metadata, clock=clock, rules=self._options.rules, memory=self._memory)
        self._item = ItemCompaction(metadata=metadata, store=store, offload=offload, randomness=randomness)
        self._working: set[PartitionKey] = set()
        """Partitions that a pass of this process is working on: at most one pass at a time (S2.12)."""

    async def plan(self, keys: Iterable[PartitionKey]) -> list[PartitionPlan]:
        """What ``compact_once`` would do now, for the partitions that have something new. Writes nothing."""
        now_ms = await self._metadata.now_ms()
        states = await self._planner.states(list(dict.fromkeys(keys)))
        looks = [await self._planner.plan(state, now_ms=now_ms) for state in states.values()]
        return [look.plan for look in looks if look is not None]

    async def compact_once(self, keys: Iterable[PartitionKey], *, on_progress: OnProgress = unwatched) -> PassResult:
        """One pass over these partitions, in random order. It ends when each was looked at once.

        Raises MetadataError when not even the partitions can be read. Errors of single partitions are in the result.
        """
        order = self._shuffled(keys)
        current = CurrentPass(partitions=len(order), on_progress=on_progress)
        try:
            now_ms = await self._metadata.now_ms()
            states = await self._planner.states(order)
            pending = {compaction.key for compaction in await self._metadata.list_compactions()}
            waiting = iter(order)

            async def work() -> None:
                for key in waiting:
                    if current.store_away is not None:
                        return
                    state = states.get(key)
                    if state is not None:
                        await self._look_at(state, current, now_ms=now_ms, is_pending=key in pending)
                    current.partition_done()

            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._options.max_parallel_items, len(order))):
                    group.create_task(work())
        finally:
            self.stats.add(current.stats)
        return current.result()

    async def _look_at(self, state: PartitionState, current: CurrentPass, *, now_ms: int, is_pending: bool) -> None:
        key = state.key
        if key in self._working:
            current.stats.busy += 1
            return
        self._working.add(key)
        try:
            look = await self._planner.plan(state, now_ms=now_ms)
            if is_pending or (look is not None and look.plan.items):
                await self._work_on(state, current, now_ms=now_ms)
            elif look is not None:
                current.waiting_entries += look.plan.waiting_entries
        except PartitionNotFound:
            self._memory.forget(key)
        except CompactionConflict as conflict:
            current.stats.conflicts += 1
            _log.debug("%s: compaction given up: %s", key, conflict)
        except StreamHouseError as error:
            current.fail(key, error)
            _log.warning("%s: compaction failed: %s", key, error)
        finally:
            self._working.discard(key)

    async def _work_on(self, state: PartitionState, current: CurrentPass, *, now_ms: int) -> None:
        claim = PartitionClaim(
            state.key,
            metadata=self._metadata,
            clock=self._clock,
            owner=self._owner,
            ttl_ms=self._options.claim_ttl_ms,
        )
        if not await claim.hold():
            current.stats.busy += 1
            return
        try:
            await self._recover(state.key, current)
            look = await self._planner.plan(state, now_ms=now_ms)
            if look is not None:
                current.more |= look.more
                current.expect(look.plan.items)
                for item in look.plan.items:
                    await self._compact(item, claim, current)
        finally:
            await claim.release()

    async def _recover(self, key: PartitionKey, current: CurrentPass) -> None:
        compaction = await self._metadata.get_compaction(key)
        if compaction is None:
            return
        outcome = await recover_compaction(compaction, metadata=self._metadata, store=self._store)
        current.stats.recovered += outcome is RecoveryOutcome.APPLIED
        current.stats.aborted += outcome is RecoveryOutcome.ABORTED
        _log.info("%s: the pending compaction %s is %s", key, compaction.compaction_id, outcome.name.lower())

    async def _compact(self, item: CompactionItem, claim: PartitionClaim, current: CurrentPass) -> None:
        """Raises CompactionConflict when the rest of the plan is void too."""

        async def copied(size_bytes: int) -> None:
            current.read(size_bytes)
            if self._pace is not None:
                await self._pace(size_bytes)
            if not await claim.hold():
                raise CompactionConflict(f"another process has claimed {item.key} meanwhile")

        try:
            await self._item.run(item, stats=current.stats, copied=copied)
            self._memory.readable(item)
        except DamagedObject as error:
            current.stats.damaged += 1
            current.fail(item.key, error)
            self._memory.unreadable(item.key, error.base_offset, now_ms=self._clock.boot_ms())
            _log.error("cannot compact: %s", error)
        current.item_done()

    def _shuffled(self, keys: Iterable[PartitionKey]) -> list[PartitionKey]:
        """Each key once. In an order of its own, so that several compactors do not follow each other."""
        drawn = {key: self._randomness.uniform(0, 1) for key in dict.fromkeys(keys)}
        return sorted(drawn, key=drawn.__getitem__)


class CurrentPass:
    """What one pass has done so far."""

    def __init__(self, *, partitions: int, on_progress: OnProgress, stats: CompactionStats | None = None) -> None:
        self.stats = stats or CompactionStats()
        self.more = False
        self.waiting_entries = 0
        self.store_away: StreamHouseError | None = None
        """The error of a store that did not answer: no partition would get on."""
        self._failures: list[PartitionFailure] = []
        self._partitions = partitions
        self._partitions_done = 0
        self._items = 0
        self._items_done = 0
        self._bytes_expected = 0
        self._on_progress = on_progress

    def expect_bytes(self, size_bytes: int) -> None:
        """Bytes that are read beside those of the items."""
        self._bytes_expected += size_bytes

    def expect(self, items: Iterable[CompactionItem]) -> None:
        for item in items:
            self._items += 1
            self._bytes_expected += item.expected_bytes
        self._tell()

    def read(self, size_bytes: int) -> None:
        self.stats.bytes_in += size_bytes
        self._tell()

    def item_done(self) -> None:
        self._items_done += 1
        self._tell()

    def partition_done(self) -> None:
        self._partitions_done += 1
        self._tell()

    def fail(self, key: PartitionKey, error: StreamHouseError) -> None:
        self.stats.failures += 1
        if len(self._failures) < MAX_FAILURES_KEPT:
            self._failures.append(PartitionFailure(key=key, error=as_result(error)))
        if isinstance(error, MetadataUnavailable | StoreUnavailable):
            self.store_away = error

    def result(self) -> PassResult:
        return PassResult(
            stats=self.stats,
            failures=tuple(self._failures),
            partitions_left=self._partitions - self._partitions_done,
            more=self.more,
            waiting_entries=self.waiting_entries,
        )

    def _tell(self) -> None:
        self._on_progress(
            PassProgress(
                partitions=self._partitions,
                partitions_done=self._partitions_done,
                items=self._items,
                items_done=self._items_done,
                bytes_expected=self._bytes_expected,
                bytes_read=self.stats.bytes_in,
            )
        )
