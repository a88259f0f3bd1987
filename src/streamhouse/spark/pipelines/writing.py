"""What happens to each micro-batch: which one is it, and does it count. Runs where Spark runs ``foreachBatch``."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from streamhouse.spark.pipelines.by_value import by_value
from streamhouse.spark.pipelines.checkpoints import batch_of, file_reader
from streamhouse.spark.pipelines.progress import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Writer(Protocol):
    """Takes batches into a target. Pickled."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Each batch once, by ``progress.decide``. ``rows`` is computed exactly once, also when nothing is written: by
        ``compute_only``. Raises StreamHouseError.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """All that a batch needs to know, in whatever process it is written."""

    pipeline: str
    generation: int
    checkpoint: str
    writer: Writer


@dataclass(slots=True, kw_only=True)
class LastFailure:
    """What a batch failed with. Spark itself wraps it in pages of frames, and loses its class."""

    error: Exception | None = None


def batch_by_batch(frame: DataFrame, plan: BatchPlan, failure: LastFailure) -> DataStreamWriter:
    """``frame``, written by ``plan``; ready but for mode, name and trigger."""
    write = by_value(__name__, "write_batch", pickle.dumps(plan))
    if hasattr(frame, "_jdf"):  # else it is pickled and runs in a Connect server, where nobody sees what is noted here
        write = _noting(write, failure)
    return frame.writeStream.foreachBatch(write).option("checkpointLocation", plan.checkpoint)


def compute_only(rows: DataFrame) -> None:
    """What a batch that is skipped still owes: Spark keeps the state of a query only where its rows were computed."""
    rows.write.format("noop").mode("overwrite").save()


def write_batch(payload: bytes, rows: DataFrame, batch_id: int) -> None:
    plan = pickle.loads(payload)
    assert isinstance(plan, BatchPlan)
    read = file_reader(rows.sparkSession)
    batch = batch_of(plan.pipeline, plan.generation, plan.checkpoint, batch_id, read)
    plan.writer.write(rows, batch)


def _noting(write: Callable[..., Any], failure: LastFailure) -> Callable[..., None]:
    def noted(rows: DataFrame, batch_id: int) -> None:
        try:
            write(rows, batch_id)
        except Exception as error:  # told by the runner, in one line
            failure.error = error
            raise

    return noted
