"""Pipelines into tables: with state and without, replayed and without a checkpoint, each row once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pipeline_ground import ORDERS, Pipeline, write_orders

from streamhouse.testing.plugin import RunningStreamHouse


def test_r8_a_delta_table_has_each_row_once_with_and_without_a_checkpoint(
    make: Callable[..., Pipeline], streamhouse: RunningStreamHouse, tmp_path: Path
) -> None:
    path = tmp_path / "lake" / "orders"
    target = {"table": {"format": "delta", "path": str(path)}}
    pipeline = make(sources=ORDERS, sql="SELECT id, product FROM orders", target=target)
    write_orders(streamhouse, 0, 400)
    pipeline.run()
    pipeline.forget_last_commit()
    write_orders(streamhouse, 400, 600)
    pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    write_orders(streamhouse, 600, 700)
    assert pipeline.run().resumed == "where its target stands"
    assert sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist()) == list(range(700))


def test_r8_a_parquet_table_of_an_aggregation_is_right_after_a_replay(
    make: Callable[..., Pipeline], streamhouse: RunningStreamHouse, tmp_path: Path
) -> None:
    """A window is written when the watermark has passed it: 1,000 orders are 333 seconds, less 60 that may be late."""
    path = tmp_path / "lake" / "windows"
    sql = "SELECT window.start AS minute, count(*) AS orders FROM orders GROUP BY window(at, '1 minute')"
    sources = {"orders": {**ORDERS["orders"], "watermark": "at, 1 minute"}}
    target = {"table": {"format": "parquet", "path": str(path)}}
    pipeline = make(sources=sources, sql=sql, target=target)
    write_orders(streamhouse, 0, 600)
    pipeline.run()
    pipeline.forget_last_commit()
    write_orders(streamhouse, 600, 1_000)
    pipeline.run()
    rows = pq.read_table([str(file) for file in path.rglob("*.parquet")]).to_pylist()
    expected = [181, 180, 180, 180]
    assert [row["orders"] for row in sorted(rows, key=lambda row: row["minute"])] == expected
