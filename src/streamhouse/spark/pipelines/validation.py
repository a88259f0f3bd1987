"""Whether a pipeline would run, found out without running it on anything.

Names and types show when the query is built. What an output mode allows shows only when Spark starts the query, so it
is started, on sources that have the right columns and no rows, into a sink that takes everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pyspark.errors import PySparkException

from streamhouse.core.errors import InvalidSetting
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.pipelines.attempt import one_line_of, partition_counts
from streamhouse.spark.pipelines.catalog import StoredPipeline
from streamhouse.spark.pipelines.place import Place
from streamhouse.spark.pipelines.query import build, empty_loader, is_stateful, spark_says
from streamhouse.spark.pipelines.spec import PipelineSpec
from streamhouse.spark.pipelines.target_opening import open_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRIAL_S: Final = 60
_NOBODY: Final = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    columns: tuple[tuple[str, str], ...]
    """Of the rows that reach the target."""
    is_stateful: bool


def validate(spark: SparkSession, spec: PipelineSpec, place: Place) -> Validated:
    """``spark`` is a session of the pipeline's own. Raises StreamHouseError with the first thing that is wrong."""
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
    return StoredPipeline(
        spec=spec,
        generation=0,
        definition_id=_NOBODY,
        version=0,
        wanted=WantedState.STOPPED,
        created_at_ms=0,
        updated_at_ms=0,
        report="",
        report_at_ms=0,
    )
