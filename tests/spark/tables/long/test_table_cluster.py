"""Tables on a cluster whose machines have nothing of ours, with PostgreSQL and S3: each format equals its topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from cluster_ground import (
    bare_site_packages,
    flags_of,
    fleet_settings,
    on_cluster,
    run_command,
    spark_options,
)
from table_ground import FORMATS

from streamhouse.spark.definitions.service import Place
from streamhouse.spark.tables.opening import open_table
from streamhouse.spark.tables.service import Tables
from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.testing.services import S3Service, SparkCluster
from streamhouse.wire.records import Record

BASE_MS = 1_700_006_400_000
PARTITIONS = 2


@pytest.fixture
def streamhouse_options(tmp_path: Path, postgres_database: str, s3_service: S3Service) -> dict[str, Any]:
    return fleet_settings(tmp_path / "agent", postgres_database, s3_service)


@pytest.fixture
def place(streamhouse_options: dict[str, Any], tmp_path: Path) -> Place:
    return Place(address_options=spark_options(streamhouse_options), checkpoints=str(tmp_path / "agent/checkpoints"))


def rows_of(place: Place, name: str) -> list[tuple[Any, ...]]:
    """The rows in the files of the table's current version."""
    store = open_table(Tables(place).get(name).spec.storage, place.address)
    rows: list[tuple[Any, ...]] = []
    files = {path for path in store.current_files() if path.endswith(".parquet") and "_delta_log" not in path}
    for path in files:
        found = pq.read_table(
            f"{store.location.path}/{path}", filesystem=store.location.filesystem(), partitioning=None
        ).select(["_partition", "_offset", "_key", "id", "name"])
        rows += [tuple(row.values()) for row in found.to_pylist()]
    return sorted(rows)


def produce(running: RunningStreamHouse, first: int, last: int) -> list[tuple[Any, ...]]:
    """Write the offsets from ``first`` to ``last - 1`` of each partition; the rows that a table then has more of."""
    rows: list[tuple[Any, ...]] = []
    for partition in range(PARTITIONS):
        values = [{"id": offset * 2 + partition, "name": f"n\u00e4me-{offset}"} for offset in range(first, last)]
        records = [
            Record(key=b"k%d" % value["id"], value=json.dumps(value).encode(), timestamp_ms=BASE_MS + first)
            for value in values
        ]
        running.run(running.api.produce_batch("orders", partition, records))
        rows += [
            (partition, offset, b"k%d" % value["id"], value["id"], value["name"])
            for offset, value in enumerate(values, first)
        ]
    return rows


def test_tables_equal_their_topic_on_a_cluster(
    spark_cluster: SparkCluster,
    streamhouse: RunningStreamHouse,
    streamhouse_options: dict[str, Any],
    place: Place,
    tmp_path: Path,
) -> None:
    """Create, fill, fill again, compact, describe and delete, by the commands; one runner fills all three."""
    flags = flags_of(streamhouse_options)
    topic = streamhouse.run(streamhouse.api.create_topic("orders", PARTITIONS))
    assert streamhouse.run(streamhouse.api.agent.wait_leading(topic.partition_keys(), timeout_s=60))
    lake = streamhouse_options["store_url"].rpartition("/")[0] + "/lake"
    names = [kind.value for kind in FORMATS]
    for name in names:
        words = ("--from", "orders", "--format", name, "--path", f"{lake}/{name}", "--partition-by", "day")
        run_command("table", "create", name, *words, *flags)
    where = on_cluster(spark_cluster.master_url, bare_site_packages(tmp_path / "bare"))
    expected: list[tuple[Any, ...]] = []
    for first, last in ((0, 500), (500, 530)):
        expected = sorted(expected + produce(streamhouse, first, last))
        run_command("table", "run", "--once", *where, *flags)
        for name in names:
            assert rows_of(place, name) == expected, name
    done = json.loads(run_command("table", "compact", *names, "--output", "json", *flags))
    assert [each["files_after"] < each["files_before"] for each in done] == [True] * len(names)
    for name in names:
        assert rows_of(place, name) == expected, name
        described = json.loads(run_command("table", "describe", name, "--output", "json", *flags))
        assert described["rows"] == len(expected)
    run_command("table", "stop", *names, *flags)
    run_command("table", "delete", *names, "--data", "--yes", *flags)
    assert json.loads(run_command("table", "list", "--output", "json", *flags)) == []
