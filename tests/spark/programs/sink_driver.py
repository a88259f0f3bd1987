"""A driver that streams files into a topic and is killed, or has an executor killed, at chosen steps; once each.

sink_driver.py '{"master": …, "config": {…}, "options": {…}, "checkpoint": …, "input": …, "tasks": 3,
                 "kills": [{"at": "before commit" | "after commit" | "in a task", "batch": 1, "marker": …}]}'

"after commit" is between the sink's commit and Spark's own. The marker is left where the deed was done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from streamhouse.spark import session
from streamhouse.spark.shim import make_source

BATCH_ID = "streaming.sql.batchId"


class DeadlyWriter(DataSourceStreamArrowWriter):
    """Wraps the real writer. It belongs to this program, so that it is pickled whole."""

    def __init__(self, inner: Any, kills: list[dict[str, Any]], driver: list[int]) -> None:
        self._inner = inner
        self._kills = kills
        self._driver = driver

    def write(self, iterator: Iterator[Any]) -> Any:
        task = TaskContext.get()
        assert task is not None
        return self._inner.write(self._rows(iterator, int(task.getLocalProperty(BATCH_ID) or -1)))

    def _rows(self, iterator: Iterator[Any], batch_id: int) -> Iterator[Any]:
        for batch in iterator:
            yield batch
            self._reached("in a task", batch_id)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 -- Spark's name
        self._reached("before commit", batchId)
        self._inner.commit(messages, batchId)
        self._reached("after commit", batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 -- Spark's name
        self._inner.abort(messages, batchId)

    def _reached(self, step: str, batch_id: int) -> None:
        for kill in self._kills:
            if (kill["at"], kill["batch"]) == (step, batch_id) and is_first(kill["marker"]):
                for victim in [grandparent()] if step == "in a task" else self._driver:
                    os.kill(victim, signal.SIGKILL)
                signal.pause()


def is_first(marker: str) -> bool:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def grandparent() -> int:
    """Return the grandparent of a Python worker: its daemon's parent is the executor's JVM."""
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


def main(plan: dict[str, Any]) -> None:
    spark = session(master=plan["master"], fast_start=True, config=plan["config"])
    if plan["kills"]:
        gateway: Any = spark.sparkContext._gateway
        driver = [gateway.proc.pid, os.getpid()]
        usual: Any = make_source()

        class Deadly(usual):  # type: ignore[misc]
            def streamWriter(self, schema: Any, overwrite: bool) -> DeadlyWriter:  # noqa: N802 -- Spark's name
                return DeadlyWriter(usual.streamWriter(self, schema, overwrite), plan["kills"], driver)

        spark.dataSource.register(Deadly)
    query = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(plan["input"])
        .repartition(plan["tasks"])
        .writeStream.format("streamhouse")
        .options(**plan["options"])
        .option("checkpointLocation", plan["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
