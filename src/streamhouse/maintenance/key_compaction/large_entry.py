"""Knows which records stay of an entry that has more keys than the map can hold. Pure.

An entry is committed whole, so it cannot be compacted up to the middle. Its keys are divided into shards by their hash,
and each shard is mapped by itself. What is left of each is one bit for every offset of the entry: set for the newest
record of its key. Once all shards were mapped, the bits say what stays of the entry. The records before the entry are
compared with the map of one shard at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streamhouse.core.errors import LimitExceeded
from streamhouse.metadata.contract import Entry
from streamhouse.wire.record_keys import RecordKeys

MAX_SHARDS: Final = 1_024
"""Each takes a pass over the entry, and over all that is before it."""
_MAX_OFFSETS: Final = 2**31
"""The most offsets of one entry: a quarter of a gigabyte of bits."""


class NewestRecords:
    def __init__(self, entry: Entry) -> None:
        self._base_offset = entry.base_offset
        offsets = entry.end_offset - entry.base_offset + 1
        if offsets > _MAX_OFFSETS:
            raise LimitExceeded(
                f"the entry at offset {entry.base_offset} covers {offsets} offsets; keys of up to {_MAX_OFFSETS} in one"
                " entry can be compacted",
                hint="give key compaction more memory for its map",
            )
        self._bits = bytearray((offsets + 7) // 8)

    def add(self, offsets: Iterable[int]) -> None:
        bits, base_offset = self._bits, self._base_offset
        for offset in offsets:
            at = offset - base_offset
            bits[at >> 3] |= 1 << (at & 7)

    def superseded(self, records: RecordKeys) -> bytes:
        """One byte for each record: 0 for the newest of its key."""
        bits, base_offset = self._bits, self._base_offset
        places = (offset - base_offset for offset in records.offsets)
        return bytes(~bits[at >> 3] >> (at & 7) & 1 for at in places)


def shards_for(entry: Entry, max_keys: int) -> int:
    """So many that each should fit the map even if every record has a key of its own."""
    return max(2, entry.record_count * 5 // (max_keys * 4) + 1)
