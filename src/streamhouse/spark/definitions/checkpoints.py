"""Where a query's checkpoint is, what Spark has written into it, and which checkpoints are obsolete.

    <root>/<pipeline>/<id>-<generation>-<fingerprint>/metadata        the query's id
    <root>/tables/<table>/<id>-<generation>/          offsets/<n>     where batch n ends, one line for each source

The id is the definition's: a pipeline that is deleted and defined again under its name gets another checkpoint. So does
one whose SQL, sources or target have changed, because Spark refuses or misreads the state of a different query; the
fingerprint is made of these.

A checkpoint is in a Hadoop file system. One on this machine is read directly, because a Spark job for that takes longer
than most batches. Only directories named after the definition's id are removed. Old checkpoints on another file system
(``hdfs:``, ``s3a:``) stay, because only Spark could remove them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from streamhouse.core.errors import CheckpointLost, CorruptDocument
from streamhouse.spark.definitions.catalog import DefinitionKind
from streamhouse.spark.definitions.progress import Batch, Position, Progress, SourcePosition, matches, position_of
from streamhouse.spark.offsets import INITIAL, StreamOffset, read_stream_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VERSION: Final = "v1"
_NOTHING: Final = "-"
_FILE: Final = "file:"
_MAX_FILE_CHARS: Final = 64 * 1024 * 1024

ReadFile = Callable[[str], str | None]
"""A file's content by its path; None when there is none."""


def checkpoint_directory(root: str, kind: DefinitionKind[Any], name: str) -> str:
    """The directory of all checkpoints of one definition, of every generation."""
    return f"{root.rstrip('/')}/{kind.checkpoints}{name}"


def id_in_path(definition_id: UUID) -> str:
    return definition_id.hex[:8]


def local_path_of(path: str) -> str | None:
    """The path on this machine; None for another file system."""
    if path.startswith(_FILE):
        return "/" + path.removeprefix(_FILE).lstrip("/")
    return None if ":" in path.split("/", 1)[0] else path


def file_reader(spark: SparkSession) -> ReadFile:
    def read(path: str) -> str | None:
        found = _read_here(path)
        return found if found is not None else _read_by_spark(spark, path)

    return read


def query_id(checkpoint: str, read: ReadFile) -> str | None:
    """The id of the checkpoint's query; None when there is no checkpoint."""
    text = read(f"{checkpoint}/metadata")
    try:
        return None if text is None else str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDocument(f"{checkpoint}/metadata cannot be read") from error


def is_of(progress: Progress | None, checkpoint: str, read: ReadFile) -> bool:
    """True if the checkpoint's query may go on from the target's progress: it has written the target's last rows, or it
    began there and has not written yet. False when there is no checkpoint.
    """
    known = query_id(checkpoint, read)
    if known is None or progress is None or progress.query_id == known:
        return known is not None
    if read(f"{checkpoint}/offsets/0") is None:
        return False
    return matches(batch_of("", 0, checkpoint, 0, read).start, progress.position)


def batch_of(owner: str, generation: int, checkpoint: str, batch_id: int, read: ReadFile) -> Batch:
    """The batch as Spark has planned it. Spark writes the plan before it runs the batch. Raises CorruptDocument."""
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
        owner=owner,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OldCheckpoint:
    path: Path
    generation: int


def checkpoints_of(directory: str, definition_id: UUID) -> list[OldCheckpoint]:
    """The checkpoints in ``directory``, the one of ``checkpoint_directory``, in order."""
    place, named = local_path_of(directory), re.compile(rf"{id_in_path(definition_id)}-(\d+)(?:-[0-9a-f]+)?")
    found: list[OldCheckpoint] = []
    with suppress(OSError):
        for path in [] if place is None else sorted(Path(place).iterdir()):
            match = named.fullmatch(path.name)
            if match is not None and path.is_dir() and not path.is_symlink():
                found.append(OldCheckpoint(path=path, generation=int(match[1])))
    return found


def remove(checkpoints: Iterable[OldCheckpoint]) -> None:
    """Remove checkpoints, and the directory that contains them once it is empty."""
    for checkpoint in checkpoints:
        shutil.rmtree(checkpoint.path, ignore_errors=True)
        with suppress(OSError):
            checkpoint.path.parent.rmdir()


def remove_former(directory: str, definition_id: UUID, generation: int) -> int:
    """Remove those of earlier generations. Returns how many there were."""
    former = [each for each in checkpoints_of(directory, definition_id) if each.generation < generation]
    remove(former)
    return len(former)


def remove_one(spark: SparkSession, checkpoint: str) -> None:
    """Raises CheckpointLost where neither this process nor Spark can remove it."""
    place = local_path_of(checkpoint)
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)
        return
    if not hasattr(spark, "_jsparkSession"):
        raise CheckpointLost(f"the checkpoint {checkpoint} does not belong to the target's rows", hint="delete it")
    jvm, configuration = spark._jvm, spark._jsparkSession.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path(checkpoint)  # type: ignore[union-attr]
    path.getFileSystem(configuration).delete(path, True)


_EMPTY: Final = SourcePosition(offsets={}, topic_ids={})
