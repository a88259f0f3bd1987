"""The source in a real Spark: the format, its columns and errors; streams, their restarts, limits and progress."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from source_ground import BASE_MS, fill, sample

from streamhouse import StreamHouse
from streamhouse.log.reader.reader import LogReader
from streamhouse.metadata.contract import Pin
from streamhouse.spark import read_topic
from streamhouse.testing.plugin import RunningStreamHouse

WAIT_S = 300


@pytest.fixture
def orders(streamhouse: RunningStreamHouse) -> RunningStreamHouse:
    streamhouse.run(streamhouse.api.create_topic("orders", 2))
    return streamhouse


class Rows:
    """What a stream has given, batch by batch: a sink that may be given the same batch again."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self._changed = threading.Condition()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        rows = [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]
        with self._changed:
            self.batches[batch_id] = rows
            self._changed.notify_all()

    @property
    def all(self) -> list[tuple[int, int]]:
        return sorted(row for batch in self.batches.values() for row in batch)

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, WAIT_S), f"only {len(self.all)} rows came"

    def wait_for_batches(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.batches) >= count, WAIT_S)


@contextmanager
def running(frame: DataFrame, checkpoint: str, rows: Rows, **trigger: Any) -> Iterator[StreamingQuery]:
    writer = frame.writeStream.foreachBatch(rows.take).option("checkpointLocation", checkpoint)
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        yield query
    finally:
        query.stop()


def stream(spark: SparkSession, options: dict[str, str], **more: str) -> DataFrame:
    return read_topic(spark, "orders", streaming=True, **{**options, **more})


def produce(platform: RunningStreamHouse, partition: int, count: int, first: int = 0) -> None:
    platform.run(fill(platform.api, "orders", partition, count, first=first, flush=False))


def forget(checkpoint: str, log: str, *, from_batch: int) -> None:
    """Make it look as if the driver had been killed before it wrote these down."""
    for file in (Path(checkpoint) / log).iterdir():
        number = file.name.removeprefix(".").removesuffix(".crc")
        if number.isdigit() and int(number) >= from_batch:
            file.unlink()


def numbers(partition: int, *offsets: range) -> list[tuple[int, int]]:
    return [(partition, offset) for each in offsets for offset in each]


