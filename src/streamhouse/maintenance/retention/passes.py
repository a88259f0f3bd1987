"""Runs retention over many partitions: reads configs and entries, plans, and moves log starts. All IO is here.

A pass asks for the oldest entry of many partitions in one call, and reads more only where that entry may be due.
``PARTITIONS_AT_A_TIME`` partitions are read and moved side by side. An error ends the work on one partition, which the
pass reports by name, and the others go on.

Time is the store's clock, read once when the pass begins. It is one clock for all agents, so that no machine with a
wrong clock deletes records; and a pass that takes long deletes too little rather than too much.

A topic's configs are read again right before its log start moves. If they have changed since the plan was made, the
partition is left to the next pass: raising ``retention.ms`` saves whatever still stands.

Passes may be repeated, may run side by side in several processes, and may be cancelled anywhere: every log start is
moved by one call that is safe to repeat. A call that was cut short leaves entries below the log start that no look-up
shows. So the first pass of a process, and then one a day, asks the store to finish each partition's last call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final

from streamhouse.core import topic_config
from streamhouse.core.errors import PartitionNotFound, StreamHouseError, TopicNotFound, as_result
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.maintenance.retention.holds import GroupHolds, ReaderHold
from streamhouse.maintenance.retention.plan import EntrySum, RetentionItem, RetentionWalk
from streamhouse.maintenance.retention.rule import RetentionRule, retention_rule
from streamhouse.maintenance.retention.sizes import SizeCount, SizeEstimate, find_cut
from streamhouse.metadata.contract import Entry, EntryPage, MetadataStore, ScanRange, Topic

_log = logging.getLogger(__name__)

PARTITIONS_AT_A_TIME: Final = 8  # each may have one call to the store under way, beside those that serve clients
_LOOK_PARTITIONS: Final = 500  # asked for their oldest entry in one call: some 10 ms
_FIRST_PAGE_ENTRIES: Final = 100  # most passes find a few entries that are due
_PAGE_ENTRIES: Final = 1_000  # some 10 ms of the store and of the event loop
_MAX_COUNT_PAGES: Final = 10_000  # ten million entries; a count that ends early is too small, and deletes too little
_MAX_ESTIMATES: Final = 100_000  # partitions with a size limit, 200 bytes each; the others are counted in each pass
_FINISH_AGAIN_MS: Final = 86_400_000  # another process may have been killed while it dropped entries
_MAX_NAMED_FAILURES: Final = 100  # in a summary; the steps name them all

Wanted = Callable[[Topic, int], bool]
"""Says whether a pass is to look at this partition of the topic."""


def every_partition(topic: Topic, partition: int) -> bool:
    """Chooses all partitions."""
    return True


class RetentionOutcome(StrEnum):
    NOTHING = "nothing"
    """Nothing is due, or a reader holds all that is due."""
    PLANNED = "planned"
    """The log start is to move, and the pass only plans."""
    APPLIED = "applied"
    CHANGED = "changed"
    """The topic was altered since the plan was made: the next pass plans anew."""
    GONE = "gone"
    """The topic was deleted meanwhile."""
    FAILED = "failed"


class RetentionKept(StrEnum):
    """Why nothing of a partition goes."""

    UNLIMITED = "unlimited"
    """Its topic has no ``delete`` in ``cleanup.policy``, or limits neither age nor size."""
    EMPTY = "empty"
    """It has no entry."""
    WITHIN = "within its limits"
    """Not even its oldest entry is due."""
    HELD = "held"
    """A reader holds all that is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStep:
    """What a pass did with one partition. The pass is at ``done`` partitions of ``total``."""

    topic: str
    partition: int
    outcome: RetentionOutcome
    item: RetentionItem | None = None
    kept: RetentionKept | None = None
    """The reason for the outcome NOTHING."""
    error: Exception | None = None
    done: int
    total: int

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.topic}"


