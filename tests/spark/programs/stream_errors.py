"""Starts two streaming queries that fail with an error of ours, and one that fails with another error.

    python stream_errors.py DATA_DIR

The topic `orders` in DATA_DIR has a record whose object is damaged. Prints which query runs, to stderr, where the JVM
logs.
"""

from __future__ import annotations

import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from streamhouse.spark import read_topic, session


def fails(what: str, frame: DataFrame) -> None:
    sys.stderr.write(f"## {what}\n")
    sys.stderr.flush()
    try:
        frame.writeStream.format("noop").start().awaitTermination()
    except StreamingQueryException:
        return
    raise AssertionError(f"{what}: the query did not fail")


def main() -> None:
    spark = session(master="local[1]", fast_start=True, dataDir=sys.argv[1])
    fails("planning", read_topic(spark, "oders", streaming=True))
    fails("task", read_topic(spark, "orders", streaming=True, startingOffsets="earliest"))
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    fails("other", rows.select(fn.raise_error(fn.lit("not ours"))))
    sys.stderr.write("## end\n")
    spark.stop()


main()
