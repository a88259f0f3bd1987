"""All of Spark's benchmarks in one run: reading, writing, start, freshness. `make bench-spark`."""

from __future__ import annotations

import os
import platform

import pyspark

import spark_latency
import spark_read
import spark_sink


def main() -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    print(f"Python {platform.python_version()}, Spark {pyspark.__version__} on {machine}")
    spark_read.main()
    spark_sink.main()
    spark_latency.main()


if __name__ == "__main__":
    main()
