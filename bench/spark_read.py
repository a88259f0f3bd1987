"""Reading a topic into Spark, beside Spark's own Kafka connector and a native Parquet scan: one run, the same records.

    python bench/spark_read.py [records]

Small records: 8-byte keys, 100-byte values that differ. All columns, noop sink, local[2]. CPU is that of the JVM, all
its Python workers, and the broker's while it serves the connector; StreamHouse's server stands by, and its CPU is
counted too. Warm: the median after the first reads, planning included. The connector reads from Apache Kafka 4.2, once
with its defaults and once with the settings that help it most. Rounds alternate, so that what else the machine does
hits all alike.

Afterwards the server is ended, and the topic read once more: no agent can have served a byte of it. Then a standalone
cluster reads it, with one worker of one core and with two.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame

from report import heading, row
from spark_sink import cpu_s
from streamhouse.spark.sessions import read_topic, session
from streamhouse.testing.services import start_kafka, start_spark
from streamhouse.testing.services.binaries import cache_directory
from streamhouse.testing.services.ports import free_ports

PARTITIONS: Final = 4
WARM_UP: Final = 2
ROUNDS: Final = 5
TOPIC: Final = "small"
CONNECTOR: Final = cache_directory() / "spark-kafka" / "jars"
POOL: Final = os.urandom(1 << 20)


@dataclass(slots=True)
class Contender:
    name: str
    frame: Callable[[], DataFrame]
    server_cpu_s: Callable[[], float]
    """CPU time of the process that serves the bytes."""
    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)

    def rows_per_core_s(self, records: int) -> float:
        return records / statistics.median(self.cpu_s[WARM_UP:])

    def rows_per_s(self, records: int) -> float:
        return records / statistics.median(self.wall_s[WARM_UP:])


class DevServer:
    """`streamhouse dev` in a process of its own."""

    def __init__(self, data_dir: str) -> None:
        (port,) = free_ports(1)
        self.bootstrap = f"127.0.0.1:{port}"
        self._child = subprocess.Popen(
            [str(Path(sys.executable).with_name("streamhouse")), "dev"],
            env={
                **os.environ,
                "STREAMHOUSE_DATA_DIR": data_dir,
                "STREAMHOUSE_KAFKA_LISTEN": self.bootstrap,
                "STREAMHOUSE_ADMIN_LISTEN": "127.0.0.1:0",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def cpu_s(self) -> float:
        return cpu_s(self._child.pid)

    def stop(self) -> None:
        """Idempotent."""
        self._child.terminate()
        self._child.wait(30)

    def __enter__(self) -> DevServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def produce(bootstrap: str, records: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (created,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values()
    created.result(30)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    for number in range(records):
        start = number * 80 % ((1 << 20) - 80)
        value = b"%020d%b" % (number, POOL[start : start + 80])
        while True:
            try:
                producer.produce(TOPIC, value, b"%08d" % (number % 100_000_000), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 5_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        sys.exit(f"{bootstrap} did not take all records")


def compare(contenders: list[Contender], jvm: int, records: int) -> None:
    for _ in range(WARM_UP + ROUNDS):
        for each in contenders:
            before = cpu_s(jvm) + each.server_cpu_s()
            began = time.perf_counter()
            each.frame().write.format("noop").mode("overwrite").save()
            each.wall_s.append(time.perf_counter() - began)
            each.cpu_s.append(cpu_s(jvm) + each.server_cpu_s() - before)


def main(records: int = 4_000_000) -> None:
    if not CONNECTOR.is_dir():
        sys.exit("Spark's Kafka connector is not there: run scripts/setup --spark")
    heading(f"Reading {records:,} small records into Spark: all columns, noop sink, local[2], warm")
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-read-") as directory,
        DevServer(f"{directory}/data") as server,
        start_kafka(heap_mb=1024, quick=False) as kafka,
    ):
        for bootstrap in (server.bootstrap, kafka.bootstrap):
            produce(bootstrap, records)
        jars = ",".join(str(jar) for jar in sorted(CONNECTOR.glob("*.jar")))
        spark = session(
            master="local[2]",
            config={"spark.driver.memory": "3g", "spark.local.dir": directory, "spark.jars": jars},
            dataDir=f"{directory}/data",
        )
        gateway: Any = spark.sparkContext._gateway
        reader = (
            spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", TOPIC)
        )
        tuned = {"kafka.max.poll.records": "50000", "kafka.fetch.min.bytes": "1048576", "minPartitions": "8"}
        parquet = f"{directory}/parquet"
        read_topic(spark, TOPIC).write.parquet(parquet)
        ours = Contender("StreamHouse", lambda: read_topic(spark, TOPIC), server.cpu_s)
        plain = spark.read.format("kafka").options(subscribe=TOPIC, **{"kafka.bootstrap.servers": kafka.bootstrap})
        default = Contender("Kafka connector, its defaults", lambda: plain.load(), lambda: cpu_s(kafka.pid))
        best = Contender("Kafka connector, tuned", lambda: reader.options(**tuned).load(), lambda: cpu_s(kafka.pid))
        native = Contender("Parquet, Spark's native scan", lambda: spark.read.parquet(parquet), lambda: 0.0)
        compare([ours, default, best, native], gateway.proc.pid, records)
        tell(ours, default, best, native, records)
        server.stop()
        found = read_topic(spark, TOPIC).count()
        if found != records:
            sys.exit(f"{found} rows were read without a server, not {records}")
        row("served by agents", "0 bytes", target="0", ratio=f"all {found:,} rows were read again with none running")
        spark.stop()
        one_s, two_s = (on_cluster(workers, f"{directory}/data", directory) for workers in (1, 2))
        row(
            "a cluster of two workers over one, a core each",
            f"{one_s / two_s:.2f} ×",
            target="≥ 1.6 ×, two cores free",
            ratio=f"{records / one_s / 1e6:.2f} M/s and {records / two_s / 1e6:.2f} M/s wall",
        )


def on_cluster(workers: int, data_dir: str, scratch: str) -> float:
    """Seconds of a warm read of the topic by a standalone cluster."""
    config = {"spark.executor.memory": "1g", "spark.executor.cores": "1", "spark.local.dir": scratch}
    with start_spark(workers=workers, memory="1g") as cluster:
        spark = session(master=cluster.master_url, config=config, dataDir=data_dir)
        wall_s: list[float] = []
        for _ in range(WARM_UP + ROUNDS):
            began = time.perf_counter()
            read_topic(spark, TOPIC).write.format("noop").mode("overwrite").save()
            wall_s.append(time.perf_counter() - began)
        spark.stop()
    return statistics.median(wall_s[WARM_UP:])


def tell(ours: Contender, default: Contender, best: Contender, native: Contender, records: int) -> None:
    rate = ours.rows_per_core_s(records)
    targets = {ours.name: "≥ 1.5 M", default.name: "ours ≥ 5 ×", best.name: "ours ≥ 3 ×", native.name: "ours ≥ 1/2 ×"}
    for each in (ours, default, best, native):
        theirs = each.rows_per_core_s(records)
        row(
            each.name,
            f"{theirs / 1e6:.2f} M records/s/core",
            target=targets[each.name],
            ratio=f"ours {rate / theirs:.2f} ×; {each.rows_per_s(records) / 1e6:.2f} M/s wall",
        )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
