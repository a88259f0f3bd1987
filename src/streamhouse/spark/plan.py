"""Makes splits from entries: which task reads which offsets. Pure.

    orders/0  ████████████████████│██████│              every entry is laid on one line, partition after partition,
    orders/1                      │      │██│█          as long as it is heavy; the line is cut into equal lengths
    clicks/0                      │      │  │ ███
              └── split 0 ────────┘└ 1 ──┘└ 2 ──┘

So a large partition is read by many tasks and many small ones by one, and a split is a list of ranges. A task costs
tens of milliseconds, so a split has at least ``split_bytes`` and there are at most four for each core. The options
``minPartitions`` and ``maxRecordsPerPartition`` can ask for more.

A cut inside an entry is guessed from its bytes, and both sides keep the entry: what a task gives is decided by offsets
alone. Every offset asked for is in exactly one split.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from streamhouse.core.errors import LimitExceeded, MetadataError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_SPLITS, MIB
from streamhouse.metadata.contract import SEGMENT_V1, Entry

SPLITS_PER_CORE: Final = 4
"""Enough that one slow task does not keep the other cores waiting for long."""
ROW_WEIGHT_BYTES: Final = 64
"""The cost of a row besides its bytes: Spark needs as long to take it over as to copy this many bytes."""

_COARSE_BYTES: Final = 16 * MIB
_MIN_CUT_BYTES: Final = 1 * MIB
"""Two tasks should not open the same segment for less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Offsets of one partition, and the entries that were found to hold them."""

    topic: str
    key: PartitionKey
    from_offset: int
    to_offset: int
    """The offset after the last one of the range."""
    entries: tuple[Entry, ...]
    """The entries that the range needs, in order and without gaps. A hint: compaction may replace them (R7)."""
    is_coarse: bool = False
    """Neighbouring entries were merged to keep the plan small. Tasks look them up again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    ranges: tuple[ReadRange, ...]
    weight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRules:
    parallelism: int
    """The number of cores that Spark has for the read."""
    split_bytes: int
    min_splits: int | None = None
    max_records: int | None = None
    """The limits of one split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Part of an entry, at its place on the line."""

    range: ReadRange
    entry: Entry
    from_offset: int
    to_offset: int
    start: float
    weight: float


def plan_splits(ranges: Sequence[ReadRange], rules: SplitRules) -> list[Split]:
    """Raises MetadataError when entries do not cover their range (fewer rows would be no answer), LimitExceeded."""
    wanted = [each for each in ranges if each.to_offset > each.from_offset]
    pieces = list(_line(wanted))
    if not pieces:
        return []
    total = pieces[-1].start + pieces[-1].weight
    offsets = sum(each.to_offset - each.from_offset for each in wanted)
    count = _split_count(total, offsets, rules)
    if count > MAX_SPLITS:
        raise LimitExceeded(
            f"{offsets} records would make {count} tasks, more than {MAX_SPLITS}", hint="raise maxRecordsPerPartition"
        )
    finely = rules.min_splits is not None or rules.max_records is not None
    bins: list[list[_Piece]] = [[] for _ in range(count)]
    for piece in pieces:
        for number, part in _cut(piece, total / count, count, finely=finely):
            bins[number].append(part)
    splits = [_split(parts) for parts in bins if parts]
    if rules.max_records is None:
        return splits
    return [part for split in splits for part in _cut_by_records(split, rules.max_records)]


def weight_of(entry: Entry) -> int:
    return max(entry.byte_length, entry.record_count * ROW_WEIGHT_BYTES)


