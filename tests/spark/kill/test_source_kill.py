"""Streams whose driver is killed, again and again, from their very first batch on; and a long topic under failovers.

SPARK_KILLS says how often the driver dies; SPARK_RECORDS how long the topic is when it is read (ten million if not
said). Every record says where it must lie, so reads are judged offset by offset: none missing, none twice, none wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from cluster_ground import PROGRAMS
from pyspark.sql import SparkSession, functions
from source_ground import fill

from streamhouse.spark import read_topic
from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.testing.services import S3Service

# The fleet with its Kafka port is that of the end-to-end tests.
sys.path.insert(0, str(Path(__file__).parents[2] / "e2e"))

from e2e_fleet import fleet_stage
from e2e_kafka_stage import KafkaStage
from e2e_processes import eventually

PARTITIONS = 4
KILLS = int(os.environ.get("SPARK_KILLS", "1"))
RECORDS = int(os.environ.get("SPARK_RECORDS", "10000000"))
SEED = int(os.environ.get("SEED", "1"))
WAIT_S = 300
SAMPLE = "IF(offset % 11 = 0, NULL, concat('value-', offset))"
"""The value at an offset, as SQL: of ``fill``, from 0 on in each partition."""
NUMBERED = f"lpad(CAST(offset * {PARTITIONS} + partition AS STRING), 100, '0')"
"""Likewise of ``Producer``."""
CONFIG = {
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "100000",  # where the query began is in its first offsets
}


class Driver:
    """read_stream.py, started as often as need be; all its lives write to one log."""

    def __init__(self, directory: Path, options: dict[str, str], *, value: str) -> None:
        """``value``: what each row must hold, as SQL."""
        self.checkpoint = directory / "checkpoint"
        self.notes = directory / "notes"
        self.notes.mkdir()
        self.log = directory / "driver.log"
        self._plan = {
            "master": "local[2]",
            "config": CONFIG,
            "options": options,
            "value": value,
            "checkpoint": str(self.checkpoint),
            "notes": str(self.notes),
        }
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "read_stream.py"), json.dumps(self._plan)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The driver, its JVM and its Python workers, all at once."""
        assert self._child is not None
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def stop(self) -> int:
        assert self._child is not None
        (self.notes / "stop").touch()
        return self._child.wait(WAIT_S)

    def check_alive(self) -> None:
        assert self._child is not None
        assert self._child.poll() is None, f"the driver ended: {self.log.read_text()[-3000:]}"

    def planned(self) -> int:
        """How many batches were begun."""
        offsets = self.checkpoint / "offsets"
        return len(list(offsets.glob("[0-9]*"))) if offsets.exists() else 0

    def wait(self, what: str, done: Callable[[], bool], *, every_s: float = 0.01) -> None:
        deadline = time.monotonic() + WAIT_S
        while not done():
            self.check_alive()
            assert time.monotonic() < deadline, f"after {WAIT_S} s still not: {what}; {self.log.read_text()[-3000:]}"
            time.sleep(every_s)

    def ends(self) -> dict[int, int]:
        """Up to where each partition was read, by the batches noted; each begins where the one before it ended."""
        first = json.loads((self.checkpoint / "offsets" / "0").read_text().splitlines()[-1])
        at = {int(partition): offset for partition, offset in first["$from"]["orders"].items()}
        for batch in range(len(list(self.notes.glob("*.json")))):
            for partition, low, high, rows, total, wrong in json.loads((self.notes / f"{batch}.json").read_text()):
                assert low == at[partition], f"batch {batch} begins {partition} at {low}, not at {at[partition]}"
                assert rows == high - low + 1
                assert wrong == 0, f"{wrong} rows of batch {batch} are not what was written there"
                assert total == (low + high) * rows // 2
                at[partition] = high + 1
        return at


@contextmanager
def writing(platform: RunningStreamHouse) -> Iterator[list[int]]:
    """Records into both partitions without a pause; gives how many each has."""
    written, ended = [0, 0], threading.Event()

    def write() -> None:
        while not ended.is_set():
            for partition in (0, 1):
                platform.run(
                    fill(platform.api, "orders", partition, 5, per_batch=5, first=written[partition], flush=False)
                )
                written[partition] += 5
            ended.wait(0.02)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        ended.set()
        thread.join()


