"""S2.6: a flush is packed into a shared blob without copying a batch, and every refusal comes before one is taken."""

from __future__ import annotations

import gc
from itertools import count

import pytest
from blob_samples import GOLDEN, pack, sample
from format_samples import START_MS, TOPIC, make_batch

from streamhouse.core.errors import (
    InvalidRequest,
    InvalidTopicName,
    LimitExceeded,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_BLOB_BYTES, MAX_BLOB_HEADER_BYTES, MIB
from streamhouse.formats.shared_blob_v1 import (
    BlobHeader,
    read_header,
)
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.wire import batch as wire


def test_nothing_is_copied() -> None:
    batch = bytearray(make_batch())
    patched = bytearray(make_batch(base_offset=5))
    writer = BlobWriter(created_at_ms=START_MS)
    body = writer.add("orders", PartitionKey(TOPIC, 0))
    body.append(batch, wire.validate(batch))
    body.append(patched, wire.validate(patched))
    _, whole, head, rest = writer.finish().buffers
    assert memoryview(whole).obj is batch
    assert len(head) == 16
    assert memoryview(rest).obj is patched


def test_a_written_blob_frees_its_batches_without_the_garbage_collector() -> None:
    """A cycle of writer and bodies would hold them, and the collector looks at older objects rarely."""
    batch = bytearray(make_batch())

    def write() -> None:
        writer = BlobWriter(created_at_ms=START_MS)
        writer.add("orders", PartitionKey(TOPIC, 0)).append(batch, wire.validate(batch))
        assert writer.finish().size > len(batch)

    gc.disable()
    try:
        write()
        batch.extend(b"more")  # BufferError while a view of it exists
    finally:
        gc.enable()


def test_r18_a_batch_whose_records_do_not_fill_its_offsets_is_not_taken() -> None:
    sparse = make_batch(count=5, records=3)
    body = BlobWriter(created_at_ms=START_MS).add("orders", PartitionKey(TOPIC, 0))
    with pytest.raises(InvalidRequest, match="3 records for 5 offsets"):
        body.append(sparse, wire.read_header(sparse))
    whole = make_batch()
    with pytest.raises(InvalidRequest, match="header for"):
        body.append(whole + b"\0", wire.read_header(whole))


def test_r11_a_full_blob_refuses_before_it_takes_and_can_still_be_finished() -> None:
    writer = BlobWriter(created_at_ms=START_MS)
    body = writer.add("orders", PartitionKey(TOPIC, 0))
    large = make_batch(payload=bytes(90 * MIB))
    header = wire.read_header(large)
    fitting = MAX_BLOB_BYTES // len(large)
    for _ in range(fitting):
        body.append(large, header)
    with pytest.raises(LimitExceeded):
        body.append(large, header)
    blob = writer.finish()
    assert len(blob.slices[0].batches) == fitting
    assert blob.size <= MAX_BLOB_BYTES


def test_a_header_never_outgrows_its_limit() -> None:
    writer = BlobWriter(created_at_ms=2**62)
    batch = make_batch()
    header = wire.validate(batch)
    for number in count(1):
        try:
            writer.add("n" * 249, PartitionKey(TOPIC, 2**31 - number)).append(batch, header)
        except LimitExceeded:
            break
    blob = writer.finish()
    first = bytes(blob.buffers[0])
    assert 0.9 * MAX_BLOB_HEADER_BYTES < len(first) <= MAX_BLOB_HEADER_BYTES
    read = read_header(first, object_size=blob.size)
    assert isinstance(read, BlobHeader)
    assert len(read.partitions) == number - 1


def test_the_same_partition_gets_the_same_body_and_an_empty_one_is_left_out() -> None:
    writer = BlobWriter(created_at_ms=START_MS)
    with pytest.raises(InvalidRequest, match="at least one batch"):
        writer.finish()
    body = writer.add("orders", PartitionKey(TOPIC, 0))
    assert writer.add("orders", PartitionKey(TOPIC, 0)) is body
    writer.add("orders", PartitionKey(TOPIC, 1))
    batch = make_batch()
    body.append(batch, wire.validate(batch))
    assert writer.body_bytes == len(batch)
    assert [cut.key.partition for cut in writer.finish().slices] == [0]
    with pytest.raises(InvalidTopicName):
        writer.add("a/b", PartitionKey(TOPIC, 2))


@pytest.mark.parametrize(
    ("attributes", "expected"), [(0, (100, 900)), (0x08, (900, 900)), (0x40, (900, 900)), (0x48, (900, 900))]
)
def test_a_slices_times_are_what_its_headers_declare(attributes: int, expected: tuple[int, int]) -> None:
    """Neither log-append time nor a delete horizon leaves the first record's time in the header."""
    batch = make_batch(first_ms=100, max_ms=900, attributes=attributes)
    _, blob = pack({("orders", PartitionKey(TOPIC, 0)): [batch]})
    assert (blob.slices[0].min_timestamp_ms, blob.slices[0].max_timestamp_ms) == expected


def test_golden_file_is_written_byte_for_byte() -> None:
    assert sample()[0] == GOLDEN.read_bytes()