def _split_count(total: float, offsets: int, rules: SplitRules) -> int:
    count = min(int(total // rules.split_bytes), rules.parallelism * SPLITS_PER_CORE)
    if rules.max_records is not None:
        count = max(count, -(-offsets // rules.max_records))
    return max(1, min(max(count, rules.min_splits or 1), offsets))


def _line(ranges: Sequence[ReadRange]) -> Iterator[_Piece]:
    start = 0.0
    for each in ranges:
        check_covered(each)
        next_offset = each.from_offset
        for entry in each.entries:
            to_offset = min(entry.end_offset + 1, each.to_offset)
            share = (to_offset - next_offset) / (entry.end_offset - entry.base_offset + 1)
            weight = weight_of(entry) * share
            yield _Piece(
                range=each, entry=entry, from_offset=next_offset, to_offset=to_offset, start=start, weight=weight
            )
            start += weight
            next_offset = to_offset


def _cut(piece: _Piece, length: float, count: int, *, finely: bool) -> Iterator[tuple[int, _Piece]]:
    """The piece, or its parts, with the number of the split each belongs to."""
    end = piece.start + piece.weight
    first = min(int(piece.start / length), count - 1)
    last = min(int(max(piece.start, end - 1e-6) / length), count - 1)
    if first == last:
        yield first, piece
        return
    if not finely and (piece.weight < 2 * _MIN_CUT_BYTES or (_is_whole(piece.entry) and piece.weight < 2 * length)):
        yield min(int((piece.start + piece.weight / 2) / length), count - 1), piece
        return
    offsets = piece.to_offset - piece.from_offset
    at = piece.from_offset
    for number in range(first, last + 1):
        boundary = (number + 1) * length
        upto = (
            piece.to_offset
            if number == last
            else piece.from_offset + int(offsets * (boundary - piece.start) / piece.weight)
        )
        if upto > at:
            share = piece.weight * (upto - at) / offsets
            yield number, replace(piece, from_offset=at, to_offset=upto, weight=share)
            at = upto


def _is_whole(entry: Entry) -> bool:
    """A slice of a blob has no index: to read its end, a task reads it from the start."""
    return entry.encoding != SEGMENT_V1


def _split(parts: Sequence[_Piece]) -> Split:
    ranges: list[ReadRange] = []
    for _, group in groupby(parts, key=lambda part: part.range.key):  # a partition's pieces follow each other
        of_one = list(group)
        entries = tuple(dict.fromkeys(part.entry for part in of_one))
        ranges.append(
            replace(
                of_one[0].range,
                from_offset=of_one[0].from_offset,
                to_offset=of_one[-1].to_offset,
                entries=entries,
            )
        )
    return Split(ranges=tuple(ranges), weight_bytes=round(sum(part.weight for part in parts)))


def _cut_by_records(split: Split, max_records: int) -> Iterator[Split]:
    taken: list[ReadRange] = []
    room = max_records
    for each in split.ranges:
        at = each.from_offset
        while at < each.to_offset:
            upto = min(each.to_offset, at + room)
            taken.append(clip(each, at, upto))
            room -= upto - at
            at = upto
            if room == 0:
                yield _counted(taken)
                taken, room = [], max_records
    if taken:
        yield _counted(taken)


def coarse(range_: ReadRange) -> ReadRange:
    """The range with neighbouring entries merged: enough for planning, not for reading."""
    merged: list[Entry] = []
    for entry in range_.entries:
        last = merged[-1] if merged else None
        if last is not None and last.byte_length < _COARSE_BYTES:
            merged[-1] = replace(
                last,
                end_offset=entry.end_offset,
                byte_length=last.byte_length + entry.byte_length,
                record_count=last.record_count + entry.record_count,
            )
        else:
            merged.append(replace(entry, encoding=SEGMENT_V1))  # it may be cut anywhere
    return replace(range_, entries=tuple(merged), is_coarse=True)


def check_covered(range_: ReadRange) -> None:
    """Raises MetadataError unless the entries hold every offset of the range, in order."""
    next_offset = range_.from_offset
    for entry in range_.entries:
        if not entry.base_offset <= next_offset <= entry.end_offset or next_offset >= range_.to_offset:
            break
        next_offset = entry.end_offset + 1
    if next_offset < range_.to_offset:
        raise MetadataError(
            f"{range_.topic}/{range_.key.partition}: its index has nothing at offset {next_offset}, of"
            f" {range_.from_offset} to {range_.to_offset - 1} that are to be read",
            hint="try again; if it stays, its metadata is damaged",
        )


def clip(range_: ReadRange, from_offset: int, to_offset: int) -> ReadRange:
    """Part of a range, with only the entries that it needs."""
    entries = range_.entries
    first = bisect_left(entries, from_offset, key=lambda entry: entry.end_offset)
    after = bisect_left(entries, to_offset, key=lambda entry: entry.base_offset)
    return replace(range_, from_offset=from_offset, to_offset=to_offset, entries=entries[first:after])


def _counted(ranges: Sequence[ReadRange]) -> Split:
    return Split(ranges=tuple(ranges), weight_bytes=round(sum(piece.weight for piece in _line(ranges))))
