"""Judges what maintenance took away: records, references, objects. Part of the checker; shares no code with the engine.

Records may go in two ways only:

* A move of the log start takes the oldest entries. Each must be due: by time (its newest record is older than
  ``retention.ms``), by size (at least ``retention.bytes`` remain behind it), or because an operator asked for it.
* On a compacted topic, a compaction takes a record that has a newer one of its key, or a tombstone: one that an earlier
  compaction had kept, that is older than ``delete.retention.ms``, and that hides no older record of its key.

All that stays keeps offset, key, value, time, epoch and producer, and without key compaction every byte of its batch.
Cursors and log starts never go back. An object goes only when nothing names it, long enough after its last reference
went, and not while a pin is as old as that moment; one that was never named only when its writer had its grace. A
commit is refused for the age of its object only when that object is older than the grace, or when it was uploaded after
the horizon had been chosen.

In the end nothing is due any more, and the bucket holds exactly what is referenced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simulator.anomalies import Kind, SimAnomaly
from simulator.history import Key, Leftovers, LoggedRecord, LogSpan, Replaced, SimHistory, Trimmed

_SLACK_MS: Final = 60_000
"""Between a stamp and the arrival of its upload, at most."""
_PLANNED_MS: Final = 20_000
"""How old the plan of a trim may be, in virtual time."""


def judge_removals(history: SimHistory, left: Leftovers) -> Iterator[SimAnomaly]:
    for replaced in history.replaced:
        yield from _compaction(history, replaced)
    for trimmed in history.cut:
        yield from _trim(history, trimmed)
    yield from _objects(history)
    yield from _refusals(history)
    if history.is_tidied:
        yield from _tidiness(history, left)


def thinned_by(history: SimHistory, key: Key) -> dict[int, tuple[str, float]]:
    """The records of a partition that compactions took, by offset: the value, and when."""
    thinned: dict[int, tuple[str, float]] = {}
    for replaced in history.replaced:
        if replaced.key == key:
            for offset, record in _gone(replaced.before, replaced.after):
                thinned[offset] = (record.value, replaced.at_ms)
    return thinned


def _gone(before: LogSpan, after: LogSpan) -> Iterator[tuple[int, LoggedRecord]]:
    return ((offset, record) for offset, record in before.records.items() if offset not in after.records)


# Compactions.


def _compaction(history: SimHistory, replaced: Replaced) -> Iterator[SimAnomaly]:
    yield from _both_states(history, replaced.key, replaced.before, replaced.after)
    for offset, record in _gone(replaced.before, replaced.after):
        why = _why_it_must_stay(history, replaced, offset, record)
        if why:
            yield _found(Kind.LOST, replaced.key, f"a compaction took {record.value!r} at {offset}: {why}")


def _why_it_must_stay(history: SimHistory, replaced: Replaced, offset: int, record: LoggedRecord) -> str:
    if not history.rules.compacts:
        return "its topic is not compacted"
    same_key = [at for at, each in replaced.before.records.items() if each.key == record.key]
    if max(same_key) > offset:
        return ""
    if not record.is_tombstone:
        return f"it is the newest of key {record.key!r}"
    older = [at for at in same_key if at < offset and at in replaced.after.records]
    if older:
        return f"a tombstone, and {older} of its key are still there"
    kept_before = any(
        each.key == replaced.key and each.at_ms < replaced.at_ms and _covers(each, offset) for each in history.replaced
    )
    if not kept_before:
        return "a tombstone that no compaction had kept before"
    age_ms = replaced.store_ms - record.time_ms
    if age_ms < history.rules.tombstones_stay_ms:
        return f"a tombstone of {age_ms} ms, and it must stay for {history.rules.tombstones_stay_ms}"
    return ""


def _covers(replaced: Replaced, offset: int) -> bool:
    """Whether the compaction has rewritten this offset, and kept its record."""
    old = {entry.object_key for entry in replaced.before.partition.entries}
    new = [entry for entry in replaced.after.partition.entries if entry.object_key not in old]
    return offset in replaced.after.records and any(entry.base_offset <= offset <= entry.end_offset for entry in new)


def _both_states(history: SimHistory, key: Key, before: LogSpan, after: LogSpan) -> Iterator[SimAnomaly]:
    """What every call must leave as it was."""
    for problem in {**dict.fromkeys(before.unreadable), **dict.fromkeys(after.unreadable)}:
        kind = Kind.MISSING_OBJECT if problem.endswith("is missing") else Kind.BAD_OBJECT
        yield _found(kind, key, problem)
    old, new = before.partition, after.partition
    if new.cursor < old.cursor or new.log_start < old.log_start or new.high_watermark < old.high_watermark:
        yield _found(
            Kind.WENT_BACK,
            key,
            f"cursor {old.cursor} to {new.cursor}, log start {old.log_start} to {new.log_start}, watermark"
            f" {old.high_watermark} to {new.high_watermark}",
        )
    if new.log_start > new.high_watermark:
        yield _found(Kind.NOT_DENSE, key, f"the log starts at {new.log_start}, beyond {new.high_watermark}")
    for offset, record in after.records.items():
        was = before.records.get(offset)
        if was is not None and history.rules.compacts:
            was = was._replace(crc=record.crc)  # its batch may be another one
        if was != record:
            yield _found(Kind.CHANGED, key, f"offset {offset} was {was}, and is {record}")
            return


# Moves of the log start.


def _trim(history: SimHistory, trimmed: Trimmed) -> Iterator[SimAnomaly]:
    key, before, after = trimmed.key, trimmed.before, trimmed.after
    yield from _both_states(history, key, before, after)
    start = after.partition.log_start
    for at, entry in enumerate(before.partition.entries):
        if entry.end_offset < before.partition.log_start or entry.base_offset >= start:
            continue
        if min(entry.end_offset + 1, start) <= trimmed.asked_offset:
            continue
        if not _is_due(history, trimmed, at, start):
            yield _found(
                Kind.TAKEN_EARLY,
                key,
                f"{entry.base_offset} to {entry.end_offset} are not due, the log starts at {start}",
            )
    for offset, record in _gone(before, after):
        if offset >= start:
            yield _found(Kind.LOST, key, f"{record.value!r} at {offset} went when the log start moved to {start}")


def _is_due(history: SimHistory, trimmed: Trimmed, at: int, start: int) -> bool:
    """Whether what lies below the new start of the entry at this place was due. A compaction may have merged it with
    what stays since the trim was planned."""
    rules, entries = history.rules, trimmed.before.partition.entries
    if not rules.deletes:
        return False
    if rules.retention_ms >= 0:
        newest_ms = _newest_ms(trimmed.before, entries[at].base_offset, min(entries[at].end_offset, start - 1))
        if newest_ms is None or trimmed.store_ms - newest_ms > rules.retention_ms:
            return True
    behind = sum(each.byte_length for each in entries[at if entries[at].end_offset >= start else at + 1 :])
    return 0 <= rules.retention_bytes <= behind + _saved_lately(history, trimmed)


def _newest_ms(state: LogSpan, first: int, last: int) -> int | None:
    """The time of the newest record of a range of offsets; None if key compaction has left none."""
    times = [state.records[offset].time_ms for offset in range(first, last + 1) if offset in state.records]
    return max(times, default=None)


def _saved_lately(history: SimHistory, trimmed: Trimmed) -> int:
    """Bytes that compactions have saved since the plan of this trim was made, at most."""
    return sum(
        _size(each.before) - _size(each.after)
        for each in history.replaced
        if each.key == trimmed.key and trimmed.at_ms - _PLANNED_MS <= each.at_ms <= trimmed.at_ms
    )


def _size(state: LogSpan) -> int:
    return sum(entry.byte_length for entry in state.partition.entries)


# Objects.


def _objects(history: SimHistory) -> Iterator[SimAnomaly]:
    for gone in history.deleted:
        what = f"{gone.object_key} was deleted at {gone.at_ms:.0f} ms"
        if gone.is_referenced:
            yield _found(Kind.MISSING_OBJECT, None, f"{what}, and it is referenced")
        elif gone.dereferenced_ms is None:
            age_ms = gone.store_ms - gone.stamp_ms
            if age_ms < history.writer_grace_ms:
                yield _found(Kind.TAKEN_EARLY, None, f"{what}, {age_ms} ms after its stamp, and never referenced")
        elif gone.store_ms - gone.dereferenced_ms < history.reader_grace_ms:
            after_ms = gone.store_ms - gone.dereferenced_ms
            yield _found(Kind.TAKEN_EARLY, None, f"{what}, {after_ms} ms after its last reference went")
        elif any(since_ms <= gone.dereferenced_ms for since_ms in gone.pinned_since_ms):
            yield _found(Kind.TAKEN_EARLY, None, f"{what}, under a pin that is older than its last reference's end")


def _refusals(history: SimHistory) -> Iterator[SimAnomaly]:
    for refused in history.refused:
        age_ms = refused.store_ms - refused.stamp_ms
        # What is uploaded after the horizon was chosen has no one who could have known of it.
        if age_ms < history.writer_grace_ms - _SLACK_MS and refused.put_ms < refused.horizon_ms:
            yield _found(
                Kind.PROBLEM,
                None,
                f"at {refused.at_ms:.0f} ms a commit of {refused.object_key} was refused, {age_ms} ms after its stamp",
            )


# The end.


def _tidiness(history: SimHistory, left: Leftovers) -> Iterator[SimAnomaly]:
    for name in sorted(left.objects.keys() - left.referenced):
        yield _found(Kind.GARBAGE, None, f"{name} is left, and nothing names it")
    for name in sorted(left.referenced - left.objects.keys()):
        yield _found(Kind.MISSING_OBJECT, None, f"{name} is named and not there")
    for key, state in history.tidied.items():
        for problem in state.unreadable:
            yield _found(Kind.BAD_OBJECT, key, f"at the end: {problem}")
        if state.partition.entries and _first_is_due(history, state, left.store_ms):
            first = state.partition.entries[0]
            yield _found(Kind.GARBAGE, key, f"{first.base_offset} to {first.end_offset} are due, and still there")


def _first_is_due(history: SimHistory, state: LogSpan, store_ms: int) -> bool:
    rules, (first, *others) = history.rules, state.partition.entries
    if not rules.deletes:
        return False
    newest_ms = _newest_ms(state, first.base_offset, first.end_offset)
    if rules.retention_ms >= 0 and newest_ms is not None and store_ms - newest_ms > rules.retention_ms:
        return True
    return 0 <= rules.retention_bytes <= sum(entry.byte_length for entry in others)


def _found(kind: Kind, key: Key | None, detail: str) -> SimAnomaly:
    return SimAnomaly(kind=kind, key=key, detail=detail)
