"""Columns of a table: DDL in both directions, names that every format takes, and how two views of one agree."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.tables.columns import (
    MAX_COLUMN_NAME_CHARS,
    MAX_COLUMNS,
    OWN_COLUMNS,
    check_columns,
    check_types,
    ddl_of,
    is_own,
    merged_schema,
    name_fault,
    new_columns,
    parse_ddl,
    parse_schema,
    plain_schema,
    wider,
)

DDL = (
    "a BOOLEAN, b INT, c BIGINT, d FLOAT, e DOUBLE, f STRING, g BINARY, h DATE, i TIMESTAMP, j TIMESTAMP_NTZ, "
    "k DECIMAL(5, 2), l ARRAY<INT>, m STRUCT<x: INT, y: ARRAY<STRING>>, n MAP<STRING, BIGINT>, `ö-1` STRING"
)


def test_ddl_reads_back_as_it_was_written() -> None:
    schema = parse_ddl(DDL)
    assert ddl_of(schema) == DDL
    assert parse_schema(ddl_of(OWN_COLUMNS)) == OWN_COLUMNS


@pytest.mark.parametrize(
    ("ddl", "fault"),
    [
        ("", "a column's name, not the end"),
        ("id", "a type, not the end"),
        ("id BIGNT", "no type 'bignt'"),
        ("id BIGINT name STRING", "a comma or the end"),
        ("id ARRAY<INT", "'>', not the end"),
        ("id BIGINT, ID INT", "there twice"),
        ("_offset BIGINT", "of its own"),
        ("`a b` INT", "cannot be a column's name"),
        ("d DECIMAL(40, 2)", "no DECIMAL"),
        ("a ;", "cannot be read"),
        ("a " + "ARRAY<" * 30 + "INT" + ">" * 30, "nested"),
    ],
)
def test_a_wrong_ddl_is_refused(ddl: str, fault: str) -> None:
    with pytest.raises(InvalidSetting, match=fault):
        parse_ddl(ddl)


def test_types_widen_the_same_way_in_any_order() -> None:
    kinds = [pa.bool_(), pa.int64(), pa.float64(), pa.string()]
    for one in kinds:
        assert wider(None, one) == one
        for other in kinds:
            assert wider(one, other) == wider(other, one)
            for third in kinds:
                assert wider(wider(one, other), third) in (wider(one, wider(other, third)), pa.string())


@pytest.mark.parametrize("name", ["a", "ö-1", "x" * MAX_COLUMN_NAME_CHARS])
def test_a_name_that_all_formats_take(name: str) -> None:
    assert name_fault(name) is None


@pytest.mark.parametrize("name", ["", "a b", "a.b", 'a"', "a\x00", "x" * (MAX_COLUMN_NAME_CHARS + 1)])
def test_a_name_that_some_format_does_not_take(name: str) -> None:
    assert name_fault(name) is not None


def test_a_table_has_at_least_one_column_and_not_more_than_a_thousand() -> None:
    check_columns([f"c{number}" for number in range(MAX_COLUMNS)])
    for names in ([], [f"c{number}" for number in range(MAX_COLUMNS + 1)]):
        with pytest.raises(InvalidSetting, match=f"1 to {MAX_COLUMNS} columns"):
            check_columns(names)


def test_columns_of_files_that_a_table_lacks_get_a_type_that_holds_them_all() -> None:
    known = pa.schema([("a", pa.int64())])
    found = [
        pa.schema([("a", pa.int64()), ("n", pa.int64()), ("m", pa.bool_())]),
        pa.schema([("n", pa.float64()), ("m", pa.int64())]),
    ]
    assert new_columns(known, found) == {"n": pa.float64(), "m": pa.string()}


def test_columns_are_added_behind_and_never_change_their_type() -> None:
    known = pa.schema([("a", pa.int64())])
    assert merged_schema(known, pa.schema([("b", pa.string()), ("a", pa.string())])).names == ["a", "b"]
    check_types(known, pa.schema([("a", pa.int64()), ("b", pa.string())]), "the table t")
    with pytest.raises(InvalidSetting, match="the column a of the table t is int64, not string"):
        check_types(known, pa.schema([("a", pa.string())]), "the table t")


def test_large_variants_of_arrow_are_the_same_types() -> None:
    large = pa.struct([("x", pa.large_list(pa.large_string())), ("y", pa.map_(pa.large_string(), pa.large_binary()))])
    plain = pa.struct([("x", pa.list_(pa.string())), ("y", pa.map_(pa.string(), pa.binary()))])
    assert plain_schema(pa.schema([("s", large)])) == pa.schema([("s", plain)])


def test_the_columns_that_every_row_has_are_known_in_any_case() -> None:
    assert is_own("_OFFSET")
    assert not is_own("offset")
