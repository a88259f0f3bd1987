"""Writing a DataFrame to a topic: rows a second and core, from Spark's memory into the log of a platform beside it.

The rows lie cached in Spark (100-byte values, 8-byte keys, lz4), so that what is measured is the sink: rows out of the
JVM as Arrow, partitioning, encoding, upload, commit, adoption. CPU is that of the JVM, all its Python workers, and the
platform in this process (it verifies and adopts). Warm: the median after the first writes.

    python bench/spark_sink.py [rows]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from report import heading, row
from streamhouse.app.platform import StreamHouse
from streamhouse.spark.sessions import session

PARTITIONS = 8
WARM_UP = 2
WRITES = 5
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(root: int) -> float:
    """The CPU time of a process and its descendants, ended children included."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = sum(map(int, fields[11:15])) / CLOCK_TICKS
    total = 0.0
    for pid, own_s in spent.items():
        above: int | None = pid
        while above is not None and above != root:
            above = parents.get(above)
        total += own_s if above == root else 0.0
    return total


class Platform:
    """A platform on an event loop in a thread of this process, as an embedded one runs."""

    def __init__(self, directory: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._opened = StreamHouse.open(data_dir=directory)
        self.api = self.run(self._opened.__aenter__())

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(120)

    def close(self) -> None:
        self.run(self._opened.__aexit__(None, None, None))


def main(rows: int = 4_000_000) -> None:
    heading("Spark sink: a cached DataFrame into a topic of 8 partitions, local[2]")
    with tempfile.TemporaryDirectory(prefix="bench-spark-sink-") as directory:
        platform = Platform(f"{directory}/data")
        platform.run(platform.api.create_topic("out", PARTITIONS))
        spark = session(master="local[2]", config={"spark.driver.memory": "3g", "spark.local.dir": directory})
        frame = spark.range(0, rows, 1, 4).selectExpr(
            "CAST(lpad(id % 100000, 8, '0') AS BINARY) AS key",
            "CAST(concat(repeat('x', 80), lpad(id, 20, '0')) AS BINARY) AS value",
        )
        frame = frame.persist()
        frame.count()
        wall_s: list[float] = []
        spent_s: list[float] = []
        platform_s: list[float] = []
        for _ in range(WARM_UP + WRITES):
            began_s, cpu_before_s, here_before_s = time.perf_counter(), cpu_s(os.getpid()), time.process_time()
            writer = frame.write.format("streamhouse").option("dataDir", f"{directory}/data").option("topic", "out")
            writer.mode("append").save()
            wall_s.append(time.perf_counter() - began_s)
            spent_s.append(cpu_s(os.getpid()) - cpu_before_s)
            platform_s.append(time.process_time() - here_before_s)
        middle_s, wall, here_s = (statistics.median(each[WARM_UP:]) for each in (spent_s, wall_s, platform_s))
        row(
            "write, warm",
            f"{rows / middle_s / 1e6:.2f} M rows/s/core",
            target="≥ 0.8 M",
            ratio=f"{rows / wall / 1e6:.2f} M/s wall; first write {rows / wall_s[0] / 1e6:.2f}; the platform's part"
            f" {here_s:.2f} s of {middle_s:.2f} s",
        )
        spark.stop()
        platform.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
