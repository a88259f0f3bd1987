"""A client of a Connect server: writes streams into topics, in append and in update mode; says what became of each.

write_connect.py '{"remote": …, "options": {…}, "checkpoints": …}'      prints one JSON document
"""

from __future__ import annotations

import json
import sys
from typing import Any

from streamhouse.spark import read_topic, session, write_stream


def main(plan: dict[str, Any]) -> None:
    spark = session(remote=plan["remote"], **plan["options"])
    orders = read_topic(spark, "orders", streaming=True, text=True, startingOffsets="earliest")
    counts = (
        orders.groupBy("partition")
        .count()
        .selectExpr("CAST(partition AS STRING) AS key", "CAST(count AS STRING) AS value")
    )
    answer = {}
    for mode, frame in (("append", orders.select("key", "value")), ("update", counts)):
        try:
            checkpoint = f"{plan['checkpoints']}/{mode}"
            query = write_stream(frame, f"out-{mode}", checkpoint=checkpoint, mode=mode, trigger={"availableNow": True})
            query.awaitTermination()
            answer[mode] = "ok"
        except Exception as error:
            answer[mode] = str(error)[-2_000:]
    spark.stop()
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
