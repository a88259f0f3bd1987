"""The passes as commands see them: each does its work, tells how far it is, and says what it did as data. That of
`verify` has a file of its own, verify_step.py.

Rows are what one looks at (a partition, a finding); the summary is numbers. Units are last in their names. A pass keeps
MAX_ROWS rows at most and counts the others.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from streamhouse.app.maintenance_passes import MaintenancePasses
from streamhouse.cli.commands.maintenance_reasons import (
    free_at_ms,
    nothing_to_compact,
    nothing_to_delete,
    nothing_to_retain,
    what_waits,
)
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.output import SetProgress
from streamhouse.core.ids import PartitionKey
from streamhouse.core.topic_config import TopicConfig
from streamhouse.maintenance.compaction.compactor import Compactor
from streamhouse.maintenance.compaction.plan import CompactionItem, CompactionRules
from streamhouse.maintenance.compaction.policy import compacted_logs, small_object_logs
from streamhouse.maintenance.compaction.stats import CompactionStats, PassProgress
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor
from streamhouse.maintenance.key_compaction.plan import Due, KeyPlan
from streamhouse.maintenance.key_compaction.stats import KeyCompactionStats
from streamhouse.maintenance.retention.passes import RetentionOutcome, RetentionStep, RetentionSummary
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.summary import VacuumSummary
from streamhouse.metadata.contract import Topic, WaitingObjects
from streamhouse.objectstore.metering import storage_cost_usd_month

MAX_ROWS: Final = 1_000  # a person reads a few; the summary has the sums of all
_PLANNED_AT_A_TIME: Final = 10  # partitions; a plan of one holds up to 10,000 entries, 7 MB

Row = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class RowList:
    """Rows of one sort, of which MAX_ROWS are kept."""

    name: str
    """What a row is, in the plural: the name of the rows in JSON."""
    columns: tuple[str, ...]
    """The fields of a row that a table shows."""
    cut: str = ""
    """The column of long text, which a terminal cuts to its width. JSON and a pipe get all of it."""
    not_on_a_terminal: tuple[str, ...] = ()
    """Columns that a terminal has no room for."""
    rows: list[Row] = field(default_factory=list)
    left_out: int = 0

    def add(self, row: Row) -> None:
        if len(self.rows) < MAX_ROWS:
            self.rows.append(row)
        else:
            self.left_out += 1


@dataclass(slots=True, kw_only=True)
class Pass(ABC):
    """One pass. ``rows`` and ``summary`` may be read at any time, also after the work was cancelled or has failed."""

    name: ClassVar[str]
    doing: ClassVar[str]
    """What the progress says until there is more to say."""
    rows_are: ClassVar[str]
    """What a row is, in the plural: the name of the rows in JSON."""
    columns: ClassVar[tuple[str, ...]]
    """The fields of a row that a table shows."""
    cut: ClassVar[str] = ""
    not_on_a_terminal: ClassVar[tuple[str, ...]] = ()
    """As in RowList."""
    plan_only: bool = False
    rows: list[Row] = field(default_factory=list)
    rows_left_out: int = 0
    notes: list[str] = field(default_factory=list)
    """Sentences for people, for stderr."""

    @property
    def more_rows(self) -> Sequence[RowList]:
        """Rows of another sort, which are shown after the first."""
        return ()

    @abstractmethod
    async def work(self, maintenance: MaintenancePasses, topics: list[Topic], tell: SetProgress) -> None: ...

    @abstractmethod
    def summary(self) -> Row: ...

    @abstractmethod
    def exit_code(self) -> ExitCode:
        """The outcome of a pass that came to its end."""

    def add_row(self, row: Row) -> None:
        if len(self.rows) < MAX_ROWS:
            self.rows.append(row)
        else:
            self.rows_left_out += 1


@dataclass(slots=True, kw_only=True)
class CompactPass(Pass):
    name = "compact"
    doing = "looking for small objects"
    rows_are = "partitions"
    columns = ("topic", "partition", "outcome", "base_offset", "end_offset", "entries", "read_bytes", "problem")
    rules: CompactionRules
    stats: KeyCompactionStats = field(default_factory=KeyCompactionStats)
    planned: CompactionStats = field(default_factory=CompactionStats)
    waiting_entries: int = 0
    waiting_keys: int = 0
    """Entries of partitions that are compacted by key, and that are not due yet."""
    partitions_left: int = 0
    more: bool = False

    async def work(self, maintenance: MaintenancePasses, topics: list[Topic], tell: SetProgress) -> None:
        names = {key: topic.name for topic in topics for key in topic.partition_keys()}
        small, by_key = small_object_logs(topics), compacted_logs(topics)
        if len(small) + len(by_key) < len(names):
            unread = sorted({names[key] for key in names.keys() - small - by_key.keys()})
            self.notes.append(f"left alone, because their configs cannot be read: {', '.join(unread)[:500]}")
        compactor, key_compactor = maintenance.compactor(self.rules), maintenance.key_compactor()
        if self.plan_only:
            await self._plan(compactor, small, names, tell)
            await self._plan_keys(key_compactor, by_key, names, tell)
            self._say_why_nothing(len(small), len(by_key))
            return

        def show(at: PassProgress) -> None:
            doing = f"compacting, {at.items_done} of {at.items} new objects, {at.bytes_read:,} bytes read"
            tell(doing, done=at.partitions_done, total=at.partitions)

        try:
            small_result = await compactor.compact_once(small, on_progress=show)
            key_result = await key_compactor.compact_once(by_key, on_progress=show)
        except asyncio.CancelledError:
            self.stats.recovered += await maintenance.finish_compactions(names.keys())
            raise
        finally:
            self.stats.add(compactor.stats)
            self.stats.add(key_compactor.stats)
        self.waiting_entries, self.waiting_keys = small_result.waiting_entries, key_result.waiting_entries
        result = key_result.plus(small_result)
        self.partitions_left, self.more = result.partitions_left, result.more
        for failure in result.failures:
            self.add_row(
                {
                    "topic": names[failure.key],
                    "partition": failure.key.partition,
                    "outcome": "failed",
                    "problem": str(failure.error),
                }
            )
        if self.more:
            self.notes.append("there is more to compact: run it again")
        self._say_why_nothing(len(small), len(by_key))

    def _say_why_nothing(self, partitions: int, key_partitions: int) -> None:
        did = self.stats
        if self.rows or self.partitions_left or did.runs or did.recovered or did.aborted or did.conflicts:
            return
        if did.busy:
            self.notes.append(f"nothing was done in {did.busy:,} partitions: another process compacts them")
            return
        self.notes.append(
            nothing_to_compact(
                partitions=partitions,
                waiting_entries=self.waiting_entries,
                key_partitions=key_partitions,
                waiting_keys=self.waiting_keys,
                rules=self.rules,
            )
        )

    async def _plan(
        self, compactor: Compactor, keys: Sequence[PartitionKey], names: Mapping[PartitionKey, str], tell: SetProgress
    ) -> None:
        for first in range(0, len(keys), _PLANNED_AT_A_TIME):
            for plan in await compactor.plan(keys[first : first + _PLANNED_AT_A_TIME]):
                self.waiting_entries += plan.waiting_entries
                for item in plan.items:
                    self._add_planned(names[item.key], item)
            tell(f"planning, {self.planned.runs:,} new objects", done=first, total=len(keys))

    async def _plan_keys(
        self,
        compactor: KeyCompactor,
        configs: Mapping[PartitionKey, TopicConfig],
        names: Mapping[PartitionKey, str],
        tell: SetProgress,
    ) -> None:
        for done, key in enumerate(configs):
            for plan in await compactor.plan({key: configs[key]}):
                if plan.due is None:
                    self.waiting_keys += len(plan.dirty)
                else:
                    self._add_key_plan(names[key], plan, plan.due)
            tell("planning by key", done=done, total=len(configs))

    def _add_key_plan(self, topic: str, plan: KeyPlan, due: Due) -> None:
        entries = (*plan.clean, *plan.dirty)
        self.planned.entries += len(entries)
        self.planned.bytes_in += plan.expected_bytes
        self.add_row(
            {
                "topic": topic,
                "partition": plan.key.partition,
                "outcome": "planned",
                "base_offset": entries[0].base_offset,
                "end_offset": entries[-1].end_offset,
                "entries": len(entries),
                "read_bytes": plan.expected_bytes,
                "worth": f"keys, by {due.value}",
                "problem": None,
            }
        )

    def _add_planned(self, topic: str, item: CompactionItem) -> None:
        self.planned.runs += 1
        self.planned.entries += len(item.sources)
        self.planned.bytes_in += item.expected_bytes
        self.planned.objects_released += item.objects_saved + 1
        self.add_row(
            {
                "topic": topic,
                "partition": item.key.partition,
                "outcome": "planned",
                "base_offset": item.base_offset,
                "end_offset": item.end_offset,
                "entries": len(item.sources),
                "read_bytes": item.expected_bytes,
                "worth": item.worth.value,
                "problem": None,
            }
        )

    def summary(self) -> Row:
        did = self.planned if self.plan_only else self.stats
        sums = {
            "objects_written": did.runs,
            "objects_released": did.objects_released,
            "entries_replaced": did.entries,
            "read_bytes": did.bytes_in,
            "entries_waiting": self.waiting_entries + self.waiting_keys,
        }
        if self.plan_only:
            return sums
        return {
            **sums,
            "written_bytes": did.bytes_out,
            "records_dropped": self.stats.dropped,
            "saved_usd_per_month": storage_cost_usd_month(did.bytes_in - did.bytes_out),
            "conflicts": did.conflicts,
            "busy_partitions": did.busy,
            "recovered": did.recovered,
            "aborted": did.aborted,
            "damaged": did.damaged,
            "failed_partitions": did.failures,
            "partitions_left": self.partitions_left,
            "more": self.more,
        }

    def exit_code(self) -> ExitCode:
        return ExitCode.FAILURE if self.stats.failures or self.partitions_left else ExitCode.OK


@dataclass(slots=True, kw_only=True)
class RetainPass(Pass):
    name = "retain"
    doing = "looking for old records"
    rows_are = "partitions"
    columns = (
        "topic", "partition", "outcome", "new_log_start_offset", "records", "size_bytes", "by", "held_by", "held_bytes",
        "problem",
    )  # fmt: skip
    done: RetentionSummary = field(default_factory=RetentionSummary)

    async def work(self, maintenance: MaintenancePasses, topics: list[Topic], tell: SetProgress) -> None:
        wanted = {topic.topic_id for topic in topics}
        steps = maintenance.retention().steps(
            wanted=lambda topic, partition: topic.topic_id in wanted, plan_only=self.plan_only
        )
        async with aclosing(steps):
            async for step in steps:
                self.done.add(step)
                self._add(step)
                tell(f"retention, {self.done.freed.records:,} records", done=step.done, total=step.total)
        if sum(self.done.kept.values()) == self.done.partitions:
            self.notes.append(nothing_to_retain(self.done.kept))

    def _add(self, step: RetentionStep) -> None:
        item = step.item
        if item is None and step.outcome is not RetentionOutcome.FAILED:
            return
        row: Row = {
            "topic": step.topic,
            "partition": step.partition,
            "outcome": step.outcome.value,
            "problem": None if step.error is None else str(step.error),
        }
        if item is not None:
            held = item.held
            row |= {
                "log_start_offset": item.log_start_offset,
                "new_log_start_offset": item.new_log_start_offset,
                "entries": item.freed.entries,
                "records": item.freed.records,
                "size_bytes": item.freed.size_bytes,
                "by": " and ".join(item.reasons),
                "held_by": None if held is None else held.slowest.reader,
                "held_from_offset": None if held is None else held.slowest.offset,
                "held_records": 0 if held is None else held.amount.records,
                "held_bytes": 0 if held is None else held.amount.size_bytes,
            }
        self.add_row(row)

    def summary(self) -> Row:
        done = self.done
        return {
            "partitions": done.partitions,
            "moved_partitions": done.moved,
            "entries": done.freed.entries,
            "records": done.freed.records,
            "size_bytes": done.freed.size_bytes,
            "saved_usd_per_month": storage_cost_usd_month(done.freed.size_bytes),
            "held_partitions": done.held,
            "altered_partitions": done.left,
            "failed_partitions": done.failed,
        }

    def exit_code(self) -> ExitCode:
        return ExitCode.FAILURE if self.done.failed else ExitCode.OK


@dataclass(slots=True, kw_only=True)
class VacuumPass(Pass):
    name = "vacuum"
    doing = "looking for garbage"
    rows_are = "garbage"
    columns = ("cause", "kind", "objects", "size_bytes")
    options: VacuumOptions
    found: VacuumSummary = field(default_factory=VacuumSummary)
    waiting: WaitingObjects = field(default_factory=WaitingObjects)

    async def work(self, maintenance: MaintenancePasses, topics: list[Topic], tell: SetProgress) -> None:
        def show(at: VacuumSummary) -> None:
            self.found = at
            tell(f"{at.phase}, {at.listed:,} listed, {at.total.objects:,} are garbage", done=0, total=None)

        vacuum = maintenance.vacuum(self.options, on_progress=show)
        try:
            self.found = await (vacuum.plan() if self.plan_only else vacuum.run())
        finally:
            self.found = vacuum.summary
            self.rows = self.found.as_json()["garbage"]
            self.notes += self.found.problems
        self.waiting = await vacuum.waiting()
        self.notes += what_waits(self.waiting, self.options, await maintenance.stores.metadata.list_pins())
        if not (self.rows or self.found.failed or self.found.gave_up or self.found.undecided.objects):
            self.notes.append(nothing_to_delete(self.found))
        if self.plan_only and self.found.undecided.objects:
            self.notes.append(
                f"{self.found.undecided.objects} objects can only be judged by a vacuum that runs, because a writer may"
                " still commit them; most of them are usually in use"
            )

    def summary(self) -> Row:
        found = self.found
        return {
            "objects": found.total.objects,
            "size_bytes": found.total.size_bytes,
            "saved_usd_per_month": found.saved_usd_month,
            "phase": str(found.phase),
            "horizon_ms": found.horizon_ms,
            "entries_purged": found.entries_purged,
            "listed_objects": found.listed,
            "young_objects": found.young,
            "foreign_objects": found.foreign,
            "undecided_objects": found.undecided.objects,
            "undecided_bytes": found.undecided.size_bytes,
            "waiting_objects": self.waiting.objects,
            "waiting_bytes": self.waiting.size_bytes,
            "waiting_until_ms": free_at_ms(self.waiting, self.options),
            "pinned_objects": self.waiting.pinned_objects,
            "pinned_bytes": self.waiting.pinned_bytes,
            "records_left": found.records_left,
            "failed_objects": found.failed,
        }

    def exit_code(self) -> ExitCode:
        return ExitCode.FAILURE if self.found.failed or self.found.gave_up else ExitCode.OK
