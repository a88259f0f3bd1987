"""Decides whether a partition's keys are worth compacting, and which entries become one object. Pure.

    log start          clean end               first uncleanable    newest entry
      ▼                   ▼                            ▼                 ▼
      ┌──────────┬────────┬──┬──┬──┬──┬──┬──┬──┬──┬──┬─┬──┬──┬──┬──┬──┬──┐
      │ COMPACTED, sparse │  dirty: not compacted yet  │ too young       │
      └──────────┴────────┴──┴──┴──┴──┴──┴──┴──┴──┴──┴─┴──┴──┴──┴──┴──┴──┘
      each key once at most    ≥ one record a key

The rules are Kafka's, with an entry in the place of a file of its log:

    first uncleanable   the first dirty entry with a record younger than ``min.compaction.lag.ms``; never beyond the
                        newest entry, which stays as it is (R18)
    due                 the dirty bytes' share is over ``min.cleanable.dirty.ratio``, or a dirty record is older than
                        ``max.compaction.lag.ms``; and, because only key compaction merges the small entries of such a
                        topic, also when there are very many of them

A due partition is rewritten from the log start on, entries together up to the size of an object. Items are committed in
the order of their offsets: then every key below the end of a committed dirty item is there once, whatever happens to
the items behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from streamhouse.core.errors import ConfigError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import GIB, MAX_SEGMENT_BYTES, MIB
from streamhouse.core.topic_config import TopicConfig
from streamhouse.maintenance.compaction.plan import MAX_SOURCES, CompactionItem, Worth
from streamhouse.maintenance.key_compaction.key_map import BYTES_PER_KEY
from streamhouse.metadata.contract import Entry, PartitionState

_MAX_MAP_BYTES: Final = 64 * GIB
_MAX_OBJECT_BYTES: Final = MAX_SEGMENT_BYTES // 2


class Due(StrEnum):
    """Why a partition is compacted now."""

    RATIO = "ratio"
    LAG = "lag"
    ENTRIES = "entries"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRules:
    map_bytes: int = 64 * MIB
    """Memory of the map of keys while one partition is compacted: two million keys."""
    target_object_bytes: int = 128 * MIB
    """Entries are rewritten together until they have this size."""
    max_sources: int = 2_000
    """Entries that become one object: they are named in one record of the metadata store."""
    max_dirty_entries: int = 5_000
    """So many dirty entries are compacted whatever their share of the bytes."""

    def __post_init__(self) -> None:
        if not BYTES_PER_KEY <= self.map_bytes <= _MAX_MAP_BYTES:
            raise ConfigError(
                f"key compaction with {self.map_bytes} bytes for its map of keys",
                hint=f"let it have {BYTES_PER_KEY} to {_MAX_MAP_BYTES} bytes",
            )
        if not (1 <= self.target_object_bytes <= _MAX_OBJECT_BYTES and 1 <= self.max_sources <= MAX_SOURCES):
            raise ConfigError(
                f"key compaction into objects of {self.target_object_bytes} bytes from {self.max_sources} entries",
                hint=f"let the bytes be 1 to {_MAX_OBJECT_BYTES}, and the entries 1 to {MAX_SOURCES}",
            )
        if self.max_dirty_entries < 1:
            raise ConfigError(
                f"key compaction from {self.max_dirty_entries} dirty entries on", hint="let it be 1 or more"
            )

    @property
    def max_keys(self) -> int:
        return self.map_bytes // BYTES_PER_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlan:
    key: PartitionKey
    clean: tuple[Entry, ...]
    dirty: tuple[Entry, ...]
    """The entries that may be compacted now; not those that are too young."""
    due: Due | None
    """None while it is not worth it."""

    @property
    def clean_bytes(self) -> int:
        return sum(entry.byte_length for entry in self.clean)

    @property
    def dirty_bytes(self) -> int:
        return sum(entry.byte_length for entry in self.dirty)

    @property
    def expected_bytes(self) -> int:
        """The bytes that are read: dirty ones twice."""
        return self.clean_bytes + 2 * self.dirty_bytes


def plan_keys(
    partition: PartitionState,
    entries: Sequence[Entry],
    *,
    clean_end: int,
    config: TopicConfig,
    rules: KeyRules,
    now_ms: int,
) -> KeyPlan:
    """``entries`` are all entries of the log, or its first ones; ``clean_end`` is the offset after the clean ones."""
    older = [
        entry
        for entry in entries
        if entry.end_offset >= partition.log_start_offset and entry.end_offset + 1 < partition.high_watermark
    ]
    clean = tuple(entry for entry in older if entry.end_offset < clean_end)
    behind = older[len(clean) :]
    dirty = tuple(_until_too_young(behind, config.min_compaction_lag_ms, now_ms))
    due = _due(clean, dirty, behind, config, rules, now_ms) if dirty else None
    return KeyPlan(key=partition.key, clean=clean, dirty=dirty, due=due)


def items_below(plan: KeyPlan, end_offset: int, rules: KeyRules) -> list[CompactionItem]:
    """The entries below ``end_offset``, neighbours together, in the order in which they must be committed."""
    items: list[CompactionItem] = []
    run: list[Entry] = []
    run_bytes = 0
    for entry in (*plan.clean, *plan.dirty):
        if entry.end_offset >= end_offset:
            break
        if run and (run_bytes + entry.byte_length > rules.target_object_bytes or len(run) == rules.max_sources):
            items.append(_item(plan.key, run))
            run, run_bytes = [], 0
        run.append(entry)
        run_bytes += entry.byte_length
    if run:
        items.append(_item(plan.key, run))
    return items


def _item(key: PartitionKey, run: Sequence[Entry]) -> CompactionItem:
    return CompactionItem(key=key, sources=tuple(run), worth=Worth.KEYS)


def _until_too_young(entries: Sequence[Entry], min_lag_ms: int, now_ms: int) -> Iterator[Entry]:
    for entry in entries:
        # Records without a time are as old as their entry.
        newest_ms = entry.max_timestamp_ms if entry.max_timestamp_ms >= 0 else entry.created_at_ms
        if min_lag_ms > 0 and newest_ms > now_ms - min_lag_ms:
            return
        yield entry


def _due(
    clean: Sequence[Entry],
    dirty: Sequence[Entry],
    behind: Sequence[Entry],
    config: TopicConfig,
    rules: KeyRules,
    now_ms: int,
) -> Due | None:
    oldest_ms = min((entry.min_timestamp_ms for entry in behind if entry.min_timestamp_ms > 0), default=now_ms)
    if oldest_ms < now_ms - config.max_compaction_lag_ms:
        return Due.LAG
    clean_bytes, dirty_bytes = (sum(entry.byte_length for entry in part) for part in (clean, dirty))
    if dirty_bytes > config.min_cleanable_dirty_ratio * (clean_bytes + dirty_bytes):
        return Due.RATIO
    return Due.ENTRIES if len(dirty) >= rules.max_dirty_entries else None
