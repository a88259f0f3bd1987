"""The newest offset of each key, in memory of a fixed size. Pure; the loops are compiled (_key_loops.pyx).

    slot    ┌──────────────┬──────────────┬────────────┐      three 64-bit numbers: the key's 16-byte hash, and
            │ upper half   │ lower half   │ offset + 1 │      0 in the third: free
            └──────────────┴──────────────┴────────────┘

The place of a key is its hash modulo the number of slots, or the next free one (open addressing). A quarter of the
slots stays free, so that a search is short: a key costs 32 bytes, a million keys 32 MB. The slots are never enlarged.
A map that is full refuses keys that it does not hold, and the caller goes on with what it could map.

Two keys with the same hash of 16 bytes would be taken for one. Among 2⁴⁰ keys the odds of that are 2⁻⁴⁹. Producers
choose the keys, so the hash is taken under a secret: without it, no one can construct keys that have the same hash, or
many keys that crowd the same slots.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from streamhouse.core.errors import ConfigError
from streamhouse.maintenance.key_compaction.key_loops import loops
from streamhouse.wire.record_keys import RecordKeys

BYTES_PER_KEY: Final = 32
_NO_SECRET: Final = bytes(16)


class KeyMap:
    """With ``shards``, only the keys of one shard are mapped. The map takes the others without keeping them, and knows
    nothing of them. The secret has a part in which shard a key belongs to: maps that divide keys have the same.

    Keys that strangers chose need a ``secret`` of 16 bytes that cannot be guessed. One thread at a time may use a map.
    """

    def __init__(self, max_keys: int, *, secret: bytes = _NO_SECRET, shard: int = 0, shards: int = 1) -> None:
        if max_keys < 1:
            raise ConfigError(f"a map of {max_keys} keys", hint="let it hold one key at least")
        self._secret = secret
        self._slots = loops.KeySlots(max_keys, shard, shards)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def size_bytes(self) -> int:
        return self._slots.size_bytes

    def put_all(self, records: RecordKeys) -> bool:
        """False when the map is full and does not hold the key of one of these records; those before it were put.
        Records without a key are passed over."""
        hashes = loops.hash_keys(self._secret, records.keys, records.bounds)
        return self._slots.put(hashes, records.offsets, records.without_key)

    def superseded(self, records: RecordKeys) -> bytes:
        """One byte for each record: 1 if a record of its key with a higher offset was put. What it says of records
        without a key means nothing."""
        return self._slots.superseded(loops.hash_keys(self._secret, records.keys, records.bounds), records.offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """``put_all`` for one record."""
        return self._slots.put(self._hash(key), array("q", [offset]), bytes(1))

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """``superseded`` for one record."""
        return bool(self._slots.superseded(self._hash(key), array("q", [offset]))[0])

    def newest_offsets(self) -> Iterator[int]:
        """The newest offset of each key, in no order."""
        return self._slots.newest_offsets()

    def _hash(self, key: bytes) -> bytes:
        return loops.hash_keys(self._secret, key, array("i", [0, len(key)]))
