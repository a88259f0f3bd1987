"""Values into rows, without Spark: what fits, what does not and why, and which columns come of it."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.tables import values as values_module
from streamhouse.spark.tables.columns import OWN_COLUMNS, parse_ddl
from streamhouse.spark.tables.spec import TABLES, StorageSpec, TableFormat, TableSpec, ValueFormat
from streamhouse.spark.tables.values import Avro, GivenJson, InferredJson, avro_columns, parse_values

FITS: list[tuple[str, Any, Any]] = [
    ("BIGINT", 2**63 - 1, 2**63 - 1),
    ("DOUBLE", 3, 3.0),
    ("STRING", 3, "3"),
    ("STRING", {"a": [1]}, '{"a":[1]}'),
    ("BINARY", "aGk=", b"hi"),
    ("DATE", "2024-02-29", datetime.date(2024, 2, 29)),
    ("TIMESTAMP", "2024-01-02T03:04:05+02:00", datetime.datetime(2024, 1, 2, 1, 4, 5, tzinfo=datetime.UTC)),
    ("DECIMAL(5, 2)", 1.5, Decimal("1.50")),
    ("ARRAY<INT>", [1, None], [1, None]),
    ("STRUCT<x: INT>", {"x": 1, "other": 2}, {"x": 1}),
    ("MAP<STRING, INT>", {"x": 1}, [("x", 1)]),
    ("INT", None, None),
]


@pytest.mark.parametrize(("kind", "value", "expected"), FITS)
def test_a_value_that_fits_is_in_its_column(kind: str, value: Any, expected: Any) -> None:
    decoded = GivenJson(parse_ddl(f"v {kind}")).decode([json.dumps({"v": value, "more": 1}).encode()])
    assert decoded.bad == []
    assert decoded.columns["v"].to_pylist() == [expected]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("INT", 2**31),
        ("INT", 1.0),
        ("INT", True),
        ("BOOLEAN", 1),
        ("DOUBLE", "1"),
        ("DATE", "2023-02-29"),
        ("TIMESTAMP", 1_700_000_000),
        ("DECIMAL(5, 2)", 1.234),
        ("DECIMAL(5, 2)", "NaN"),
        ("DECIMAL(5, 2)", 12345),
        ("BINARY", "?"),
        ("ARRAY<INT>", [1, "x"]),
        ("STRUCT<x: INT>", {"x": "1"}),
        ("STRING", "\ud800"),
    ],
)
def test_a_value_that_does_not_fit_is_bad_and_says_where(kind: str, value: Any) -> None:
    good = b'{"v": null}'
    decoded = GivenJson(parse_ddl(f"v {kind}")).decode([good, json.dumps({"v": value}).encode(), good])
    assert decoded.rows == [0, 2]
    assert [row for row, _ in decoded.bad] == [1]
    assert decoded.bad[0][1].startswith("field v: ")


@pytest.mark.parametrize(
    "value", [b"", b"nope", b"[]", b"1", b"null", b'{"a": NaN}', b"\xff", b'{"a":1}{"a":2}', b"[" * 100_000]
)
def test_what_is_no_json_object_is_bad(value: bytes) -> None:
    for decoder in (GivenJson(parse_ddl("a INT")), InferredJson(OWN_COLUMNS)):
        decoded = decoder.decode([value, b'{"a": 1}'])
        assert decoded.rows == [1]
        assert [row for row, _ in decoded.bad] == [0]


def test_inferred_columns_hold_everything_that_was_met() -> None:
    decoder = InferredJson(pa.schema([*OWN_COLUMNS, ("known", pa.int64())]))
    rows = [
        {"known": 1, "flag": True, "n": 1, "big": 2**63, "deep": {"a": [1]}, "nothing": None},
        {"known": "x", "never": 1},
        {"n": 2.5, "flag": "yes"},
    ]
    decoded = decoder.decode([json.dumps(row).encode() for row in rows] + [None])
    assert decoded.bad == [(1, 'field known: "x" is not an integer of 64 bits')]
    assert decoded.rows == [0, 2, 3]
    assert {name: column.to_pylist() for name, column in decoded.columns.items()} == {
        "known": [1, None, None],
        "flag": ["true", "yes", None],
        "n": [1.0, 2.5, None],
        "big": ["9223372036854775808", None, None],
        "deep": ['{"a":[1]}', None, None],
    }
    assert decoder.decode([b'{"n": 1}']).columns["n"].type == pa.float64()


def test_fields_that_cannot_be_columns_make_a_record_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = InferredJson(OWN_COLUMNS)
    assert decoder.decode([b'{"id": 1}']).bad == []
    for field in ("", "a b", "Id", "_OFFSET", "a.b", "x" * 256, "\ud800"):
        decoded = decoder.decode([json.dumps({field: 1}).encode()])
        assert [row for row, _ in decoded.bad] == [0], field
    assert decoder.decode([b'{"a": 1, "A": 2}']).bad
    monkeypatch.setattr(values_module, "MAX_COLUMNS", 2)
    assert decoder.decode([b'{"two": 1}', b'{"three": 1}']).bad[0][0] == 1


def test_avro_that_is_cut_short_or_too_long_is_bad() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    decoded = Avro(schema, confluent=False).decode([b"\x02", b"", b"\x02\x02", b"\xff" * 20, None])
    assert decoded.rows == [0, 4]
    assert decoded.columns["id"].to_pylist() == [1, None]
    with pytest.raises(ValueError, match="is a record"):
        avro_columns({"type": "string"})


def test_a_spec_reads_back_as_it_was_written() -> None:
    storage = StorageSpec(format=TableFormat.DELTA, location="file:///x")
    spec = TableSpec(name="t", topic="orders", storage=storage, values=parse_values("ddl:id BIGINT", str))
    document = json.loads(json.dumps(TABLES.write(spec, 3)))
    assert TABLES.read("t", document) == (spec, 3)
    with pytest.raises(InvalidSetting, match=r"Invalid enum value 'xml' - at `\$\.values\.format`"):
        TABLES.read("t", {**document, "values": {"format": "xml"}})
    assert parse_values("json", str).format is ValueFormat.JSON
    for text in ("jsn", "ddl:", "avro:nope", "json:x"):
        with pytest.raises(InvalidSetting):
            parse_values(text, lambda name: "{}")
