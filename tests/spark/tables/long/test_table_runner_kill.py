"""`streamhouse table run`, killed with -9 while records come in: the table ends equal to its topic."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession
from table_ground import FORMATS
from table_spark_ground import SparkGround

from streamhouse.spark.tables.service import Tables
from streamhouse.spark.tables.spec import TableFormat
from streamhouse.testing.plugin import RunningStreamHouse

KILLS = 3
WAIT_S = 120


class Commands:
    def __init__(self, ground: SparkGround) -> None:
        self.ground = ground
        self._flags = ["--data-dir", str(ground.running.api.settings.data_dir)]

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "streamhouse", "table", *words, *self._flags]

    def run(self, *words: str) -> str:
        done = subprocess.run(self._command(*words), capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_runner(self) -> subprocess.Popen[bytes]:
        """Start it in a group of its own, so that its JVM and its workers die with it."""
        return subprocess.Popen(
            self._command("run", "--master", "local[2]", "--fast-start"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def rows(self) -> int:
        return int(json.loads(self.run("describe", "orders", "--output", "json"))["rows"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_equals_its_topic_after_its_runner_was_killed_three_times(
    spark: SparkSession, streamhouse: RunningStreamHouse, tmp_path: Path, kind: TableFormat
) -> None:
    ground = SparkGround(spark, streamhouse, tmp_path)
    commands = Commands(ground)
    location = str(tmp_path / "lake")
    commands.run(
        *("create", "orders", "--from", "orders", "--format", kind.value, "--path", location, "--partition-by", "day"),
        *("--trigger", "1s", "--dead-letters", "dead"),
    )
    (listed,) = json.loads(commands.run("list", "--output", "json"))
    assert (listed["name"], listed["wanted"], listed["location"]) == ("orders", "running", location)
    for _ in range(KILLS):
        before = commands.rows()
        runner = commands.start_runner()
        try:
            deadline = time.monotonic() + WAIT_S
            while commands.rows() == before:
                assert time.monotonic() < deadline, "the runner commits nothing"
                assert runner.poll() is None, "the runner has ended"
                ground.produce_json(0, 200)
                ground.produce_json(1, 20)
            ground.produce_json(0, 500)
        finally:
            os.killpg(runner.pid, signal.SIGKILL)
            runner.wait()
    commands.run("run", "--once", "--master", "local[2]", "--fast-start")
    stored = Tables(ground.place).get("orders")
    ground.check_equal(stored)
    commands.run("compact", "orders")
    ground.check_equal(stored)
    if kind is TableFormat.ICEBERG:
        version = json.loads(commands.run("describe", "orders", "--output", "json"))["version"]
        rows = StaticTable.from_metadata(version).scan(selected_fields=("_partition", "_offset")).to_arrow()
        assert rows.num_rows == sum(len(values) for values in ground.sent.values())
        assert rows.group_by(["_partition", "_offset"]).aggregate([]).num_rows == rows.num_rows


def test_a_runner_ends_when_it_is_told_to_and_what_it_leaves_is_removed(
    spark: SparkSession, streamhouse: RunningStreamHouse, tmp_path: Path
) -> None:
    ground = SparkGround(spark, streamhouse, tmp_path)
    commands = Commands(ground)
    commands.run(
        "create", "orders", "--from", "orders", "--format", "delta", "--trigger", "1s", "--dead-letters", "dead"
    )
    ground.produce_json(0, 100)
    runner = commands.start_runner()
    try:
        deadline = time.monotonic() + WAIT_S
        while commands.rows() < 100:
            assert time.monotonic() < deadline, "the runner commits nothing"
        while True:
            (shown,) = json.loads(commands.run("list", "--output", "json"))
            assert shown["state"] == "running"
            if shown["lag"] == 0:
                break
            assert time.monotonic() < deadline, "the runner does not say that it has caught up"
        commands.run("start", "orders", "--reset", "--yes")
        checkpoints = Path(streamhouse.api.settings.data_dir) / "checkpoints" / "tables" / "orders"
        while [path.name.split("-")[1] for path in checkpoints.iterdir()] != ["2"] or commands.rows() < 100:
            assert time.monotonic() < deadline, "the former generation's checkpoint is still there"
        runner.terminate()
        assert runner.wait(60) == 0
    finally:
        if runner.poll() is None:
            os.killpg(runner.pid, signal.SIGKILL)
            runner.wait()
    commands.run("stop", "orders")
    commands.run("delete", "orders", "--data", "--yes")
    assert json.loads(commands.run("list", "--output", "json")) == []
    assert not checkpoints.exists()
    assert not (Path(streamhouse.api.settings.data_dir) / "tables" / "orders").exists()
