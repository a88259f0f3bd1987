"""One pass of key compaction over partitions of topics whose ``cleanup.policy`` has ``compact``.

    look     read the entries, find what is clean, plan. Not due and nothing pending: go to the next partition
    claim    another process works on the partition: pass it over. This is scheduling only
    recover  finish or clear a compaction that was left pending, of either kind
    plan     once more, for the entries may have changed before the claim
    map      the newest offset of every dirty key
    items    in the order of their offsets, clean ones too: rewrite, begin, apply

The rewriting, the commit, the claims and the recovery are those of the compaction of small objects (compaction/).

A process may die after any step, and any other goes on. An item that was committed dropped only records that have a
newer one of their key, so the log is right with any number of the items. What is clean is read from the entries
(looking.py), and items are committed in order, so what was not compacted is never taken for clean. When the entries of
an item have changed, the rest of the plan is void; the next pass makes another. The same holds for an error: no item is
stepped over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from streamhouse.core.backoff import Backoff, KeyedBackoff
from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    CompactionConflict,
    ConfigError,
    CorruptData,
    DamagedObject,
    LimitExceeded,
    PartitionNotFound,
    StreamHouseError,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_KNOWN_DAMAGE
from streamhouse.core.randomness import Randomness
from streamhouse.core.topic_config import TopicConfig
from streamhouse.log.offload import Offload
from streamhouse.maintenance.compaction.claims import PartitionClaim
from streamhouse.maintenance.compaction.commit import ItemCompaction
from streamhouse.maintenance.compaction.compactor import CurrentPass
from streamhouse.maintenance.compaction.plan import CompactionItem, Worth
from streamhouse.maintenance.compaction.recovery import RecoveryOutcome, recover_compaction
from streamhouse.maintenance.compaction.rewrite import Copied
from streamhouse.maintenance.compaction.stats import OnProgress, unwatched
from streamhouse.maintenance.key_compaction.copying import ThinnedCopy
from streamhouse.maintenance.key_compaction.key_map import KeyMap
from streamhouse.maintenance.key_compaction.large_entry import MAX_SHARDS, NewestRecords, shards_for
from streamhouse.maintenance.key_compaction.looking import KeyPlanner, PlannedKeys
from streamhouse.maintenance.key_compaction.mapping import map_keys
from streamhouse.maintenance.key_compaction.plan import KeyPlan, KeyRules, items_below
from streamhouse.maintenance.key_compaction.stats import KeyCompactionStats, KeyPassResult
from streamhouse.maintenance.key_compaction.thinning import KeepRule, Superseded
from streamhouse.metadata.contract import Entry, MetadataStore, PartitionState
from streamhouse.objectstore.contract import ObjectStore

_log = logging.getLogger(__name__)

_MAX_PARALLEL: Final = 16
_PARTITIONS_PER_CALL: Final = 10_000
_READS: Final = 2
"""Entries that fail their checks are read again: the download may have been damaged, not the object."""
_RESTING: Final = Backoff(first_ms=60_000, longest_ms=3_600_000)
"""For a partition that cannot be compacted: each try reads it up to the damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactorOptions:
    rules: KeyRules = field(default_factory=KeyRules)
    max_parallel_partitions: int = 1
    """Each has a map of its own."""
    claim_ttl_ms: int = 60_000
    """How long a partition stays claimed after its compactor has died."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_parallel_partitions <= _MAX_PARALLEL or self.claim_ttl_ms < 1_000:
            raise ConfigError(
                f"key compaction of {self.max_parallel_partitions} partitions at a time, claimed for"
                f" {self.claim_ttl_ms} ms",
                hint=f"let 1 ≤ partitions ≤ {_MAX_PARALLEL}, and claims last for a second at least",
            )


class KeyCompactor:
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
        options: KeyCompactorOptions | None = None,
        pace: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """``pace`` is awaited with the bytes of each piece that was read; it returns when the next may be read."""
        self.stats = KeyCompactionStats()
        self._metadata = metadata
        self._store = store
        self._offload = offload
        self._clock = clock
        self._randomness = randomness
        self._owner = owner
        self._options = options or KeyCompactorOptions()
        self._pace = pace
        self._planner = KeyPlanner(metadata=metadata, store=store, rules=self._options.rules)
        self._item = ItemCompaction(metadata=metadata, store=store, offload=offload, randomness=randomness)
        self._resting: KeyedBackoff[PartitionKey] = KeyedBackoff(_RESTING)
        self._working: set[PartitionKey] = set()
        """Partitions that a pass of this process is working on: at most one pass at a time (S2.12)."""

    async def plan(self, configs: Mapping[PartitionKey, TopicConfig]) -> list[KeyPlan]:
        """What is clean and what is dirty in the partitions that have something dirty, and which are due. Writes
        nothing. Raises as ``compact_once`` does, and for every single partition."""
        now_ms = await self._metadata.now_ms()
        states = await self._states(_compacted(configs))
        looks = [await self._planner.plan(state, configs[state.key], now_ms=now_ms) for state in states.values()]
        return [look.plan for look in looks if look is not None]

    async def compact_once(
        self, configs: Mapping[PartitionKey, TopicConfig], *, on_progress: OnProgress = unwatched
    ) -> KeyPassResult:
        """One pass over these partitions, in random order. Those of topics that are not compacted are left out.

        ``configs``: the configs of each partition's topic, as they are now. Raises MetadataError when not even the
        partitions can be read. Errors of single partitions are in the result.
        """
        order = self._shuffled(_compacted(configs))
        stats = KeyCompactionStats()
        current = CurrentPass(partitions=len(order), on_progress=on_progress, stats=stats)
        try:
            now_ms = await self._metadata.now_ms()
            states = await self._states(order)
            pending = {compaction.key for compaction in await self._metadata.list_compactions()}
            waiting = iter(order)

            async def work() -> None:
                for key in waiting:
                    if current.store_away is not None:
                        return
                    state = states.get(key)
                    if state is not None:
                        partition = _Partition(
                            state=state, config=configs[key], now_ms=now_ms, current=current, stats=stats
                        )
                        await self._look_at(partition, is_pending=key in pending)
                    current.partition_done()

            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._options.max_parallel_partitions, len(order))):
                    group.create_task(work())
        finally:
            self.stats.add(stats)
        result = current.result()
        return KeyPassResult(
            stats=stats,
            failures=result.failures,
            partitions_left=result.partitions_left,
            more=result.more,
            waiting_entries=result.waiting_entries,
        )

    async def _look_at(self, partition: _Partition, *, is_pending: bool) -> None:
        key, current = partition.state.key, partition.current
        if key in self._working:
            current.stats.busy += 1
            return
        if not self._resting.may_try(key, now_ms=self._clock.boot_ms()):
            return
        self._working.add(key)
        try:
            look = await self._planner.plan(partition.state, partition.config, now_ms=partition.now_ms)
            if is_pending or (look is not None and look.plan.due is not None):
                await self._work_on(partition, look)
            elif look is not None:
                current.waiting_entries += len(look.plan.dirty)
            self._resting.worked(key)
        except PartitionNotFound:
            self._resting.worked(key)
        except CompactionConflict as conflict:
            current.stats.conflicts += 1
            _log.debug("%s: key compaction given up: %s", key, conflict)
        except StreamHouseError as error:
            current.stats.damaged += isinstance(error, DamagedObject)
            current.fail(key, error)
            if isinstance(error, CorruptData | LimitExceeded):
                self._rest(key)
            _log.warning("%s: key compaction failed: %s", key, error)
        finally:
            self._working.discard(key)

    def _rest(self, key: PartitionKey) -> None:
        now_ms = self._clock.boot_ms()
        if key not in self._resting and len(self._resting) >= MAX_KNOWN_DAMAGE:
            self._resting.forget_except(self._resting.waiting(now_ms=now_ms)[1:])
        self._resting.failed(key, now_ms=now_ms)

    async def _work_on(self, partition: _Partition, first_look: PlannedKeys | None) -> None:
        """``first_look`` was planned before the claim."""
        key = partition.state.key
        claim = PartitionClaim(
            key,
            metadata=self._metadata,
            clock=self._clock,
            owner=self._owner,
            ttl_ms=self._options.claim_ttl_ms,
        )
        if not await claim.hold():
            partition.stats.busy += 1
            return
        try:
            await self._recover(partition)
            look = await self._planner.plan(partition.state, partition.config, now_ms=partition.now_ms)
            if look is not None and look.plan.due is not None:
                partition.current.more |= look.more
                await self._compact(partition, look.plan, claim)
        finally:
            await claim.release()

    async def _recover(self, partition: _Partition) -> None:
        compaction = await self._metadata.get_compaction(partition.state.key)
        if compaction is None:
            return
        outcome = await recover_compaction(compaction, metadata=self._metadata, store=self._store)
        partition.stats.recovered += outcome is RecoveryOutcome.APPLIED
        partition.stats.aborted += outcome is RecoveryOutcome.ABORTED
        _log.info("%s: the pending compaction %s is %s", compaction.key, compaction.compaction_id, outcome.name.lower())

    async def _compact(self, partition: _Partition, plan: KeyPlan, claim: PartitionClaim) -> None:
        """Raises CompactionConflict when the rest of the plan is void too."""
        rules, current = self._options.rules, partition.current
        work = _Work(partition=partition, plan=plan, copied=self._counting(partition, claim))
        max_keys = min(rules.max_keys, sum(entry.record_count for entry in plan.dirty) or 1)
        newest = KeyMap(max_keys, secret=self._new_secret())
        mapped_end = await self._map(work, plan.dirty, newest)
        if mapped_end <= plan.dirty[0].base_offset:
            await self._compact_large_entry(work)
            mapped_end = plan.dirty[0].end_offset + 1
        else:
            await self._rewrite_below(work, mapped_end, newest)
        current.more |= mapped_end <= plan.dirty[-1].end_offset
        partition.stats.partitions += 1

    def _counting(self, partition: _Partition, claim: PartitionClaim) -> Copied:
        async def copied(size_bytes: int) -> None:
            partition.current.read(size_bytes)
            if self._pace is not None:
                await self._pace(size_bytes)
            if not await claim.hold():
                raise CompactionConflict(f"another process has claimed {partition.state.key} meanwhile")

        return copied

    async def _compact_large_entry(self, work: _Work) -> None:
        """Compact up to the end of the first dirty entry, whose keys do not fit one map."""
        entry, max_keys = work.plan.dirty[0], self._options.rules.max_keys
        shards = shards_for(entry, max_keys)
        while not await self._compact_shards(work, shards):
            shards *= 2
            if shards > MAX_SHARDS:
                raise LimitExceeded(
                    f"the entry at offset {entry.base_offset} of {work.plan.key} has more than {MAX_SHARDS} times the"
                    f" {max_keys} keys that the map holds",
                    hint="give key compaction more memory for its map",
                )
            work = await self._planned_again(work)

    async def _compact_shards(self, work: _Work, shards: int) -> bool:
        """False when the keys of a shard do not fit the map either. What was done until then is no harm."""
        entry = work.plan.dirty[0]
        staying, secret = NewestRecords(entry), self._new_secret()
        for shard in range(shards):
            newest = KeyMap(self._options.rules.max_keys, secret=secret, shard=shard, shards=shards)
            if await self._map(work, [entry], newest) <= entry.base_offset:
                return False
            await self._offload.run(staying.add, newest.newest_offsets())
            await self._rewrite_below(work, entry.base_offset, newest)
            work = await self._planned_again(work)
        await self._rewrite(work, CompactionItem(key=work.plan.key, sources=(entry,), worth=Worth.KEYS), staying)
        return True

    def _new_secret(self) -> bytes:
        """For the hashes of one map, or of all shards that divide the same keys."""
        return self._randomness.uuid().bytes

    async def _planned_again(self, work: _Work) -> _Work:
        """The plan with the clean entries as this pass has rewritten them."""
        partition = work.partition
        look = await self._planner.plan(partition.state, partition.config, now_ms=partition.now_ms)
        if look is None or look.plan.dirty[:1] != work.plan.dirty[:1]:
            raise CompactionConflict(f"the entries of {work.plan.key} changed while they were compacted")
        return replace(work, plan=look.plan)

    async def _map(self, work: _Work, sources: Sequence[Entry], newest: KeyMap) -> int:
        """The offset after the last entry that is mapped whole. Raises as ``map_keys``, and CompactionConflict when an
        entry is gone (R7)."""
        key = work.plan.key
        work.partition.current.expect_bytes(sum(source.byte_length for source in sources))
        for reads_left in reversed(range(_READS)):
            try:
                mapped_end = await map_keys(
                    key, sources, newest, store=self._store, offload=self._offload, copied=work.copied
                )
                work.partition.stats.keys += len(newest)
                return mapped_end
            except DamagedObject as error:
                if not await self._item.stands(CompactionItem(key=key, sources=tuple(sources), worth=Worth.KEYS)):
                    raise CompactionConflict(f"the entries of {key} were replaced while they were read") from error
                if not reads_left:
                    raise
        raise AssertionError("unreachable")

    async def _rewrite_below(self, work: _Work, end_offset: int, newest: Superseded) -> None:
        items = items_below(work.plan, end_offset, self._options.rules)
        work.partition.current.expect(items)
        for item in items:
            await self._rewrite(work, item, newest)
            work.partition.current.item_done()

    async def _rewrite(self, work: _Work, item: CompactionItem, newer: Superseded) -> None:
        partition = work.partition
        rule = KeepRule(newer=newer, now_ms=partition.now_ms, delete_retention_ms=partition.config.delete_retention_ms)
        needed = self._is_needed(work.plan, item)
        copies: list[ThinnedCopy] = []

        def new_copy(item: CompactionItem) -> ThinnedCopy:
            copies.append(ThinnedCopy(key=item.key, sources=item.sources, rule=rule, needed=needed))
            return copies[-1]

        await self._item.run(item, stats=partition.stats, copied=work.copied, new_copy=new_copy)
        partition.stats.count(copies[-1].counts)

    @staticmethod
    def _is_needed(plan: KeyPlan, item: CompactionItem) -> bool:
        """Whether the item is to become an object also if nothing in it is superseded."""
        return len(item.sources) > 1 or item.end_offset >= plan.dirty[0].base_offset

    async def _states(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        """The partitions that exist, in the order of the keys."""
        found: dict[PartitionKey, PartitionState] = {}
        for first in range(0, len(keys), _PARTITIONS_PER_CALL):
            states = await self._metadata.get_partitions(keys[first : first + _PARTITIONS_PER_CALL])
            found.update((state.key, state) for state in states)
        return found

    def _shuffled(self, keys: Sequence[PartitionKey]) -> list[PartitionKey]:
        """In an order of its own, so that several compactors do not follow each other."""
        drawn = {key: self._randomness.uniform(0, 1) for key in keys}
        return sorted(drawn, key=drawn.__getitem__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    """A partition in a pass."""

    state: PartitionState
    config: TopicConfig
    now_ms: int
    """The store's time when the pass began."""
    current: CurrentPass
    stats: KeyCompactionStats
    """Those of the pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The plan of a partition while it is carried out."""

    partition: _Partition
    plan: KeyPlan
    copied: Copied


def _compacted(configs: Mapping[PartitionKey, TopicConfig]) -> list[PartitionKey]:
    return [key for key, config in configs.items() if config.compacts]
