"""Pipelines under a real Spark: what takes longer to tell."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from pipeline_ground import (
    ORDERS,
    SCHEMA,
    Pipeline,
    into_postgres,
    make_topics,
    write_orders,
)

from streamhouse.testing.plugin import RunningStreamHouse


def test_r8_an_old_checkpoint_is_refused(
    make: Callable[..., Pipeline], streamhouse: RunningStreamHouse, postgres_database: str, tmp_path: Path
) -> None:
    target = into_postgres(postgres_database, "ids")
    pipeline = make(sources=ORDERS, sql="SELECT id FROM orders", target=target)
    write_orders(streamhouse, 0, 100)
    pipeline.run()
    shutil.copytree(pipeline.checkpoint, tmp_path / "old")
    for first in (100, 200):
        write_orders(streamhouse, first, first + 100)
        pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    shutil.copytree(tmp_path / "old", pipeline.checkpoint)
    with pytest.raises(AssertionError, match="does not begin where the target stands"):
        pipeline.run()
    with psycopg.connect(postgres_database) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM ids").fetchone() == (300, 300)


def test_r8_sql_that_is_changed_and_changed_back_goes_on_where_the_target_stands(
    make: Callable[..., Pipeline], streamhouse: RunningStreamHouse, postgres_database: str
) -> None:
    target = into_postgres(postgres_database, "ids")
    one = make(sources=ORDERS, sql="SELECT id FROM orders", target=target)
    other = make(sources=ORDERS, sql="SELECT id, 'x' AS more FROM orders", target=target)
    with psycopg.connect(postgres_database) as connection:
        connection.execute("CREATE TABLE ids (id bigint, more text)")
    other.stored = replace(other.stored, definition_id=one.stored.definition_id)
    for first, pipeline in ((0, one), (100, other), (200, one), (300, other)):
        write_orders(streamhouse, first, first + 100)
        assert pipeline.run().resumed == ("at the beginning" if first == 0 else "where its target stands")
    assert one.run().resumed == "where its target stands"
    with psycopg.connect(postgres_database) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM ids").fetchone() == (400, 400)
        assert connection.execute("SELECT count(*) FROM ids WHERE more = 'x'").fetchone() == (200,)


def test_an_upsert_keeps_the_highest_row_of_a_key(
    make: Callable[..., Pipeline], streamhouse: RunningStreamHouse, postgres_database: str
) -> None:
    target = into_postgres(postgres_database, "latest", key="product", order_by="id")
    pipeline = make(sources=ORDERS, sql="SELECT product, id FROM orders", target=target)
    write_orders(streamhouse, 500, 900)
    pipeline.run()
    write_orders(streamhouse, 0, 100)
    pipeline.run()
    with psycopg.connect(postgres_database) as connection:
        rows = connection.execute("SELECT product, id FROM latest ORDER BY id").fetchall()
    assert rows == [("pen", 897), ("book", 898), ("lamp", 899)]


def test_two_topics_are_joined(
    make: Callable[..., Pipeline], streamhouse: RunningStreamHouse, postgres_database: str
) -> None:
    make_topics(streamhouse, clicks=1)
    write_orders(streamhouse, 0, 60)
    write_orders(streamhouse, 30, 90, topic="clicks")
    sources = {view: {"schema": SCHEMA, "watermark": "at, 1 minute"} for view in ("orders", "clicks")}
    sql = """SELECT orders.id, clicks.product FROM orders JOIN clicks ON orders.id = clicks.id
             AND clicks.at BETWEEN orders.at - INTERVAL 1 MINUTE AND orders.at + INTERVAL 1 MINUTE"""
    pipeline = make(sources=sources, sql=sql, target=into_postgres(postgres_database, "joined"))
    pipeline.run()
    pipeline.forget_last_commit()
    pipeline.run()
    with psycopg.connect(postgres_database) as connection:
        rows = connection.execute("SELECT id FROM joined ORDER BY id").fetchall()
    assert [row[0] for row in rows] == list(range(30, 60))


def test_a_value_that_is_not_json_fails_or_is_dropped(
    make: Callable[..., Pipeline], streamhouse: RunningStreamHouse, postgres_database: str
) -> None:
    write_orders(streamhouse, 0, 10)
    streamhouse.run(streamhouse.api.produce("orders", b"{oops"))
    target = into_postgres(postgres_database, "ids")
    strict = make(sources=ORDERS, sql="SELECT id FROM orders", target=target)
    with pytest.raises(AssertionError, match="Malformed"):
        strict.run()
    lenient = {"orders": {**ORDERS["orders"], "bad_records": "drop"}}
    make(sources=lenient, sql="SELECT id FROM orders", target=target).run()
    with psycopg.connect(postgres_database) as connection:
        assert connection.execute("SELECT count(*) FROM ids").fetchone() == (10,)