@dataclass(slots=True, kw_only=True)
class RetentionSummary:
    """Adds up the steps of a pass: what it has freed, or would free if it only plans.

    When two processes move the same log start at the same time, each of them counts the entries as its own.
    """

    partitions: int = 0
    """The partitions that the pass looked at."""
    kept: dict[RetentionKept, int] = field(default_factory=dict)
    """The partitions of which nothing goes, by the reason."""
    moved: int = 0
    freed: EntrySum = field(default_factory=EntrySum)
    held: int = 0
    """The partitions in which a reader holds entries that are due."""
    left: int = 0
    """The partitions whose topic was altered during the pass."""
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    """The first failures by name, each with its error."""

    def add(self, step: RetentionStep) -> None:
        self.partitions += 1
        if step.outcome is RetentionOutcome.FAILED:
            self.failed += 1
            if len(self.failures) < _MAX_NAMED_FAILURES:
                self.failures.append(f"{step}: {step.error}")
        if step.outcome is RetentionOutcome.CHANGED:
            self.left += 1
        if step.kept is not None:
            self.kept[step.kept] = self.kept.get(step.kept, 0) + 1
        if step.item is None:
            return
        self.held += step.item.held is not None
        if step.outcome in (RetentionOutcome.PLANNED, RetentionOutcome.APPLIED):
            self.moved += 1
            self.freed += step.item.freed


@dataclass(frozen=True, slots=True, kw_only=True)
class _RetentionTarget:
    topic: Topic
    partition: int
    rule: RetentionRule | None
    error: Exception | None = None
    """The topic's stored configs cannot be read."""

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.topic.topic_id, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RetentionDone:
    outcome: RetentionOutcome
    item: RetentionItem | None = None
    kept: RetentionKept | None = None
    error: Exception | None = None


