"""The pure-Python twin of _key_loops.pyx: its oracle in the tests, and its stand-in where it was not built.

Same names, same results, same refusals in the same words. Only the hash is another one, BLAKE2b under the secret, which
Python has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from streamhouse.core.errors import CorruptBatch, InvalidRequest
from streamhouse.wire._column_buffers import RawBuffer
from streamhouse.wire.buffers import BytesLike, byte_view
from streamhouse.wire.varint import (
    MAX_INT64,
    MIN_INT64,
    MalformedRecord,
    RecordFault,
    append_varint,
    read_varint,
    read_varlong,
)

_SECRET_BYTES: Final = 16
_HASH: Final = struct.Struct("=QQ")
_SLOT_FIELD_BYTES: Final = 8


def hash_keys(secret: bytes, keys: BytesLike, bounds: RawBuffer) -> bytes:
    """16 bytes for each key, end to end. Key n lies between bounds n and n + 1 of ``keys``."""
    if len(secret) != _SECRET_BYTES:
        raise InvalidRequest(f"a secret of {len(secret)} bytes", hint="give 16 bytes")
    ends = byte_view(bounds).cast("i")
    if not len(ends):
        raise InvalidRequest("keys without bounds", hint="give one bound more than there are keys")
    view = byte_view(keys)
    hashes = bytearray()
    for at in range(len(ends) - 1):
        begin, end = ends[at], ends[at + 1]
        if not 0 <= begin <= end <= len(view):
            raise InvalidRequest(f"the bounds of key {at} make no sense")
        hashes += blake2b(view[begin:end], digest_size=_HASH.size, key=secret).digest()
    return bytes(hashes)


class KeySlots:
    """The newest offset of each hash. Slots are 24 bytes each, taken once; a quarter of them stays free."""

    def __init__(self, max_keys: int, shard: int, shards: int) -> None:
        self._max_keys = max_keys
        self._shard = shard
        self._shards = shards
        self._slot_count = max_keys + max_keys // 3 + 1
        # bytearrays of zeros: memory that was never written costs nothing.
        self._upper = memoryview(bytearray(self._slot_count * _SLOT_FIELD_BYTES)).cast("Q")
        self._lower = memoryview(bytearray(self._slot_count * _SLOT_FIELD_BYTES)).cast("Q")
        self._nexts = memoryview(bytearray(self._slot_count * _SLOT_FIELD_BYTES)).cast("Q")
        self._used = 0

    def __len__(self) -> int:
        return self._used

    @property
    def size_bytes(self) -> int:
        return self._upper.nbytes + self._lower.nbytes + self._nexts.nbytes

    def put(self, hashes: BytesLike, offsets: RawBuffer, skipped: BytesLike) -> bool:
        """False when the slots are full and do not hold one of the hashes; those before it were put. Records that
        ``skipped`` has a 1 for are passed over, and so are those of other shards."""
        numbers = _counted(hashes, offsets)
        if len(skipped) != len(numbers):
            raise InvalidRequest(f"{len(skipped)} flags for {len(numbers)} records")
        for (upper, lower), offset, skip in zip(_HASH.iter_unpack(hashes), numbers, skipped, strict=True):
            if skip or lower % self._shards != self._shard:
                continue
            at = self._find(upper, lower)
            if not self._nexts[at]:
                if self._used == self._max_keys:
                    return False
                self._used += 1
                self._upper[at] = upper
                self._lower[at] = lower
            if self._nexts[at] <= offset:
                self._nexts[at] = offset + 1
        return True

    def superseded(self, hashes: BytesLike, offsets: RawBuffer) -> bytes:
        """One byte for each: 1 if the same hash was put with a higher offset."""
        numbers = _counted(hashes, offsets)
        return bytes(
            self._nexts[self._find(upper, lower)] > offset + 1
            for (upper, lower), offset in zip(_HASH.iter_unpack(hashes), numbers, strict=True)
        )

    def newest_offsets(self) -> Iterator[int]:
        """The newest offset of each hash, in no order."""
        return (after - 1 for after in self._nexts if after)

    def _find(self, upper: int, lower: int) -> int:
        """The slot that holds this hash, or the free one where it belongs."""
        nexts, uppers, lowers = self._nexts, self._upper, self._lower
        at = upper % self._slot_count
        while nexts[at] and (uppers[at] != upper or lowers[at] != lower):
            at += 1
            if at == self._slot_count:
                at = 0
        return at


def kept_records(body: BytesLike, kept: BytesLike, shift_ms: int) -> bytearray:
    """The bytes of the records that stay, those with a 1 in ``kept``. ``shift_ms`` is added to their timestamp deltas.
    Raises CorruptBatch when a record cannot be read."""
    view = byte_view(body)
    out = bytearray()
    position, end = 0, len(view)
    try:
        for stays in kept:
            length, start = read_varint(view, position, end)
            after = start + length
            if length < 1 or after > end:
                raise MalformedRecord(RecordFault.RECORD_LENGTH)
            if stays and shift_ms:
                _append_shifted(out, view[start:after], shift_ms)
            elif stays:
                out += view[position:after]
            position = after
    except MalformedRecord as error:
        raise CorruptBatch("a record cannot be read") from error
    return out


def _append_shifted(out: bytearray, record: memoryview, shift_ms: int) -> None:
    delta_ms, rest = read_varlong(record, 1, len(record))
    if not MIN_INT64 <= delta_ms + shift_ms <= MAX_INT64:
        raise MalformedRecord(RecordFault.TIMESTAMP)
    shifted = bytearray(record[:1])
    append_varint(shifted, delta_ms + shift_ms)
    append_varint(out, len(shifted) + len(record) - rest)
    out += shifted
    out += record[rest:]


def _counted(hashes: BytesLike, offsets: RawBuffer) -> memoryview[int]:
    numbers: memoryview[int] = byte_view(offsets).cast("q")
    if len(hashes) != len(numbers) * _HASH.size:
        raise InvalidRequest(f"{len(hashes)} bytes of hashes for {len(numbers)} offsets", hint="give 16 bytes for each")
    return numbers
