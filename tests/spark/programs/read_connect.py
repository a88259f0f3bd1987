"""A client of a Connect server: reads a topic as a batch and as a stream, says what came.

read_connect.py '{"remote": …, "options": {…}, "checkpoint": …}'      prints one JSON document
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql.functions import count, sum

from streamhouse.spark import read_topic, session


def main(plan: dict[str, Any]) -> None:
    spark = session(remote=plan["remote"], **plan["options"])
    totals = read_topic(spark, "orders").groupBy("partition").agg(count("*").alias("rows"), sum("offset").alias("sum"))
    batch = {str(row.partition): [row.rows, row["sum"]] for row in totals.collect()}
    stream = read_topic(spark, "orders", streaming=True, startingOffsets="earliest")
    query = (
        stream.select("partition", "offset")
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", plan["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seen = spark.sql("SELECT partition, count(*) AS rows, sum(offset) AS sum FROM seen GROUP BY partition").collect()
    answer = {"batch": batch, "streamed": {str(row.partition): [row.rows, row["sum"]] for row in seen}}
    spark.stop()
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
