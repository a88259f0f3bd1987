"""Runs of batches → Arrow columns, the same with the compiled kernel and with the pure one."""

from __future__ import annotations

import functools
import subprocess
import sys

import pyarrow as pa
import pytest
from wire_samples import CODECS, START_MS, sample_batch, sample_records, with_body, with_crc

from streamhouse.core.errors import CorruptBatch, InflatedTooLarge, InvalidRequest, LimitExceeded
from streamhouse.wire import columns
from streamhouse.wire.batch import HEADER_BYTES, stamp_log_append_time
from streamhouse.wire.codecs import Codec
from streamhouse.wire.columns import COLUMNS, WITHOUT_HEADERS, StoredBatches, decode_columns, iter_columns, schema
from streamhouse.wire.records import ControlType, Header, Record, build_batch, build_control_batch, decode_records

pytestmark = pytest.mark.usefixtures("kernel")


def rows_of(batch: pa.RecordBatch) -> list[dict[str, object]]:
    batch.validate(full=True)
    return batch.to_pylist()


def expected_rows(partition: int, records: list[Record], timestamp_type: int = 0) -> list[dict[str, object]]:
    return [
        {
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "timestamp_type": timestamp_type,
            "key": record.key,
            "value": record.value,
            "headers": [header._asdict() for header in record.headers] or None,
        }
        for record in records
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_columns_hold_what_decode_records_reads(codec: Codec) -> None:
    batches = [sample_batch(count, seed=count, base_offset=count * 100, codec=codec) for count in (1, 7, 8, 9, 70)]
    run = StoredBatches(partition=3, data=b"".join(batches))
    wanted = [record for batch in batches for record in decode_records(batch)]
    assert rows_of(decode_columns([run], columns=COLUMNS)) == expected_rows(3, wanted)


def test_runs_of_several_partitions_follow_each_other() -> None:
    runs = [StoredBatches(partition=p, data=memoryview(sample_batch(3 + p, codec=p))) for p in (4, 0, 2)]
    wanted = [row for p in (4, 0, 2) for row in expected_rows(p, decode_records(sample_batch(3 + p, codec=p)))]
    assert rows_of(decode_columns(runs, columns=COLUMNS)) == wanted


def test_nothing_decodes_to_no_rows_with_the_schema() -> None:
    for runs in ([], [StoredBatches(partition=0, data=b"")]):
        empty = decode_columns(runs, columns=COLUMNS)
        assert empty.num_rows == 0
        assert empty.schema == schema(COLUMNS)
        assert list(iter_columns(runs)) == []


def test_arrow_types_are_those_spark_wants() -> None:
    assert decode_columns([], columns=COLUMNS, timestamp_unit="us").schema == pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestamp_type", pa.int32()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )


def test_microseconds_for_spark() -> None:
    batch = build_batch([Record(timestamp_ms=START_MS), Record(timestamp_ms=-1)])
    column = decode_columns(
        [StoredBatches(partition=0, data=batch)], columns=["timestamp"], timestamp_unit="us"
    ).column(0)
    assert column.cast(pa.int64()).to_pylist() == [START_MS * 1000, -1000]


def test_a_time_that_microseconds_cannot_hold_is_refused_rather_than_wrapped() -> None:
    run = StoredBatches(partition=0, data=build_batch([Record(timestamp_ms=0), Record(timestamp_ms=2**62)]))
    assert decode_columns([run], columns=["timestamp"]).column(0).to_pylist() == [0, 2**62]
    with pytest.raises(CorruptBatch, match="record 1: its timestamp"):
        decode_columns([run], columns=["timestamp"], timestamp_unit="us")


@pytest.mark.parametrize("wanted", [["value"], ["headers", "offset"], ["key"], ["timestamp_type", "partition"], []])
def test_only_the_wanted_columns_are_made_in_the_wanted_order(wanted: list[str]) -> None:
    batch = sample_batch(20)
    got = decode_columns([StoredBatches(partition=1, data=batch)], columns=wanted)
    assert got.schema.names == wanted
    full = expected_rows(1, decode_records(batch))
    assert got.to_pylist() == ([{name: row[name] for name in wanted} for row in full] if wanted else [])


def test_unknown_and_repeated_columns_are_refused() -> None:
    for wanted in (["topic"], ["key", "key"]):
        with pytest.raises(InvalidRequest, match="distinct"):
            decode_columns([], columns=wanted)


def test_slices_that_carry_offset_0_decode_from_their_entrys_base() -> None:
    slices = b"".join(sample_batch(count, codec=codec) for count, codec in ((3, 0), (4, 3), (5, 4)))
    got = decode_columns([StoredBatches(partition=0, data=slices, base_offset=1000)], columns=["offset"])
    assert got.column(0).to_pylist() == list(range(1000, 1012))


def test_a_compacted_batch_keeps_its_holes_and_the_next_batch_its_place() -> None:
    kept = [record for record in sample_records(10) if record.offset in (2, 5)]
    run = build_batch(kept, last_offset=9) + build_batch([], last_offset=4) + sample_batch(2)
    got = decode_columns([StoredBatches(partition=0, data=run, base_offset=100)], columns=["offset"])
    assert got.column(0).to_pylist() == [102, 105, 115, 116]


@pytest.mark.parametrize("bounds", [(0, 30), (0, 1), (4, 17), (10, 20), (9, 11), (29, 30), (30, 99), (5, 5)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_only_offsets_in_range_come_back(bounds: tuple[int, int], codec: Codec) -> None:
    data = b"".join(sample_batch(10, seed=at, base_offset=at, codec=codec) for at in (0, 10, 20))
    run = StoredBatches(partition=0, data=data, from_offset=bounds[0], to_offset=bounds[1])
    everything = decode_columns([StoredBatches(partition=0, data=data)], columns=COLUMNS).to_pylist()
    wanted = [row for row in everything if bounds[0] <= row["offset"] < bounds[1]]
    assert rows_of(decode_columns([run], columns=COLUMNS)) == wanted


def test_a_batch_outside_the_range_is_not_even_inflated() -> None:
    bad = bytearray(sample_batch(10, base_offset=10, codec=Codec.ZSTD))
    bad[-5:] = b"wrong"
    data = sample_batch(10) + bad
    assert decode_columns([StoredBatches(partition=0, data=data, to_offset=10)]).num_rows == 10
    with pytest.raises(CorruptBatch, match=f"at byte {len(data) - len(bad)}"):
        decode_columns([StoredBatches(partition=0, data=data, to_offset=11)])


def test_control_batches_are_left_out_and_keep_their_offset() -> None:
    marker = build_control_batch(
        ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=START_MS
    )
    run = StoredBatches(partition=0, data=sample_batch(2) + marker + sample_batch(2), base_offset=0)
    assert decode_columns([run], columns=["offset"]).column(0).to_pylist() == [0, 1, 3, 4]
    assert decode_columns([run], columns=["offset"], skip_control=False).num_rows == 5


def test_log_append_time_and_its_type() -> None:
    stamped = bytearray(sample_batch(3, codec=Codec.SNAPPY))
    stamp_log_append_time(stamped, 0, timestamp_ms=77)
    got = decode_columns(
        [StoredBatches(partition=0, data=stamped + sample_batch(1))], columns=["timestamp", "timestamp_type"]
    )
    assert got.column("timestamp").to_pylist()[:3] == [77, 77, 77]
    assert got.column("timestamp_type").to_pylist() == [1, 1, 1, 0]


@pytest.mark.parametrize(
    "raw", [b"ab\xe9d", b"\xff\xff\xff\xff", b"\xed\xa0\x80a", b"\xf4\x90\x80\x80", b"\xc0\xafxy", b"ab\xe2\x82"]
)
def test_header_keys_that_are_not_utf8_are_replaced_and_good_ones_kept(raw: bytes) -> None:
    good = (Header("grüße €uro 𝄞", b"1"), Header("", None), Header("abcd", b"x"), Header("after", b""))
    batch = build_batch([Record(headers=good)])
    spoilt = with_body(batch, batch[HEADER_BYTES:].replace(b"abcd", raw))
    got = decode_columns([StoredBatches(partition=0, data=spoilt)], columns=["headers"])
    got.validate(full=True)
    keys = [entry["key"] for entry in got.column(0).to_pylist()[0]]
    assert keys == ["grüße €uro 𝄞", "", raw.decode("utf-8", "replace"), "after"]
    assert decode_columns([StoredBatches(partition=0, data=spoilt)]).num_rows == 1


def test_wrong_crcs_are_refused_unless_already_vouched_for() -> None:
    data = bytearray(build_batch([Record(value=b"aaaa")]))
    data[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC-32C"):
        decode_columns([StoredBatches(partition=0, data=data)])
    assert decode_columns([StoredBatches(partition=0, data=data)], check_crc=False).num_rows == 1


def test_the_error_names_the_batch_and_the_record() -> None:
    good, bad = sample_batch(5), sample_batch(5, seed=9)
    broken = with_crc(bad[:-1] + b"\x02")
    with pytest.raises(CorruptBatch, match=f"at byte {len(good)}: record 4"):
        decode_columns([StoredBatches(partition=0, data=good + broken)])


def test_a_counts_lie_reserves_no_memory() -> None:
    """Ten million records claimed, two there: room is made for what the bytes could hold."""
    batch = bytearray(sample_batch(2, codec=Codec.ZSTD))
    batch[23:27] = (9_999_999).to_bytes(4, "big")
    batch[57:61] = (10_000_000).to_bytes(4, "big")
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptBatch, match="record 2"):
        decode_columns([StoredBatches(partition=0, data=with_crc(batch))] * 3)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_the_cap_on_inflation_holds() -> None:
    with pytest.raises(InflatedTooLarge):
        decode_columns([StoredBatches(partition=0, data=sample_batch(99, codec=Codec.GZIP))], max_inflated_bytes=500)


def test_offsets_that_leave_64_bits_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="leaves no room"):
        decode_columns([StoredBatches(partition=0, data=sample_batch(2), base_offset=2**63 - 2)])
    with pytest.raises(InvalidRequest):
        decode_columns([StoredBatches(partition=0, data=b"", from_offset=-1)])


@pytest.mark.parametrize("column", ["key", "value", "headers"])
def test_a_column_past_arrows_32_bits_is_refused_before_it_wraps(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = functools.partial(columns.kernel.Decoder, max_column_bytes=1000)
    monkeypatch.setattr(columns.kernel, "Decoder", decoder)
    record = Record(key=b"k" * 90, value=b"v" * 90, headers=(Header("h" * 90, b"w" * 90),))
    run = StoredBatches(partition=0, data=build_batch([record]) * 20, base_offset=0)
    with pytest.raises(LimitExceeded, match="1000 bytes"):
        decode_columns([run], columns=[column])
    assert decode_columns([run], columns=["offset"]).num_rows == 20


def test_replaced_header_keys_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = build_batch([Record(headers=(Header("a" * 100, None), Header("b" * 100, None)))])
    body = batch[HEADER_BYTES:].replace(b"a" * 100, b"\xff" * 100)
    decoder = functools.partial(columns.kernel.Decoder, max_column_bytes=len(body) + 100)
    monkeypatch.setattr(columns.kernel, "Decoder", decoder)
    with pytest.raises(LimitExceeded):
        decode_columns([StoredBatches(partition=0, data=with_body(batch, body))], columns=["headers"])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_iterator_gives_the_same_rows_in_bounded_pieces(codec: Codec) -> None:
    run = StoredBatches(
        partition=0, data=b"".join(sample_batch(50, seed=s, codec=codec) for s in range(40)), base_offset=0
    )
    whole = decode_columns([run], columns=COLUMNS)
    pieces = list(iter_columns([run], columns=COLUMNS, target_bytes=20_000))
    assert pa.Table.from_batches(pieces).to_pylist() == whole.to_pylist()
    assert len(pieces) > 5
    assert all(piece.nbytes <= 40_000 for piece in pieces)


def test_the_iterator_cuts_one_large_batch_by_rows() -> None:
    records = [Record(value=bytes(10)) for _ in range(500)] + [Record(value=bytes(5_000))] + [Record()] * 99
    run = StoredBatches(partition=0, data=build_batch(records, codec=Codec.LZ4))
    pieces = list(iter_columns([run], columns=WITHOUT_HEADERS, target_bytes=2_000))
    assert [v for piece in pieces for v in piece.column("value").to_pylist()] == [r.value for r in records]
    assert all(piece.nbytes <= 4_000 or piece.num_rows == 1 for piece in pieces)


def test_the_columns_outlive_the_run_they_came_from() -> None:
    data = bytearray(sample_batch(20))
    got = decode_columns([StoredBatches(partition=0, data=data)])
    wanted = got.to_pylist()
    data[:] = bytes(len(data))
    assert got.to_pylist() == wanted


def test_without_pyarrow_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import streamhouse.wire.columns"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'streamhouse[arrow]'" in child.stderr.splitlines()[-1]
