"""Documents that are malformed, damaged or too long: each is refused with what is wrong and where."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from document_samples import (
    COMPACTION,
    CONTROL,
    ENTRY,
    KEY,
    PENDING,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.core.errors import CorruptDocument, LimitExceeded
from streamhouse.core.ids import AppendId
from streamhouse.core.limits import MAX_METADATA_DOCUMENT_BYTES
from streamhouse.metadata import documents
from streamhouse.metadata.contract import (
    BatchOutcome,
    BatchVerdict,
    ProducerBatch,
    ProducerState,
    SliceOutcome,
    Verdict,
)
from streamhouse.metadata.documents import AppendRecord

_DROP = object()


def _altered(raw: bytes, path: str, value: object) -> bytes:
    """The document with one field replaced (or dropped); ``path`` is dotted, with list positions as numbers."""
    document: Any = json.loads(raw)
    *parents, last = path.split(".")
    place = document
    for name in parents:
        place = place[int(name)] if name.isdigit() else place[name]
    if value is _DROP:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document).encode()


PARSERS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "control": (documents.encode_control(CONTROL), documents.parse_control),
    "index": (
        documents.encode_index_entry(ENTRY),
        lambda raw: documents.parse_index_entry(documents.index_key("orders", 0, 4), raw),
    ),
    "compaction": (documents.encode_compaction(COMPACTION), lambda raw: documents.parse_compaction(raw, KEY)),
    "cursor": (documents.encode_cursor(3), documents.parse_cursor),
    "claim": (b'{"compactor_id":"c-1","claimed_at_ms":5}', lambda raw: documents.parse_claim(raw, "x")),
    "producer": (
        documents.encode_producer(
            ProducerState(
                producer_id=1,
                producer_epoch=0,
                batches=(ProducerBatch(base_sequence=0, record_count=1, base_offset=0),),
                updated_at_ms=1,
            )
        ),
        documents.parse_producer,
    ),
    "append": (
        documents.encode_append_record(
            AppendRecord(
                append_id=AppendId(UUID(int=1)),
                outcome=SliceOutcome(
                    key=KEY, verdict=Verdict.COMMITTED, base_offset=0, end_offset=4, high_watermark=5, leader_epoch=0
                ),
                object_created_at_ms=1,
                committed_at_ms=2,
            )
        ),
        lambda raw: documents.parse_append_record(raw, KEY),
    ),
}


@pytest.mark.parametrize(
    ("kind", "path", "value", "complaint"),
    [
        ("control", "log_state", "open", "may be OPEN, FENCED"),
        ("control", "log_state", _DROP, "log_state is missing"),
        ("control", "sequence_counter", -1, "sequence_counter is -1 outside"),
        ("control", "sequence_counter", 2**63, "outside"),
        ("control", "sequence_counter", 5.0, "a fraction where a whole number belongs"),
        ("control", "sequence_counter", True, "true or false where a whole number"),
        ("control", "sequence_counter", "5", "a text where a whole number"),
        ("control", "sequence_counter", 6, "pending ends at 4, but the watermark is 6"),
        ("control", "log_start_offset", 6, "past the watermark"),
        ("control", "first_unstable_offset", 6, "past the watermark"),
        ("control", "last_compaction_id", "nonsense", "not a UUID"),
        ("control", "write_mode", "none", "may be leased, leaderless"),
        ("control", "leadership", [], "a list where an object belongs"),
        (
            "control",
            "leadership",
            {"epoch": 1, "start_offset": 0, "agent_id": "a", "wal_id": str(UUID(int=1)), "started_at_ms": 0},
            "epoch 1 beyond 0",
        ),
        ("control", "extra", 1, "unknown fields: 'extra'"),
        ("control", "pending", 5, "pending holds a number where an object belongs"),
        ("control", "pending.append_id", "x", "not a UUID"),
        ("control", "pending.append_id", "{00000000-0000-0000-0000-000000000001}", "usual spelling"),
        ("control", "pending.start_offset", _DROP, "start_offset is missing"),
        ("control", "pending.start_offset", 5, "does not fit offsets 5 to 4"),
        ("control", "pending.msg_count", 6, "6 does not fit offsets 0 to 4"),
        ("control", "pending.entry_type", "SNAPSHOT", "may be WAL, SEGMENT, COMPACTED"),
        ("control", "pending.entries", [{}], "end_offset is missing"),
        ("control", "pending.batches", {}, "an object where a list belongs"),
        ("control", "pending.batches", [{"verdict": "lost", "base_offset": 0}], "verdict is 'lost'"),
        ("control", "pending.unknown", None, "unknown fields"),
        ("index", "type", _DROP, "type is missing"),
        ("index", "data_key", "", "an empty text where a text belongs"),
        ("index", "data_key", "\ud800", "not valid Unicode"),
        ("index", "byte_length", _DROP, "go together"),
        ("index", "byte_offset", -1, "outside"),
        ("index", "base_offset", 5, "does not fit"),
        ("index", "msg_count", 6, "does not fit"),
        ("index", "created_at_ms", None, "null where a whole number"),
        ("index", "running_max_timestamp_ms", 19, "below the entry's own 20"),
        ("index", "epoch", -1, "outside"),
        ("compaction", "state", "DONE", "may be WRITING_COMPACTED_INDEX, DELETING_OLD, UPDATING_CURSOR"),
        ("compaction", "tail_start_offset", 4, "not where the last source begins"),
        ("compaction", "tail_start_offset", _DROP, "is missing"),
        ("compaction", "sources", [], "names no entries"),
        ("compaction", "sources.1.start_offset", 6, "not consecutive"),
        ("compaction", "end_offset", 10, "turns offsets 0-9 into 0-10"),
        ("compaction", "msg_count", 11, "does not fit"),
        ("compaction", "sources.0.size", 1, "unknown fields"),
        ("cursor", "offset", -1, "outside"),
        ("cursor", "offset", _DROP, "is missing"),
        ("claim", "compactor_id", 7, "a number where a text belongs"),
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
    raw, parse = PARSERS[kind]
    parse(raw)
    with pytest.raises(CorruptDocument) as caught:
        parse(_altered(raw, path, value))
    assert complaint in str(caught.value)


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"5",
        b"\xff{}",
        b'{"offset":NaN}',
        b'{"offset":1,"offset":1}',
        b'{"offset":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b" " * (MAX_METADATA_DOCUMENT_BYTES + 1),
    ],
    ids=["empty", "cut", "null", "list", "number", "bytes", "nan", "twice", "huge", "deep", "deep-objects", "long"],
)
def test_bytes_that_are_no_document_are_refused(kind: str, raw: bytes) -> None:
    with pytest.raises(CorruptDocument):
        PARSERS[kind][1](raw)


@given(st.sampled_from(sorted(PARSERS)), st.data())
@settings(max_examples=300)
def test_a_damaged_document_is_read_or_refused_and_never_anything_else(kind: str, data: st.DataObject) -> None:
    raw, parse = PARSERS[kind]
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptDocument):
        parse(bytes(damaged))


def test_entries_that_do_not_add_up_to_their_append_are_refused() -> None:
    second = dataclasses.replace(
        ENTRY, entry=dataclasses.replace(ENTRY.entry, base_offset=5, end_offset=6, record_count=2)
    )
    raw = documents.encode_control(
        dataclasses.replace(CONTROL, sequence_counter=7, pending=dataclasses.replace(PENDING, entries=(ENTRY, second)))
    )
    for path, value in (("pending.msg_count", 6), ("pending.data_key", "other"), ("pending.byte_length", 51)):
        with pytest.raises(CorruptDocument, match="do not add up"):
            documents.parse_control(_altered(raw, path, value))
    with pytest.raises(CorruptDocument, match="not consecutive after offset 4"):
        documents.parse_control(_altered(raw, "pending.entries.1.base_offset", 4))


def test_a_document_too_long_to_store_is_refused_before_it_is_sent() -> None:
    batches = tuple(BatchOutcome(verdict=BatchVerdict.APPENDED, base_offset=index) for index in range(150_000))
    control = dataclasses.replace(CONTROL, pending=dataclasses.replace(PENDING, batches=batches))
    with pytest.raises(LimitExceeded, match="control would take"):
        documents.encode_control(control)
