"""How it feels: a session's start, and how soon a record of a Kafka client is in a Spark micro-batch.

    python bench/spark_latency.py [records]

The session is timed from the first import in a fresh interpreter, with the cache of Java classes there (the first two
starts make it). The record is produced through the Kafka port of `streamhouse dev` on its embedded defaults, one at a
time, at uneven intervals; it carries its time, which is compared with the clock inside of ``foreachBatch``.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame

from report import heading, row
from spark_read import DevServer
from streamhouse.spark.sessions import read_topic, session

STARTS: Final = 5
TOPIC: Final = "ticks"
START: Final = """
import time; began = time.perf_counter()
from streamhouse.spark import session
spark = session(master="local[2]", fast_start={fast})
print(time.perf_counter() - began)
spark.range(10).count()
print(time.perf_counter() - began)
spark.stop()
"""


def starts(*, fast: bool) -> tuple[float, float]:
    """Medians, in seconds: until the session is there, until its first job is done."""
    ready: list[float] = []
    first: list[float] = []
    for _ in range(STARTS):
        ran = subprocess.run(
            [sys.executable, "-c", START.format(fast=fast)], capture_output=True, text=True, check=True, timeout=300
        )
        one, two = map(float, ran.stdout.split()[-2:])
        ready.append(one)
        first.append(two)
        time.sleep(3)  # Java may still be writing its cache
    return statistics.median(ready[2:]), statistics.median(first[2:])


def delays(records: int) -> list[float]:
    """Seconds between a record's making and its arrival in a batch."""
    seen: list[float] = []
    arrived = threading.Condition()

    def take(frame: DataFrame, _: int) -> None:
        rows = frame.select("value").collect()
        now = time.time()
        with arrived:
            seen.extend(now - float(found.value) for found in rows)
            arrived.notify_all()

    with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory, DevServer(f"{directory}/data") as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        (created,) = admin.create_topics([NewTopic(TOPIC, 4)]).values()
        created.result(30)
        spark = session(master="local[2]", dataDir=f"{directory}/data")
        query = (
            read_topic(spark, TOPIC, streaming=True, startingOffsets="earliest")
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", f"{directory}/checkpoint")
            .start()
        )
        producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap, "acks": "all"})
        for number in range(records):
            producer.produce(TOPIC, f"{time.time():.6f}".encode())
            producer.flush(30)
            with arrived:
                arrived.wait_for(lambda wanted=number: len(seen) > wanted, 60)  # type: ignore[misc]
            time.sleep(random.uniform(0.1, 1.0))
        query.stop()
        spark.stop()
    return seen[records // 4 :]


def main(records: int = 40) -> None:
    heading("Spark: start and freshness")
    ready_s, first_s = starts(fast=False)
    row("session ready, warm", f"{ready_s:.1f} s", target="≤ 4 s", ratio=f"first job done after {first_s:.1f} s")
    ready_s, first_s = starts(fast=True)
    row("session ready, warm, fast_start", f"{ready_s:.1f} s", ratio=f"first job done after {first_s:.1f} s")
    found = sorted(delays(records))
    middle, slow = statistics.median(found), found[int(len(found) * 0.95)]
    row("Kafka client → Spark micro-batch, p50", f"{middle * 1000:.0f} ms")
    row("… p95", f"{slow * 1000:.0f} ms", ratio=f"of {len(found)} records")
    row("… the slowest", f"{found[-1] * 1000:.0f} ms", target="≤ 2 s")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
