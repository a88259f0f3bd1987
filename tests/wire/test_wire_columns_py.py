"""The pure twin of the compiled kernel: the same columns and batches, the same refusals in the same words."""

from __future__ import annotations

import inspect
import random
from array import array
from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import CODECS, kernel_module, mutated, record_lists, sample_batch, sample_records, with_body, with_crc

from streamhouse.core.errors import InvalidRequest, LimitExceeded, StreamHouseError
from streamhouse.wire import _columns_py, columns, columns_encode
from streamhouse.wire.batch import HEADER_BYTES, read_header
from streamhouse.wire.codecs import Codec, compress
from streamhouse.wire.columns import COLUMNS, HEADERS_TYPE, StoredBatches, decode_columns
from streamhouse.wire.columns_encode import encode_columns
from streamhouse.wire.records import Header, Record, build_batch

COMPILED, PURE = kernel_module("_columns"), kernel_module("_columns_py")
MUTATIONS_PER_CODEC = 2_000


def outcome(kernel: ModuleType, run: StoredBatches, **options: object) -> object:
    """The columns, or the class and words of the refusal. Anything but an error of the tree fails the test."""
    before = columns.kernel
    columns.kernel = kernel  # type: ignore[misc]
    try:
        batch = decode_columns([run], max_inflated_bytes=1 << 22, **options)  # type: ignore[arg-type]
        batch.validate(full=True)
        return batch
    except StreamHouseError as error:
        return type(error), str(error)
    finally:
        columns.kernel = before  # type: ignore[misc]


def assert_twins_agree(run: StoredBatches, **options: object) -> bool:
    compiled = outcome(COMPILED, run, **options)
    assert compiled == outcome(PURE, run, **options)
    return isinstance(compiled, pa.RecordBatch)


@pytest.mark.parametrize("codec", CODECS)
def test_ten_thousand_mutations_are_judged_alike(codec: Codec) -> None:
    rng = random.Random(codec)
    seeds = [build_batch(sample_records(count, seed=count), codec=Codec.NONE) for count in (1, 3, 12)]
    accepted = 0
    for round_ in range(MUTATIONS_PER_CODEC):
        batch = rng.choice(seeds)
        # Records are mutated before they are compressed: otherwise most damage would stop at the codec.
        body = mutated(batch[HEADER_BYTES:], rng)
        head = mutated(batch[:HEADER_BYTES], rng, 21)[:HEADER_BYTES] if rng.random() < 0.2 else batch[:HEADER_BYTES]
        head = head.ljust(HEADER_BYTES, b"\0")
        head = head[:22] + bytes([head[22] & 0xF8 | codec]) + head[23:]
        damaged = with_crc(head + bytes(compress(codec, body)))
        wanted = rng.choice((COLUMNS, ("headers",), ("key", "offset"), ("value", "timestamp")))
        run = StoredBatches(
            partition=round_ % 3, data=sample_batch(2) + damaged, base_offset=rng.choice((None, 0, 2**40))
        )
        accepted += assert_twins_agree(run, columns=wanted, timestamp_unit=rng.choice(("ms", "us")))
    assert 0 < accepted < MUTATIONS_PER_CODEC


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=60), count=st.integers(0, 6), wanted=st.sampled_from([COLUMNS, ("headers",), ("key",)]))
def test_arbitrary_bodies_are_judged_alike(body: bytes, count: int, wanted: tuple[str, ...]) -> None:
    template = build_batch([Record()] * count, last_offset=count) if count == 0 else build_batch([Record()] * count)
    padded = body + bytes(max(0, 7 * count - len(body)))
    assert_twins_agree(StoredBatches(partition=0, data=with_body(template, padded)), columns=wanted)


# Bytes that look like records more often than chance: small numbers, and the edges of varints.
likely_bytes = st.lists(
    st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 14, 16, 20, 0x7F, 0x80, 0x81, 0xFE, 0xFF]), max_size=40
).map(bytes)


@settings(max_examples=500, deadline=None)
@given(inner=likely_bytes, log_append=st.booleans())
def test_likely_records_are_judged_alike(inner: bytes, log_append: bool) -> None:
    template = build_batch([Record()], timestamp_type=int(log_append))  # type: ignore[arg-type]
    body = bytes([2 * len(inner)]) + inner if len(inner) < 64 else inner
    padded = body + bytes(max(0, 7 - len(body)))
    assert_twins_agree(
        StoredBatches(partition=0, data=with_body(template, padded)), columns=COLUMNS, timestamp_unit="us"
    )


@settings(max_examples=100, deadline=None)
@given(record_lists, st.sampled_from(CODECS), st.integers(0, 40), st.integers(0, 40))
def test_honest_batches_decode_alike(records: list[Record], codec: Codec, low: int, high: int) -> None:
    run = StoredBatches(partition=1, data=build_batch(records, codec=codec), from_offset=low, to_offset=high)
    assert assert_twins_agree(run, columns=COLUMNS)


