"""Append records and producer windows: they come back whole, and are refused beyond their bounds."""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest
from document_samples import (
    KEY,
    PARSERS,
    altered,
    batch_outcomes,
    check_refused,
    epochs,
    producers,
)
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import CorruptDocument
from streamhouse.core.ids import AppendId
from streamhouse.core.limits import PRODUCER_WINDOW
from streamhouse.metadata import documents
from streamhouse.metadata.contract import (
    BatchOutcome,
    ProducerState,
    SliceOutcome,
    Verdict,
)
from streamhouse.metadata.documents import AppendRecord


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


@pytest.mark.parametrize(
    ("kind", "path", "value", "complaint"),
    [
        ("producer", "batches.0.base_sequence", 2**31, "sequences wrap"),
        ("producer", "batches.0.msg_count", 0, "outside"),
        ("producer", "batches", [{"base_sequence": 0, "msg_count": 1, "base_offset": 0}] * 6, "a window holds 5"),
        ("append", "end_offset", -1, "does not go with end"),
        ("append", "start_offset", 5, "does not go with end"),
    ],
)
def test_a_malformed_document_is_refused_with_what_and_where(
    kind: str, path: str, value: object, complaint: str
) -> None:
    check_refused(kind, path, value, complaint)


def test_an_append_that_took_no_offset_has_a_record_too() -> None:
    raw, parse = PARSERS["append"]
    found = parse(altered(altered(raw, "start_offset", -1), "end_offset", -1))
    assert isinstance(found, AppendRecord)
    assert (found.outcome.base_offset, found.outcome.end_offset, found.outcome.repeated) == (-1, -1, True)


def test_a_full_window_is_read_and_a_fuller_one_refused() -> None:
    raw, parse = PARSERS["producer"]
    batch = {"base_sequence": 2**31 - 1, "msg_count": 1, "base_offset": 0}
    parse(altered(raw, "batches", [batch] * PRODUCER_WINDOW))
    with pytest.raises(CorruptDocument, match="a window holds 5"):
        parse(altered(raw, "batches", [batch] * (PRODUCER_WINDOW + 1)))
