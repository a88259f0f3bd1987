"""The leaderless log's documents: what the source document names, what we add, and the keys they stand under."""

from __future__ import annotations

import dataclasses
import json
from uuid import UUID

import pytest
from document_samples import (
    CONTROL,
    ENTRY,
    INT64_MAX,
    KEY,
    PENDING,
    batch_outcomes,
    compactions,
    controls,
    entries,
    epochs,
    producers,
    texts,
    times,
)
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import CorruptDocument, InvalidRequest
from streamhouse.core.ids import AppendId
from streamhouse.metadata import documents
from streamhouse.metadata.contract import (
    NEVER_MS,
    BatchOutcome,
    Claim,
    Compaction,
    LogState,
    ProducerState,
    SliceOutcome,
    Verdict,
    WriteMode,
)
from streamhouse.metadata.documents import AppendRecord, Control, IndexEntry

# Round trips.


@given(controls())
def test_s2_33_control_round_trips(control: Control) -> None:
    assert documents.parse_control(documents.encode_control(control)) == control


@given(entries())
def test_s2_34_index_entries_round_trip_under_their_key(found: IndexEntry) -> None:
    key = documents.index_key("orders", 2, found.entry.end_offset)
    assert documents.parse_index_entry(key, documents.encode_index_entry(found)) == found


@given(compactions())
def test_s2_9_compaction_records_round_trip(compaction: Compaction) -> None:
    assert documents.parse_compaction(documents.encode_compaction(compaction), KEY) == compaction


@given(producers)
def test_r9_producer_windows_round_trip(producer: ProducerState) -> None:
    assert documents.parse_producer(documents.encode_producer(producer)) == producer


@given(st.uuids(), st.integers(0, 2**62), st.integers(1, 1000), st.lists(batch_outcomes, max_size=3), epochs)
def test_r5_append_records_round_trip(
    append_id: UUID, base: int, count: int, batches: list[BatchOutcome], epoch: int
) -> None:
    outcome = SliceOutcome(
        key=KEY,
        verdict=Verdict.COMMITTED,
        base_offset=base,
        end_offset=base + count - 1,
        high_watermark=base + count,
        leader_epoch=epoch,
        batches=tuple(batches),
    )
    record = AppendRecord(
        append_id=AppendId(append_id), outcome=outcome, object_created_at_ms=base, committed_at_ms=count
    )
    found = documents.parse_append_record(documents.encode_append_record(record), KEY)
    assert found == dataclasses.replace(record, outcome=dataclasses.replace(outcome, repeated=True))


@given(texts, times, times)
def test_s2_13_claims_round_trip(owner: str, claimed_at: int, expires_at: int) -> None:
    claim = Claim(name="compact/1", owner=owner, claimed_at_ms=claimed_at, expires_at_ms=expires_at)
    assert documents.parse_claim(documents.encode_claim(claim), "compact/1") == claim


@given(times)
def test_s2_33_cursors_round_trip(offset: int) -> None:
    assert documents.parse_cursor(documents.encode_cursor(offset)) == offset


# The source document's own shape.


def test_s2_33_control_has_the_source_fields() -> None:
    document = json.loads(documents.encode_control(CONTROL))
    assert document["log_state"] == "OPEN"
    assert document["sequence_counter"] == 5
    source_fields = {
        "append_id",
        "start_offset",
        "end_offset",
        "msg_count",
        "entry_type",
        "data_key",
        "encoding",
        "byte_offset",
        "byte_length",
        "created_at_ms",
    }
    assert source_fields <= document["pending"].keys()
    assert document["pending"]["start_offset"] == 0


def test_offsets_start_at_0_where_the_source_counts_from_1() -> None:
    fresh = documents.parse_control(b'{"log_state":"OPEN","sequence_counter":0,"pending":null}')
    state = fresh.state(KEY, compaction_cursor=0)
    assert (state.high_watermark, state.log_start_offset, state.last_stable_offset) == (0, 0, 0)
    assert state.leader_epoch == 0


def test_the_control_tells_the_partition_s_state() -> None:
    control = dataclasses.replace(
        CONTROL,
        log_state=LogState.FENCED,
        write_mode=WriteMode.LEASED,
        log_start_offset=2,
        first_unstable_offset=3,
        leader_epoch=8,
        gc_horizon_ms=99,
    )
    state = control.state(KEY, compaction_cursor=4)
    assert (state.log_state, state.write_mode, state.leader_epoch) == (LogState.FENCED, WriteMode.LEASED, 8)
    assert (state.log_start_offset, state.last_stable_offset, state.high_watermark) == (2, 3, 5)
    assert (state.gc_horizon_ms, state.compaction_cursor) == (99, 4)


