"""The control document: it comes back whole, has the source's fields, and is refused where it contradicts itself."""

from __future__ import annotations

import dataclasses
import json
from uuid import UUID

import pytest
from document_samples import (
    CONTROL,
    DROP,
    ENTRY,
    KEY,
    PENDING,
    altered,
    check_refused,
    controls,
)
from hypothesis import given

from streamhouse.core.errors import CorruptDocument, LimitExceeded
from streamhouse.metadata import documents
from streamhouse.metadata.contract import (
    BatchOutcome,
    BatchVerdict,
    LogState,
    WriteMode,
)
from streamhouse.metadata.documents import Control


@given(controls())
def test_s2_33_control_round_trips(control: Control) -> None:
    assert documents.parse_control(documents.encode_control(control)) == control


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


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("log_state", "open", "may be OPEN, FENCED"),
        ("log_state", DROP, "log_state is missing"),
        ("sequence_counter", -1, "sequence_counter is -1 outside"),
        ("sequence_counter", 2**63, "outside"),
        ("sequence_counter", 5.0, "a fraction where a whole number belongs"),
        ("sequence_counter", True, "true or false where a whole number"),
        ("sequence_counter", "5", "a text where a whole number"),
        ("sequence_counter", 6, "pending ends at 4, but the watermark is 6"),
        ("log_start_offset", 6, "past the watermark"),
        ("first_unstable_offset", 6, "past the watermark"),
        ("last_compaction_id", "nonsense", "not a UUID"),
        ("write_mode", "none", "may be leased, leaderless"),
        ("leadership", [], "a list where an object belongs"),
        (
            "leadership",
            {"epoch": 1, "start_offset": 0, "agent_id": "a", "wal_id": str(UUID(int=1)), "started_at_ms": 0},
            "epoch 1 beyond 0",
        ),
        ("extra", 1, "unknown fields: 'extra'"),
        ("pending", 5, "pending holds a number where an object belongs"),
        ("pending.append_id", "x", "not a UUID"),
        ("pending.append_id", "{00000000-0000-0000-0000-000000000001}", "usual spelling"),
        ("pending.start_offset", DROP, "start_offset is missing"),
        ("pending.start_offset", 5, "does not fit offsets 5 to 4"),
        ("pending.msg_count", 6, "6 does not fit offsets 0 to 4"),
        ("pending.entry_type", "SNAPSHOT", "may be WAL, SEGMENT, COMPACTED"),
        ("pending.entries", [{}], "end_offset is missing"),
        ("pending.batches", {}, "an object where a list belongs"),
        ("pending.batches", [{"verdict": "lost", "base_offset": 0}], "verdict is 'lost'"),
        ("pending.unknown", None, "unknown fields"),
    ],
)
def test_a_malformed_control_is_refused_with_what_and_where(path: str, value: object, complaint: str) -> None:
    check_refused("control", path, value, complaint)


def test_entries_that_do_not_add_up_to_their_append_are_refused() -> None:
    second = dataclasses.replace(
        ENTRY, entry=dataclasses.replace(ENTRY.entry, base_offset=5, end_offset=6, record_count=2)
    )
    raw = documents.encode_control(
        dataclasses.replace(CONTROL, sequence_counter=7, pending=dataclasses.replace(PENDING, entries=(ENTRY, second)))
    )
    for path, value in (("pending.msg_count", 6), ("pending.data_key", "other"), ("pending.byte_length", 51)):
        with pytest.raises(CorruptDocument, match="do not add up"):
            documents.parse_control(altered(raw, path, value))
    with pytest.raises(CorruptDocument, match="not consecutive after offset 4"):
        documents.parse_control(altered(raw, "pending.entries.1.base_offset", 4))


def test_a_document_too_long_to_store_is_refused_before_it_is_sent() -> None:
    batches = tuple(BatchOutcome(verdict=BatchVerdict.APPENDED, base_offset=index) for index in range(150_000))
    control = dataclasses.replace(CONTROL, pending=dataclasses.replace(PENDING, batches=batches))
    with pytest.raises(LimitExceeded, match="control would take"):
        documents.encode_control(control)
