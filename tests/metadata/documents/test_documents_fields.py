"""Taking a JSON document apart: every field typed and bounded, every error with its place, bytes read or refused."""

from __future__ import annotations

import contextlib
from enum import StrEnum

import pytest
from document_samples import (
    PARSERS,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.core.errors import CorruptDocument, LimitExceeded
from streamhouse.core.limits import MAX_METADATA_DOCUMENT_BYTES
from streamhouse.metadata.documents.fields import dump, load


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


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def test_each_getter_takes_its_field_and_what_is_left_over_is_refused() -> None:
    fields = load(b'{"a": 1, "b": "x", "c": "red", "d": null, "e": 9, "f": 8}', "doc")
    assert (fields.integer("a"), fields.text("b"), fields.choice("c", Colour)) == (1, "x", Colour.RED)
    assert (fields.optional_integer("d"), fields.optional_uuid("d"), fields.optional_object("d")) == (None, None, None)
    assert fields.has("e")
    with pytest.raises(CorruptDocument, match="doc holds unknown fields: 'e', 'f'") as refused:
        fields.finish()
    assert "newer StreamHouse" in str(refused.value.hint)


def test_a_default_stands_for_what_is_missing_and_not_for_what_is_null() -> None:
    assert load(b"{}", "doc").integer("a", default=7) == 7
    assert load(b"{}", "doc").choice("a", Colour, default=Colour.BLUE) is Colour.BLUE
    with pytest.raises(CorruptDocument, match="doc: a holds null where a whole number belongs"):
        load(b'{"a": null}', "doc").integer("a", default=7)
    with pytest.raises(CorruptDocument, match="doc: a is missing"):
        load(b"{}", "doc").integer("a")


def test_an_error_inside_a_list_names_its_place() -> None:
    items = load(b'{"items": [{"n": 1}, {"n": -1}]}', "doc").objects("items")
    assert items[0].integer("n") == 1
    with pytest.raises(CorruptDocument, match=r"doc, items\[1\]: n is -1 outside 0"):
        items[1].integer("n")
    assert load(b"{}", "doc").objects("items") == []


def test_a_number_too_large_to_print_is_not_printed() -> None:
    with pytest.raises(CorruptDocument, match="a is far outside"):
        load(b'{"a": ' + b"9" * 300 + b"}", "doc").integer("a")


def test_what_cannot_be_json_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump({"a": float("nan")}, "doc")
    assert dump({"a": "ü"}, "doc") == '{"a":"ü"}'.encode()
    with pytest.raises(LimitExceeded, match="doc would take"):
        dump({"a": "x" * MAX_METADATA_DOCUMENT_BYTES}, "doc")
