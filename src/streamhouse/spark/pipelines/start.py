"""Starts the query of a pipeline. Where it begins:

no checkpoint, no progress        where the sources say
no checkpoint, progress, no state where the target stands: nothing else was in the checkpoint
no checkpoint, progress, state    refused: the state is lost, and offsets alone do not bring it back
checkpoint                        Spark goes on; the target checks every batch

A checkpoint counts only if its query has written the target's last rows. Another one exists, for example, when the SQL
was changed and changed back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamhouse.core.errors import CheckpointLost, InvalidSetting
from streamhouse.spark.connection import connect
from streamhouse.spark.definitions.attempt import Attempt, launch
from streamhouse.spark.definitions.checkpoints import (
    checkpoint_directory,
    file_reader,
    id_in_path,
    is_of,
    query_id,
    remove_one,
)
from streamhouse.spark.definitions.progress import Progress, SourcePosition, starts_by_topic
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.definitions.targets import Target
from streamhouse.spark.pipelines.parsing import PIPELINES, StoredPipeline
from streamhouse.spark.pipelines.query import build, is_stateful, topic_loader
from streamhouse.spark.pipelines.spec import PipelineSpec, PostgresTarget, TableTarget, TopicTarget
from streamhouse.spark.pipelines.target_postgres import PostgresPipelineTarget
from streamhouse.spark.pipelines.target_topic import TopicPipelineTarget
from streamhouse.spark.tables.target import table_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def checkpoint_path(root: str, stored: StoredPipeline) -> str:
    run = f"{id_in_path(stored.definition_id)}-{stored.generation}-{stored.spec.fingerprint()}"
    return f"{checkpoint_directory(root, PIPELINES, stored.name)}/{run}"


def start(spark: SparkSession, stored: StoredPipeline, place: Place, *, run_id: str, once: bool = False) -> Attempt:
    """``spark`` is a session for this pipeline alone. ``once``: read what there is, and end.

    Raises StreamHouseError, or what Spark raises.
    """
    spec = stored.spec
    target = open_target(stored, place.address_options, run_id=run_id)
    checkpoint = checkpoint_path(place.checkpoints, stored)
    read = file_reader(spark)
    progress = target.progress()
    if progress is not None and progress.generation < stored.generation:
        progress = None
    partitions = partition_counts(spec, place)
    goes_on = is_of(progress, checkpoint, read)
    starts = None if goes_on or progress is None else _starts(spec, progress)
    frame = build(spark, spec, topic_loader(spark, spec, place.address_options, starts=starts, partitions=partitions))
    if starts is not None and is_stateful(frame):
        # The SQL has changed, which is a new checkpoint, or the old checkpoint was deleted.
        raise CheckpointLost(
            f"the pipeline {spec.name} has rows in its target, but no checkpoint of this SQL: its state is lost"
        )
    if not goes_on and query_id(checkpoint, read) is not None:
        remove_one(spark, checkpoint)
    target.prepare(frame.schema)
    writer = target.writer(frame, checkpoint=checkpoint, generation=stored.generation)
    return launch(
        writer.outputMode(spec.output_mode.value).queryName(spec.name),
        stored,
        checkpoints=checkpoint_directory(place.checkpoints, PIPELINES, stored.name),
        target=target,
        resumed="where its checkpoint stands"
        if goes_on
        else "where its target stands"
        if starts
        else "at the beginning",
        trigger_ms=spec.trigger_ms,
        available_now=spec.available_now or once,
    )


def partition_counts(spec: PipelineSpec, place: Place) -> dict[str, int]:
    """How many partitions each source topic has. Raises TopicNotFound."""
    connection = connect(place.address)

    async def look() -> dict[str, int]:
        metadata = await connection.metadata()
        return {source.topic: (await metadata.get_topic(source.topic)).partition_count for source in spec.sources}

    return connection.run(look())


def _starts(spec: PipelineSpec, progress: Progress) -> dict[str, SourcePosition]:
    starts = starts_by_topic(progress.position)
    if starts is None or {source.topic for source in spec.sources} != set(starts):
        raise InvalidSetting(
            f"the pipeline {spec.name} reads other topics than its target's rows come from",
            hint="begin again: `streamhouse pipeline start --reset`",
        )
    return starts


def open_target(stored: StoredPipeline, address_options: Mapping[str, str], *, run_id: str) -> Target:
    """``run_id`` is unique to one start of the query. Raises StreamHouseError."""
    target = stored.spec.target
    if isinstance(target, TopicTarget):
        return TopicPipelineTarget(target, address_options, pipeline=stored.name, definition_id=stored.definition_id)
    if isinstance(target, PostgresTarget):
        return PostgresPipelineTarget(target, pipeline=stored.name, definition_id=stored.definition_id, run_id=run_id)
    return _table(target, stored, address_options)


def _table(target: TableTarget, stored: StoredPipeline, address_options: Mapping[str, str]) -> Target:
    return table_target(
        format=target.format,
        path=target.path,
        partition_by=target.partition_by,
        options=target.options,
        owner=f"pipeline {stored.name}",
        address_options=address_options,
    )