class TestBatch:
    def test_spark_reads_a_topic_by_the_formats_name_alone(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        produce(orders, 0, 1_000)
        produce(orders, 1, 500)
        frame = spark.read.format("streamhouse").options(subscribe="orders", **source_options).load()
        assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
        assert frame.count() == 1_500
        sums = frame.groupBy("topic", "partition").agg({"offset": "sum", "*": "count"}).collect()
        assert {tuple(row) for row in sums} == {("orders", 0, 499_500, 1_000), ("orders", 1, 124_750, 500)}
        (row,) = (
            read_topic(spark, "orders", text=True, includeHeaders=True, **source_options)
            .where("partition = 0 AND offset = 3")
            .collect()
        )
        assert (row.key, row.value, row.timestampType) == ("key-3", "value-3", 0)
        assert row.timestamp.timestamp() * 1000 == BASE_MS + 3
        assert [(header.key, header.value) for header in row.headers] == [("n", b"3"), ("empty", None)]

    def test_p_1_committed_records_are_read_from_the_objects_and_agents_serve_no_bytes(
        self,
        spark: SparkSession,
        orders: RunningStreamHouse,
        source_options: dict[str, str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Spark reads the objects. The agent's reader, which serves every client, is not used."""
        asked: list[str] = []

        def noting(name: str) -> Any:
            def call(self: LogReader, *args: Any, **kwargs: Any) -> Any:
                asked.append(name)
                return inner(self, *args, **kwargs)

            inner = getattr(LogReader, name)
            return call

        for name in ("read", "read_many", "read_now", "end_offsets"):
            monkeypatch.setattr(LogReader, name, noting(name))
        produce(orders, 0, 1_000)
        frame = read_topic(spark, "orders", **source_options)
        assert [(row.offset, row.value) for row in frame.orderBy("offset").collect()] == [
            (number, sample(number).value) for number in range(1_000)
        ]
        assert asked == []
        assert len(orders.run(orders.api.read("orders", 0, 0, max_bytes=1 << 24))) == 1_000
        assert "read_now" in asked  # this is how the agent serves a client

    def test_a_topic_is_read_when_no_agent_runs(self, spark: SparkSession, tmp_path: Path) -> None:
        async def make() -> None:
            async with StreamHouse.open(data_dir=str(tmp_path)) as api:
                await api.create_topic("orders", 1)
                await fill(api, "orders", 0, 1_000)

        asyncio.run(make())
        rows = read_topic(spark, "orders", dataDir=str(tmp_path)).orderBy("offset").collect()
        assert [(row.offset, row.value) for row in rows] == [(n, sample(n).value) for n in range(1_000)]

    def test_an_empty_topic_is_an_empty_frame(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        assert read_topic(spark, "orders", **source_options).collect() == []

    def test_a_loaded_frame_is_a_snapshot(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        produce(orders, 0, 100)
        frame = read_topic(spark, "orders", **source_options)
        assert frame.count() == 100
        produce(orders, 0, 50, first=100)
        assert frame.count() == 100
        assert read_topic(spark, "orders", **source_options).count() == 150

    def test_filters_are_applied_to_every_query_of_one_frame_anew(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        """A source that took filters would keep the first query's plan for all others."""
        produce(orders, 0, 100)
        frame = read_topic(spark, "orders", **source_options)
        assert [frame.where(f"offset < {end}").count() for end in (10, 90, 100)] == [10, 90, 100]

    def test_a_mistyped_topic_is_one_line(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        with pytest.raises(AnalysisException) as caught:
            read_topic(spark, "order", **source_options).count()
        assert "TopicNotFound: there is no topic 'order' (did you mean orders?)" in str(caught.value)
        assert "Traceback" not in str(caught.value)

    def test_a_mistyped_option_is_refused_when_loading(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        with pytest.raises(AnalysisException) as caught:
            read_topic(spark, "orders", startingOffset="earliest", **source_options)
        assert "did you mean startingOffsets?" in str(caught.value)
        assert "Traceback" not in str(caught.value)

    def test_a_schema_of_ones_own_is_refused(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        reader = spark.read.format("streamhouse").options(subscribe="orders", **source_options)
        with pytest.raises(AnalysisException, match=r"leave \.schema"):
            reader.schema("key STRING").load().count()


class TestStream:
    def test_a_stream_of_latest_loses_nothing_from_its_start_through_a_restart(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str], checkpoint: str
    ) -> None:
        produce(orders, 0, 100)
        rows = Rows()
        with running(stream(spark, source_options), checkpoint, rows):
            rows.wait_for_batches(1)  # empty: it wrote down where the query began
            produce(orders, 0, 10, first=100)
            rows.wait_for(10)
        produce(orders, 0, 10, first=110)
        produce(orders, 1, 5)
        with running(stream(spark, source_options), checkpoint, rows):
            rows.wait_for(25)
        assert rows.all == [*numbers(0, range(100, 120)), *numbers(1, range(5))]

    def test_a_batch_that_was_not_finished_is_repeated_with_the_same_rows(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str], checkpoint: str
    ) -> None:
        """Also batch 0, whose start was "latest" when the query began, not when it is repeated."""
        produce(orders, 0, 10)
        rows = Rows()
        with running(stream(spark, source_options), checkpoint, rows):
            rows.wait_for_batches(1)
            produce(orders, 0, 7, first=10)
            rows.wait_for(7)
        forget(checkpoint, "commits", from_batch=0)
        forget(checkpoint, "offsets", from_batch=1)
        produce(orders, 0, 3, first=17)
        again = Rows()
        with running(stream(spark, source_options), checkpoint, again):
            again.wait_for(10)
        assert again.all == numbers(0, range(10, 20))

    def test_available_now_ends_by_itself_within_its_limits(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str], checkpoint: str
    ) -> None:
        produce(orders, 0, 300)
        produce(orders, 1, 100)
        rows = Rows()
        frame = stream(spark, source_options, startingOffsets="earliest", maxOffsetsPerTrigger="150")
        with running(frame, checkpoint, rows, availableNow=True) as query:
            assert query.awaitTermination(WAIT_S)
        assert [len(batch) for batch in rows.batches.values()] == [149, 149, 102]
        assert rows.all == [*numbers(0, range(300)), *numbers(1, range(100))]

    def test_a_batch_waits_for_its_least_number_of_rows_though_no_most_is_said(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str], checkpoint: str
    ) -> None:
        rows = Rows()
        frame = stream(spark, source_options, startingOffsets="earliest", minOffsetsPerTrigger="20")
        with running(frame, checkpoint, rows) as query:
            rows.wait_for_batches(1)
            produce(orders, 0, 15)
            query.processAllAvailable()
            assert rows.all == []
            produce(orders, 1, 5)
            rows.wait_for(20)
        assert rows.batches[1] != []

    def test_added_partitions_are_read_from_their_start_and_progress_is_a_consumer_group(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str], checkpoint: str
    ) -> None:
        rows = Rows()
        api = orders.api
        options = {"kafka.group.id": "reports", "startingOffsets": "earliest", **source_options}
        produce(orders, 0, 10)
        with running(stream(spark, options), checkpoint, rows) as query:
            rows.wait_for(10)
            topic = orders.run(api.topic("orders"))
            grown = orders.run(api.stores.metadata.grow_topic(topic.topic_id, 3))
            orders.run(api.agent.wait_leading(grown.partition_keys(), timeout_s=WAIT_S))
            produce(orders, 2, 4)
            rows.wait_for(14)
            query.processAllAvailable()
            committed = orders.run(api.committed_offsets("reports", "orders"))
            assert {number: each.offset for number, each in committed.items()} == {0: 10, 1: 0, 2: 4}
            progress = json.loads(query.lastProgress.json)["sources"][0]
            assert progress["latestOffset"] == {"orders": {"0": 10, "1": 0, "2": 4}}
            assert _stream_pins(orders) <= 1
        assert rows.all == [*numbers(0, range(10)), *numbers(2, range(4))]
        assert _stream_pins(orders) == 0

    def test_a_topic_that_was_created_anew_is_data_loss(
        self, spark: SparkSession, orders: RunningStreamHouse, source_options: dict[str, str], checkpoint: str
    ) -> None:
        produce(orders, 0, 10)
        rows = Rows()
        options = {"startingOffsets": "earliest", **source_options}
        with running(stream(spark, options), checkpoint, rows, availableNow=True) as query:
            query.awaitTermination(WAIT_S)
        orders.run(orders.api.delete_topic("orders"))
        orders.run(orders.api.create_topic("orders", 1))
        produce(orders, 0, 12)
        with (
            running(stream(spark, options), checkpoint, rows, availableNow=True) as query,
            pytest.raises(StreamingQueryException, match="the topic orders was deleted and created again"),
        ):
            query.awaitTermination(WAIT_S)
        options["failOnDataLoss"] = "false"
        anew = Rows()
        with running(stream(spark, options), checkpoint, anew, availableNow=True) as query:
            query.awaitTermination(WAIT_S)
        assert anew.all == numbers(0, range(12))


def _stream_pins(platform: RunningStreamHouse) -> int:
    pins: list[Pin] = platform.run(platform.api.stores.metadata.list_pins())
    return Counter(pin.owner for pin in pins)["spark stream"]
