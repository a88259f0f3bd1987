"""Index entries: they come back under their key, in the source's shape too, and refuse offsets that do not fit."""

from __future__ import annotations

import dataclasses

import pytest
from document_samples import (
    DROP,
    ENTRY,
    check_refused,
    entries,
)
from hypothesis import given

from streamhouse.core.errors import CorruptDocument
from streamhouse.metadata import documents
from streamhouse.metadata.documents import IndexEntry


@given(entries())
def test_s2_34_index_entries_round_trip_under_their_key(found: IndexEntry) -> None:
    key = documents.index_key("orders", 2, found.entry.end_offset)
    assert documents.parse_index_entry(key, documents.encode_index_entry(found)) == found


def test_s2_34_an_entry_in_the_source_shape_covers_its_last_n_offsets() -> None:
    raw = b'{"type":"COMPACTED","msg_count":10,"data_key":"k","encoding":"e","created_at_ms":5}'
    found = documents.parse_index_entry(documents.index_key("orders", 0, 29), raw).entry
    assert (found.base_offset, found.end_offset, found.record_count) == (20, 29, 10)
    assert found.byte_length == documents.WHOLE_OBJECT


def test_r18_the_base_is_explicit_so_fewer_records_than_offsets_are_fine() -> None:
    thinned = dataclasses.replace(ENTRY, entry=dataclasses.replace(ENTRY.entry, record_count=1))
    key = documents.index_key("orders", 0, 4)
    assert documents.parse_index_entry(key, documents.encode_index_entry(thinned)).entry.base_offset == 0


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("type", DROP, "type is missing"),
        ("data_key", "", "an empty text where a text belongs"),
        ("data_key", "\ud800", "not valid Unicode"),
        ("byte_length", DROP, "go together"),
        ("byte_offset", -1, "outside"),
        ("base_offset", 5, "does not fit"),
        ("msg_count", 6, "does not fit"),
        ("created_at_ms", None, "null where a whole number"),
        ("running_max_timestamp_ms", 19, "below the entry's own 20"),
        ("epoch", -1, "outside"),
    ],
)
def test_a_malformed_index_is_refused_with_what_and_where(path: str, value: object, complaint: str) -> None:
    check_refused("index", path, value, complaint)


def test_an_entry_under_another_kind_of_key_is_refused() -> None:
    with pytest.raises(CorruptDocument, match="not the key of an index entry"):
        documents.parse_index_entry(documents.control_key("orders", 0), documents.encode_index_entry(ENTRY))


def test_an_entry_of_a_whole_object_names_no_bytes_of_it() -> None:
    whole = dataclasses.replace(
        ENTRY, entry=dataclasses.replace(ENTRY.entry, byte_offset=0, byte_length=documents.WHOLE_OBJECT)
    )
    raw = documents.encode_index_entry(whole)
    assert b"byte_" not in raw
    assert documents.parse_index_entry(documents.index_key("orders", 0, 4), raw) == whole
