"""From a pipeline's definition to its target. The only place that knows which targets there are."""

from __future__ import annotations

from collections.abc import Mapping

from streamhouse.core.errors import ConfigError
from streamhouse.spark.definitions.targets import Target
from streamhouse.spark.pipelines.catalog import StoredPipeline
from streamhouse.spark.pipelines.spec import PostgresTarget, TableTarget, TopicTarget
from streamhouse.spark.pipelines.target_postgres import PostgresPipelineTarget
from streamhouse.spark.pipelines.target_topic import TopicPipelineTarget


def open_target(stored: StoredPipeline, address_options: Mapping[str, str], *, run_id: str) -> Target:
    """``run_id`` is unique to one start of the query. Raises StreamHouseError."""
    target = stored.spec.target
    if isinstance(target, TopicTarget):
        return TopicPipelineTarget(target, address_options, pipeline=stored.name, definition_id=stored.definition_id)
    if isinstance(target, PostgresTarget):
        return PostgresPipelineTarget(target, pipeline=stored.name, definition_id=stored.definition_id, run_id=run_id)
    return _table(target, stored, address_options)


def _table(target: TableTarget, stored: StoredPipeline, address_options: Mapping[str, str]) -> Target:
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
        owner=f"pipeline {stored.name}",
        address_options=address_options,
    )
