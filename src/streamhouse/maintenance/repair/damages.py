"""Keeps what a verification finds, entry by entry, and decides which entries may be repaired. Pure.

An entry may be repaired if everything that was found in it can be corrected by writing its batches anew:

    segment-head, segment-footer, segment-index    the batches are elsewhere in the segment
    blob-header                                    readers never need it
    timestamps                                     an entry, an index or a footer says other times than its batches

Any other finding of the same entry forbids it. So does a finding in the partition's index (a gap, an overlap, a wrong
watermark): which rows are wrong is not known then, and replacing one would destroy a trace. So do two entries that name
the same bytes of one blob: either may be the wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.verify.findings import DamagedEntry, Finding, FindingKind
from streamhouse.metadata.contract import Entry, EntryKind

MAX_DAMAGED_ENTRIES: Final = 10_000
"""Damaged entries of one run that are kept, about 1 KB each; the next run takes the others."""

REPAIRABLE: Final = frozenset(
    {
        FindingKind.SEGMENT_HEAD,
        FindingKind.SEGMENT_FOOTER,
        FindingKind.SEGMENT_INDEX,
        FindingKind.BLOB_HEADER,
        FindingKind.TIMESTAMPS,
    }
)
_IN_INDEX: Final = frozenset(
    {
        FindingKind.MISSING_PARTITION,
        FindingKind.LOG_START,
        FindingKind.GAP,
        FindingKind.OVERLAP,
        FindingKind.WATERMARK,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedEntry:
    """A damaged entry, and why it cannot be repaired."""

    topic: str
    key: PartitionKey
    entry: Entry
    kinds: tuple[FindingKind, ...]
    """The kinds of what was found, each once."""
    reason: str
    """Empty when nothing that was found forbids a repair."""


class DamageList:
    """Hears what a verification tells. It is complete when the verification has ended."""

    def __init__(self, max_entries: int = MAX_DAMAGED_ENTRIES) -> None:
        self.left_out = 0
        """Damaged entries beyond ``max_entries``."""
        self._max_entries = max_entries
        self._entries: list[JudgedEntry] = []
        self._in_index: dict[PartitionKey, str] = {}
        self._overlapping_objects: set[str] = set()
        self._too_many_overlaps = False

    @property
    def is_index_damaged(self) -> bool:
        return bool(self._in_index)

    def hear(self, finding: Finding) -> None:
        if finding.kind in _IN_INDEX:
            self._in_index.setdefault(finding.key, _words(finding))
        if finding.kind is FindingKind.SLICE_OVERLAP:
            self._too_many_overlaps |= len(self._overlapping_objects) == self._max_entries
            if not self._too_many_overlaps:
                self._overlapping_objects.add(finding.object_key)

    def add(self, damaged: DamagedEntry) -> None:
        if len(self._entries) == self._max_entries:
            self.left_out += 1
            return
        forbidding = next((each for each in damaged.findings if each.kind not in REPAIRABLE), None)
        self._entries.append(
            JudgedEntry(
                topic=damaged.topic,
                key=damaged.key,
                entry=damaged.entry,
                kinds=tuple(dict.fromkeys(finding.kind for finding in damaged.findings)),
                reason="" if forbidding is None else _words(forbidding),
            )
        )

    def judged(self) -> Iterator[JudgedEntry]:
        """The entries with the final word on each, those of one partition in the order in which they were found."""
        for each in self._entries:
            reason = each.reason or self._reason_elsewhere(each)
            yield (
                each
                if reason == each.reason
                else JudgedEntry(topic=each.topic, key=each.key, entry=each.entry, kinds=each.kinds, reason=reason)
            )

    def _reason_elsewhere(self, each: JudgedEntry) -> str:
        in_index = self._in_index.get(each.key)
        if in_index is not None:
            return f"the index of its partition is damaged too ({in_index})"
        is_slice = each.entry.kind is EntryKind.WAL
        if each.entry.object_key in self._overlapping_objects or (is_slice and self._too_many_overlaps):
            return "two entries name the same bytes of its object"
        return ""


def _words(finding: Finding) -> str:
    return f"{finding.kind}: {finding.problem}"
