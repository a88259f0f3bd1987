"""Checks a pipeline without reading or writing a row.

Wrong names and types show when the query is built. Whether the output mode fits shows only when Spark starts the query.
So the query is started on sources with the right columns and no rows, into a sink that discards everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pyspark.errors import PySparkException

from streamhouse.core.errors import InvalidSetting
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.definitions.attempt import one_line_of, spark_says
from streamhouse.spark.definitions.catalog import Stored
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.pipelines.parsing import StoredPipeline
from streamhouse.spark.pipelines.query import build, empty_loader, is_stateful
from streamhouse.spark.pipelines.spec import PipelineSpec
from streamhouse.spark.pipelines.start import open_target, partition_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRIAL_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    columns: tuple[tuple[str, str], ...]
    """The columns of the rows that reach the target."""
    is_stateful: bool


def validate(spark: SparkSession, spec: PipelineSpec, place: Place) -> Validated:
    """``spark`` is a session for this pipeline alone. Raises StreamHouseError with the first problem."""
    partition_counts(spec, place)
    frame = build(spark, spec, empty_loader(spark))
    _try(frame, spec)
    open_target(_undefined(spec), place.address_options, run_id="validate").check(frame.schema)
    columns = tuple((field.name, field.dataType.simpleString()) for field in frame.schema.fields)
    return Validated(columns=columns, is_stateful=is_stateful(frame))


def _try(frame: DataFrame, spec: PipelineSpec) -> None:
    try:
        writer = frame.writeStream.format("noop").outputMode(spec.output_mode.value)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(_TRIAL_S)
            error = query.exception()
        finally:
            query.stop()
    except PySparkException as refused:
        raise InvalidSetting(f"sql: {spark_says(refused)}") from refused
    if error is not None:
        raise InvalidSetting(f"sql: {one_line_of(str(error))}")


def _undefined(spec: PipelineSpec) -> StoredPipeline:
    return Stored(
        spec=spec,
        generation=0,
        definition_id=UUID(int=0),
        version=0,
        wanted=WantedState.STOPPED,
    )