@pytest.mark.timeout(3600)
def test_a_stream_of_latest_that_is_killed_from_batch_0_on_misses_and_repeats_nothing(
    streamhouse: RunningStreamHouse, source_options: dict[str, str], tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    streamhouse.run(streamhouse.api.create_topic("orders", 2))
    driver = Driver(tmp_path, source_options, value=SAMPLE)
    with writing(streamhouse) as written:
        for number in range(KILLS):
            begun = driver.planned()
            driver.start()
            # The first dies as soon as batch 0 is planned, the others somewhere in a batch after the first they repeat.
            driver.wait("a batch is planned", lambda before=begun: driver.planned() > before)
            if number:
                time.sleep(rng.uniform(0, 2))
                driver.check_alive()
            driver.kill()
        driver.start()
        driver.wait("it is past what was repeated", lambda: driver.planned() > begun + 2)
    streamhouse.run(streamhouse.api.flush())
    driver.wait("everything was read", lambda: driver.ends() == {0: written[0], 1: written[1]})
    assert driver.stop() == 0


class Producer(threading.Thread):
    """One idempotent producer of librdkafka's: the first ``count`` records as fast as it can, then steadily more."""

    def __init__(self, bootstrap: str, count: int) -> None:
        super().__init__()
        self.count = count
        self.acknowledged = [0] * PARTITIONS
        self.refused: list[str] = []
        self._ended = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "message.timeout.ms": WAIT_S * 1000,
                "queue.buffering.max.messages": 200_000,
                "log_level": 2,
            }
        )

    def run(self) -> None:
        number = 0
        while not self._ended.is_set():
            try:
                self._producer.produce(
                    "orders", b"%0100d" % number, partition=number % PARTITIONS, on_delivery=self._heard
                )
            except BufferError:
                self._producer.poll(0.05)
                continue
            number += 1
            if number % 1000 == 0:
                self._producer.poll(0)
                if number > self.count:
                    self._ended.wait(0.05)
        self._producer.flush(WAIT_S)

    def end(self) -> dict[int, int]:
        """How many records each partition has, all of them acknowledged."""
        self._ended.set()
        self.join()
        assert self.refused == []
        return dict(enumerate(self.acknowledged))

    def _heard(self, error: object, message: Any) -> None:
        if error is not None:
            self.refused.append(str(error))
        else:
            self.acknowledged[message.partition()] += 1


def dense(rows: list[Any]) -> dict[int, int]:
    """Up to where each partition was read, given that every offset from 0 on came exactly once, with its record."""
    ends = {}
    for row in rows:
        assert (row.first, row.rows) == (0, row.last + 1), f"offsets {row.first} to {row.last} in {row.rows} rows"
        assert row.distinct == row.rows
        assert row.wrong == 0, f"{row.wrong} rows of partition {row.partition} are not what was written there"
        ends[row.partition] = row.last + 1
    return ends


def read_batch(spark: SparkSession, options: dict[str, str]) -> dict[int, int]:
    frame = read_topic(spark, "orders", columns=["value", "partition", "offset"], **options)
    return dense(
        frame.groupBy("partition")
        .agg(
            functions.min("offset").alias("first"),
            functions.max("offset").alias("last"),
            functions.count("*").alias("rows"),
            functions.count_distinct("offset").alias("distinct"),
            functions.expr(f"count_if(NOT (CAST(value AS STRING) <=> {NUMBERED}))").alias("wrong"),
        )
        .collect()
    )


def has_running_tasks(spark: SparkSession) -> bool:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)


@pytest.mark.timeout(7200)
async def test_a_long_topic_under_writes_and_failovers_is_read_by_batch_and_by_stream_without_gap_or_repeat(
    tmp_path: Path, postgres_database: str, s3_service: S3Service, spark: SparkSession
) -> None:
    """The stream goes on all the time. One leader dies half-way, the other in the middle of the batch read."""
    async with fleet_stage(tmp_path, postgres_database, s3_service, {"profile": "fast"}) as stage:
        kafka = KafkaStage(stage)
        team = {name: kafka.command(name, "agent") for name in ("agent-1", "agent-2")}
        for agent in team.values():
            agent.start()
        for agent in team.values():
            await agent.ready()
        await kafka.create_topic(PARTITIONS)
        await kafka.led_by(*team)
        options = spark_options(stage.settings)
        producer = Producer(kafka.bootstrap, RECORDS)
        producer.start()
        driver = Driver(tmp_path, {**options, "startingOffsets": "earliest"}, value=NUMBERED)
        driver.start()

        async def acknowledged(count: int) -> None:
            await eventually(
                f"{count} are acknowledged", lambda: sum(producer.acknowledged) >= count, timeout_s=WAIT_S * 4
            )

        async def kill_a_leader() -> str:
            victim = (await kafka.spread()).most_common(1)[0][0]
            await team[victim].kill()
            return victim

        await acknowledged(RECORDS // 2)
        first = await kill_a_leader()
        await kafka.led_by(*(team.keys() - {first}))
        team[first].start()
        await team[first].ready()
        await acknowledged(RECORDS)
        known = list(producer.acknowledged)
        reading = asyncio.create_task(asyncio.to_thread(read_batch, spark, options))
        await eventually("the read's tasks run", lambda: has_running_tasks(spark), every_s=0.02)
        await kill_a_leader()
        assert not reading.done()
        found = await reading
        assert sum(found.values()) >= RECORDS
        assert all(found[number] >= known[number] for number in range(PARTITIONS)), f"{known} known, {found} read"
        written = sum(producer.acknowledged)
        await acknowledged(written + 1_000)  # the other agent has taken over

        everything = await asyncio.to_thread(producer.end)
        assert await asyncio.to_thread(read_batch, spark, options) == everything
        await asyncio.to_thread(
            driver.wait, "the stream has read everything", lambda: driver.ends() == everything, every_s=0.5
        )
        assert await asyncio.to_thread(driver.stop) == 0


def spark_options(settings: Mapping[str, str]) -> dict[str, str]:
    """A fleet's settings as the source's options."""
    wanted = ("metadata.url", "store.")
    return {name: value for name, value in settings.items() if name.startswith(wanted)}
