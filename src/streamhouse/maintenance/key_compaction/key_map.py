"""The newest offset of each key, in memory of a fixed size. Pure.

    slot    ┌──────────────┬──────────────┬────────────┐      three arrays of 64-bit numbers, one place in each
            │ upper half   │ lower half   │ offset + 1 │      of the key's 16-byte hash; 0 in the third: free
            └──────────────┴──────────────┴────────────┘

The place of a key is its hash modulo the number of slots, or the next free one (open addressing). A quarter of the
slots stays free, so that a search is short: a key costs 32 bytes, a million keys 32 MB. The arrays are never enlarged.
A map that is full refuses keys that it does not hold, and the caller goes on with what it could map.

Two keys with the same BLAKE2b hash of 16 bytes would be taken for one. Among 2⁴⁰ keys the odds of that are 2⁻⁴⁹, and no
way to construct such keys is known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from streamhouse.core.errors import ConfigError

BYTES_PER_KEY: Final = 32

_SLOT_BYTES: Final = 8
_HASH: Final = struct.Struct("=QQ")


class KeyMap:
    """With ``shards``, only the keys of one shard are mapped. The map takes the others without keeping them, and knows
    nothing of them."""

    def __init__(self, max_keys: int, *, shard: int = 0, shards: int = 1) -> None:
        if max_keys < 1:
            raise ConfigError(f"a map of {max_keys} keys", hint="let it hold one key at least")
        self._max_keys = max_keys
        self._shard = shard
        self._shards = shards
        self._slots = max_keys + max_keys // 3 + 1
        # bytearrays of zeros: memory that was never written costs nothing.
        self._upper = memoryview(bytearray(self._slots * _SLOT_BYTES)).cast("Q")
        self._lower = memoryview(bytearray(self._slots * _SLOT_BYTES)).cast("Q")
        self._nexts = memoryview(bytearray(self._slots * _SLOT_BYTES)).cast("Q")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, key: bytes, offset: int) -> bool:
        """False when the map is full and does not hold this key."""
        upper, lower = _HASH.unpack(blake2b(key, digest_size=16).digest())
        if lower % self._shards != self._shard:
            return True
        at = self._find(upper, lower)
        if not self._nexts[at]:
            if self._count == self._max_keys:
                return False
            self._count += 1
            self._upper[at] = upper
            self._lower[at] = lower
        if self._nexts[at] <= offset:
            self._nexts[at] = offset + 1
        return True

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """Whether a record of this key with a higher offset was put."""
        upper, lower = _HASH.unpack(blake2b(key, digest_size=16).digest())
        return self._nexts[self._find(upper, lower)] > offset + 1

    def newest_offsets(self) -> Iterator[int]:
        """The newest offset of each key, in no order."""
        return (after - 1 for after in self._nexts if after)

    def _find(self, upper: int, lower: int) -> int:
        """The slot that holds this hash, or the free one where it belongs."""
        nexts, uppers, lowers = self._nexts, self._upper, self._lower
        at = upper % self._slots
        while nexts[at] and (uppers[at] != upper or lowers[at] != lower):
            at += 1
            if at == self._slots:
                at = 0
        return at
