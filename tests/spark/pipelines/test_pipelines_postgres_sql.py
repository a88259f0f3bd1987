"""The SQL of the PostgreSQL target: names quoted, types mapped or refused, later rows win, and tables that fit."""

from __future__ import annotations

from typing import Any

import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.pipelines.postgres_sql import (
    Column,
    check_table,
    columns_of,
    copy_into,
    create_stage,
    create_target,
    insert,
    quoted,
    table_name,
)
from streamhouse.spark.pipelines.spec import PostgresTarget, TargetMode

A, B = Column(name="a", type="bigint"), Column(name="b", type="text")


def target(**more: Any) -> PostgresTarget:
    return PostgresTarget(url="postgresql://db/x", table="public.t", **more)


def upsert(*key: str, **more: Any) -> PostgresTarget:
    return target(mode=TargetMode.UPSERT, key=key, **more)


@pytest.mark.parametrize(
    ("spark", "postgres"),
    [
        ("string", "text"),
        ("tinyint", "smallint"),
        ("double", "double precision"),
        ("timestamp", "timestamptz"),
        ("timestamp_ntz", "timestamp"),
        ("binary", "bytea"),
        ("decimal(10,2)", "numeric(10,2)"),
        ("varchar(20)", "text"),
        ("struct<a:int>", "jsonb"),
        ("array<string>", "jsonb"),
        ("map<string,int>", "jsonb"),
    ],
)
def test_every_type_that_postgresql_has_is_mapped(spark: str, postgres: str) -> None:
    (column,) = columns_of([("a", spark)], target())
    assert column.type == postgres
    assert column.is_json is (postgres == "jsonb")


def test_columns_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="the column 'a' is interval day"):
        columns_of([("a", "interval day")], target())
    with pytest.raises(InvalidSetting, match="two columns one name"):
        columns_of([("a", "int"), ("a", "string")], target())
    for wanted in (upsert("z"), upsert("a", order_by="z")):
        with pytest.raises(InvalidSetting, match="no column 'z'") as refused:
            columns_of([("a", "int"), ("b", "int")], wanted)
        assert refused.value.hint == "its columns are a, b"


def test_a_name_is_quoted_whatever_it_contains() -> None:
    assert quoted('a"; DROP TABLE x --') == '"a""; DROP TABLE x --"'
    assert table_name("public.t") == '"public"."t"'
    with pytest.raises(InvalidSetting, match="no name of a column"):
        quoted("a\0")


def test_a_table_is_created_with_its_key() -> None:
    assert create_target(target(), [A, B]) == 'CREATE TABLE IF NOT EXISTS "public"."t" ("a" bigint, "b" text)'
    assert create_target(upsert("a"), [A, B]).endswith('("a" bigint, "b" text, PRIMARY KEY ("a"))')


def test_rows_are_staged_with_their_attempt_in_a_table_that_a_crash_may_take() -> None:
    stage = create_stage("run-1", [A])
    assert stage.startswith('CREATE UNLOGGED TABLE streamhouse."run-1" (_streamhouse_attempt text NOT NULL')
    assert copy_into("run-1", [A]) == (
        'COPY streamhouse."run-1" (_streamhouse_attempt, _streamhouse_row, "a") FROM STDIN (FORMAT csv)'
    )


def test_an_insert_takes_all_rows_of_the_attempts_that_count() -> None:
    assert insert(target(), "s", [A, B]) == (
        'INSERT INTO "public"."t" ("a", "b") SELECT "a", "b" FROM streamhouse."s" WHERE _streamhouse_attempt = ANY(%s)'
    )


def test_of_two_rows_of_one_key_the_later_counts_or_the_one_with_the_higher_order() -> None:
    later = insert(upsert("a"), "s", [A, B])
    assert 'ORDER BY "a", _streamhouse_attempt DESC, _streamhouse_row DESC' in later
    assert later.endswith('ON CONFLICT ("a") DO UPDATE SET "b" = EXCLUDED."b"')
    higher = insert(upsert("a", order_by="b"), "s", [A, B])
    assert 'ORDER BY "a", "b" DESC NULLS LAST, _streamhouse_attempt DESC' in higher
    assert higher.endswith('WHERE t."b" IS NULL OR t."b" <= EXCLUDED."b"')
    assert insert(upsert("a", "b"), "s", [A, B]).endswith('ON CONFLICT ("a", "b") DO NOTHING')


def test_a_percent_sign_in_a_name_is_no_parameter() -> None:
    made = insert(target(), "s", [Column(name="100%s", type="text")])
    assert '"100%%s"' in made
    assert made.replace("%%", "").count("%s") == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "fits"),
    [
        ("bigint", "integer", True),
        ("bigint", "numeric(10,2)", True),
        ("text", "character varying(20)", True),
        ("jsonb", "json", True),
        ("timestamptz", "timestamp with time zone", True),
        ("timestamptz", "timestamp without time zone", False),
        ("text", "bigint", False),
        ("bigint", "double precision", False),
    ],
)
def test_a_table_that_is_there_must_fit(ours: str, theirs: str, fits: bool) -> None:
    columns, found = [Column(name="a", type=ours)], {"a": theirs, "more": "text"}
    if fits:
        check_table(target(), columns, found)
        return
    with pytest.raises(InvalidSetting, match=r"the column 'a' of public\.t is"):
        check_table(target(), columns, found)


def test_a_table_without_the_column_is_refused_with_those_it_has() -> None:
    with pytest.raises(InvalidSetting, match=r"public\.t has no column 'a'") as refused:
        check_table(target(), [A], {"x": "text", "y": "text"})
    assert "it has x, y" in str(refused.value.hint)
