"""What must stay of a log whose topic is compacted, by what its writers sent and were told. Pure.

The value that a writer's history names (storm_history.py) decides what the record is, and stands in a header, so that a
tombstone has it too:

    number % 8 == 0    the value of a key of its own
    number % 8 == 5    the tombstone of that key, the last that is ever written of it
    number % 8 == 3    a tombstone of one of a few keys that are written all the time
    any other          a value of such a key
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from storm_history import Promises, origin_of

from streamhouse.wire.batch import iter_batches
from streamhouse.wire.records import Header, Record, decode_records

_HEADER: Final = "value"
_BUSY_KEYS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRecord:
    """A record as it was found in a log. ``value`` is what the header says."""

    offset: int
    key: str
    value: str
    is_tombstone: bool


def key_of(value: str) -> str:
    origin = origin_of(value)
    assert origin is not None, value
    stream, number = origin
    return f"{stream}-{number // 8}" if number % 8 in (0, 5) else f"busy-{number % _BUSY_KEYS}"


def is_tombstone(value: str) -> bool:
    origin = origin_of(value)
    assert origin is not None, value
    return origin[1] % 8 in (3, 5)


def keyed_record(value: str, now_ms: int) -> Record:
    return Record(
        key=key_of(value).encode(),
        value=None if is_tombstone(value) else value.encode(),
        timestamp_ms=now_ms,
        headers=(Header(_HEADER, value.encode()),),
    )


def found_in(log: bytes) -> list[KeyedRecord]:
    return [
        KeyedRecord(
            offset=record.offset,
            key=(record.key or b"").decode(),
            value=next((header.value or b"" for header in record.headers if header.key == _HEADER), b"").decode(),
            is_tombstone=record.value is None,
        )
        for position, _ in iter_batches(log, allow_compacted=True)
        for record in decode_records(log, position)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedJudgement:
    problems: list[str]
    resurrected: list[str]
    """Keys whose last record is a tombstone that is gone, and an older record is there. A reader may see that if it
    takes as long as tombstones are kept; a log that stands still may not be so."""
    superseded: int
    """Acknowledged records that are gone because a newer one of their key is there, or was."""
    tombstones_gone: int
    """Keys of which nothing is left, because the last that was written of them is an old tombstone."""


def judge_keyed(
    records: Sequence[KeyedRecord],
    promised: Mapping[int, str],
    *,
    partition: str,
    later: Promises,
    begins_at: int,
    now_ms: int,
    delete_retention_ms: int,
) -> KeyedJudgement:
    """A log that was read from ``begins_at`` to its end. ``promised`` is what its writers had been told before it was
    read; ``later`` and ``now_ms`` were read after it.

    Of each key the newest acknowledged record must be there, or a newer one. Nothing may be left of a key only if its
    last record is a tombstone, for at least the time that tombstones are kept.
    """
    problems = [*_strangers(records, promised), *_out_of_order(records)]
    newest_there = {record.key: record.offset for record in records}
    newest_promised: dict[str, int] = {}
    for offset in sorted(promised):
        newest_promised[key_of(promised[offset])] = offset
    gone = 0
    resurrected: list[str] = []
    for key, offset in newest_promised.items():
        if offset < begins_at or newest_there.get(key, -1) >= offset:
            continue
        if _may_be_gone(promised[offset], promised, partition, later, now_ms - delete_retention_ms):
            gone += 1
            if key in newest_there:
                resurrected.append(f"{key} is there at {newest_there[key]}, and its tombstone at {offset} is not")
        else:
            problems.append(f"{promised[offset]!r} was acknowledged at {offset}, the newest of {key}; it is not there")
    there = {record.offset for record in records}
    missing = sum(offset >= begins_at and offset not in there for offset in promised)
    return KeyedJudgement(problems=problems, resurrected=resurrected, superseded=missing - gone, tombstones_gone=gone)


def not_cleaned(records: Sequence[KeyedRecord], *, below: int) -> list[str]:
    """What a pass over all records below an offset should have dropped: each key is there once at most."""
    problems: list[str] = []
    older: dict[str, int] = {}
    for record in records:
        if record.offset < below:
            if record.key in older:
                problems.append(f"{record.key} is there at {older[record.key]} and at {record.offset}")
            older[record.key] = record.offset
    return problems


def _strangers(records: Sequence[KeyedRecord], promised: Mapping[int, str]) -> list[str]:
    problems: list[str] = []
    places = {value: offset for offset, value in promised.items()}
    for record in records:
        value, offset = record.value, record.offset
        if origin_of(value) is None or (record.key, record.is_tombstone) != (key_of(value), is_tombstone(value)):
            problems.append(f"{record} was never sent")
        elif promised.get(offset, value) != value:
            problems.append(f"{promised[offset]!r} was acknowledged at {offset}; there is {value!r}")
        elif places.get(value, offset) != offset:
            problems.append(f"{value!r} was acknowledged at {places[value]}; it is at {offset}")
    return problems


def _out_of_order(records: Sequence[KeyedRecord]) -> list[str]:
    problems: list[str] = []
    places: dict[str, int] = {}
    before = -1
    for record in records:
        if record.offset <= before:
            problems.append(f"offset {record.offset} follows {before}")
        if record.value in places:
            problems.append(f"{record.value!r} stands at {places[record.value]} and at {record.offset}")
        before = record.offset
        places[record.value] = record.offset
    return problems


def _may_be_gone(newest: str, promised: Mapping[int, str], partition: str, later: Promises, before_ms: int) -> bool:
    """``newest`` is the newest acknowledged record of its key. It may be gone if it is an old tombstone, or if one was
    sent after it whose acknowledgement was not known when the log was read."""
    if is_tombstone(newest):
        return later.sent[newest] <= before_ms
    known = set(promised.values()).union(
        *(offsets.values() for where, offsets in later.acknowledged.items() if where != partition)
    )
    return any(
        later.sent[newest] <= at_ms <= before_ms
        and is_tombstone(value)
        and key_of(value) == key_of(newest)
        and value not in known
        for value, at_ms in later.sent.items()
    )
