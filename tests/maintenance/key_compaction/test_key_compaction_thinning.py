"""One batch without its superseded records: what stays is what it was (R18, invariant 6)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from compaction_ground import START_MS, built
from keyed_logs import keyed, random_batch, seen

from streamhouse.core.errors import CorruptBatch
from streamhouse.maintenance.key_compaction.thinning import (
    KeepRule,
    RecordCounts,
    empty_batch,
    thin_batch,
)
from streamhouse.wire.batch import DELETE_HORIZON_BIT, BatchHeader, TimestampType, join_batch, validate
from streamhouse.wire.codecs import Codec
from streamhouse.wire.columns import StoredBatches, decode_columns
from streamhouse.wire.record_keys import RecordKeys
from streamhouse.wire.records import ControlType, build_control_batch, decode_records

KEPT_BY_ALL = (
    "base_offset",
    "partition_leader_epoch",
    "last_offset_delta",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "timestamp_type",
    "is_transactional",
)


@dataclass
class Newer:
    """Says which offsets are superseded."""

    offsets: set[int] = field(default_factory=set)

    def superseded(self, records: RecordKeys) -> bytes:
        return bytes(offset in self.offsets for offset in records.offsets)


def rule(*superseded: int, now_ms: int = START_MS, delete_retention_ms: int = 1_000) -> KeepRule:
    return KeepRule(newer=Newer(set(superseded)), now_ms=now_ms, delete_retention_ms=delete_retention_ms)


def thinned(batch: bytes, with_rule: KeepRule) -> tuple[bytes, BatchHeader] | None:
    found = thin_batch(memoryview(batch), validate(batch, allow_compacted=True), with_rule, RecordCounts())
    if found is None:
        return None
    made = bytes(found[0])
    assert validate(made, allow_compacted=True) == found[1]
    return made, found[1]


@pytest.mark.parametrize("codec", list(Codec))
def test_r18_what_stays_is_what_it_was_with_every_codec(codec: Codec) -> None:
    pairs = [(b"key-%d" % n, b"value " * 20 if n % 3 else None) for n in range(20)]
    batch = built(
        keyed(*pairs, codec=codec, producer_id=7, producer_epoch=2, base_sequence=5, is_transactional=True),
        at=1_000,
        epoch=4,
    )
    gone = {1_000, 1_007, 1_019}
    found = thinned(batch, rule(*gone))
    assert found is not None
    made, header = found
    before = validate(batch)
    assert header.codec == codec
    for name in KEPT_BY_ALL:
        assert getattr(header, name) == getattr(before, name), name
    assert seen(made) == [kept for kept in seen(batch) if kept[0] not in gone]
    assert header.record_count == 17
    assert header.max_timestamp == max(kept[3] for kept in seen(made))


def test_r18_random_batches_keep_offsets_times_and_headers() -> None:
    rng = random.Random(3)
    for _ in range(200):
        batch = built(random_batch(rng, keys=5), at=rng.randrange(1_000), epoch=3)
        before = seen(batch)
        gone = {kept[0] for kept in before if rng.random() < 0.4}
        found = thinned(batch, rule(*gone))
        stays = [kept for kept in before if kept[0] not in gone]
        if not stays:
            assert found is None
            continue
        assert found is not None
        assert seen(found[0]) == stays
        columns = decode_columns([StoredBatches(partition=0, data=found[0])], columns=("offset", "timestamp", "key"))
        assert columns["timestamp"].to_pylist() == [kept[3] for kept in stays], "as Spark and the Python API read it"


def test_invariant_6_a_batch_that_loses_nothing_is_the_same_bytes() -> None:
    batch = built(keyed((b"a", b"1"), (b"b", b"2"), codec=Codec.GZIP), at=5)
    found = thin_batch(memoryview(batch), header := validate(batch), rule(), RecordCounts())
    assert found is not None
    assert found[0].obj is batch
    assert found[1] is header


def test_records_without_a_key_go_as_in_kafka_and_the_empty_key_is_a_key() -> None:
    batch = built(keyed((None, b"1"), (b"", b"2"), (None, b"3")), at=5)
    found = thin_batch(memoryview(batch), validate(batch), rule(), counts := RecordCounts())
    assert found is not None
    assert [kept[:2] for kept in seen(bytes(found[0]))] == [(6, b"")]
    assert (counts.keyless, counts.dropped, counts.records) == (2, 2, 3)


def test_a_record_without_a_key_is_counted_as_such_whatever_is_said_of_it() -> None:
    batch = built(keyed((None, b"1"), (b"a", b"2"), (b"b", b"3")), at=5)
    assert thin_batch(memoryview(batch), validate(batch), rule(5, 6), counts := RecordCounts()) is not None
    assert (counts.keyless, counts.superseded, counts.dropped) == (1, 1, 2)


def test_tombstones_get_a_delete_horizon_once_and_go_when_it_has_passed() -> None:
    batch = built(keyed((b"a", None), (b"b", b"2"), (b"c", None), codec=Codec.LZ4), at=5)
    before = seen(batch)
    found = thinned(batch, rule(now_ms=START_MS, delete_retention_ms=1_000))
    assert found is not None
    made, header = found
    assert header.attributes & DELETE_HORIZON_BIT
    assert header.base_timestamp == START_MS + 1_000
    assert seen(made) == before, "the times are what they were, though the base time is not"
    assert thinned(made, rule(now_ms=START_MS + 999, delete_retention_ms=9_999)) == (made, header), "never moved"
    gone = thinned(made, rule(now_ms=START_MS + 1_000))
    assert gone is not None
    assert [kept[:2] for kept in seen(gone[0])] == [(6, b"b")]
    assert gone[1].base_timestamp == START_MS + 1_000


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_another_client_reads_a_batch_with_a_delete_horizon(codec: Codec) -> None:
    """aiokafka knows nothing of the horizon."""
    batch = built(keyed((b"a", None), (b"b", b"2"), (b"c", b"3"), (b"d", b"4"), codec=codec), at=5)
    found = thinned(batch, rule(6, delete_retention_ms=86_400_000))
    assert found is not None
    assert found[1].base_timestamp == START_MS + 86_400_000
    theirs = DefaultRecordBatch(found[0])
    assert theirs.validate_crc()
    read = [(record.offset, record.key, record.value, record.timestamp) for record in theirs]
    assert read == [kept[:4] for kept in seen(batch) if kept[0] != 6]


def test_a_tombstone_without_retention_stays_for_the_pass_that_first_sees_it() -> None:
    batch = built(keyed((b"a", None)), at=5)
    found = thinned(batch, rule(delete_retention_ms=0))
    assert found is not None
    assert thinned(found[0], rule(delete_retention_ms=0)) is None


def test_a_superseded_tombstone_sets_no_horizon() -> None:
    batch = built(keyed((b"a", None), (b"b", b"2")), at=5)
    found = thinned(batch, rule(5))
    assert found is not None
    assert not found[1].attributes & DELETE_HORIZON_BIT


def test_an_endless_retention_and_extreme_times_make_no_broken_batch() -> None:
    longest = 2**63 - 1
    usual = built(keyed((b"a", None)), at=5)
    found = thinned(usual, rule(delete_retention_ms=longest))
    assert found is not None
    assert (found[1].base_timestamp, seen(found[0])) == (longest, seen(usual))
    ancient = built(keyed((b"a", None), at_ms=-(2**62) - 5), at=5)
    assert thinned(ancient, rule(delete_retention_ms=longest)) == (ancient, validate(ancient)), "kept without a horizon"


def test_log_append_time_is_kept() -> None:
    batch = built(keyed((b"a", None), (b"b", b"2"), timestamp_type=TimestampType.LOG_APPEND_TIME), at=5)
    found = thinned(batch, rule(6))
    assert found is not None
    assert found[1].timestamp_type is TimestampType.LOG_APPEND_TIME
    assert found[1].max_timestamp == validate(batch).max_timestamp
    assert seen(found[0]) == seen(batch)[:1]


def test_a_control_batch_is_never_touched() -> None:
    batch = build_control_batch(
        ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=START_MS
    )
    assert thinned(batch, rule(0)) == (batch, validate(batch))


@pytest.mark.parametrize("codec", list(Codec))
def test_r18_an_empty_batch_says_which_offsets_it_covered_and_who_wrote_them(codec: Codec) -> None:
    batch = built(
        keyed((b"a", b"1"), (b"b", b"2"), codec=codec, producer_id=7, producer_epoch=2, base_sequence=5), at=9, epoch=4
    )
    made, header = empty_batch(validate(batch))
    for name in KEPT_BY_ALL:
        assert getattr(header, name) == getattr(validate(batch), name), name
    assert (header.record_count, header.codec, header.max_timestamp) == (0, 0, START_MS + 1)
    assert validate(made, allow_compacted=True) == header
    assert decode_records(made) == []
    assert thinned(bytes(made), rule()) is None


def test_records_that_cannot_be_read_are_refused() -> None:
    whole = validate(built(keyed((b"a", b"1"), (b"b", b"2")), at=5))
    fields = {
        name: getattr(whole, name)
        for name in (
            "base_offset",
            "partition_leader_epoch",
            "attributes",
            "last_offset_delta",
            "base_timestamp",
            "max_timestamp",
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "record_count",
        )
    }
    with pytest.raises(CorruptBatch):
        thinned(join_batch(b"\x0e" + bytes(40), **fields), rule())
