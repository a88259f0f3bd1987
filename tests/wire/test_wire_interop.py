"""Batches written here are read by two clients' parsers and the other way round, with all five codecs."""

from __future__ import annotations

import pytest
from foreign_clients import CLIENTS, Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_samples import CODECS, record_lists, sample_records

from streamhouse.wire.batch import TimestampType, stamp_log_append_time, validate
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record, build_batch, decode_records

clients = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
codecs = pytest.mark.parametrize("codec", CODECS)


@clients
@codecs
def test_they_read_what_we_write(client: Client, codec: Codec) -> None:
    records = sample_records(500)
    assert client.read(build_batch(records, codec=codec)) == records


@clients
@codecs
def test_we_read_what_they_write(client: Client, codec: Codec) -> None:
    records = sample_records(500)
    batch = client.write(records, codec)
    assert validate(batch).codec == codec
    assert decode_records(batch) == records


@clients
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(records=record_lists, codec=st.sampled_from(CODECS))
def test_both_ways_for_every_shape_of_record(client: Client, records: list[Record], codec: Codec) -> None:
    ours = decode_records(build_batch(records))
    assert client.read(build_batch(records, codec=codec)) == ours
    if client.name != "aiokafka" or records[0].timestamp_ms >= 0:  # aiokafka takes a first time of -1 for no record yet
        assert decode_records(client.write(records, codec)) == ours


@clients
def test_uncompressed_bytes_are_the_same_to_the_last(client: Client) -> None:
    records = sample_records(50)
    theirs = client.write(records, Codec.NONE)
    epoch = validate(theirs).partition_leader_epoch
    assert build_batch(records, leader_epoch=epoch) == theirs


@clients
def test_they_see_the_log_append_time_we_stamp(client: Client) -> None:
    batch = bytearray(build_batch(sample_records(5), codec=Codec.GZIP))
    stamp_log_append_time(batch, 0, timestamp_ms=123_456)
    assert {record.timestamp_ms for record in client.read(bytes(batch))} == {123_456}


@clients
def test_they_see_the_records_a_compacted_batch_still_has(client: Client) -> None:
    kept = [record for record in sample_records(20) if record.offset % 6 == 1]
    batch = build_batch(kept, last_offset=19, timestamp_type=TimestampType.CREATE_TIME)
    assert client.read(batch) == kept == decode_records(batch)
