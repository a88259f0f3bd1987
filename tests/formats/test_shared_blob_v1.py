"""S2.6: the shared blob, written, read in ranges, and damaged in every way."""

from __future__ import annotations

import json
import struct
import tracemalloc
from itertools import pairwise
from uuid import UUID

import pytest
from blob_samples import GOLDEN, OTHER_TOPIC, pack, sample
from crc32c import crc32c
from format_samples import START_MS, TOPIC, batches, damages, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.core.errors import (
    CorruptBatch,
    CorruptBlob,
    UnsupportedVersion,
)
from streamhouse.core.ids import PartitionKey, TopicId, topic_id_text
from streamhouse.core.limits import MAX_BLOB_BYTES, MAX_BLOB_HEADER_BYTES, MIB
from streamhouse.formats.shared_blob_v1 import (
    BlobHeader,
    NeedMore,
    check_slice,
    place_slice,
    read_header,
    verify_blob,
)
from streamhouse.wire import batch as wire

DETECTED = (CorruptBlob, CorruptBatch, UnsupportedVersion)


def with_header(data: bytes, **changes: object) -> bytes:
    """The blob with other header fields and a right CRC: what a faulty or newer writer would make."""
    header = read_header(data, object_size=len(data))
    assert isinstance(header, BlobHeader)
    fields = json.loads(data[8 : header.header_bytes])
    fields.pop("header_crc32c")
    return seal({**fields, **changes}, data[header.header_bytes :])


def seal(fields: object, bodies: bytes) -> bytes:
    text = json.dumps(fields).encode()[:-1] + b',"header_crc32c":"'
    checked = b"LLS1" + struct.pack(">I", len(text) + 10) + text
    return checked + b'%08x"}' % crc32c(checked) + bodies


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["orders", "user-events", "m"]), st.uuids(), st.integers(0, 2**31 - 1)),
        st.lists(batches(), min_size=1, max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_s2_6_a_blob_round_trips(groups: dict[tuple[str, UUID, int], list[bytes]]) -> None:
    keyed = {
        (topic, PartitionKey(TopicId(topic_id), number)): contents
        for (topic, topic_id, number), contents in groups.items()
    }
    data, blob = pack(keyed)
    header = verify_blob(data)
    assert (header.created_at_ms, blob.size) == (START_MS, len(data))
    assert len(header.partitions) == len(blob.slices) == len(keyed)
    for ((topic, key), contents), listed, cut in zip(keyed.items(), header.partitions, blob.slices, strict=True):
        stored = data[cut.byte_offset : cut.byte_offset + cut.byte_length]
        assert stored == b"".join(contents)
        assert (listed.topic, listed.key) == (topic, key)
        assert (listed.byte_offset, listed.byte_length) == (cut.byte_offset, cut.byte_length)
        assert (listed.record_count, listed.crc32c) == (cut.record_count, cut.crc32c)
        headers = [wire.read_header(content) for content in contents]
        assert check_slice(stored, byte_length=cut.byte_length, record_count=cut.record_count) == tuple(headers)
        assert cut.batches == tuple(headers)
        assert cut.record_count == sum(header.record_count for header in headers)
        assert cut.min_timestamp_ms == min(header.base_timestamp for header in headers)
        assert cut.max_timestamp_ms == max(header.max_timestamp for header in headers)


def test_s2_6_a_naive_reader_of_the_documented_layout_can_read_it() -> None:
    data, _ = sample()
    (length,) = struct.unpack(">I", data[4:8])
    header = json.loads(data[8 : 8 + length])
    bodies = data[8 + length :]
    assert data[:4] == b"LLS1"
    assert (header["version"], header["created_at_ms"]) == (1, START_MS)
    assert [(item["topic"], item["partition"], item["encoding"]) for item in header["partitions"]] == [
        ("orders", 0, "kafka-batch-v2"),
        ("orders", 7, "kafka-batch-v2"),
        ("user-events", 1, "kafka-batch-v2"),
    ]
    for item in header["partitions"]:
        body = bodies[item["body_offset"] : item["body_offset"] + item["body_length"]]
        assert sum(found.record_count for _, found in wire.iter_batches(body)) == item["msg_count"]
        assert crc32c(body) == item["crc32c"]
    assert header["partitions"][2]["topic_id"] == topic_id_text(OTHER_TOPIC)


def test_batches_are_stored_without_their_place_and_patched_in_on_read() -> None:
    """The second topic's batches came with real offsets and epoch 3: neither is stored, and neither is lost."""
    data, blob = sample()
    cut = blob.slices[2]
    stored = bytearray(data[cut.byte_offset : cut.byte_offset + cut.byte_length])
    assert {(found.base_offset, found.partition_leader_epoch) for _, found in wire.iter_batches(stored)} == {(0, -1)}
    place_slice(stored, byte_length=cut.byte_length, record_count=cut.record_count, base_offset=1_000, leader_epoch=12)
    placed = [found for _, found in wire.iter_batches(stored)]
    assert placed[0].base_offset == 1_000
    assert placed[-1].next_offset == 1_000 + cut.record_count
    assert all(left.next_offset == right.base_offset for left, right in pairwise(placed))
    assert {found.partition_leader_epoch for found in placed} == {12}


def test_r14_a_slice_of_some_batches_of_a_body_is_read_alone() -> None:
    """Duplicates were dropped from the middle of a body: each surviving run is an entry of its own."""
    data, blob = sample()
    cut = blob.slices[0]
    skip, run = cut.batches[0], cut.batches[1:]
    start = cut.byte_offset + skip.size
    length = sum(header.size for header in run)
    records = sum(header.record_count for header in run)
    found = check_slice(data[start : start + length], byte_length=length, record_count=records)
    assert [header.crc for header in found] == [header.crc for header in run]


def test_a_header_is_read_from_a_few_bytes() -> None:
    data, _ = sample()
    header = verify_blob(data)
    for length in range(8):
        assert read_header(data[:length], object_size=len(data)) == NeedMore(total_bytes=8)
    for length in range(8, header.header_bytes):
        assert read_header(data[:length], object_size=len(data)) == NeedMore(total_bytes=header.header_bytes)
    assert read_header(data[: header.header_bytes], object_size=len(data)) == header
    with pytest.raises(CorruptBlob, match="bodies end at"):
        read_header(data[: header.header_bytes], object_size=len(data) - 1)


def test_every_flipped_bit_of_a_blob_is_detected() -> None:
    data, _ = pack(
        {("o", PartitionKey(TOPIC, 0)): [make_batch(count=1)], ("o", PartitionKey(TOPIC, 1)): [make_batch()]}
    )
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DETECTED):
            verify_blob(damaged)


