"""Which records of a batch have no key: found by the kernel that decodes columns, so at the speed of compiled code."""

from __future__ import annotations

from streamhouse.wire._column_kernel import kernel
from streamhouse.wire.batch import BatchHeader
from streamhouse.wire.buffers import BytesLike
from streamhouse.wire.varint import MAX_INT64


def positions_without_key(body: BytesLike, header: BatchHeader) -> list[int]:
    """Walk all records of an uncompressed body, and return the positions of those without a key.

    Raises CorruptBatch if any part of a record cannot be read, also behind its key.
    """
    decoder = kernel.Decoder(("key",), allocate=bytearray)
    decoder.add(body, header, pos=0, partition=0, base_offset=header.base_offset, from_offset=0, to_offset=MAX_INT64)
    keys = decoder.finish().key
    if keys is None or keys.validity is None:
        return []
    validity = memoryview(keys.validity)
    return [position for position in range(header.record_count) if not validity[position >> 3] >> (position & 7) & 1]
