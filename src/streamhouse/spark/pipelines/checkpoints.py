"""Where a pipeline's checkpoint lies, and what Spark has written into it. Reads through Spark where it must.

    <root>/<pipeline>/<id>-<generation>-<fingerprint>/metadata        the query's id
                                                      offsets/<n>     where batch n ends, one line for each source

The fingerprint is of the SQL, the sources and the target: a pipeline whose SQL has changed gets another checkpoint, as
Spark refuses, or misreads, the state of a different query. A checkpoint is a Hadoop file system's; what is on this
machine is read directly, because a Spark job for it takes longer than most batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from streamhouse.core.errors import CorruptDocument
from streamhouse.spark.offsets import INITIAL, StreamOffset, read_stream_offset
from streamhouse.spark.pipelines.catalog import StoredPipeline
from streamhouse.spark.pipelines.progress import Batch, Position, Progress, SourcePosition, matches, position_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VERSION: Final = "v1"
_NOTHING: Final = "-"
_FILE: Final = "file:"
_MAX_FILE_CHARS: Final = 64 * 1024 * 1024

ReadFile = Callable[[str], str | None]
"""A file's content by its path; None when there is none."""


def checkpoint_directory(root: str, stored: StoredPipeline) -> str:
    """Of all its generations."""
    return f"{root.rstrip('/')}/{stored.name}"


def checkpoint_path(root: str, stored: StoredPipeline) -> str:
    """A pipeline deleted and defined anew under its name is another one, so its id is in the path."""
    run = f"{id_in_path(stored.definition_id)}-{stored.generation}-{stored.spec.fingerprint()}"
    return f"{checkpoint_directory(root, stored)}/{run}"


def id_in_path(definition_id: UUID) -> str:
    return definition_id.hex[:8]


def local_path_of(path: str) -> str | None:
    """None when it does not lie on this machine."""
    if path.startswith(_FILE):
        return "/" + path.removeprefix(_FILE).lstrip("/")
    return None if ":" in path.split("/", 1)[0] else path


def file_reader(spark: SparkSession) -> ReadFile:
    def read(path: str) -> str | None:
        found = _read_here(path)
        return found if found is not None else _read_by_spark(spark, path)

    return read


def query_id(checkpoint: str, read: ReadFile) -> str | None:
    """Of the query that the checkpoint belongs to; None when there is no checkpoint."""
    text = read(f"{checkpoint}/metadata")
    try:
        return None if text is None else str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDocument(f"{checkpoint}/metadata cannot be read") from error


def is_of(progress: Progress | None, checkpoint: str, read: ReadFile) -> bool:
    """Whether the checkpoint's query may go on where the target stands: it wrote the last rows there, or it was begun
    from there and nothing has come of it yet. False when there is no checkpoint.
    """
    known = query_id(checkpoint, read)
    if known is None or progress is None or progress.query_id == known:
        return known is not None
    if read(f"{checkpoint}/offsets/0") is None:
        return False
    return matches(batch_of("", 0, checkpoint, 0, read).start, progress.position)


def batch_of(spec_name: str, generation: int, checkpoint: str, batch_id: int, read: ReadFile) -> Batch:
    """What Spark has planned for a batch: it writes that down before it runs it. Raises CorruptDocument."""
    found = query_id(checkpoint, read)
    planned = read(f"{checkpoint}/offsets/{batch_id}")
    if found is None or planned is None:
        raise CorruptDocument(f"batch {batch_id} is not in the checkpoint {checkpoint}")
    before = read(f"{checkpoint}/offsets/{batch_id - 1}") if batch_id > 0 else None
    if batch_id > 0 and before is None:
        raise CorruptDocument(f"batch {batch_id - 1} is not in the checkpoint {checkpoint}")
    ends = parse_offset_log(planned)
    starts: list[StreamOffset | None] = [None] * len(ends) if before is None else parse_offset_log(before)
    starts += [None] * (len(ends) - len(starts))
    return Batch(
        pipeline=spec_name,
        generation=generation,
        query_id=found,
        batch_id=batch_id,
        start=tuple(_start(start, end) for start, end in zip(starts, ends, strict=False)),
        end=_position(ends),
    )


def parse_offset_log(text: str) -> list[StreamOffset | None]:
    """One for each source of the query; None for one that has not been read. Raises CorruptDocument."""
    lines = text.strip().split("\n")
    if len(lines) < 3 or lines[0].strip() != _VERSION:
        raise CorruptDocument(f"Spark's offsets have an unknown form: {text[:80]!r}")
    try:
        return [None if line.strip() == _NOTHING else _offset(json.loads(line)) for line in lines[2:]]
    except ValueError as error:
        raise CorruptDocument(f"Spark's offsets cannot be read: {text[:200]!r}") from error


def _offset(document: dict[str, Any]) -> StreamOffset | None:
    return None if document == INITIAL else read_stream_offset(document)


def _position(offsets: list[StreamOffset | None]) -> Position:
    return tuple(_EMPTY if offset is None else position_of(offset) for offset in offsets)


def _start(start: StreamOffset | None, end: StreamOffset | None) -> SourcePosition:
    if start is not None:
        return position_of(start)
    if end is None:
        return _EMPTY
    return SourcePosition(offsets=end.began_at or {}, topic_ids=end.topic_ids)


def _read_here(path: str) -> str | None:
    place = local_path_of(path)
    if place is None:
        return None
    try:
        with open(place, encoding="utf-8") as file:
            return file.read(_MAX_FILE_CHARS)
    except OSError:
        return None


def _read_by_spark(spark: SparkSession, path: str) -> str | None:
    from pyspark.errors import AnalysisException

    try:
        rows = spark.read.option("wholetext", True).text(path).collect()
    except AnalysisException:  # no such path
        return None
    return None if not rows else str(rows[0][0])


_EMPTY: Final = SourcePosition(offsets={}, topic_ids={})
