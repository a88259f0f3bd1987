"""A decoded value into its column: exactly, or refused with the reason. Nothing is rounded or cut."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from streamhouse.spark.tables.coercion import coercion_to, json_text
from streamhouse.spark.tables.columns import parse_ddl

UTC = datetime.UTC


def coerced(kind: str, value: Any) -> Any:
    return coercion_to(parse_ddl(f"v {kind}").field("v").type)(value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("INT", -(2**31), -(2**31)),
        ("DOUBLE", 1, 1.0),
        ("STRING", {"ä": [1, None]}, '{"ä":[1,null]}'),
        ("STRING", ["\ud800"], '["\\ud800"]'),
        ("TIMESTAMP", "2024-01-02T03:04:05", datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("TIMESTAMP_NTZ", "2024-01-02T03:04:05+02:00", datetime.datetime(2024, 1, 2, 1, 4, 5)),
        ("DATE", datetime.date(2024, 2, 29), datetime.date(2024, 2, 29)),
        ("DECIMAL(5, 2)", "123.4", Decimal("123.40")),
        ("DECIMAL(5, 2)", Decimal("1.50"), Decimal("1.50")),
        ("BINARY", b"\x00", b"\x00"),
        ("ARRAY<ARRAY<INT>>", [[1], None], [[1], None]),
        ("MAP<STRING, DOUBLE>", {"x": 1}, [("x", 1.0)]),
        ("STRUCT<a: INT, b: INT>", {"a": 1}, {"a": 1, "b": None}),
    ],
)
def test_what_fits_is_converted(kind: str, value: Any, expected: Any) -> None:
    found = coerced(kind, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("kind", ["INT", "STRING", "TIMESTAMP", "ARRAY<INT>", "DECIMAL(5, 2)"])
def test_nothing_stays_nothing(kind: str) -> None:
    assert coerced(kind, None) is None


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("INT", 2**31, "2147483648 is not an integer of 32 bits"),
        ("BIGINT", 2**63, "is not an integer of 64 bits"),
        ("BIGINT", 1.0, "1.0 is not an integer"),
        ("BIGINT", True, "true is not an integer"),
        ("DOUBLE", 10**400, "is not a number that fits"),
        ("BOOLEAN", 0, "0 is not a boolean"),
        ("TIMESTAMP", 1_700_000_000, "is not a time such as"),
        ("DATE", datetime.datetime(2024, 1, 2, tzinfo=UTC), "is not a date"),
        ("DECIMAL(5, 2)", 1.005, "is not a DECIMAL(5, 2)"),
        ("DECIMAL(5, 2)", 1000, "is not a DECIMAL(5, 2)"),
        ("DECIMAL(5, 2)", True, "is not a decimal number"),
        ("BINARY", "a", "is not base64"),
        ("ARRAY<INT>", {"a": 1}, "is not an array"),
        ("STRUCT<a: INT>", [1], "is not an object"),
        ("MAP<STRING, INT>", {"x": "y"}, '"y" is not an integer'),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(kind: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        coerced(kind, value)
    assert said in str(refused.value)


def test_a_reason_shows_only_the_beginning_of_a_long_value() -> None:
    with pytest.raises(ValueError) as refused:
        coerced("INT", "x" * 10_000)
    assert len(str(refused.value)) < 120


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        json_text("a\ud800")


def test_a_type_that_no_column_has_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be filled"):
        coercion_to(pa.duration("s"))
