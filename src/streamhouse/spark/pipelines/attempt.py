"""One start of one pipeline: from its definition to a running query, and what became of it.

no checkpoint, no progress        begin where the sources say
no checkpoint, progress, no state go on where the target stands: nothing else was in the checkpoint
no checkpoint, progress, state    refuse: the state is gone, and no offsets bring it back
checkpoint                        Spark goes on; the target checks every batch

A checkpoint of a query that did not write the target's last rows is none: its SQL was changed and changed back.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from streamhouse.core.errors import CheckpointLost, InvalidSetting, StreamHouseError
from streamhouse.spark.connection import connect
from streamhouse.spark.pipelines.catalog import StoredPipeline
from streamhouse.spark.pipelines.checkpoints import checkpoint_directory, checkpoint_path, file_reader, is_of, query_id
from streamhouse.spark.pipelines.old_checkpoints import remove_former, remove_one
from streamhouse.spark.pipelines.place import Place
from streamhouse.spark.pipelines.progress import Progress, SourcePosition, starts_by_topic
from streamhouse.spark.pipelines.query import build, is_stateful, spark_says, topic_loader
from streamhouse.spark.pipelines.spec import PipelineSpec
from streamhouse.spark.pipelines.target_opening import PipelineTarget, open_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_INITIALIZING: Final = "Initializing sources"
_INITIALIZING_S: Final = 30.0
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$", re.MULTILINE)
"""The line under a Python traceback's frames, which are indented."""
_JAVA_ERROR: Final = re.compile(r"^: (?:[a-z]\w*\.)+\w+: ", re.MULTILINE)
_OWN_ERROR: Final = "streamhouse.core.errors."


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A query that was started."""

    query: StreamingQuery
    target: PipelineTarget
    resumed: str
    """For people: where it went on."""

    @property
    def is_active(self) -> bool:
        return bool(self.query.isActive)

    def latest(self) -> Mapping[str, Any] | None:
        """Spark's word on the last batch."""
        progress = self.query.lastProgress
        if progress is None:
            return None
        found: Mapping[str, Any] = json.loads(progress.json)
        return found

    def failure(self) -> str | None:
        """One line; None when it has not failed."""
        error = self.query.exception()
        if error is None:
            return None
        return explain(self.target.failure.error or error)

    def stop(self) -> None:
        self.query.stop()


def start(spark: SparkSession, stored: StoredPipeline, place: Place, *, run_id: str) -> Attempt:
    """``spark`` is a session of the pipeline's own. Raises StreamHouseError, or what Spark raises."""
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
        # The SQL has changed, which is a new checkpoint, or somebody has deleted the old one.
        raise CheckpointLost(
            f"the pipeline {spec.name} has rows in its target, but no checkpoint of this SQL: what it added up is gone"
        )
    if not goes_on and query_id(checkpoint, read) is not None:
        remove_one(spark, checkpoint)
    target.prepare(frame.schema)
    writer = target.writer(frame, checkpoint=checkpoint, generation=stored.generation)
    writer = writer.outputMode(spec.output_mode.value).queryName(spec.name)
    if spec.available_now:
        writer = writer.trigger(availableNow=True)
    elif spec.trigger_ms is not None:
        writer = writer.trigger(processingTime=f"{spec.trigger_ms} milliseconds")
    query = writer.start()
    wait_initialized(query)
    remove_former(checkpoint_directory(place.checkpoints, stored), stored.definition_id, stored.generation)
    said = "where its checkpoint stands" if goes_on else "where its target stands" if starts else "at the beginning"
    return Attempt(query=query, target=target, resumed=said)


def wait_initialized(query: StreamingQuery) -> None:
    """Sources start Python processes that must answer Spark within ten seconds: not too many at once."""
    waited, pause = threading.Event(), 0.05
    for _ in range(int(_INITIALIZING_S / pause)):
        if not query.isActive or query.status["message"] != _INITIALIZING:
            return
        waited.wait(pause)


def partition_counts(spec: PipelineSpec, place: Place) -> dict[str, int]:
    """Of each topic that is read. Raises TopicNotFound."""
    connection = connect(place.address)

    async def look() -> dict[str, int]:
        metadata = await connection.metadata()
        return {source.topic: (await metadata.get_topic(source.topic)).partition_count for source in spec.sources}

    return connection.run(look())


def explain(error: BaseException) -> str:
    """One line, whoever raised it."""
    return str(error) if isinstance(error, StreamHouseError) else one_line_of(str(error))


def one_line_of(text: str) -> str:
    """What Spark says of a failure, without frames. An error of ours in a Python worker is in there somewhere."""
    for line in text.split("\n"):
        if line.strip().startswith(_OWN_ERROR):
            return line.strip().removeprefix(_OWN_ERROR).partition(": ")[2][:1_000]
    _, has_frames, traceback = text.rpartition("Traceback (most recent call last):")
    if has_frames and (raised := _RAISED.search(traceback)):
        return raised[0][:1_000]
    if java := _JAVA_ERROR.search(text):
        text = text[java.end() :]
    return spark_says(StreamHouseError(text))


def _starts(spec: PipelineSpec, progress: Progress) -> dict[str, SourcePosition]:
    starts = starts_by_topic(progress.position)
    if starts is None or {source.topic for source in spec.sources} != set(starts):
        raise InvalidSetting(
            f"the pipeline {spec.name} reads other topics than its target's rows come from",
            hint="begin anew: `streamhouse pipeline start --reset`",
        )
    return starts
