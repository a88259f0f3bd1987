"""A driver of a standalone cluster: reads a topic as a batch and as a stream, says what came and who read it.

read_cluster.py '{"master": …, "config": {…}, "options": {…}, "checkpoint": …}'      prints one JSON document
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, count, sum, xxhash64

from streamhouse.spark import read_topic, session


def summary(frame: DataFrame) -> dict[str, Any]:
    rows = frame.groupBy("partition").agg(
        count("*").alias("rows"), sum("offset").alias("offsets"), sum(xxhash64("value") % 1000).alias("values")
    )
    return {str(row.partition): [row.rows, row.offsets, row["values"]] for row in rows.collect()}


def readers(frame: DataFrame) -> list[dict[str, Any]]:
    """Which processes ran tasks, and where StreamHouse is for them; empty in one that has read nothing so far."""

    def where(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib.util
        import os
        import sys

        import pyarrow as pa

        for _ in batches:
            pass
        loaded = sys.modules.get("streamhouse")
        found = loaded.__spec__ if loaded is not None else importlib.util.find_spec("streamhouse")
        yield pa.RecordBatch.from_pydict({"pid": [os.getppid()], "home": [str(found.origin) if found else ""]})

    return [row.asDict() for row in frame.mapInArrow(where, "pid LONG, home STRING").collect()]


def main(plan: dict[str, Any]) -> None:
    spark = session(master=plan["master"], fast_start=True, config=plan["config"])
    options = plan["options"]
    batch = read_topic(spark, "orders", **options)
    streamed: dict[int, Any] = {}
    stream = read_topic(spark, "orders", streaming=True, startingOffsets="earliest", **options)
    query = (
        stream.writeStream.foreachBatch(lambda frame, number: streamed.__setitem__(number, summary(frame)))
        .option("checkpointLocation", plan["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    frame = read_topic(spark, "orders", minPartitions=4, **options)
    answer = {
        "batch": summary(batch),
        "streamed": streamed[0],
        "splits": frame.rdd.getNumPartitions() if plan["master"].startswith("spark") else None,
        "readers": readers(frame.select(col("value"))),
    }
    spark.stop()
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
