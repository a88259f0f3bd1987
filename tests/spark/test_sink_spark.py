"""The sink under a real Spark: every mode, every kind of attempt that comes twice, each row once."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from sink_ground import everything, options_of, values_of

from streamhouse.app.platform import StreamHouse
from streamhouse.spark import write_stream
from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.testing.services import S3Service
from streamhouse.wire.murmur2 import partition_for_key

FORMAT = "streamhouse"
NOW: dict[str, Any] = {"availableNow": True}


class Ground:
    """A topic ``out`` of three partitions, and how to write to it."""

    def __init__(self, spark: SparkSession, running: RunningStreamHouse, directory: Path) -> None:
        self.spark = spark
        self.running = running
        self.options = options_of(running.api)
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.input = directory / "input"
        self.input.mkdir()
        topic = running.run(running.api.create_topic("out", 3))
        assert running.run(running.api.agent.wait_leading(topic.partition_keys(), timeout_s=30))

    def values(self, topic: str = "out") -> list[str]:
        return self.running.run(values_of(self.running.api, topic))

    def write(self, frame: DataFrame, **options: str) -> None:
        chosen = {**self.options, "topic": "out", **options}
        frame.write.format(FORMAT).options(**chosen).mode("append").save()

    def rows(self, *values: str) -> DataFrame:
        return self.spark.createDataFrame([(value,) for value in values], "value string")

    def add_file(self, name: str, *lines: str) -> None:
        """One file is one micro-batch; Spark takes them by age, and by nothing else."""
        file = self.input / name
        file.write_text("\n".join(lines) + "\n")
        os.utime(file, (int(name), int(name)))

    def lines(self) -> DataFrame:
        return self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.input))

    def stream(self, frame: DataFrame | None = None, *, mode: str = "append", **options: str) -> None:
        """Run the query to the end of its input."""
        query = write_stream(
            frame or self.lines(),
            "out",
            checkpoint=str(self.checkpoint),
            mode=mode,
            trigger=NOW,
            **self.options,
            **options,
        )
        query.awaitTermination(120)
        assert query.exception() is None

    def forget_last_commit(self) -> None:
        """Make it look as if the driver had been killed between the sink's commit and Spark's own."""
        commits = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        last = max(commits, key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def ground(spark: SparkSession, streamhouse: RunningStreamHouse, tmp_path: Path) -> Ground:
    return Ground(spark, streamhouse, tmp_path)


@pytest.fixture
def fleet(spark: SparkSession, postgres_database: str, s3_service: S3Service, tmp_path: Path) -> Iterator[Ground]:
    """A fleet on PostgreSQL and the S3 server."""
    chosen: dict[str, Any] = {
        "data_dir": str(tmp_path / "data"),
        "metadata_url": postgres_database,
        "store_url": f"s3://{s3_service.create_bucket()}",
        "store_endpoint_url": s3_service.endpoint_url,
        "store_region": s3_service.region,
        "store_access_key_id": s3_service.access_key,
        "store_secret_access_key": s3_service.secret_key,
    }
    with running_platform(chosen) as running:
        yield Ground(spark, running, tmp_path)


@contextmanager
def running_platform(chosen: dict[str, Any]) -> Iterator[RunningStreamHouse]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    opened = StreamHouse.open(**chosen)
    api = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(60)
    try:
        yield RunningStreamHouse(api, loop)
    finally:
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_batch_write_brings_every_column(ground: Ground) -> None:
    frame = ground.spark.sql(
        """SELECT * FROM VALUES
           (CAST('a' AS BINARY), 'one', array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))), NULL,
            TIMESTAMP '2024-01-02 03:04:05.678'),
           (NULL, 'two', NULL, 2, NULL)
           AS t(key, value, headers, partition, timestamp)"""
    )
    ground.write(frame)
    found = ground.running.run(everything(ground.running.api, "out"))
    (one,) = [record for record in found[partition_for_key(b"a", 3)] if record.value == b"one"]
    assert (one.key, one.timestamp_ms) == (b"a", 1_704_164_645_678)
    assert [(header.key, header.value) for header in one.headers] == [("h", b"x")]
    (two,) = [record for record in found[2] if record.value == b"two"]
    assert two.key is None
    assert two.timestamp_ms > 1_700_000_000_000


WRONG: list[tuple[Callable[[Ground], None], str]] = [
    (lambda ground: ground.write(ground.rows("a"), topic="nope"), "there is no topic 'nope'"),
    (lambda ground: ground.write(ground.rows("a"), topic="outt"), "there is no topic 'outt' (did you mean out?)"),
    (lambda ground: ground.write(ground.rows("a"), topc="out"), "no option 'topc' (did you mean topic?)"),
    (lambda ground: ground.write(ground.spark.range(1)), "a topic has no column 'id'"),
    (lambda ground: ground.write(ground.spark.range(1).selectExpr("id AS value")), "column 'value' is bigint"),
    (lambda ground: ground.write(ground.rows("a"), dataDir="/nowhere"), "there is no StreamHouse in /nowhere"),
    (
        lambda ground: ground.rows("a").write.format(FORMAT).options(**ground.options).mode("append").save(),
        "no topic is named",
    ),
    (
        lambda ground: ground.rows("a").write.format(FORMAT).options(**ground.options).mode("overwrite").save(),
        "a topic cannot be overwritten",
    ),
]


def test_what_is_wrong_is_one_clear_line_before_any_task(ground: Ground) -> None:
    for write, said in WRONG:
        with pytest.raises(AnalysisException) as refused:
            write(ground)
        assert said in str(refused.value)
        assert "Traceback" not in str(refused.value)
    assert ground.values() == []


def test_txn_options_make_a_batch_write_repeatable(ground: Ground) -> None:
    ground.write(ground.rows("a", "b"), txnAppId="nightly", txnVersion="1")
    ground.write(ground.rows("a", "b"), txnAppId="nightly", txnVersion="1")
    ground.write(ground.rows("c"), txnAppId="nightly", txnVersion="2")
    with pytest.raises(Exception, match="which already has its batch 2"):
        ground.write(ground.rows("old"), txnAppId="nightly", txnVersion="1")
    ground.write(ground.rows("a"))
    assert ground.values() == ["a", "a", "b", "c"]


def test_r8_two_writes_in_one_foreach_batch_both_count(ground: Ground) -> None:
    ground.add_file("1", "a", "b")

    def write_twice(batch: DataFrame, batch_id: int) -> None:
        ground.write(batch)
        ground.write(batch.selectExpr("upper(value) AS value"))

    query = (
        ground.lines()
        .writeStream.foreachBatch(write_twice)
        .option("checkpointLocation", str(ground.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert ground.values() == ["A", "B", "a", "b"]


def test_r8_a_batch_that_spark_runs_again_is_written_once(ground: Ground) -> None:
    ground.add_file("1", "a", "b")
    ground.add_file("2", "c")
    ground.stream()
    ground.forget_last_commit()
    ground.add_file("3", "d")
    ground.stream()
    ground.forget_last_commit()
    ground.stream()
    assert ground.values() == ["a", "b", "c", "d"]


def test_r8_a_restored_old_checkpoint_is_refused(ground: Ground) -> None:
    ground.add_file("1", "a")
    ground.stream()
    old = ground.directory / "old"
    shutil.copytree(ground.checkpoint, old)
    ground.add_file("2", "b")
    ground.stream()
    ground.add_file("3", "c")
    ground.stream()
    shutil.rmtree(ground.checkpoint)
    shutil.copytree(old, ground.checkpoint)
    with pytest.raises(StreamingQueryException, match="the checkpoint is older than the sink"):
        ground.stream()
    assert ground.values() == ["a", "b", "c"]


@pytest.mark.parametrize("mode", ["append", "update"])
def test_r8_a_restored_checkpoint_that_is_one_batch_old_is_refused(ground: Ground, mode: str) -> None:
    ground.add_file("1", "a")
    ground.stream(mode=mode)
    old = ground.directory / "old"
    shutil.copytree(ground.checkpoint, old)
    ground.add_file("2", "b")
    ground.stream(mode=mode)
    shutil.rmtree(ground.checkpoint)
    shutil.copytree(old, ground.checkpoint)
    ground.add_file("2", "b", "c")  # what came meanwhile is in the batch, too
    with pytest.raises(StreamingQueryException, match="2 rows for out, which has 1 rows of a batch of that number"):
        ground.stream(mode=mode)
    assert ground.values() == ["a", "b"]


def test_an_attempt_that_dies_half_way_leaves_nothing_in_the_topic(ground: Ground) -> None:
    rows = [f"{number:05d}" for number in range(20_000)]
    ground.add_file("1", *rows)
    died = ground.directory / "died"
    marker = str(died)

    def die_once(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import signal

        for number, batch in enumerate(batches):
            if number == 1 and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    frame = ground.lines().mapInArrow(die_once, "value string")
    with pytest.raises(StreamingQueryException):
        ground.stream(frame, blobBytes="64KiB", compression="none")
    assert died.exists()
    assert ground.values() == []
    ground.stream(frame, blobBytes="64KiB", compression="none")
    assert ground.values() == rows


def test_complete_mode_writes_the_whole_result_of_each_batch(ground: Ground) -> None:
    ground.add_file("1", "a", "b")
    ground.add_file("2", "a")
    counted = ground.lines().groupBy("value").count().selectExpr("value AS key", "CAST(count AS STRING) AS value")
    ground.stream(counted, mode="complete")
    found = ground.running.run(everything(ground.running.api, "out"))
    by_key = sorted((record.key, record.value) for records in found.values() for record in records)
    assert by_key == [(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"b", b"1")]


def test_update_mode_writes_what_has_changed_once(ground: Ground) -> None:
    ground.add_file("1", "a", "b")
    ground.add_file("2", "a")
    counted = ground.lines().groupBy("value").count().selectExpr("value AS key", "CAST(count AS STRING) AS value")
    ground.stream(counted, mode="update")
    ground.forget_last_commit()
    ground.stream(counted, mode="update")
    found = ground.running.run(everything(ground.running.api, "out"))
    by_key = sorted((record.key, record.value) for records in found.values() for record in records)
    assert by_key == [(b"a", b"1"), (b"a", b"2"), (b"b", b"1")]


def test_on_postgresql_and_s3(fleet: Ground) -> None:
    fleet.add_file("1", "a", "b")
    fleet.add_file("2", "c")
    fleet.stream()
    fleet.forget_last_commit()
    fleet.stream()
    fleet.write(fleet.rows("d"), topic="out")
    assert fleet.values() == ["a", "b", "c", "d"]
