"""Pipelines under a real Spark: each row once, whatever is killed, lost or restored; what cannot run is said before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pipeline_ground import (
    ORDERS,
    PER_MINUTE,
    Pipeline,
    into_postgres,
    order,
    per_minute,
    rows_per_minute,
    write_orders,
)
from sink_ground import values_of

from streamhouse.core.errors import CheckpointLost, StreamHouseError
from streamhouse.spark.pipelines.start import open_target
from streamhouse.spark.pipelines.validation import validate
from streamhouse.testing.plugin import RunningStreamHouse


def test_r8_a_windowed_aggregation_into_postgresql_is_right_after_replays(
    make: Callable[..., Pipeline], streamhouse: RunningStreamHouse, postgres_database: str
) -> None:
    target = into_postgres(postgres_database, key=["minute", "product"])
    pipeline = make(sources=ORDERS, sql=PER_MINUTE, target=target, output_mode="update")
    write_orders(streamhouse, 0, 600)
    assert pipeline.run().resumed == "at the beginning"
    assert rows_per_minute(postgres_database) == per_minute(range(600))
    pipeline.forget_last_commit()
    write_orders(streamhouse, 600, 1_000)
    assert pipeline.run().resumed == "where its checkpoint stands"
    assert rows_per_minute(postgres_database) == per_minute(range(1_000))
    with psycopg.connect(postgres_database) as connection:
        stages = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'stage%%'").fetchone()
    assert stages == (1,)
    shutil.rmtree(pipeline.checkpoint)
    with pytest.raises(CheckpointLost, match="its state is lost"):
        pipeline.run()
    pipeline.stored = replace(pipeline.stored, generation=1)
    assert pipeline.run().resumed == "at the beginning"
    assert rows_per_minute(postgres_database) == per_minute(range(1_000))


def test_r8_inserted_rows_are_there_once_with_and_without_a_checkpoint(
    make: Callable[..., Pipeline], streamhouse: RunningStreamHouse, postgres_database: str
) -> None:
    sql = "SELECT id, product, array(amount) AS amounts, CAST(NULL AS STRING) AS note, '' AS empty, at FROM orders"
    pipeline = make(sources=ORDERS, sql=sql, target=into_postgres(postgres_database, "shop_orders"))
    write_orders(streamhouse, 0, 500)
    pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    write_orders(streamhouse, 500, 800)
    assert pipeline.run().resumed == "where its target stands"
    pipeline.forget_last_commit()
    pipeline.run()
    with psycopg.connect(postgres_database) as connection:
        rows = connection.execute("SELECT id, product, note, empty, at::text FROM shop_orders ORDER BY id").fetchall()
        nested = connection.execute("SELECT amounts FROM shop_orders WHERE id = 7").fetchone()
    assert [row[0] for row in rows] == list(range(800))
    assert rows[4][1:] == ("book", None, "", "2024-01-01 00:00:01.332+00")
    assert nested == ([7.70],)


def test_r8_topic_to_topic_once_with_and_without_a_checkpoint(
    make: Callable[..., Pipeline], streamhouse: RunningStreamHouse
) -> None:
    sql = "SELECT key, upper(value) AS value FROM orders WHERE key = 'pen'"
    pipeline = make(sources=["orders"], sql=sql, target={"topic": "out"})

    def expected(last: int) -> list[str]:
        return sorted((order(number).value or b"").decode().upper() for number in range(0, last, 3))

    write_orders(streamhouse, 0, 300)
    pipeline.run()
    assert streamhouse.run(values_of(streamhouse.api, "out")) == expected(300)
    pipeline.forget_last_commit()
    pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    write_orders(streamhouse, 300, 450)
    assert pipeline.run().resumed == "where its target stands"
    assert streamhouse.run(values_of(streamhouse.api, "out")) == expected(450)
    target = open_target(pipeline.stored, pipeline.place.address_options, run_id="x")
    progress = target.progress()
    assert progress is not None
    assert sum(progress.position[0].offsets.values()) == 450


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"sql": "SELECT nope FROM orders"}, "sql: A column, variable, or function parameter with name `nope`"),
    ({"sql": "SELECT FROM orders wher"}, "sql: Syntax error at or near 'wher'"),
    ({"sql": "SELECT * FROM nowhere"}, "sql: The table or view `nowhere` cannot be found"),
    ({"sql": "SELECT 1 AS value"}, "sql: this reads none of the sources (select from orders)"),
    ({"sources": ["missing"], "sql": "SELECT value FROM missing"}, "missing"),
    ({"sources": {"orders": {"schema": "id BIGINT,,"}}}, "source orders: the schema cannot be read"),
    (
        {"sources": {"orders": {"schema": "id BIGINT", "watermark": "at, 1 hour"}}, "sql": "SELECT id FROM orders"},
        "there is no column 'at' for the watermark",
    ),
    ({"sql": "SELECT product, count(*) AS value FROM orders GROUP BY product"}, "output mode: append"),
    ({"sql": "SELECT id AS value FROM orders"}, "column 'value' is bigint, not binary or string"),
    ({"sql": "SELECT product FROM orders"}, "a topic has no column 'product'"),
    ({"target": {"topic": "missing"}}, "missing"),
    (
        {"target": into_postgres("postgresql://nobody@127.0.0.1:1/x", "t")},
        "PostgreSQL at postgresql://nobody@127.0.0.1:1",
    ),
    ({"target": into_postgres("postgresql://x:${NOT_SET}@y/x", "t")}, "${NOT_SET}, which is not set"),
]


def test_validate_says_in_one_line_what_would_not_run(
    make: Callable[..., Pipeline], postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good: dict[str, Any] = {"sources": ORDERS, "sql": "SELECT product AS value FROM orders", "target": {"topic": "out"}}
    for changes, said in WRONG:
        pipeline = make(**{**good, **changes})
        with pytest.raises(StreamHouseError) as refused:
            validate(pipeline.spark.newSession(), pipeline.stored.spec, pipeline.place)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)
    pipeline = make(**good)
    found = validate(pipeline.spark.newSession(), pipeline.stored.spec, pipeline.place)
    assert (found.columns, found.is_stateful) == ((("value", "string"),), False)
    stateful = make(sources=ORDERS, sql=PER_MINUTE, target=into_postgres(postgres_database))
    assert validate(stateful.spark.newSession(), stateful.stored.spec, stateful.place).is_stateful


def test_validate_looks_at_the_table(make: Callable[..., Pipeline], postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        connection.execute("CREATE TABLE t (id text, product text)")
    for sql, more, said in (
        ("SELECT id FROM orders", {}, "the column 'id' of t is text, and the SQL gives bigint"),
        ("SELECT amount FROM orders", {}, "the table t has no column 'amount'"),
        ("SELECT product FROM orders", {"key": "product"}, "t has no unique index on product"),
        ("SELECT product FROM orders", {"key": "id"}, "the SQL has no column 'id'"),
        ("SELECT product FROM orders", {"table": "u", "create": False}, "there is no table u"),
        ("SELECT INTERVAL 1 DAY AS d FROM orders", {"table": "u"}, "which PostgreSQL does not have"),
    ):
        target = {"postgres": {"url": postgres_database, "table": "t", **more}}
        pipeline = make(sources=ORDERS, sql=sql, target=target)
        with pytest.raises(StreamHouseError) as refused:
            validate(pipeline.spark.newSession(), pipeline.stored.spec, pipeline.place)
        assert said in str(refused.value)
