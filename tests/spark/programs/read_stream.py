"""A driver that is meant to be killed: streams a topic, and notes of each batch which offsets it held.

    read_stream.py '{"master": …, "config": {…}, "options": {…}, "value": …, "checkpoint": …, "notes": …}'

The value is what each row must hold, as SQL; how many hold something else is in the note.

A note is a file named for its batch. A batch that comes again must hold the same: else the program ends with 3. It ends
with 0 once a file "stop" lies among the notes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import count, expr, max, min, sum

from streamhouse.spark import read_topic, session


def main(plan: dict[str, Any]) -> None:
    notes = Path(plan["notes"])
    spark = session(master=plan["master"], fast_start=True, config=plan["config"])

    def note(frame: DataFrame, batch: int) -> None:
        offsets = frame.groupBy("partition").agg(
            min("offset").alias("first"),
            max("offset").alias("last"),
            count("*").alias("rows"),
            sum("offset").alias("sum"),
            expr(f"count_if(NOT (CAST(value AS STRING) <=> {plan['value']}))").alias("wrong"),
        )
        held = sorted(
            [row.partition, row.first, row.last, row.rows, row["sum"], row.wrong] for row in offsets.collect()
        )
        file = notes / f"{batch}.json"
        if file.exists() and json.loads(file.read_text()) != held:
            sys.stderr.write(f"batch {batch} held {file.read_text()} first, and now {held}\n")
            os._exit(3)
        new = file.with_suffix(".new")
        new.write_text(json.dumps(held))
        new.rename(file)

    query = (
        read_topic(spark, "orders", streaming=True, columns=["value", "partition", "offset"], **plan["options"])
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", plan["checkpoint"])
        .start()
    )
    while not (notes / "stop").exists():
        if query.exception() is not None:
            sys.stderr.write(str(query.exception()))
            os._exit(4)
        time.sleep(0.1)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
