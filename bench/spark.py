"""All of Spark's benchmarks in one run: reading, writing, freshness. `make bench-spark`."""

from __future__ import annotations

import platform

import spark_latency
import spark_read
import spark_sink


def main() -> None:
    print(f"Python {platform.python_version()} on {platform.machine()}")
    spark_read.main()
    spark_sink.main()
    spark_latency.main()


if __name__ == "__main__":
    main()
