"""Batches that are opened on their way in: keys of compacted topics, and topics with a codec of their own."""

from __future__ import annotations

import pytest

from streamhouse.broker.preparation import PrepareElsewhere, prepare, prepare_now
from streamhouse.core.errors import CorruptBatch, InflatedTooLarge, InvalidRecord, LimitExceeded
from streamhouse.core.limits import MAX_PREPARED_INLINE_BYTES, MAX_RECORD_ERRORS
from streamhouse.core.topic_config import TopicConfig, effective
from streamhouse.wire.batch import TimestampType, join_batch, read_header, validate
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Header, Record, build_batch, decode_records

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
RECORDS = [
    Record(key=b"k1", value=b"v" * 300, timestamp_ms=1000, headers=(Header("h", b"x"), Header("n", None))),
    Record(key=b"", value=None, timestamp_ms=900),
    Record(key=b"k3", value=b"", timestamp_ms=5000),
]


def config(**configs: str) -> TopicConfig:
    return effective({name.replace("_", "."): value for name, value in configs.items()})


def test_only_compacted_topics_and_those_with_a_codec_open_batches() -> None:
    assert not config().opens_batches
    assert not config(cleanup_policy="delete", compression_type="producer").opens_batches
    assert config(cleanup_policy="compact,delete").opens_batches
    assert all(config(compression_type=name).opens_batches for name in CODECS)


@pytest.mark.parametrize("wanted", CODECS)
@pytest.mark.parametrize("came", Codec)
@pytest.mark.parametrize("kind", TimestampType)
def test_only_codec_length_and_checksum_change(wanted: str, came: Codec, kind: TimestampType) -> None:
    batch = build_batch(
        RECORDS, codec=came, producer_id=7, producer_epoch=3, base_sequence=41, leader_epoch=5, timestamp_type=kind
    )
    made = prepare("t/0", config(compression_type=wanted), batch)
    before, after = read_header(batch), validate(made)
    assert after.codec == CODECS[wanted]
    assert after.attributes >> 3 == before.attributes >> 3
    same = {"batch_length", "crc", "attributes"}
    for field in set(before._fields) - same:
        assert getattr(after, field) == getattr(before, field), field
    assert decode_records(made) == decode_records(batch)


@pytest.mark.parametrize("name", CODECS)
def test_a_batch_that_has_the_codec_already_is_kept_as_it_is(name: str) -> None:
    batch = build_batch(RECORDS, codec=CODECS[name])
    assert prepare("t/0", config(compression_type=name, compression_gzip_level="9"), batch) is batch


def test_the_level_is_that_of_the_topic() -> None:
    batch = build_batch([Record(value=bytes(range(256)) * 40 + b"%d" % n * 50) for n in range(50)])
    for codec, levels in {"gzip": ("1", "9"), "zstd": ("-5", "19"), "lz4": ("9", "12")}.items():
        fast, small = (
            prepare("t/0", config(compression_type=codec, **{f"compression_{codec}_level": level}), batch)
            for level in levels
        )
        assert len(small) < len(fast), codec
        assert decode_records(small) == decode_records(batch)


def test_records_without_a_key_are_named() -> None:
    records = [Record(key=None if n in (1, 9) else b"k", value=b"v") for n in range(10)]
    for codec in Codec:
        with pytest.raises(InvalidRecord, match=r"t/0: 2 of 10 records have no key") as raised:
            prepare("t/0", config(cleanup_policy="compact"), build_batch(records, codec=codec))
        assert [each.position for each in raised.value.record_errors] == [1, 9]


def test_at_most_so_many_records_are_named() -> None:
    batch = build_batch([Record(value=b"v")] * (MAX_RECORD_ERRORS + 5))
    with pytest.raises(InvalidRecord, match="1005 of 1005") as raised:
        prepare("t/0", config(cleanup_policy="compact"), batch)
    assert len(raised.value.record_errors) == MAX_RECORD_ERRORS


def test_a_compacted_topic_keeps_batches_as_they_came() -> None:
    batch = build_batch(RECORDS, codec=Codec.LZ4)
    assert prepare("t/0", config(cleanup_policy="compact"), batch) is batch


def test_the_limit_holds_for_the_batch_as_it_is_stored() -> None:
    batch = build_batch([Record(value=b"x" * 600)], codec=Codec.GZIP)
    assert len(batch) < 500
    with pytest.raises(LimitExceeded, match=r"with compression\.type=uncompressed, max\.message\.bytes allows 500"):
        prepare("t/0", config(compression_type="uncompressed", max_message_bytes="500"), batch)


def test_a_wrong_checksum_is_corrupt_and_unreadable_records_are_invalid() -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        prepare("t/0", config(compression_type="zstd"), batch)
    header = read_header(batch)._asdict()
    fields = {name: header[name] for name in header if name not in ("batch_length", "crc", "attributes")}
    for codec in Codec:
        made_badly = join_batch(b"\x06nonsense" * 9, attributes=codec, **fields)
        for target in (config(cleanup_policy="compact"), config(compression_type="gzip" if codec != 1 else "zstd")):
            with pytest.raises(InvalidRecord, match="cannot be read"):
                prepare("t/0", target, made_badly)


def test_what_is_large_or_becomes_large_is_not_prepared_on_the_event_loop() -> None:
    wants = config(compression_type="zstd", max_message_bytes="10000000")
    large = [Record(value=b"x" * (MAX_PREPARED_INLINE_BYTES + 1))]
    for codec in (Codec.NONE, Codec.GZIP):
        with pytest.raises(PrepareElsewhere):
            prepare_now("t/0", wants, build_batch(large, codec=codec))
        assert decode_records(prepare("t/0", wants, build_batch(large, codec=codec)))[0].value == large[0].value
    assert read_header(prepare_now("t/0", wants, build_batch(RECORDS))).codec == Codec.ZSTD
    with pytest.raises(InflatedTooLarge):
        prepare("t/0", wants, build_batch(large, codec=Codec.GZIP), max_inflated_bytes=1000)
