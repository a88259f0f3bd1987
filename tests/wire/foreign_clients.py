"""Two Kafka clients' own record code, as judges of ours: kafka-python and aiokafka."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import aiokafka.record.default_records as aiokafka_records
import cramjam
from aiokafka.partitioner import murmur2 as aiokafka_murmur2

from streamhouse.wire.records import Header, Record

with warnings.catch_warnings():
    # kafka-python reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    import kafka.record.default_records as kafka_python_records
    from kafka.partitioner import murmur2 as kafka_python_murmur2

# kafka-python leaves snappy's blocks to the package python-snappy, itself a wrapper of cramjam; the framing is its own.
kafka.codec.snappy = types.SimpleNamespace(
    compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
    decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
)


class Client(NamedTuple):
    name: str
    read: Callable[[bytes], list[Record]]
    write: Callable[[Sequence[Record], int], bytes]


def _read(batch_class: type, data: bytes) -> list[Record]:
    batch = batch_class(data)
    assert batch.validate_crc()
    return [
        Record(
            key=record.key,
            value=record.value,
            timestamp_ms=record.timestamp,
            offset=record.offset,
            headers=tuple(Header(*header) for header in record.headers),
        )
        for record in batch
    ]


def _write(builder_class: type, records: Sequence[Record], codec: int) -> bytes:
    builder = builder_class(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for offset, record in enumerate(records):
        appended = builder.append(
            offset,
            timestamp=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=[tuple(header) for header in record.headers],
        )
        assert appended is not None
    return bytes(builder.build())


KAFKA_PYTHON = Client(
    "kafka-python",
    lambda data: _read(kafka_python_records.DefaultRecordBatch, data),
    lambda records, codec: _write(kafka_python_records.DefaultRecordBatchBuilder, records, codec),
)
AIOKAFKA = Client(
    "aiokafka",
    lambda data: _read(aiokafka_records.DefaultRecordBatch, data),
    lambda records, codec: _write(aiokafka_records.DefaultRecordBatchBuilder, records, codec),
)
CLIENTS = (KAFKA_PYTHON, AIOKAFKA)
MURMUR2S = (kafka_python_murmur2, aiokafka_murmur2)
