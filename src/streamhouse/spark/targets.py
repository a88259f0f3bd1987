"""What a streaming query may end in, as its runner sees it: a table, a database, a topic.

A target keeps the query's progress together with its rows: in the very commit that brings a batch, it notes up to where
in the sources the batch reads. A batch is written if it begins where the target stands, skipped if it is the one
written last, refused otherwise (pipelines/progress.py decides). So a target is right whatever becomes of its runner;
and a query without state whose checkpoint is lost goes on from ``progress()``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streamhouse.spark.pipelines.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


class Target(Protocol):
    """Used on the driver, by one runner at a time; whether it really is one alone is for the commits to find out."""

    @property
    def name(self) -> str:
        """For people: "delta table s3://lake/orders"."""

    def prepare(self, schema: StructType) -> None:
        """Before the query starts, each time: make what is not there, add columns that are new, clear away what a
        killed runner left. Raises StreamHouseError for whatever can be known to fail.
        """

    def writer(self, frame: DataFrame, *, checkpoint: str, generation: int) -> DataStreamWriter:
        """Ready but for name and trigger: ``target.writer(…).queryName(…).trigger(…).start()``."""

    def progress(self) -> Progress | None:
        """Where the target stands; None when nothing was ever written to it."""

    def reset(self) -> None:
        """Forget the rows and the progress: what follows begins anew."""
