"""Starts the query that keeps a table up to date. Where it begins:

no checkpoint, empty table      from the topic's beginning
no checkpoint, rows in it       where the table stands, as its last commit says
checkpoint                      Spark goes on; the table checks every batch
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from streamhouse.core.errors import DataLost
from streamhouse.metadata.contract import Topic
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
from streamhouse.spark.definitions.progress import Progress
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.offsets import EARLIEST, TopicPartition, offsets_document
from streamhouse.spark.shim import FORMAT
from streamhouse.spark.tables.spec import TABLES, StoredTable, TableSpec
from streamhouse.spark.tables.target import Records, StoreTarget
from streamhouse.spark.tables.tasks import RECORD_COLUMNS
from streamhouse.spark.tables.values import row_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP_PREFIX: Final = "table-"
"""The prefix of the consumer group that shows a table's progress to Kafka's tools."""


def target_of(spec: TableSpec, address_options: Mapping[str, str]) -> StoreTarget:
    records = Records(topic=spec.topic, values=spec.values, dead_letters=spec.dead_letters)
    return StoreTarget(spec.storage, address_options, owner=f"table {spec.name}", records=records)


def checkpoint_of(root: str, stored: StoredTable) -> str:
    run = f"{id_in_path(stored.definition_id)}-{stored.generation}"
    return f"{checkpoint_directory(root, TABLES, stored.name)}/{run}"


def start_table(spark: SparkSession, stored: StoredTable, place: Place, *, once: bool = False) -> Attempt:
    """``once``: read what there is, and end. Raises StreamHouseError, or what Spark raises."""
    spec = stored.spec
    target = target_of(spec, place.address_options)
    progress = target.progress()
    if progress is not None and progress.generation < stored.generation:
        target.reset()
        progress = None
    checkpoint = checkpoint_of(place.checkpoints, stored)
    read = file_reader(spark)
    goes_on = is_of(progress, checkpoint, read)
    if not goes_on and query_id(checkpoint, read) is not None:
        remove_one(spark, checkpoint)  # another query has written the table's rows
    starting = "earliest" if progress is None else _starting(spec, progress, _topic(spec, place))
    target.prepare_columns(row_schema(spec))
    reader = spark.readStream.format(FORMAT).options(**place.address_options).option("subscribe", spec.topic)
    reader = reader.option("startingOffsets", starting).option("kafka.group.id", GROUP_PREFIX + stored.name)
    reader = reader.option("columns", ",".join(RECORD_COLUMNS)).option("maxBytesPerTrigger", spec.max_bytes)
    writer = target.writer(reader.load(), checkpoint=checkpoint, generation=stored.generation)
    return launch(
        writer.queryName(f"table {stored.name}"),
        stored,
        checkpoints=checkpoint_directory(place.checkpoints, TABLES, stored.name),
        target=target,
        resumed="where its checkpoint stands"
        if goes_on
        else "at the beginning"
        if progress is None
        else "where it stood",
        trigger_ms=spec.trigger_ms,
        available_now=once,
    )


def _topic(spec: TableSpec, place: Place) -> Topic:
    connection = connect(place.address)

    async def look() -> Topic:
        return await (await connection.metadata()).get_topic(spec.topic)

    return connection.run(look())


def _starting(spec: TableSpec, progress: Progress, topic: Topic) -> str:
    (position,) = progress.position
    if position.topic_ids.get(spec.topic, topic.topic_id) != topic.topic_id:
        raise DataLost(
            f"the topic {spec.topic} was deleted and created again; the table {spec.name} has the old one's records",
            hint="`streamhouse table start --reset` fills it again",
        )
    offsets = {TopicPartition(spec.topic, number): EARLIEST for number in range(topic.partition_count)}
    offsets.update(position.offsets)
    return json.dumps(offsets_document(offsets))
