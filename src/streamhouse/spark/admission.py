"""How much one micro-batch takes: rows, bytes, and whether to wait for more. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from streamhouse.metadata.contract import Entry
from streamhouse.spark.offsets import Offsets, TopicPartition
from streamhouse.spark.options import RateLimits

_ROUNDS: Final = 64
"""What a partition leaves of its share is divided among the others, in rounds. After this many rounds the rest is
negligible.
"""


def rows_between(start: Offsets, end: Offsets) -> int:
    return sum(max(0, offset - start.get(each, 0)) for each, offset in end.items())


def holds_back(start: Offsets, end: Offsets, limits: RateLimits, *, since_last_ms: int) -> bool:
    """True while there are fewer rows than ``min_rows`` and the wait is shorter than ``max_delay_ms``."""
    if limits.min_rows is None or since_last_ms >= limits.max_delay_ms:
        return False
    return rows_between(start, end) < limits.min_rows


def limit_rows(start: Offsets, end: Offsets, max_rows: int) -> dict[TopicPartition, int]:
    """Divides ``max_rows`` by how far each partition is behind. As in the Kafka source, a share is at least one row, so
    that small partitions do not starve. So the batch may be larger, by less than one row for each partition.
    """
    total = rows_between(start, end)
    if total <= max_rows:
        return dict(end)
    limited: dict[TopicPartition, int] = {}
    for each, offset in end.items():
        begin = start.get(each, 0)
        share = max_rows * max(0, offset - begin) / total
        limited[each] = min(offset, begin + (math.ceil(share) if share < 1 else math.floor(share)))
    return limited


def limit_bytes(
    start: Offsets, end: Offsets, entries: Mapping[TopicPartition, Sequence[Entry]], max_bytes: int
) -> dict[TopicPartition, int]:
    """Equal shares; what one partition does not need goes to the others. At least one row in all.

    ``entries`` hold each partition's bytes from its start on: to its end, or for ``max_bytes`` and more.
    """
    needs = {each: _bytes_between(start.get(each, 0), offset, entries.get(each, ())) for each, offset in end.items()}
    if sum(needs.values()) <= max_bytes and all(
        _reaches(entries.get(each, ()), offset) or offset <= start.get(each, 0) for each, offset in end.items()
    ):
        return dict(end)
    shares = _share_out(needs, max_bytes)
    limited = {
        each: _offset_after(start.get(each, 0), offset, entries.get(each, ()), shares[each])
        for each, offset in end.items()
    }
    if rows_between(start, limited) == 0:
        first = min(each for each, offset in end.items() if offset > start.get(each, 0))
        limited[first] = start.get(first, 0) + 1
    return limited


def _share_out(needs: Mapping[TopicPartition, int], max_bytes: int) -> dict[TopicPartition, float]:
    shares = dict.fromkeys(needs, 0.0)
    left = float(max_bytes)
    for _ in range(_ROUNDS):
        unfilled = [each for each, need in needs.items() if shares[each] < need]
        if not unfilled or left < 1:
            break
        portion = left / len(unfilled)
        for each in unfilled:
            taken = min(portion, needs[each] - shares[each])
            shares[each] += taken
            left -= taken
    return shares


def _bytes_between(from_offset: int, to_offset: int, entries: Sequence[Entry]) -> int:
    return math.ceil(sum(entry.byte_length * _share(entry, from_offset, to_offset) for entry in entries))


def _share(entry: Entry, from_offset: int, to_offset: int) -> float:
    covered = min(entry.end_offset + 1, to_offset) - max(entry.base_offset, from_offset)
    return max(0, covered) / (entry.end_offset + 1 - entry.base_offset)


def _reaches(entries: Sequence[Entry], to_offset: int) -> bool:
    return bool(entries) and entries[-1].end_offset + 1 >= to_offset


def _offset_after(from_offset: int, to_offset: int, entries: Sequence[Entry], share_bytes: float) -> int:
    """The offset that ``share_bytes`` reach. Inside an entry, all records count as equally large."""
    at, left = from_offset, share_bytes
    for entry in entries:
        upto = min(entry.end_offset + 1, to_offset)
        if upto <= at:
            continue
        bytes_per_row = entry.byte_length / (entry.end_offset + 1 - entry.base_offset)
        needed = bytes_per_row * (upto - max(at, entry.base_offset))
        if needed > left + 1e-6:
            return min(upto, at + math.floor(left / bytes_per_row))
        left -= needed
        at = upto
    return at