def test_every_truncation_of_a_blob_is_detected() -> None:
    data, _ = sample()
    for length in range(len(data)):
        with pytest.raises(CorruptBlob):
            verify_blob(data[:length])
    with pytest.raises(CorruptBlob):
        verify_blob(data + b"\0")


def test_every_flipped_bit_of_a_slice_is_detected_given_only_its_entry() -> None:
    data, blob = sample()
    for cut in blob.slices[:2]:
        stored = data[cut.byte_offset : cut.byte_offset + cut.byte_length]
        for bit in range(8 * len(stored)):
            damaged = bytearray(stored)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises((CorruptBlob, CorruptBatch)):
                check_slice(damaged, byte_length=cut.byte_length, record_count=cut.record_count)


def test_ten_thousand_damaged_blobs_are_all_detected() -> None:
    data, _ = sample()
    for kind, damaged in damages(data, count=10_000, seed=6):
        try:
            verify_blob(damaged)
        except DETECTED:
            continue
        pytest.fail(f"{kind} passed")


def test_ten_thousand_damaged_slices_are_all_detected_given_only_their_entry() -> None:
    data, blob = sample()
    cut = blob.slices[0]
    stored = data[cut.byte_offset : cut.byte_offset + cut.byte_length]
    for kind, damaged in damages(stored, count=10_000, seed=7):
        try:
            check_slice(damaged, byte_length=cut.byte_length, record_count=cut.record_count)
        except (CorruptBlob, CorruptBatch):
            continue
        pytest.fail(f"{kind} passed")


def test_batches_in_another_order_are_seen_by_the_bodys_crc() -> None:
    first, second = make_batch(payload=b"a" * 30), make_batch(payload=b"b" * 30)
    data, blob = pack({("orders", PartitionKey(TOPIC, 0)): [first, second]})
    cut = blob.slices[0]
    check_slice(second + first, byte_length=cut.byte_length, record_count=cut.record_count)
    with pytest.raises(CorruptBlob, match="CRC-32C"):
        check_slice(
            second + first, byte_length=cut.byte_length, record_count=cut.record_count, expected_crc32c=cut.crc32c
        )
    with pytest.raises(CorruptBlob):
        verify_blob(data[: cut.byte_offset] + second + first)


