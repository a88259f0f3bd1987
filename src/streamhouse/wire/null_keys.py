"""Which records of a batch have no key: found by the kernel that decodes columns, which is compiled code."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from streamhouse.wire._column_kernel import kernel
from streamhouse.wire.batch import BatchHeader
from streamhouse.wire.buffers import BytesLike
from streamhouse.wire.varint import MAX_INT64


class NullKeys(NamedTuple):
    total: int
    first: list[int]
    """The positions of the first of them."""


def find_null_keys(body: BytesLike, header: BatchHeader, *, at_most: int) -> NullKeys:
    """Walk all records of an uncompressed body. ``at_most``: how many positions to return.

    Raises CorruptBatch if any part of a record cannot be read, also behind its key.
    """
    decoder = kernel.Decoder(("key",), allocate=bytearray)
    decoder.add(body, header, pos=0, partition=0, base_offset=header.base_offset, from_offset=0, to_offset=MAX_INT64)
    keys = decoder.finish().key
    if keys is None or keys.validity is None:
        return NullKeys(0, [])
    validity = memoryview(keys.validity)
    positions = (number for number in range(header.record_count) if not validity[number >> 3] >> (number & 7) & 1)
    return NullKeys(keys.null_count, list(islice(positions, at_most)))
