"""Sentences for people: why a pass of maintenance did nothing, and what vacuum could not delete yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from streamhouse.core.units import format_duration
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.retention.passes import RetentionKept
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.summary import VacuumSummary
from streamhouse.metadata.contract import Pin, WaitingObjects

_NAMED_PINS: Final = 5
_KEPT: Final[Mapping[RetentionKept, tuple[str, str]]] = {
    RetentionKept.WITHIN: ("is within its limits", "are within their limits"),
    RetentionKept.HELD: ("is held back by a reader", "are held back by readers"),
    RetentionKept.EMPTY: ("has nothing in the object store", "have nothing in the object store"),
    RetentionKept.UNLIMITED: ("keeps everything", "keep everything"),
}
"""What is said of one partition, and of several."""


def nothing_to_compact(
    *, partitions: int, waiting_entries: int, key_partitions: int, waiting_keys: int, rules: CompactionRules
) -> str:
    """``partitions``: those of small objects; ``key_partitions``: those that are compacted by key. The waiting entries
    are those that are not worth an object yet."""
    parts = [f"nothing to do: {_count(partitions + key_partitions, 'partition')} looked at"]
    if waiting_entries:
        age = format_duration(rules.max_age_ms)
        parts.append(
            f"{_count(waiting_entries, 'small entry', 'small entries')} {_wait(waiting_entries)}: compaction takes"
            f" {rules.min_entries:,} in a row (--min-entries), or 2 once the oldest is older than {age} (--max-age)"
        )
    elif partitions:
        parts.append("no small entry is left to compact")
    if waiting_keys:
        parts.append(
            f"{_count(waiting_keys, 'entry', 'entries')} to be compacted by key {_wait(waiting_keys)} for the topic's"
            " min.cleanable.dirty.ratio or max.compaction.lag.ms"
        )
    elif key_partitions:
        parts.append("nothing was written to topics with compact in cleanup.policy since their last compaction")
    return "; ".join(parts)


def nothing_to_retain(kept: Mapping[RetentionKept, int]) -> str:
    words = [f"{kept[each]:,} {_KEPT[each][kept[each] != 1]}" for each in _KEPT if kept.get(each)]
    looked_at = f"nothing to do: {_count(sum(kept.values()), 'partition')} looked at"
    why = f"{looked_at}: {', '.join(words)}" if words else looked_at
    if kept.get(RetentionKept.UNLIMITED):
        why += " (no delete in cleanup.policy, or neither retention.ms nor retention.bytes)"
    return why


def nothing_to_delete(found: VacuumSummary) -> str:
    old = found.listed - found.young - found.foreign
    if not old:
        return f"nothing to delete: no object is older than the horizon, {_time(found.horizon_ms)}"
    return (
        f"nothing to delete: {_count(old, 'object')} {'is' if old == 1 else 'are'} older than the horizon,"
        f" {_time(found.horizon_ms)}, and all of it is in use or waits"
    )


def free_at_ms(waiting: WaitingObjects, options: VacuumOptions) -> int | None:
    """When the graces of all waiting objects are over; None if there is none. Pins may keep some for longer."""
    if not waiting.objects:
        return None
    return max(
        waiting.last_dereferenced_ms + options.reader_grace_ms, waiting.last_created_ms + options.writer_grace_ms
    )


def what_waits(waiting: WaitingObjects, options: VacuumOptions, pins: Sequence[Pin]) -> list[str]:
    """``pins``: the live ones, oldest first. The oldest decides, but all that are named may have to end."""
    free_ms = free_at_ms(waiting, options)
    if free_ms is None:
        return []
    of = f"{_count(waiting.objects, 'object')} ({waiting.size_bytes:,} bytes)"
    notes = [f"{of} that the log needs no more {_wait(waiting.objects)}: the graces end by {_time(free_ms)}"]
    if waiting.pinned_objects and pins:
        named = [
            f"{pin.owner} (since {_time(pin.created_at_ms)}, until {_time(pin.expires_at_ms)} unless renewed)"
            for pin in pins[:_NAMED_PINS]
        ]
        left = len(pins) - len(named)
        stay = "stays" if waiting.pinned_objects == 1 else "stay"
        notes.append(
            f"{waiting.pinned_objects:,} of them ({waiting.pinned_bytes:,} bytes) {stay} until these pins end:"
            f" {', '.join(named)}{f' and {left:,} more' if left else ''}"
        )
    return notes


def _count(number: int, what: str, many: str | None = None) -> str:
    return f"{number:,} {what if number == 1 else many or f'{what}s'}"


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"
