"""From a pipeline's definition to its target. The only place that knows which targets there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from streamhouse.core.errors import ConfigError
from streamhouse.spark.pipelines.catalog import StoredPipeline
from streamhouse.spark.pipelines.spec import PostgresTarget, TableTarget, TopicTarget
from streamhouse.spark.pipelines.target_postgres import PostgresPipelineTarget
from streamhouse.spark.pipelines.target_topic import TopicPipelineTarget
from streamhouse.spark.pipelines.writing import LastFailure
from streamhouse.spark.targets import Target

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PipelineTarget(Target, Protocol):
    @property
    def failure(self) -> LastFailure:
        """What its last batch failed with."""

    def check(self, schema: StructType) -> None:
        """Raises StreamHouseError for rows that the target could not take; changes nothing."""


def open_target(stored: StoredPipeline, address_options: Mapping[str, str], *, run_id: str) -> PipelineTarget:
    """``run_id`` tells this start of the query from every other. Raises StreamHouseError."""
    target = stored.spec.target
    if isinstance(target, TopicTarget):
        return TopicPipelineTarget(target, address_options, pipeline=stored.name, definition_id=stored.definition_id)
    if isinstance(target, PostgresTarget):
        return PostgresPipelineTarget(target, pipeline=stored.name, definition_id=stored.definition_id, run_id=run_id)
    return _table(target, stored, address_options)


def _table(target: TableTarget, stored: StoredPipeline, address_options: Mapping[str, str]) -> PipelineTarget:
    try:
        from streamhouse.spark.tables.target import table_target
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("streamhouse"):
            raise
        raise ConfigError(f"tables need the package {error.name}", hint="install streamhouse[tables]") from error
    return table_target(
        format=target.format,
        path=target.path,
        partition_by=target.partition_by,
        options=target.options,
        owner=stored.name,
        address_options=address_options,
    )
