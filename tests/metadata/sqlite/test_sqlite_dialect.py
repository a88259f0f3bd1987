"""The statements of the row layer on SQLite: each translation, by what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from streamhouse.metadata.contract import Change, ChangeKind
from streamhouse.metadata.sqlite.connections import MEMORY, connect
from streamhouse.metadata.sqlite.dialect import SqliteRowTx, run_now
from streamhouse.metadata.sqlite.transactions import Tx

ONE, TWO = UUID(int=1), UUID(int=2)


@pytest.fixture
def tx() -> Iterator[Tx]:
    connection = connect(MEMORY, busy_timeout_ms=0)
    connection.execute("CREATE TABLE t (id BLOB, n INTEGER, name TEXT, PRIMARY KEY (id, n))")
    connection.executemany(
        "INSERT INTO t VALUES (?, ?, ?)", [(ONE.bytes, 1, "a"), (ONE.bytes, 2, "b"), (TWO.bytes, 1, "c")]
    )
    yield Tx(connection, now_ms=1234)
    connection.close()


def fetch(tx: Tx, query: str, *args: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run_now(SqliteRowTx(tx).fetch(query, *args))]


@pytest.mark.parametrize(
    ("query", "args", "answer"),
    [
        ("SELECT name FROM t WHERE id = $1 AND n = $2", (ONE, 2), [("b",)]),
        ("SELECT $2, $1, $2", ("a", "b"), [("b", "a", "b")]),
        ("SELECT sh_now_ms(), (SELECT sh_tick()) - $1::bigint", (34,), [(1234, 1200)]),
        ("SELECT greatest($1, 5), least($1, 5)", (7,), [(7, 5)]),
        (
            "SELECT name FROM t WHERE $1::text IS NULL OR name = $1 ORDER BY name FOR UPDATE SKIP LOCKED",
            ("c",),
            [("c",)],
        ),
        ("SELECT x.name FROM t AS x WHERE x.n = 2 FOR NO KEY UPDATE OF x", (), [("b",)]),
        ("SELECT name FROM t WHERE id = ANY ($1::uuid[]) ORDER BY name", ([TWO],), [("c",)]),
        ("SELECT name FROM t WHERE name = ANY ($1::text[]) ORDER BY name", (["c", "a", "x"],), [("a",), ("c",)]),
        ("SELECT k.v FROM unnest($1::bigint[]) AS k (v) ORDER BY k.v", ([2**62, -1],), [(-1,), (2**62,)]),
        ("SELECT k.v FROM unnest($1::bigint[]) AS k (v)", ([],), []),
        (
            """SELECT k.n, t.name FROM unnest($1::uuid[], $2::integer[])
                   WITH ORDINALITY AS k (id, m, n) JOIN t ON t.id = k.id AND t.n = k.m ORDER BY k.n""",
            ([TWO, TWO, ONE], [1, 9, 2]),
            [(1, "c"), (3, "b")],
        ),
        ("UPDATE t AS x SET name = $1::text WHERE x.n = 2 RETURNING x.name, x.n", ("new",), [("new", 2)]),
    ],
)
def test_a_statement_of_postgresql_answers_the_same(
    tx: Tx, query: str, args: tuple[Any, ...], answer: list[tuple[Any, ...]]
) -> None:
    assert fetch(tx, query, *args) == answer


def test_a_change_counts_its_rows_and_tells_its_subscribers(tx: Tx) -> None:
    rows = SqliteRowTx(tx)
    delete = "DELETE FROM t WHERE (id, n) IN (SELECT k.id, k.n FROM unnest($1::uuid[], $2::integer[]) AS k (id, n))"
    assert run_now(rows.execute(delete, [ONE, ONE, TWO], [1, 7, 1])) == 2
    change = Change(kind=ChangeKind.TOPICS, name="orders")
    run_now(rows.notify(change))
    assert tx.changes == [change]


def test_a_uuid_that_came_out_of_a_column_goes_into_a_list_again(tx: Tx) -> None:
    ids = [row["id"] for row in run_now(SqliteRowTx(tx).fetch("SELECT id FROM t WHERE name = 'c'"))]
    assert fetch(tx, "SELECT name FROM t WHERE id = ANY ($1::uuid[])", ids) == [("c",)]


def test_a_step_that_waits_for_something_else_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="waited for something other"):
        run_now(asyncio.sleep(0))