def test_hostile_lengths_and_headers_cost_no_memory() -> None:
    data, _ = sample()
    hostile = [
        b"LLS1" + struct.pack(">I", length) + bytes(64) for length in (0, 1, MAX_BLOB_HEADER_BYTES + 1, 2**32 - 1)
    ]
    hostile += [
        seal(["not", "an", "object"], b""),
        seal({"version": 1}, b""),
        with_header(data, partitions=[]),
        with_header(data, partitions=[[]] * 5),
        with_header(data, partitions=[{"topic": "o", "body_length": 2**60}]),
        with_header(data, created_at_ms=True),
        with_header(data, created_at_ms=-1),
    ]
    text = b"[" * 100_000 + b',"header_crc32c":"'
    checked = b"LLS1" + struct.pack(">I", len(text) + 10) + text
    hostile.append(checked + b'%08x"}' % crc32c(checked))
    tracemalloc.start()
    try:
        for damaged in hostile:
            with pytest.raises(CorruptBlob):
                verify_blob(damaged)
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()
    with pytest.raises(CorruptBlob, match="over the limit"):
        read_header(data, object_size=MAX_BLOB_BYTES + 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", "a/b"),
        ("topic", 3),
        ("topic_id", "short"),
        ("partition", -1),
        ("partition", 2**31),
        ("msg_count", 0.5),
        ("body_offset", 1),
        ("body_length", 10),
        ("crc32c", 2**32),
        ("msg_count", 1),
    ],
)
def test_a_header_that_lies_with_a_right_crc_is_refused(name: str, value: object) -> None:
    data, _ = sample()
    length = struct.unpack(">I", data[4:8])[0]
    listed = json.loads(data[8 : 8 + length])["partitions"]
    listed[0][name] = value
    with pytest.raises(CorruptBlob):
        verify_blob(with_header(data, partitions=listed))


def test_a_partition_listed_twice_is_refused() -> None:
    data, _ = sample()
    length = struct.unpack(">I", data[4:8])[0]
    listed = json.loads(data[8 : 8 + length])["partitions"]
    listed[1]["partition"] = listed[0]["partition"]
    with pytest.raises(CorruptBlob, match="twice"):
        verify_blob(with_header(data, partitions=listed))


def test_bodies_that_overlap_are_refused() -> None:
    """Two equal bodies, both listed at the first one's place: the second one's bytes would go unchecked."""
    batch = make_batch()
    data, _ = pack({("o", PartitionKey(TOPIC, number)): [batch] for number in range(2)})
    listed = json.loads(data[8 : 8 + struct.unpack(">I", data[4:8])[0]])["partitions"]
    listed[1]["body_offset"] = 0
    with pytest.raises(CorruptBlob, match="starts at"):
        verify_blob(with_header(data, partitions=listed))


def test_a_slice_of_another_length_than_its_entry_says_is_refused() -> None:
    batch = make_batch()
    with pytest.raises(CorruptBlob, match="its entry says"):
        check_slice(batch, byte_length=len(batch) + 1, record_count=3)


def test_a_header_crc_under_another_key_is_refused() -> None:
    text = b'{"version":1,"created_at_ms":0,"partitions":[],"other_key_crc":"'
    checked = b"LLS1" + struct.pack(">I", len(text) + 10) + text
    with pytest.raises(CorruptBlob, match="its own CRC-32C"):
        verify_blob(checked + b'%08x"}' % crc32c(checked))


def test_what_a_newer_build_wrote_is_refused_not_taken_for_damage() -> None:
    data, _ = sample()
    with pytest.raises(UnsupportedVersion, match="version 2"):
        verify_blob(with_header(data, version=2))
    listed = json.loads(data[8 : 8 + struct.unpack(">I", data[4:8])[0]])["partitions"]
    listed[0]["encoding"] = "arrow-v1"
    with pytest.raises(UnsupportedVersion, match="arrow-v1"):
        verify_blob(with_header(data, partitions=listed))
    verify_blob(with_header(data, writer="a key this build does not know"))


def test_golden_file_is_read() -> None:
    data = GOLDEN.read_bytes()
    header = verify_blob(data)
    assert [(item.topic, item.key, item.record_count) for item in header.partitions] == [
        ("orders", PartitionKey(TOPIC, 0), 13),
        ("orders", PartitionKey(TOPIC, 7), 2),
        ("user-events", PartitionKey(OTHER_TOPIC, 1), 19),
    ]
    assert header.partitions[0].byte_offset == header.header_bytes
