"""Knows how many bytes a log has, and finds the offset at which its size limit cuts it. Pure.

The size rule needs the bytes of all entries. A running total, kept from pass to pass, would be cheap and could be
wrong: compaction replaces entries at any place by smaller ones, other processes drop entries at the front, and the
metadata says neither. A total that is too large would delete records that the limit still allows. So there are two
figures.

``SizeCount`` reads the whole log once, page by page. Every deletion by size rests on a count made in the same pass. The
count keeps a mark for each page of what stays in the log: where the page begins, and the bytes before it. The last mark
behind which there are enough bytes names the page in which the cut lies, and this page is read again, entry by entry.
Compaction may replace entries during a count. Every offset is still counted once at most: an entry that reaches back
over what was counted is left out, and on the page of the cut only the sizes of the second reading are used. So a count
may be too small, and then retention deletes less. It may be too large by what a compaction has saved since the count
began; the result is the same as if retention had come before that compaction.

``SizeEstimate`` decides whether to count at all. It is the last count, plus the entries that came since, less what
retention has deleted since. If it is too large, a count comes too early and puts it right. If it is too small, a count
comes late, by ``_COUNT_AGAIN_MS`` at most. A log of few entries is counted as soon as the estimate says that its oldest
entry is due. A log of many entries is counted when the estimate is over the limit by 1/64 of it. Such a log may be that
much too large for a while, and in return each entry is read some 64 times in its life. To count in each pass would read
every entry in every pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from streamhouse.metadata.contract import Entry

_FEW_ENTRIES: Final = 1_000  # one page: reading it takes some 10 ms
_LATE_SHARE: Final = 64  # see above; Kafka's logs pass their limit by up to a segment, 1 GiB by default
_COUNT_AGAIN_MS: Final = 6 * 3_600_000  # a compaction that made entries larger is not noticed for longer


class _PageMark(NamedTuple):
    offset: int
    bytes_before: int
    """The bytes that were counted before this page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPage:
    """The page in which the cut lies: offsets ``[from_offset, to_offset)``, and the bytes counted behind it."""

    from_offset: int
    to_offset: int
    bytes_behind: int


class SizeCount:
    """Adds up the entries of one log, from the oldest on. The log has ``total_bytes`` after the last page."""

    def __init__(self, limit_bytes: int) -> None:
        self.entries = 0
        self.total_bytes = 0
        self.next_offset = 0
        """Where the next page begins."""
        self._limit_bytes = limit_bytes
        self._marks: deque[_PageMark] = deque()

    def take(self, page: Sequence[Entry]) -> None:
        self._marks.append(_PageMark(self.next_offset, self.total_bytes))
        for entry in page:
            if entry.base_offset >= self.next_offset:  # else compaction has just replaced some that were counted
                self.total_bytes += entry.byte_length
            self.entries += 1
            self.next_offset = entry.end_offset + 1
        marks = self._marks
        while len(marks) > 1 and self.total_bytes - marks[1].bytes_before >= self._limit_bytes:
            marks.popleft()  # enough stays even if its whole page goes

    def cut_page(self) -> CutPage | None:
        """The page to read again; None if the log is not larger than its limit."""
        if not self._marks or self.total_bytes - self._marks[0].bytes_before < self._limit_bytes:
            return None
        first = self._marks[0]
        if len(self._marks) == 1:
            return CutPage(from_offset=first.offset, to_offset=self.next_offset, bytes_behind=0)
        behind = self._marks[1]
        return CutPage(
            from_offset=first.offset,
            to_offset=behind.offset,
            bytes_behind=self.total_bytes - behind.bytes_before,
        )


def find_cut(page: CutPage, entries: Sequence[Entry], *, limit_bytes: int) -> int:
    """The offset below which entries are due by size; 0 if none is. ``entries``: what stands on the page now."""
    remaining_bytes = page.bytes_behind
    for entry in reversed(entries):
        if entry.end_offset >= page.to_offset:
            continue  # it was replaced since: some of it is counted in what is behind the page
        if remaining_bytes >= limit_bytes:
            return entry.end_offset + 1
        remaining_bytes += entry.byte_length
    return page.from_offset if remaining_bytes >= limit_bytes else 0


@dataclass(slots=True, kw_only=True)
class SizeEstimate:
    """What a log is thought to have since it was counted."""

    total_bytes: int
    entries: int
    next_offset: int
    """Where the entries begin that are not in it yet."""
    counted_at_ms: int

    def add(self, page: Sequence[Entry]) -> None:
        for entry in page:
            self.total_bytes += entry.byte_length
            self.entries += 1
            self.next_offset = entry.end_offset + 1

    def subtract(self, *, entries: int, size_bytes: int) -> None:
        self.total_bytes -= size_bytes
        self.entries -= entries

    def needs_count(self, *, limit_bytes: int, oldest_bytes: int, now_ms: int) -> bool:
        """``oldest_bytes``: the size of the log's oldest entry, which goes first."""
        if now_ms - self.counted_at_ms > _COUNT_AGAIN_MS:
            return True
        late_bytes = 0 if self.entries <= _FEW_ENTRIES else limit_bytes // _LATE_SHARE
        return self.total_bytes - oldest_bytes - limit_bytes >= late_bytes