@settings(max_examples=150, deadline=None)
@given(records=record_lists, target=st.integers(62, 600), most=st.integers(1, 20), data=st.data())
def test_columns_encode_alike(records: list[Record], target: int, most: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(records) - 1))
    source = [
        column.slice(start)
        for column in (
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array([record.timestamp_ms for record in records], pa.int64()),
            pa.array([[header._asdict() for header in record.headers] for record in records], HEADERS_TYPE),
        )
    ]
    last = len(records) - start - 1
    rows = data.draw(st.none() | st.lists(st.integers(0, last)).map(lambda chosen: pa.array(chosen, pa.int32())))
    results = []
    for kernel in (COMPILED, PURE):
        before = columns_encode.kernel
        columns_encode.kernel = kernel  # type: ignore[misc]
        try:
            results.append(encode_columns(*source, rows=rows, batch_bytes=target, records_per_batch=most))
        finally:
            columns_encode.kernel = before  # type: ignore[misc]
    assert results[0] == results[1]


def test_the_twins_have_the_same_public_names() -> None:
    public = {
        name
        for name, thing in vars(PURE).items()
        if getattr(thing, "__module__", None) == PURE.__name__ and not name.startswith("_")
    }
    assert public == {"Decoder", "Encoder", "group_rows", "murmur2_partitions"}
    for name in public:
        assert hasattr(COMPILED, name)
    for name in ("Decoder", "Encoder"):
        methods = {m for m, _ in inspect.getmembers(getattr(PURE, name)) if not m.startswith("_")}
        assert methods <= set(dir(getattr(COMPILED, name)))


# The pure twin by itself: Arrow's layouts, without Arrow.


def decoder(*wanted: str, **options: int) -> _columns_py.Decoder:
    return _columns_py.Decoder(wanted, allocate=bytearray, **options)


def feed(into: _columns_py.Decoder, records: list[Record], *, low: int = 0, high: int = 2**62) -> None:
    batch = build_batch(records)
    into.add(
        batch[HEADER_BYTES:],
        read_header(batch),
        pos=0,
        partition=3,
        base_offset=100,
        from_offset=low,
        to_offset=high,
    )


def test_a_binary_column_has_offsets_and_one_validity_bit_a_row_lowest_first() -> None:
    into = decoder("key", "value")
    feed(into, [Record(key=key, value=b"v") for key in (b"ab", None, b"", b"c", None, b"d", b"e", b"f", None, b"g")])
    found = into.finish()
    assert found.key is not None
    assert list(found.key.offsets) == [0, 2, 2, 2, 3, 3, 4, 5, 6, 6, 7]
    assert (bytes(found.key.data), found.key.null_count) == (b"abcdefg", 3)
    assert bytes(found.key.validity or b"") == bytes([0b11101101, 0b00000010])
    assert found.value is not None
    assert found.value.validity is None, "no row is null"
    assert (found.offset, found.headers) == (None, None), "only what was asked for"


def test_a_row_without_headers_is_null_and_the_entries_of_the_others_lie_end_to_end() -> None:
    into = decoder("headers")
    feed(into, [Record(headers=(Header("a", b"1"), Header("b", None))), Record(), Record(headers=(Header("c", b""),))])
    headers = into.finish().headers
    assert headers is not None
    assert (list(headers.offsets), headers.entry_count, headers.null_count) == ([0, 2, 2, 3], 3, 1)
    assert bytes(headers.validity or b"") == bytes([0b101])
    assert (bytes(headers.keys.data), list(headers.values.offsets), headers.values.null_count) == (
        b"abc",
        [0, 1, 1, 1],
        1,
    )


def test_only_offsets_in_the_range_are_decoded_and_batches_follow_each_other() -> None:
    into = decoder("offset", "partition", "timestamp", timestamp_scale=1000)
    records = [Record(timestamp_ms=number) for number in range(5)]
    feed(into, records, low=101, high=103)
    feed(into, records, low=104)
    found = into.finish()
    assert (found.row_count, into.row_count) == (3, 3)
    assert found.offset.tolist() == [101, 102, 104]  # type: ignore[union-attr]
    assert found.partition.tolist() == [3, 3, 3]  # type: ignore[union-attr]
    assert found.timestamp.tolist() == [1000, 2000, 4000]  # type: ignore[union-attr]


def test_a_column_is_refused_before_it_passes_its_limit() -> None:
    with pytest.raises(ValueError, match=r"at most 2\*\*31 - 1 bytes"):
        decoder("value", max_column_bytes=2**31)
    into = decoder("value", max_column_bytes=150)
    feed(into, [Record(value=bytes(100))])
    assert into.data_bytes == 100
    with pytest.raises(LimitExceeded, match="would pass 150 bytes"):
        feed(into, [Record(value=bytes(100))])
    assert into.row_count == 1, "nothing of the batch was taken"


def test_rows_are_ordered_by_partition_and_keep_their_order_within_each() -> None:
    order, starts = _columns_py.group_rows(array("i", [2, 0, 2, 1, 0]), 4, allocate=bytearray)
    assert (list(order), starts) == ([1, 4, 3, 0, 2], [0, 2, 3, 5, 5])
    for wrong in ([4], [-1]):
        with pytest.raises(InvalidRequest, match="row 0: there is no partition"):
            _columns_py.group_rows(array("i", wrong), 4, allocate=bytearray)
    with pytest.raises(InvalidRequest, match="at least 1 partition"):
        _columns_py.group_rows(array("i"), 0, allocate=bytearray)
