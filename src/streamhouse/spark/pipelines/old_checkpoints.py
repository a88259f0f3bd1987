"""Checkpoints that count no more: which there are, and taking them away.

Only directories that are named after the definition's id are touched, whatever else lies beside them. A checkpoint on
another file system than this machine's (``hdfs:``, ``s3a:``) only Spark can remove; such former ones stay.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from streamhouse.core.errors import CheckpointLost
from streamhouse.spark.pipelines.checkpoints import id_in_path, local_path_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class OldCheckpoint:
    path: Path
    generation: int


def checkpoints_of(directory: str, definition_id: UUID) -> list[OldCheckpoint]:
    """In ``directory``, which is that of the definition's name, in order."""
    place, named = local_path_of(directory), re.compile(rf"{id_in_path(definition_id)}-(\d+)(?:-[0-9a-f]+)?")
    found: list[OldCheckpoint] = []
    with suppress(OSError):
        for path in [] if place is None else sorted(Path(place).iterdir()):
            match = named.fullmatch(path.name)
            if match is not None and path.is_dir() and not path.is_symlink():
                found.append(OldCheckpoint(path=path, generation=int(match[1])))
    return found


def remove(checkpoints: list[OldCheckpoint]) -> None:
    """And the directory of the name, once it is empty."""
    for checkpoint in checkpoints:
        shutil.rmtree(checkpoint.path, ignore_errors=True)
        with suppress(OSError):
            checkpoint.path.parent.rmdir()


def remove_former(directory: str, definition_id: UUID, generation: int) -> int:
    """Those of former generations, which nobody can go back to. Returns how many there were."""
    former = [each for each in checkpoints_of(directory, definition_id) if each.generation < generation]
    remove(former)
    return len(former)


def remove_one(spark: SparkSession, checkpoint: str) -> None:
    """Raises CheckpointLost where neither this process nor Spark can."""
    place = local_path_of(checkpoint)
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)
        return
    if not hasattr(spark, "_jsparkSession"):
        raise CheckpointLost(f"the checkpoint {checkpoint} is not that of the target's rows", hint="delete it")
    jvm, configuration = spark._jvm, spark._jsparkSession.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path(checkpoint)  # type: ignore[union-attr]
    path.getFileSystem(configuration).delete(path, True)
