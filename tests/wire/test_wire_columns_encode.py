"""Arrow columns → batches, and rows → partitions, the same with both kernels."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from foreign_clients import CLIENTS, Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_samples import CODECS, START_MS, record_lists, sample_records

from streamhouse.core.errors import InvalidPartitions, InvalidRequest, LimitExceeded
from streamhouse.core.limits import MAX_HEADERS_PER_RECORD
from streamhouse.wire import columns_encode
from streamhouse.wire._column_buffers import BinaryColumn
from streamhouse.wire.batch import read_header, validate
from streamhouse.wire.codecs import Codec
from streamhouse.wire.columns import COLUMNS, HEADERS_TYPE, StoredBatches, decode_columns
from streamhouse.wire.columns_encode import encode_by_partition, encode_columns, group_rows, murmur2_partitions
from streamhouse.wire.murmur2 import partition_for_key
from streamhouse.wire.records import Record, build_batch, decode_records

pytestmark = pytest.mark.usefixtures("kernel")


def columns_of(records: list[Record]) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    return (
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.array([record.timestamp_ms for record in records], pa.int64()),
        pa.array([[header._asdict() for header in record.headers] or None for record in records], HEADERS_TYPE),
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=record_lists, codec=st.sampled_from(CODECS), per_batch=st.integers(1, 12))
def test_round_trip(records: list[Record], codec: Codec, per_batch: int) -> None:
    batches = encode_columns(*columns_of(records), codec=codec, records_per_batch=per_batch, first_offset=50)
    assert all(validate(batch).record_count <= per_batch for batch in batches)
    got = decode_columns([StoredBatches(partition=0, data=b"".join(batches))], columns=COLUMNS)
    assert got.column("offset").to_pylist() == list(range(50, 50 + len(records)))
    for name, column in zip(("key", "value", "timestamp", "headers"), columns_of(records), strict=True):
        assert got.column(name).to_pylist() == column.to_pylist()


def test_the_bytes_are_those_of_build_batch() -> None:
    records = sample_records(100)
    assert encode_columns(*columns_of(records)) == [build_batch(records)]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("codec", CODECS)
def test_clients_read_the_batches(client: Client, codec: Codec) -> None:
    records = sample_records(300)
    (batch,) = encode_columns(*columns_of(records), codec=codec)
    assert client.read(batch) == records


def test_batches_carry_offset_0_unless_told_where_to_start() -> None:
    source = columns_of(sample_records(10))
    assert [read_header(b).base_offset for b in encode_columns(*source, records_per_batch=4)] == [0, 0, 0]
    told = encode_columns(*source, records_per_batch=4, first_offset=7)
    assert [read_header(b).base_offset for b in told] == [7, 11, 15]


def test_a_batch_is_closed_at_its_target_and_a_larger_record_goes_alone() -> None:
    values = [b"x" * 100] * 30 + [b"y" * 5_000] + [b"z" * 100] * 30
    times = pa.array([START_MS] * len(values))
    batches = encode_columns(None, pa.array(values, pa.binary()), times, batch_bytes=1_000)
    assert [v.value for b in batches for v in decode_records(b)] == values
    large = [b for b in batches if len(b) > 1_000]
    assert [read_header(b).record_count for b in large] == [1]
    assert min(len(b) for b in batches[:3]) > 800


def test_a_record_over_the_hard_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_encode, "MAX_BATCH_BYTES", 2_000)
    with pytest.raises(LimitExceeded, match="row 1"):
        encode_columns(None, pa.array([b"", b"v" * 2_000]), pa.array([0, 0]), batch_bytes=500)


def test_times_too_far_apart_for_one_batch_start_another() -> None:
    times = [5, 7, -(2**63), 2**63 - 1, 9]
    batches = encode_columns(None, None, pa.array(times, pa.int64()))
    assert [r.timestamp_ms for b in batches for r in decode_records(b)] == times
    assert len(batches) > 1
    first = read_header(batches[0])
    assert (first.base_timestamp, first.max_timestamp) == (5, 7)


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view(), pa.binary(2)],
    ids=str,
)
def test_every_kind_of_binary_column_will_do(kind: pa.DataType) -> None:
    keys = pa.array([b"k1", None, b"k3"], pa.binary()).cast(
        pa.string() if pa.types.is_string_view(kind) else pa.binary()
    )
    (batch,) = encode_columns(keys.cast(kind), keys.cast(kind), pa.array([1, 2, 3]))
    assert [(r.key, r.value) for r in decode_records(batch)] == [(b"k1", b"k1"), (None, None), (b"k3", b"k3")]


def test_slices_chunks_and_dictionaries_will_do() -> None:
    records = sample_records(60)
    key, value, timestamp, headers = columns_of(records)
    wanted = decode_records(build_batch(records[13:40]))

    def same(*source: pa.Array) -> bool:
        (batch,) = encode_columns(*source)
        return decode_records(batch) == wanted

    assert same(*(column.slice(13, 27) for column in (key, value, timestamp, headers)))
    chunked = [
        pa.chunked_array([column.slice(13, 9), column.slice(22, 0), column.slice(22, 18)])
        for column in (key, value, timestamp, headers)
    ]
    assert same(*chunked)
    assert same(
        key.slice(13, 27).dictionary_encode(), *(column.slice(13, 27) for column in (value, timestamp, headers))
    )
    large = headers.slice(13, 27).cast(pa.large_list(HEADERS_TYPE.value_type))
    assert same(*(column.slice(13, 27) for column in (key, value, timestamp)), large)


def test_an_all_null_column_will_do() -> None:
    (batch,) = encode_columns(pa.nulls(2), pa.array([b"a", b"b"]), pa.array([1, 2]))
    assert [(r.key, r.value) for r in decode_records(batch)] == [(None, b"a"), (None, b"b")]


def test_no_rows_make_no_batches() -> None:
    for empty in (pa.array([], pa.binary()), pa.array([b"x"]).slice(1), pa.nulls(0)):
        assert encode_columns(empty, empty, pa.array([], pa.int64())) == []


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
@pytest.mark.parametrize(("unit", "a_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_arrow_times_become_milliseconds_rounded_down(unit: str, a_second: int, zone: str | None) -> None:
    ticks = [0, 1_714_564_800 * a_second, -a_second, *([1_999_999, -1] if unit in ("us", "ns") else [])]
    (batch,) = encode_columns(None, None, pa.array(ticks, pa.int64()).cast(pa.timestamp(unit, zone)))
    assert [r.timestamp_ms for r in decode_records(batch)] == [tick * 1000 // a_second for tick in ticks]


def test_only_the_selected_rows_in_the_selected_order() -> None:
    source = columns_of(sample_records(20))
    (batch,) = encode_columns(*source, rows=pa.array([7, 0, 7, 19], pa.int32()))
    assert [r.value for r in decode_records(batch)] == [source[1][i].as_py() for i in (7, 0, 7, 19)]
    for bad in ([20], [-1]):
        with pytest.raises(InvalidRequest, match="not there"):
            encode_columns(*source, rows=pa.array(bad, pa.int32()))
    with pytest.raises(InvalidRequest, match="int32"):
        encode_columns(*source, rows=pa.array([1], pa.int64()))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param((pa.array([1]), None, pa.array([1])), "key must be binary", id="key of numbers"),
        pytest.param((None, pa.array([1.5]), pa.array([1])), "value must be binary", id="value of numbers"),
        pytest.param((None, None, pa.array(["x"])), "timestamp must be", id="time of text"),
        pytest.param((None, None, pa.array([1, None])), "timestamp must be", id="null time"),
        pytest.param((pa.array([b"a"]), None, pa.array([1, 2])), "different lengths", id="lengths differ"),
        pytest.param((None, None, pa.array([1]), pa.array([b"h"])), "list of", id="headers no list"),
        pytest.param((None, None, pa.array([1]), pa.array([[1]])), "list of", id="headers no pairs"),
        pytest.param((None, None, pa.array([1, 2]), pa.array([None], HEADERS_TYPE)), "different", id="headers short"),
        pytest.param((None, None, pa.array([1]), pa.array([[None]], HEADERS_TYPE)), "null entry", id="null header"),
        pytest.param(
            (None, None, pa.array([1]), pa.array([[{"key": None, "value": b""}]], HEADERS_TYPE)),
            "row 0: a header key is null",
            id="null header key",
        ),
    ],
)
def test_columns_that_are_no_records_are_refused(arguments: tuple[pa.Array, ...], complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        encode_columns(*arguments)


def test_headers_over_the_limit_are_refused() -> None:
    headers = pa.array([[{"key": "", "value": None}] * (MAX_HEADERS_PER_RECORD + 1)], HEADERS_TYPE)
    with pytest.raises(LimitExceeded, match="row 0"):
        encode_columns(None, None, pa.array([1]), headers)


@pytest.mark.parametrize("limits", [{"records_per_batch": 0}, {"batch_bytes": 61}, {"batch_bytes": 1 << 40}])
def test_limits_that_make_no_batch_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be made"):
        encode_columns(None, None, pa.array([1]), **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("offsets", [(0, 9, 4), (0, -1, 4), (0, 3, 2), (0, 2**31 - 1, 4)])
def test_an_array_whose_offsets_lie_is_refused_not_followed(offsets: tuple[int, int, int]) -> None:
    buffers = [None, pa.py_buffer(struct.pack("3i", *offsets)), pa.py_buffer(b"abcd")]
    array = pa.Array.from_buffers(pa.binary(), 2, buffers)
    with pytest.raises(InvalidRequest, match="make no sense"):
        encode_columns(array, None, pa.array([1, 2]))
    with pytest.raises(InvalidRequest, match="make no sense"):
        murmur2_partitions(array, 3)


def test_an_array_longer_than_its_buffers_is_refused() -> None:
    column = BinaryColumn(None, struct.pack("ii", 0, 1), b"a", 0, 2)
    with pytest.raises(InvalidRequest, match="does not fit"):
        columns_encode.kernel.murmur2_partitions(column, 3, allocate=pa.allocate_buffer)
    column = BinaryColumn(b"\xff", struct.pack("12i", *range(12)), bytes(12), 0, 9)
    with pytest.raises(InvalidRequest, match="does not fit"):
        columns_encode.kernel.murmur2_partitions(column, 3, allocate=pa.allocate_buffer)


@given(keys=st.lists(st.none() | st.binary(max_size=40)), count=st.integers(1, 300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_keys_go_where_kafkas_partitioner_puts_them(keys: list[bytes | None], count: int) -> None:
    wanted = [None if key is None else partition_for_key(key, count) for key in keys]
    assert murmur2_partitions(pa.array(keys, pa.binary()), count).to_pylist() == wanted


def test_partition_counts_that_make_no_topic_are_refused() -> None:
    for count in (0, -1, 10**9):
        with pytest.raises(InvalidPartitions):
            murmur2_partitions(pa.array([b"k"]), count)
        with pytest.raises(InvalidPartitions):
            group_rows(pa.array([0], pa.int32()), count)


@given(st.lists(st.integers(0, 9)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_rows_are_grouped_by_partition_in_their_old_order(numbers: list[int]) -> None:
    order, begins = group_rows(pa.array(numbers, pa.int32()), 10)
    assert order.to_pylist() == sorted(range(len(numbers)), key=numbers.__getitem__)
    assert begins == [sum(n < p for n in numbers) for p in range(10)] + [len(numbers)]


@pytest.mark.parametrize(
    "numbers", [pa.array([3], pa.int32()), pa.array([-1], pa.int32()), pa.array([1]), pa.array([None], pa.int32())]
)
def test_partitions_that_are_not_there_are_refused(numbers: pa.Array) -> None:
    with pytest.raises(InvalidRequest):
        group_rows(numbers, 3)


def test_each_partition_gets_its_rows_in_order() -> None:
    records = sample_records(200)
    source = columns_of(records)
    partitions = murmur2_partitions(source[0], 7).fill_null(2)
    encoded = encode_by_partition(
        *source, partitions=partitions, partition_count=7, codec=Codec.LZ4, records_per_batch=10
    )
    for partition in range(7):
        rows = [row for row, number in enumerate(partitions.to_pylist()) if number == partition]
        got = [r for b in encoded.get(partition, []) for r in decode_records(b)]
        assert [(r.key, r.value, r.headers) for r in got] == [
            (records[row].key, records[row].value, records[row].headers) for row in rows
        ]
    assert sum(read_header(b).record_count for batches in encoded.values() for b in batches) == 200
