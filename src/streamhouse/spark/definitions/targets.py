"""What a target must do, and how a micro-batch reaches it.

A target is where a streaming query writes: a table, a database or a topic. It keeps the query's progress together with
its rows: one commit brings the rows of a batch and notes how far into the sources they reach. progress.py decides
whether a batch is written, skipped or refused. So the target is right however often its runner dies, and a query
without state whose checkpoint is lost goes on from ``progress()``.

``batch_by_batch`` hangs a writer below a DataFrame with ``foreachBatch``. The function that Spark calls may run in
another process, on another machine, where StreamHouse is only in an unpacked archive. Spark pickles a function of a
module as its name, which means nothing there. It pickles a function inside of another function with its code. So
``by_value`` makes such functions. They are tiny, and import what does the work when they are called (see shim.py).

Spark tells tasks where a session's archives are unpacked, but not the process in which a Connect server runs
``foreachBatch``. That process asks a task, which runs on the same machine when the server has no cluster behind it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from streamhouse.spark.definitions.checkpoints import batch_of, file_reader
from streamhouse.spark.definitions.progress import Batch, Progress
from streamhouse.spark.shim import ARCHIVE_DIRECTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


class Target(Protocol):
    """Used on the driver. If two runners use one target at a time, the commits find out."""

    @property
    def name(self) -> str:
        """The name that messages use: "delta table s3://lake/orders"."""

    @property
    def failure(self) -> LastFailure:
        """The error of its last batch."""

    def check(self, schema: StructType) -> None:
        """Raises StreamHouseError for rows that the target could not take. Changes nothing."""

    def prepare(self, schema: StructType) -> None:
        """Called before each start: create what is missing, add new columns, remove what a killed runner left. Raises
        StreamHouseError for what would fail later.
        """

    def writer(self, frame: DataFrame, *, checkpoint: str, generation: int) -> DataStreamWriter:
        """Complete except for output mode, name and trigger."""

    def progress(self) -> Progress | None:
        """How far the target's rows reach; None when nothing was ever written."""

    def reset(self) -> None:
        """Forget the progress, so that the next query begins anew. A table also drops its rows."""


class BatchWriter(Protocol):
    """Writes batches into a target. Pickled."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write a batch once, as ``progress.decide`` says. Computes ``rows`` exactly once, also when it skips the batch
        (``compute_only``). Raises StreamHouseError.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The values that a process needs to write a batch."""

    owner: str
    """The name that messages use: "pipeline orders"."""
    generation: int
    checkpoint: str
    writer: BatchWriter


@dataclass(slots=True, kw_only=True)
class LastFailure:
    """The error of the last batch. Spark wraps it in pages of frames and loses its class."""

    error: Exception | None = None


def batch_by_batch(frame: DataFrame, plan: BatchPlan, failure: LastFailure) -> DataStreamWriter:
    """A writer of ``frame`` that is complete except for mode, name and trigger."""
    write = by_value(__name__, "write_batch", pickle.dumps(plan))
    if hasattr(frame, "_jdf"):  # a Connect server gets a pickled copy, and could not note anything here
        write = _noting(write, failure)
    return frame.writeStream.foreachBatch(write).option("checkpointLocation", plan.checkpoint)


def compute_only(rows: DataFrame) -> None:
    """Compute the rows of a skipped batch: Spark keeps the state of a query only if they were computed."""
    rows.write.format("noop").mode("overwrite").save()


def write_batch(payload: bytes, rows: DataFrame, batch_id: int) -> None:
    plan = pickle.loads(payload)
    assert isinstance(plan, BatchPlan)
    read = file_reader(rows.sparkSession)
    batch = batch_of(plan.owner, plan.generation, plan.checkpoint, batch_id, read)
    plan.writer.write(rows, batch)


def _noting(write: Callable[..., Any], failure: LastFailure) -> Callable[..., None]:
    def noted(rows: DataFrame, batch_id: int) -> None:
        try:
            write(rows, batch_id)
        except Exception as error:  # the runner reports it, in one line
            failure.error = error
            raise

    return noted


def by_value(module: str, name: str, payload: bytes) -> Callable[..., Any]:
    """A function that calls ``module.name(payload, …)`` in the process where it runs."""
    directory = ARCHIVE_DIRECTORY

    def find() -> str:
        """The newest ``lib`` of an archive of ours in this process; empty if there is none."""
        import glob
        import os

        from pyspark import SparkFiles

        root = glob.escape(SparkFiles.getRootDirectory())
        for place in (
            root,
            glob.escape(os.getcwd()),
            os.path.join(root, "*"),
            os.path.join(os.path.dirname(root), "*"),
        ):
            found = glob.glob(os.path.join(place, f"{directory}*", "lib"))
            if found:
                return max(found, key=os.path.getmtime)
        return ""

    def ask(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"lib": [find()]})

    def call(*given: Any) -> Any:
        import importlib
        import importlib.util
        import os
        import sys

        if importlib.util.find_spec("streamhouse") is None:
            try:
                lib = find()
            except AssertionError:  # a Connect server's foreachBatch
                lib = given[0].sparkSession.range(1).mapInArrow(ask, "lib STRING").collect()[0].lib
            if not os.path.isdir(lib):
                raise ModuleNotFoundError(
                    "this Python needs StreamHouse: pip install 'streamhouse[spark]' where the Connect server runs"
                )
            sys.path.insert(0, lib)
            importlib.invalidate_caches()
        return getattr(importlib.import_module(module), name)(payload, *given)

    return call
