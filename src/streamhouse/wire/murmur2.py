"""Kafka's murmur2, which decides the partition of a keyed record. All clients must agree on it, bit for bit."""

from __future__ import annotations

import struct
from typing import Final

from streamhouse.core.errors import InvalidPartitions
from streamhouse.wire.buffers import BytesLike, byte_view

_SEED: Final = 0x9747B28C
_MIX: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: BytesLike) -> int:
    """The hash as an unsigned 32-bit number (Java prints the same bits signed)."""
    view = byte_view(data)
    length = len(view)
    whole = length & ~3
    state = (_SEED ^ length) & _MASK
    for (word,) in struct.iter_unpack("<I", view[:whole]):
        word = (word * _MIX) & _MASK
        word ^= word >> 24
        state = ((state * _MIX) & _MASK) ^ ((word * _MIX) & _MASK)
    if whole < length:
        state ^= int.from_bytes(view[whole:], "little")
        state = (state * _MIX) & _MASK
    state ^= state >> 13
    state = (state * _MIX) & _MASK
    return state ^ (state >> 15)


def partition_for_key(key: BytesLike, partition_count: int) -> int:
    """Where Kafka's default partitioner puts a record with this key."""
    if partition_count < 1:
        raise InvalidPartitions(f"a topic has at least 1 partition, not {partition_count}")
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