def test_s2_34_an_entry_in_the_source_shape_covers_its_last_n_offsets() -> None:
    raw = b'{"type":"COMPACTED","msg_count":10,"data_key":"k","encoding":"e","created_at_ms":5}'
    found = documents.parse_index_entry(documents.index_key("orders", 0, 29), raw).entry
    assert (found.base_offset, found.end_offset, found.record_count) == (20, 29, 10)
    assert found.byte_length == documents.WHOLE_OBJECT


def test_r18_the_base_is_explicit_so_fewer_records_than_offsets_are_fine() -> None:
    thinned = dataclasses.replace(ENTRY, entry=dataclasses.replace(ENTRY.entry, record_count=1))
    key = documents.index_key("orders", 0, 4)
    assert documents.parse_index_entry(key, documents.encode_index_entry(thinned)).entry.base_offset == 0


def test_s2_13_a_claim_without_expiry_ends_with_its_session() -> None:
    claim = documents.parse_claim(b'{"compactor_id":"c-1","claimed_at_ms":5}', "x")
    assert (claim.owner, claim.claimed_at_ms, claim.expires_at_ms) == ("c-1", 5, NEVER_MS)


def test_r14_an_append_of_several_runs_lists_its_entries() -> None:
    second = dataclasses.replace(
        ENTRY, entry=dataclasses.replace(ENTRY.entry, base_offset=5, end_offset=6, record_count=2, byte_offset=400)
    )
    control = dataclasses.replace(
        CONTROL, sequence_counter=7, pending=dataclasses.replace(PENDING, entries=(ENTRY, second))
    )
    document = json.loads(documents.encode_control(control))
    assert (document["pending"]["end_offset"], document["pending"]["msg_count"]) == (6, 7)
    assert [one["byte_offset"] for one in document["pending"]["entries"]] == [100, 400]
    assert documents.parse_control(documents.encode_control(control)) == control


# Keys.


def test_s2_34_keys_are_the_source_document_s() -> None:
    assert documents.index_key("orders", 0, 2) == "llog/orders/partitions/0/index/00000000000000000002"
    assert documents.control_key("orders", 0) == "llog/orders/partitions/0/meta/control"
    assert documents.cursor_key("orders", 0) == "llog/orders/partitions/0/meta/compaction-cursor"
    assert documents.compaction_key("orders", 0) == "llog/orders/partitions/0/meta/compaction"
    assert documents.claim_key("orders", 0) == "llog/orders/partitions/0/meta/compactor-claim"
    assert documents.routing_key("orders", 0) == "orders:0"
    assert documents.producer_key("o", 1, 5) == "llog/o/partitions/1/producers/00000000000000000005"
    assert documents.append_key("o", 1, AppendId(UUID(int=2))).endswith("/appends/00000000-0000-0000-0000-000000000002")


def test_s2_37_an_index_scan_ends_before_every_other_kind_of_key() -> None:
    first, last = documents.index_range("orders", 0)
    assert (first, last) == ("llog/orders/partitions/0/index/", "llog/orders/partitions/0/index//")


@given(st.integers(0, 99_999), st.lists(st.integers(0, INT64_MAX), min_size=2, max_size=2))
def test_index_keys_parse_back_and_sort_as_numbers(partition: int, ends: list[int]) -> None:
    keys = [documents.index_key("orders", partition, end) for end in ends]
    assert [documents.parse_index_key(key) for key in keys] == [("orders", partition, end) for end in ends]
    assert (keys[0] < keys[1]) == (ends[0] < ends[1])


def test_discovery_tells_a_control_key_from_every_other() -> None:
    assert documents.parse_control_key("llog/orders/partitions/12/meta/control") == ("orders", 12)
    for other in ("llog/a/b/partitions/0/meta/control", "llog/a/partitions/01/meta/control", "x", ""):
        assert documents.parse_control_key(other) is None


@pytest.mark.parametrize(
    "key",
    [
        "llog/orders/partitions/0/index/2",
        "llog/orders/partitions/0/index/0000000000000000000x",
        "llog/orders/partitions/0/index/99999999999999999999",
        "llog/orders/partitions/-1/index/00000000000000000002",
        "llog/orders/partitions/0/meta/control",
        "",
    ],
)
def test_a_key_that_is_no_index_key_is_refused(key: str) -> None:
    with pytest.raises(CorruptDocument, match="not the key of an index entry"):
        documents.parse_index_key(key)


@pytest.mark.parametrize(("topic", "partition"), [("", 0), ("a/b", 0), ("a", -1)])
def test_what_cannot_stand_in_a_key_is_refused(topic: str, partition: int) -> None:
    with pytest.raises(InvalidRequest, match="cannot stand in a key"):
        documents.control_key(topic, partition)


@pytest.mark.parametrize("number", [-1, 2**63])
def test_numbers_that_would_break_the_order_of_keys_are_refused(number: int) -> None:
    with pytest.raises(InvalidRequest):
        documents.index_key("a", 0, number)
    with pytest.raises(InvalidRequest):
        documents.producer_key("a", 0, number)
