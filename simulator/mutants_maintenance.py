"""Broken variants of maintenance: vacuum and its horizon, both compactions, retention, and the space on a single node's
disk."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import Any, Final

from simulator.anomalies import Kind
from simulator.dice import Dice
from simulator.errands import Errands
from simulator.maintenance_plan import MINUTE_MS, MaintenancePlan
from simulator.mutant import Break, Mutant
from simulator.run import replaced
from simulator.scenario import Scenario, can_be_maintained, with_maintenance
from simulator.world import World
from streamhouse.maintenance.compaction import copying
from streamhouse.maintenance.compaction.copying import SegmentCopy
from streamhouse.maintenance.compaction.sources import SourceRead
from streamhouse.maintenance.key_compaction import thinning
from streamhouse.maintenance.key_compaction.copying import ThinnedCopy
from streamhouse.maintenance.key_compaction.key_map import KeyMap
from streamhouse.maintenance.retention import passes
from streamhouse.maintenance.retention.plan import RetentionReason, RetentionWalk
from streamhouse.maintenance.retention.rule import RetentionRule
from streamhouse.maintenance.upkeep.disk_space import DiskSpace
from streamhouse.maintenance.vacuum.options import SHORTEST_WRITER_GRACE_MS
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.metadata.contract import Compaction, DereferencedObject, Durability, Entry, EntryPage
from streamhouse.metadata.rows import compactions
from streamhouse.metadata.sqlite import objects
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore import retries
from streamhouse.wire.record_keys import RecordKeys

_HORIZON_OF_THE_MOMENT: Final = f"(sh_now_ms() - {SHORTEST_WRITER_GRACE_MS})"
_ALWAYS_MS: Final = 2**60
_MADE: Final = frozenset({Kind.CHANGED, Kind.LOST, Kind.BAD_OBJECT, Kind.STALE_EPOCH, Kind.NOT_DENSE})


# What is added to the scenarios.


def _is_single(scenario: Scenario) -> bool:
    return can_be_maintained(scenario) and scenario.durability is Durability.WAL


def _is_fleet(scenario: Scenario) -> bool:
    return can_be_maintained(scenario) and scenario.durability is Durability.OBJECT


def _with(change: Callable[[MaintenancePlan], MaintenancePlan]) -> Callable[[Scenario, Dice], Scenario]:
    def needs(scenario: Scenario, dice: Dice) -> Scenario:
        if scenario.maintenance is None:
            scenario = with_maintenance(scenario, dice)
        assert scenario.maintenance is not None
        plan = change(replace(scenario.maintenance, claims_hold=True))
        return replace(scenario, maintenance=plan, compacted=plan.rules.compacts)

    return needs


def _small_objects(plan: MaintenancePlan) -> MaintenancePlan:
    return replace(plan, rules=replace(plan.rules, compacts=False, deletes=True))


def _crowded(plan: MaintenancePlan) -> MaintenancePlan:
    """Many compact the same partitions at once."""
    upkeep = replace(plan.upkeep, compaction_interval_ms=100)
    return replace(_small_objects(plan), upkeep=upkeep, curators=3, pause_ms=50.0, claims_hold=False)


def _by_key(plan: MaintenancePlan) -> MaintenancePlan:
    return replace(plan, rules=replace(plan.rules, compacts=True), compaction_lag_ms=0, dirty_ratio=0.0)


def _tombstones(plan: MaintenancePlan) -> MaintenancePlan:
    plan = _by_key(plan)
    return replace(plan, tombstones=0.3, record_keys=40, rules=replace(plan.rules, tombstones_stay_ms=60 * MINUTE_MS))


def _by_time(plan: MaintenancePlan) -> MaintenancePlan:
    return replace(plan, rules=replace(plan.rules, compacts=False, deletes=True, retention_ms=10 * MINUTE_MS))


def _by_size(plan: MaintenancePlan) -> MaintenancePlan:
    rules = replace(plan.rules, compacts=False, deletes=True, retention_ms=-1, retention_bytes=1000)
    return replace(plan, rules=rules)


def _left_pending(plan: MaintenancePlan) -> MaintenancePlan:
    """Only curators compact, they often die, and hours pass all the time: nothing finishes a compaction soon."""
    plan = _small_objects(plan)
    upkeep = replace(plan.upkeep, compaction_interval_ms=100_000)
    return replace(plan, upkeep=upkeep, curators=2, killed=0.04, hours_every_ms=300.0, pinned_readers=0)


def _pinned(plan: MaintenancePlan) -> MaintenancePlan:
    return replace(plan, pinned_readers=2)


# Vacuum.


def _horizon_not_raised(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(
        replaced(SqliteMetadata.raise_gc_horizon, "step", lambda original: lambda tx, horizon_ms: horizon_ms)
    )
    stack.enter_context(replaced(SqliteMetadata, "_HORIZON", lambda original: _HORIZON_OF_THE_MOMENT))


def _horizon_after_the_listing(stack: ExitStack, world: World, errands: Errands) -> None:
    """References are read, and what has none is deleted; the horizon follows."""
    stack.enter_context(replaced(SqliteMetadata, "_HORIZON", lambda original: _HORIZON_OF_THE_MOMENT))

    def make(original: Any) -> Any:
        async def run(self: Vacuum) -> Any:
            self.summary.horizon_ms = await self._metadata.now_ms() - self._options.writer_grace_ms
            found = [[*page.leftovers, *await self._ask(page)] async for page in self._pages()]
            for each in found:
                await self._delete(each)
            return await original(self)

        return run

    stack.enter_context(replaced(Vacuum, "run", make))


def _pending_without_reference(stack: ExitStack, world: World, errands: Errands) -> None:
    def make_begin(original: Any) -> Any:
        async def begin_compaction(self: SqliteMetadata, compaction: Compaction) -> Compaction:
            begun: Compaction = await original(self, compaction)
            if await self.get_compaction(compaction.key) is not None:
                forget = "DELETE FROM objects WHERE object_key = $1"
                await self._statement(lambda tx: tx.execute(forget, begun.object.key))
            return begun

        return begin_compaction

    def make_replace(original: Any) -> Any:
        async def replace_entries(tx: Any, compaction: Compaction) -> None:
            await tx.reference([compaction.object])
            await original(tx, compaction)

        return replace_entries

    stack.enter_context(replaced(compactions.CompactionRows, "begin_compaction", make_begin))
    stack.enter_context(replaced(compactions, "_replace", make_replace))


def _dereferenced_by(where: str, columns: str) -> Break:
    """Garbage is chosen by another condition, with the time that the condition looks at."""

    def breaks(stack: ExitStack, world: World, errands: Errands) -> None:
        async def list_dereferenced(self: SqliteMetadata, *, grace_ms: int, limit: int) -> list[DereferencedObject]:
            rows = await self._fetch(
                f"""SELECT o.object_key, o.size_bytes, o.{columns} AS since FROM objects AS o
                    WHERE o.refs = 0 AND o.dereferenced_at IS NOT NULL AND o.created_at < {self._HORIZON}
                        AND o.{columns} < (SELECT sh_now_ms()) - $1 {where}
                    ORDER BY o.dereferenced_at, o.object_key LIMIT $2""",
                grace_ms,
                limit,
            )
            return [
                DereferencedObject(key=row["object_key"], size_bytes=row["size_bytes"], dereferenced_at_ms=row["since"])
                for row in rows
            ]

        stack.enter_context(replaced(SqliteMetadata, "list_dereferenced", lambda original: list_dereferenced))

    # A backend inherits the method, so it has none of its own that could be replaced.
    return _inherited(SqliteMetadata, "list_dereferenced", breaks)


_BELOW_PINS: Final = """AND o.dereferenced_at < coalesce(
    (SELECT min(p.created_at) FROM read_pins AS p WHERE p.expires_at > (SELECT sh_now_ms())), 9223372036854775807)"""


def _inherited(owner: type, name: str, breaks: Break) -> Break:
    def with_its_own(stack: ExitStack, world: World, errands: Errands) -> None:
        setattr(owner, name, getattr(owner, name))
        stack.callback(delattr, owner, name)
        breaks(stack, world, errands)

    return with_its_own


def _forgotten_with_the_first_partition(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(
        replaced(
            objects,
            "_DROP",
            lambda original: "UPDATE objects SET refs = 0 * :count, dereferenced_at = :now WHERE object_key = :key",
        )
    )


# Compaction.


def _sources_unchecked(stack: ExitStack, world: World, errands: Errands) -> None:
    async def stand(tx: Any, compaction: Compaction) -> bool:
        return True

    stack.enter_context(replaced(compactions, "_sources_stand", lambda original: stand))


def _cursor_anywhere(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(
        replaced(
            compactions,
            "_MOVE_CURSOR",
            lambda original: (
                "UPDATE partitions SET last_compaction_id = $3, compaction_cursor = $5 + 0 * $4 "
                "WHERE topic_id = $1 AND partition_id = $2"
            ),
        )
    )


def _commit_before_the_upload_ends(stack: ExitStack, world: World, errands: Errands) -> None:
    under_way: set[asyncio.Task[None]] = set()

    def make(original: Any) -> Any:
        async def complete(self: Any) -> None:
            task = asyncio.create_task(original(self))
            under_way.add(task)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

        return complete

    stack.enter_context(replaced(retries._RetryingUpload, "_complete", make))


def _last_record_left_out(stack: ExitStack, world: World, errands: Errands) -> None:
    def make_feed(original: Any) -> Any:
        def feed(self: SegmentCopy, read: SourceRead, buffers: Sequence[memoryview]) -> list[Any]:
            ready: list[Any] = []
            end_offset = self._sources[-1].end_offset
            for batch, header in self._walk.batches(read, buffers):
                if header.base_offset + header.last_offset_delta < end_offset:
                    ready.extend(self._writer.append(batch, header))
            return ready

        return feed

    stack.enter_context(replaced(SegmentCopy, "feed", make_feed))
    stack.enter_context(replaced(SegmentCopy, "finish", lambda original: lambda self: self._writer.finish()))


def _epoch_left_out(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def patch(buffer: Any, position: int, *, base_offset: int, leader_epoch: int) -> None:
            original(buffer, position, base_offset=base_offset, leader_epoch=0)

        return patch

    def make_run(original: Any) -> Any:
        def take_run(view: memoryview, start: int, *, leader_epoch: int | None = None, **limits: int) -> Any:
            return original(view, start, leader_epoch=None if leader_epoch is None else 0, **limits)

        return take_run

    stack.enter_context(replaced(copying, "patch", make))
    stack.enter_context(replaced(copying, "take_run", make_run))


# Key compaction.


def _newest_dropped(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def superseded(self: KeyMap, records: RecordKeys) -> bytes:
            earlier = copy(records)
            earlier.offsets = memoryview(array("q", (max(0, offset - 1) for offset in records.offsets)))
            flags: bytes = original(self, earlier)
            return flags

        return superseded

    stack.enter_context(replaced(KeyMap, "superseded", make))


def _tombstones_at_once(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def choose(records: Any, header: Any, rule: Any, counts: Any) -> Any:
            return original(records, header, replace(rule, now_ms=_ALWAYS_MS), counts)

        return choose

    stack.enter_context(replaced(thinning, "_choose", make))


def _end_left_out(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def finish(self: ThinnedCopy) -> Any:
            self._last = None
            return original(self)

        return finish

    stack.enter_context(replaced(ThinnedCopy, "finish", make))


# Retention, and the space on a disk.


def _one_entry_more(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def take(self: RetentionWalk, page: EntryPage) -> bool:
            more: bool = original(self, page)
            first = next((entry for entry in page.entries if entry.base_offset >= self.next_offset), None)
            if not more and first is not None and self._new_log_start > (self._log_start or 0):
                self._count(first, RetentionReason.TIME)
            return more

        return take

    stack.enter_context(replaced(RetentionWalk, "take", make))


def _oldest_record_decides(stack: ExitStack, world: World, errands: Errands) -> None:
    def is_old(self: RetentionRule, entry: Entry, now_ms: int) -> bool:
        return 0 <= self.retention_ms < now_ms - entry.min_timestamp_ms

    stack.enter_context(replaced(RetentionRule, "is_old", lambda original: is_old))


def _half_the_size_stays(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def find_cut(page: Any, entries: Sequence[Entry], *, limit_bytes: int) -> int:
            cut: int = original(page, entries, limit_bytes=limit_bytes // 2)
            return cut

        return find_cut

    stack.enter_context(replaced(passes, "find_cut", make))


def _uncommitted_ignored(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        async def raise_horizon(self: DiskSpace) -> None:
            self._oldest_stamp_ms = lambda: None
            await original(self)

        return raise_horizon

    stack.enter_context(replaced(DiskSpace, "_raise_horizon", make))


def _mutant(
    name: str,
    rule: str,
    story: str,
    breaks: Break,
    shows_as: frozenset[Kind],
    change: Callable[[MaintenancePlan], MaintenancePlan],
    applies: Callable[[Scenario], bool] = can_be_maintained,
) -> Mutant:
    return Mutant(
        name=name, rule=rule, story=story, shows_as=shows_as, breaks=breaks, applies=applies, needs=_with(change)
    )


_EARLY: Final = frozenset({Kind.TAKEN_EARLY})
_MISSING: Final = frozenset({Kind.MISSING_OBJECT})
_LOST: Final = frozenset({Kind.LOST})

MUTANTS: Final = (
    _mutant(
        "vacuum raises no horizon",
        "R6",
        "vacuum deletes what is old and has no reference, and commits of it are still taken",
        _horizon_not_raised,
        _MISSING,
        _small_objects,
    ),
    _mutant(
        "horizon raised after the listing",
        "R24",
        "vacuum reads references and deletes what has none, and raises the horizon afterwards",
        _horizon_after_the_listing,
        _MISSING,
        _small_objects,
    ),
    _mutant(
        "pending compaction without a reference",
        "R7",
        "the object of a compaction that has begun is not referenced before it is applied",
        _pending_without_reference,
        _MISSING,
        _left_pending,
    ),
    _mutant(
        "pins ignored",
        "R7",
        "vacuum deletes dereferenced objects whatever pins there are",
        _dereferenced_by("", "dereferenced_at"),
        _EARLY,
        _pinned,
    ),
    _mutant(
        "grace from the object's age",
        "R7",
        "the grace for readers counts from the creation of an object, not from the end of its last reference",
        _dereferenced_by(_BELOW_PINS, "created_at"),
        _EARLY,
        _small_objects,
        _is_fleet,
    ),
    _mutant(
        "shared blob forgotten with its first partition",
        "R7",
        "an object counts as dereferenced when the first of its references goes",
        _forgotten_with_the_first_partition,
        _MISSING,
        _small_objects,
    ),
    _mutant(
        "compaction without a look at its sources",
        "R17",
        "a compaction begins and is applied whatever entries stand there",
        _sources_unchecked,
        _MADE | {Kind.PROBLEM, Kind.DUPLICATED},
        _crowded,
    ),
    _mutant(
        "compaction cursor moves anywhere",
        "R17",
        "the cursor moves to the end of whatever was compacted, also back",
        _cursor_anywhere,
        frozenset({Kind.WENT_BACK}),
        _by_key,
    ),
    _mutant(
        "compaction committed before its upload ends",
        "invariant 5",
        "a compaction does not wait until its object is there",
        _commit_before_the_upload_ends,
        _MISSING,
        _small_objects,
    ),
    _mutant(
        "compaction leaves its last batch out",
        "invariant 6",
        "the new object has all batches of its sources but the last one",
        _last_record_left_out,
        _MADE,
        _small_objects,
    ),
    _mutant(
        "compaction drops epochs",
        "invariant 6",
        "copied batches lose the epoch under which they were written",
        _epoch_left_out,
        _MADE,
        _small_objects,
    ),
    _mutant(
        "key compaction takes the newest record",
        "R18",
        "a record counts as superseded by itself",
        _newest_dropped,
        _LOST,
        _by_key,
    ),
    _mutant(
        "tombstones go early",
        "R18",
        "the delete horizon of a tombstone counts as passed as soon as it is set",
        _tombstones_at_once,
        _LOST,
        _tombstones,
    ),
    _mutant(
        "emptied end of a range is left out",
        "R18",
        "key compaction does not keep the last batch of a range when all its records go",
        _end_left_out,
        frozenset({Kind.BAD_OBJECT, Kind.NOT_DENSE, Kind.PROBLEM}),
        _by_key,
    ),
    _mutant(
        "retention takes one entry more",
        "retention",
        "the first entry that is not due goes with those before it",
        _one_entry_more,
        _EARLY,
        _by_time,
    ),
    _mutant(
        "oldest record decides",
        "retention",
        "an entry is due as soon as its oldest record is, not its newest",
        _oldest_record_decides,
        _EARLY,
        lambda plan: replace(_by_time(plan), old_records=0.3),
    ),
    _mutant(
        "half of retention.bytes stays",
        "retention",
        "retention by size leaves less than the limit",
        _half_the_size_stays,
        _EARLY,
        _by_size,
    ),
    _mutant(
        "uncommitted uploads ignored on a full disk",
        "R6",
        "a single node that frees its disk raises the horizon over what it has uploaded and not committed",
        _uncommitted_ignored,
        frozenset({Kind.PROBLEM}),
        _by_size,
        _is_single,
    ),
)