class Retention:
    """Runs passes. Keep one for the life of a process: it remembers sizes from pass to pass."""

    def __init__(self, *, metadata: MetadataStore, hold: ReaderHold | None = None) -> None:
        """``hold``: who is asked about readers, for topics that wait for them; else their consumer groups."""
        self._metadata = metadata
        self._groups = GroupHolds(metadata)
        self._hold = hold or self._groups.slowest
        self._estimates: dict[PartitionKey, SizeEstimate] = {}
        self._now_ms = 0
        """The store's time when the last pass began."""
        self._finished_at_ms: dict[PartitionKey, int] = {}
        """When the last move of a partition's log start was known to be complete."""

    async def run(self, *, wanted: Wanted = every_partition) -> RetentionSummary:
        """One pass, without a look at its steps."""
        summary = RetentionSummary()
        async for step in self.steps(wanted=wanted):
            summary.add(step)
        return summary

    async def steps(
        self, *, wanted: Wanted = every_partition, plan_only: bool = False
    ) -> AsyncGenerator[RetentionStep, None]:
        """One pass: yields a step for each partition, in the order in which they are done. With ``plan_only``, nothing
        is changed, and the steps hold the items that a pass would apply.

        A caller that leaves the loop early must close the generator (``contextlib.aclosing``), which ends the work
        under way. Raises what the store raises when it is asked for the topics and the time; later errors are in the
        steps.
        """
        topics = await self._metadata.list_topics()
        self._now_ms = await self._metadata.now_ms()
        await self._groups.new_pass()
        self._forget_all_but({topic.topic_id: topic.partition_count for topic in topics})
        targets = [target for topic in topics for target in self._targets(topic, wanted)]
        count = 0
        running: dict[asyncio.Task[_RetentionDone], _RetentionTarget] = {}
        try:
            todo = iter(targets)
            while chunk := list(islice(todo, _LOOK_PARTITIONS)):
                for target, found in await self._look(chunk):
                    while len(running) >= PARTITIONS_AT_A_TIME:
                        for task in await _first_of(running):
                            count += 1
                            yield _step(running.pop(task), task.result(), count, len(targets))
                    work = self._work(target, found, plan_only=plan_only)
                    running[asyncio.create_task(work, name=f"retention-{target.key}")] = target
            while running:
                for task in await _first_of(running):
                    count += 1
                    yield _step(running.pop(task), task.result(), count, len(targets))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._groups.new_pass()

    async def apply(self, item: RetentionItem) -> bool:
        """Move the log start as planned, now or later. False if the topic was altered since: then plan anew.

        Raises TopicNotFound, PartitionNotFound. After any other error, or a cancellation, the log start may have moved:
        applying again is safe.
        """
        topic = await self._metadata.get_topic_by_id(item.key.topic_id)
        if topic.version != item.topic_version:
            return False
        await self._advance(item.key, item.new_log_start_offset)
        if (estimate := self._estimates.get(item.key)) is not None:
            estimate.subtract(entries=item.freed.entries, size_bytes=item.freed.size_bytes)
        _log.info(
            "partition %d of %s begins at offset %d, was %d: %d records in %d entries are deleted by %s",
            item.key.partition,
            item.topic,
            item.new_log_start_offset,
            item.log_start_offset,
            item.freed.records,
            item.freed.entries,
            " and ".join(item.reasons),
        )
        return True

    def _targets(self, topic: Topic, wanted: Wanted) -> Iterator[_RetentionTarget]:
        partitions = [partition for partition in range(topic.partition_count) if wanted(topic, partition)]
        if not partitions:
            return
        rule, unreadable = None, None
        try:
            rule = retention_rule(topic_config.effective(topic.configs))
        except StreamHouseError as error:
            unreadable = as_result(error)
        for partition in partitions:
            yield _RetentionTarget(topic=topic, partition=partition, rule=rule, error=unreadable)

    def _forget_all_but(self, partition_counts: Mapping[TopicId, int]) -> None:
        for remembered in (self._estimates, self._finished_at_ms):
            for key in [key for key in remembered if key.partition >= partition_counts.get(key.topic_id, 0)]:
                del remembered[key]

    async def _look(
        self, targets: Sequence[_RetentionTarget]
    ) -> list[tuple[_RetentionTarget, EntryPage | _RetentionDone]]:
        """The oldest entry of each partition; where that cannot be had, what becomes of the partition."""
        ranges = [ScanRange(key=target.key, from_offset=0) for target in targets]
        try:
            pages = {page.partition.key: page for page in await self._metadata.scan_entries(ranges, limit=1)}
        except Exception as error:
            failed = _RetentionDone(outcome=RetentionOutcome.FAILED, error=as_result(error))
            return [(target, failed) for target in targets]
        gone = _RetentionDone(outcome=RetentionOutcome.GONE)
        return [(target, pages.get(target.key, gone)) for target in targets]

    async def _work(
        self, target: _RetentionTarget, oldest: EntryPage | _RetentionDone, *, plan_only: bool
    ) -> _RetentionDone:
        """Plan one partition and move its log start. Raises nothing but a cancellation."""
        if isinstance(oldest, _RetentionDone):
            return oldest
        if target.error is not None:
            return _RetentionDone(outcome=RetentionOutcome.FAILED, error=target.error)
        try:
            item = await self._plan(target, oldest)
            if item is not None and item.moves:
                if plan_only:
                    return _RetentionDone(outcome=RetentionOutcome.PLANNED, item=item)
                applied = await self.apply(item)
                return _RetentionDone(
                    outcome=RetentionOutcome.APPLIED if applied else RetentionOutcome.CHANGED, item=item
                )
            if not plan_only:
                await self._finish(oldest)
            return _RetentionDone(
                outcome=RetentionOutcome.NOTHING, item=item, kept=_reason_to_keep(target.rule, oldest, item)
            )
        except (TopicNotFound, PartitionNotFound):
            return _RetentionDone(outcome=RetentionOutcome.GONE)
        except Exception as error:
            return _RetentionDone(outcome=RetentionOutcome.FAILED, error=as_result(error))

    async def _plan(self, target: _RetentionTarget, oldest: EntryPage) -> RetentionItem | None:
        rule, key = target.rule, target.key
        if rule is None or not oldest.entries:
            return None
        (first,) = oldest.entries
        cut = await self._size_cut(rule, oldest, first) if rule.limits_size else 0
        if first.end_offset >= cut and not rule.is_old(first, self._now_ms):
            return None
        slowest = await self._hold(key) if rule.waits_for_readers else None
        walk = RetentionWalk(rule, now_ms=self._now_ms, size_cut=cut, slowest=slowest)
        limit, end = _FIRST_PAGE_ENTRIES, oldest.partition.high_watermark  # a writer of old records is not followed
        while walk.take(await self._scan(key, walk.next_offset, end, limit=limit)):
            limit = _PAGE_ENTRIES
        return walk.item(key, topic=target.topic.name, topic_version=target.topic.version)

    async def _size_cut(self, rule: RetentionRule, oldest: EntryPage, first: Entry) -> int:
        """The offset below which entries are due by size; 0 if none is, or if it is too early to count."""
        key, end, limit_bytes = oldest.partition.key, oldest.partition.high_watermark, rule.retention_bytes
        estimate = self._estimates.get(key)
        if estimate is not None:
            more = estimate.next_offset < end
            while more:
                page = await self._scan(key, estimate.next_offset, end, limit=_PAGE_ENTRIES)
                estimate.add(page.entries)
                more = page.more
            if not estimate.needs_count(limit_bytes=limit_bytes, oldest_bytes=first.byte_length, now_ms=self._now_ms):
                return 0
        count = await self._count(key, end, limit_bytes)
        cut_page = count.cut_page()
        if cut_page is None:
            return 0
        page = await self._scan(key, cut_page.from_offset, cut_page.to_offset, limit=_PAGE_ENTRIES)
        return find_cut(cut_page, page.entries, limit_bytes=limit_bytes)

    async def _count(self, key: PartitionKey, end: int, limit_bytes: int) -> SizeCount:
        count = SizeCount(limit_bytes)
        for _ in range(_MAX_COUNT_PAGES):
            page = await self._scan(key, count.next_offset, end, limit=_PAGE_ENTRIES)
            count.take(page.entries)
            if not page.more:
                break
        self._estimates.pop(key, None)
        if len(self._estimates) >= _MAX_ESTIMATES:
            del self._estimates[next(iter(self._estimates))]
        self._estimates[key] = SizeEstimate(
            total_bytes=count.total_bytes,
            entries=count.entries,
            next_offset=count.next_offset,
            counted_at_ms=self._now_ms,
        )
        return count

    async def _scan(self, key: PartitionKey, start: int, end: int, *, limit: int) -> EntryPage:
        pages = await self._metadata.scan_entries([ScanRange(key=key, from_offset=start, to_offset=end)], limit=limit)
        if not pages:
            raise PartitionNotFound(f"there is no partition {key}")
        return pages[0]

    async def _finish(self, oldest: EntryPage) -> None:
        """Let the store drop what an interrupted move of the log start has left."""
        key, log_start = oldest.partition.key, oldest.partition.log_start_offset
        finished_at_ms = self._finished_at_ms.get(key)
        if log_start == 0 or (finished_at_ms is not None and self._now_ms - finished_at_ms <= _FINISH_AGAIN_MS):
            return
        await self._advance(key, log_start)

    async def _advance(self, key: PartitionKey, offset: int) -> None:
        self._finished_at_ms.pop(key, None)  # until the call has come to its end
        await self._metadata.advance_log_start(key, offset)
        self._finished_at_ms[key] = self._now_ms


async def _first_of(running: Collection[asyncio.Task[_RetentionDone]]) -> list[asyncio.Task[_RetentionDone]]:
    """Those that are done, at least one, in the order in which they were begun."""
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    return [task for task in running if task.done()]


def _step(target: _RetentionTarget, done: _RetentionDone, count: int, total: int) -> RetentionStep:
    return RetentionStep(
        topic=target.topic.name,
        partition=target.partition,
        outcome=done.outcome,
        item=done.item,
        kept=done.kept,
        error=done.error,
        done=count,
        total=total,
    )


def _reason_to_keep(rule: RetentionRule | None, oldest: EntryPage, item: RetentionItem | None) -> RetentionKept:
    if rule is None:
        return RetentionKept.UNLIMITED
    if not oldest.entries:
        return RetentionKept.EMPTY
    return RetentionKept.HELD if item is not None and item.held is not None else RetentionKept.WITHIN
