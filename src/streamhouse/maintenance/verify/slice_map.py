"""Remembers which bytes of which shared blobs entries have named, and tells when two of them overlap. Pure.

A blob's bytes are committed once for each partition, and no commit names bytes that an earlier one has named. The
memory is bounded: the blobs that were not seen for the longest time are forgotten first. What is forgotten here is
still found when bytes are read, because the header of the blob gives each partition its own bytes; only a quick
verification, which reads no header, depends on this alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Final, NamedTuple

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.verify.findings import Finding, FindingKind, about
from streamhouse.metadata.contract import Entry

MAX_SLICES: Final = 200_000  # about 250 bytes each: 50 MB, four blobs of the largest size


class _Slice(NamedTuple):
    byte_offset: int
    byte_end: int
    key: PartitionKey
    base_offset: int


class SliceMap:
    def __init__(self, max_slices: int = MAX_SLICES) -> None:
        self._max_slices = max_slices
        self._slices = 0
        self._blobs: OrderedDict[str, list[_Slice]] = OrderedDict()

    def __len__(self) -> int:
        return self._slices

    def add(self, key: PartitionKey, entry: Entry) -> Finding | None:
        """Remember a slice. Returns a finding when its bytes overlap those of another entry. A repeat is none."""
        found = self._blobs.setdefault(entry.object_key, [])
        self._blobs.move_to_end(entry.object_key)
        added = _Slice(entry.byte_offset, entry.byte_offset + entry.byte_length, key, entry.base_offset)
        place = bisect_left(found, added)
        if place < len(found) and found[place] == added:
            return None
        # The neighbours are enough: those in the list overlap nothing, unless a finding has told of it.
        near = found[max(place - 1, 0) : place + 1]
        insort(found, added)
        self._slices += 1
        self._forget()
        for other in near:
            if other.byte_offset < added.byte_end and added.byte_offset < other.byte_end:
                problem = (
                    f"the bytes {other.byte_offset} to {other.byte_end - 1} of this blob are also named by the entry of"
                    f" {other.key} at offset {other.base_offset}"
                )
                return about(FindingKind.SLICE_OVERLAP, key, entry, problem)
        return None

    def _forget(self) -> None:
        while self._slices > self._max_slices:
            _, dropped = self._blobs.popitem(last=False)
            self._slices -= len(dropped)
