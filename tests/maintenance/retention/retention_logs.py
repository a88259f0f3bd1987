"""Logs made by hand, and what Kafka would delete of them, in one line that has nothing in common with the code."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import takewhile
from uuid import UUID

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.maintenance.retention.holds import ReaderPlace
from streamhouse.maintenance.retention.plan import RetentionItem, RetentionWalk
from streamhouse.maintenance.retention.rule import RetentionRule
from streamhouse.maintenance.retention.sizes import SizeCount, find_cut
from streamhouse.metadata.contract import (
    SEGMENT_V1,
    Entry,
    EntryKind,
    EntryPage,
    LogState,
    PartitionState,
    WriteMode,
)

KEY = PartitionKey(TopicId(UUID("0fe1d2c3-b4a5-4687-8978-6a5b4c3d2e1f")), 0)
NOW_MS = 1_000_000
NO_HOLD = 2**63


def entry(
    base: int, *, records: int = 1, at_ms: int = 0, size: int = 10, created_at_ms: int = 0, end: int | None = None
) -> Entry:
    return Entry(
        base_offset=base,
        end_offset=base + records - 1 if end is None else end,
        kind=EntryKind.SEGMENT,
        object_key=f"objects/{base}",
        byte_offset=0,
        byte_length=size,
        record_count=records,
        encoding=SEGMENT_V1,
        min_timestamp_ms=at_ms,
        max_timestamp_ms=at_ms,
        epoch=1,
        created_at_ms=created_at_ms,
    )


def log_of(*fields: dict[str, int], start: int = 0) -> list[Entry]:
    """Entries one behind the other, from ``start`` on; each with these fields."""
    entries: list[Entry] = []
    for each in fields:
        entries.append(entry(entries[-1].end_offset + 1 if entries else start, **each))
    return entries


def aged(*ages_ms: int) -> list[Entry]:
    """Entries of one record, each this old."""
    return log_of(*({"at_ms": NOW_MS - age_ms} for age_ms in ages_ms))


def sized(*sizes: int) -> list[Entry]:
    return log_of(*({"size": size, "at_ms": NOW_MS} for size in sizes))


@dataclasses.dataclass
class Log:
    """A partition in memory that answers scans as the metadata store does."""

    entries: list[Entry]
    log_start: int = 0

    def page(self, start: int, limit: int, end: int = NO_HOLD) -> EntryPage:
        start = max(start, self.log_start)
        found = [one for one in self.entries if one.end_offset >= start and one.base_offset < end]
        return EntryPage(partition=self.state(), entries=tuple(found[:limit]), more=len(found) > limit)

    def state(self) -> PartitionState:
        watermark = self.entries[-1].end_offset + 1 if self.entries else self.log_start
        return PartitionState(
            key=KEY,
            log_state=LogState.OPEN,
            high_watermark=watermark,
            log_start_offset=self.log_start,
            last_stable_offset=watermark,
            leader_epoch=1,
            write_mode=WriteMode.LEASED,
            gc_horizon_ms=0,
            compaction_cursor=0,
        )

    def compact(self, first: int, stop: int, size: int) -> None:
        """Replace entries by one."""
        old = self.entries[first:stop]
        self.entries[first:stop] = [
            dataclasses.replace(
                old[0],
                end_offset=old[-1].end_offset,
                byte_length=size,
                record_count=sum(one.record_count for one in old),
                max_timestamp_ms=max(one.max_timestamp_ms for one in old),
                object_key=f"compacted/{old[0].base_offset}",
            )
        ]

    def trim(self, offset: int) -> None:
        self.log_start = max(self.log_start, offset)
        self.entries = [one for one in self.entries if one.end_offset >= self.log_start]


def planned(
    log: Log, rule: RetentionRule, *, page_entries: int = 100, now_ms: int = NOW_MS, hold_offset: int | None = None
) -> RetentionItem | None:
    """Plan as a pass does, with pages of this size."""
    cut = 0
    if rule.limits_size:
        count = SizeCount(rule.retention_bytes)
        while True:
            page = log.page(count.next_offset, page_entries)
            count.take(page.entries)
            if not page.more:
                break
        cut_page = count.cut_page()
        if cut_page is not None:
            again = log.page(cut_page.from_offset, page_entries, cut_page.to_offset)
            cut = find_cut(cut_page, again.entries, limit_bytes=rule.retention_bytes)
    slowest = None if hold_offset is None else ReaderPlace(offset=hold_offset, reader="slow")
    walk = RetentionWalk(rule, now_ms=now_ms, size_cut=cut, slowest=slowest)
    while walk.take(log.page(walk.next_offset, page_entries)):
        pass
    return walk.item(KEY, topic="orders", topic_version=1)


def kafka_deletes(
    entries: Sequence[Entry], *, ms: int = -1, size: int = -1, now_ms: int = NOW_MS, hold: int = NO_HOLD, slack: int = 0
) -> int:
    """How many entries Kafka deletes, as if they were segments; ``hold`` and ``slack`` are ours."""

    def time(one: Entry) -> int:
        return one.max_timestamp_ms if one.max_timestamp_ms >= 0 else one.created_at_ms

    def due(i: int) -> bool:
        old = ms >= 0 and now_ms - time(entries[i]) > ms
        return old or (size >= 0 and sum(one.byte_length for one in entries[i + 1 :]) >= size)

    def held(i: int) -> bool:
        age = now_ms - min(time(entries[i]), entries[i].created_at_ms)
        return entries[i].end_offset >= hold and age <= max(ms, 0) + slack

    return len(list(takewhile(lambda i: due(i) and not held(i), range(len(entries)))))
