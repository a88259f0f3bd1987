"""Batches fixed in the repository: whatever changes here, these bytes must always read the same.

The uncompressed ones must also be written the same; a compressor may find other bytes for the same records.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from foreign_clients import CLIENTS, Client

from streamhouse.wire.batch import TimestampType, read_header, validate
from streamhouse.wire.codecs import Codec
from streamhouse.wire.columns import COLUMNS, StoredBatches, decode_columns
from streamhouse.wire.records import (
    ControlMarker,
    ControlType,
    Header,
    Record,
    build_batch,
    build_control_batch,
    decode_records,
    read_control_marker,
)

GOLDEN = Path(__file__).parent / "golden"
BASE_OFFSET = 4_294_967_296_007
RECORDS = [
    Record(offset=BASE_OFFSET, timestamp_ms=1_700_000_000_000, key=b"order-17", value=b'{"state":"paid"}'),
    Record(offset=BASE_OFFSET + 1, timestamp_ms=1_700_000_000_250, key=None, value=b"a value without a key"),
    Record(offset=BASE_OFFSET + 2, timestamp_ms=1_699_999_999_990, key=b"order-17", value=None),
    Record(offset=BASE_OFFSET + 3, timestamp_ms=1_700_000_000_250, key=b"", value=b""),
    Record(
        offset=BASE_OFFSET + 4,
        timestamp_ms=1_700_000_060_000,
        key=b"\x00\xff",
        value=b"repeated " * 40,
        headers=(Header("trace-id", bytes(range(16))), Header("naïve", None), Header("", b"")),
    ),
]
FIELDS = {
    "base_offset": BASE_OFFSET,
    "leader_epoch": 6,
    "producer_id": 1_000_003,
    "producer_epoch": 2,
    "base_sequence": 41,
}
THINNED = [RECORDS[1], RECORDS[4]]


def stored(name: str) -> bytes:
    return (GOLDEN / f"{name}.batch").read_bytes()


def uncompressed() -> dict[str, bytes]:
    return {
        "none": build_batch(RECORDS, **FIELDS),  # type: ignore[arg-type]
        "log_append_time": build_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME, **FIELDS),  # type: ignore[arg-type]
        "compacted": build_batch(THINNED, last_offset=BASE_OFFSET + 9, **FIELDS),  # type: ignore[arg-type]
        "control_commit": build_control_batch(
            ControlType.COMMIT,
            producer_id=1_000_003,
            producer_epoch=2,
            coordinator_epoch=11,
            timestamp_ms=1_700_000_000_000,
        ),
    }


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_golden_batches_of_every_codec_read_the_same(codec: Codec) -> None:
    batch = stored(codec.name.lower())
    header = validate(batch)
    assert (header.codec, header.base_offset, header.partition_leader_epoch) == (codec, BASE_OFFSET, 6)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1_000_003, 2, 41)
    assert decode_records(batch) == RECORDS


@pytest.mark.parametrize("name", ["none", "log_append_time", "compacted", "control_commit"])
def test_golden_uncompressed_batches_are_written_the_same(name: str) -> None:
    assert uncompressed()[name] == stored(name)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_golden_batches_are_what_clients_read(client: Client, name: str) -> None:
    assert client.read(stored(name)) == RECORDS


def test_golden_special_batches_read_the_same() -> None:
    assert {r.timestamp_ms for r in decode_records(stored("log_append_time"))} == {1_700_000_060_000}
    assert decode_records(stored("compacted")) == THINNED
    assert read_header(stored("compacted")).last_offset == BASE_OFFSET + 9
    assert read_control_marker(stored("control_commit")) == ControlMarker(
        type=ControlType.COMMIT, producer_id=1_000_003, producer_epoch=2, coordinator_epoch=11, offset=0
    )


@pytest.mark.usefixtures("kernel")
def test_golden_batches_of_every_codec_decode_to_the_same_columns() -> None:
    runs = [StoredBatches(partition=codec, data=stored(codec.name.lower())) for codec in Codec]
    got = decode_columns(runs, columns=COLUMNS)
    assert got.column("value").to_pylist() == [record.value for record in RECORDS] * 5
    assert got.column("offset").to_pylist() == [record.offset for record in RECORDS] * 5
    assert got.column("partition").to_pylist() == [codec for codec in Codec for _ in RECORDS]
    headers = [[header._asdict() for header in record.headers] or None for record in RECORDS]
    assert got.column("headers").to_pylist() == headers * 5
