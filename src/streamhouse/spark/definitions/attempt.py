"""A started query: its progress, its end, and its failure in one line."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from streamhouse.core.errors import StreamHouseError
from streamhouse.spark.definitions.catalog import Stored
from streamhouse.spark.definitions.checkpoints import remove_former
from streamhouse.spark.definitions.targets import Target

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_INITIALIZING: Final = "Initializing sources"
_INITIALIZING_S: Final = 30.0
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$", re.MULTILINE)
"""The line below the frames of a Python traceback. The frames are indented."""
_JAVA_ERROR: Final = re.compile(r"^: (?:[a-z]\w*\.)+\w+: ", re.MULTILINE)
_OWN_ERROR: Final = "streamhouse.core.errors."
_SPARK_CODE: Final = re.compile(r"^\s*\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w+")
_ENDS: Final = ("\n\n", ";\n", "\n\tat ", "=== Streaming Query ===", "\nTraceback ")
_MAX_CHARS: Final = 1_000


@dataclass(slots=True, kw_only=True)
class Attempt:
    query: StreamingQuery
    target: Target
    resumed: str
    """Where the query goes on, in the words of messages."""

    @property
    def is_active(self) -> bool:
        return bool(self.query.isActive)

    def latest(self) -> Mapping[str, Any] | None:
        """Spark's progress report of the last batch."""
        progress = self.query.lastProgress
        if progress is None:
            return None
        found: Mapping[str, Any] = json.loads(progress.json)
        return found

    def failure(self) -> str | None:
        """The error of the query in one line; None when it has not failed."""
        error = self.query.exception()
        if error is None:
            return None
        return explain(self.target.failure.error or error)

    def stop(self) -> None:
        self.query.stop()


def launch(
    writer: DataStreamWriter,
    stored: Stored[Any],
    *,
    checkpoints: str,
    target: Target,
    resumed: str,
    trigger_ms: int | None,
    available_now: bool,
) -> Attempt:
    """Start the query that ``writer`` describes, and remove the checkpoints of earlier generations from the directory
    ``checkpoints``.
    """
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif trigger_ms is not None:
        writer = writer.trigger(processingTime=f"{trigger_ms} milliseconds")
    query = writer.start()
    _wait_initialized(query)
    remove_former(checkpoints, stored.definition_id, stored.generation)
    return Attempt(query=query, target=target, resumed=resumed)


def _wait_initialized(query: StreamingQuery) -> None:
    """Sources start Python processes that must answer Spark within ten seconds: only one query may do so at a time."""
    waited, pause = threading.Event(), 0.05
    for _ in range(int(_INITIALIZING_S / pause)):
        if not query.isActive or query.status["message"] != _INITIALIZING:
            return
        waited.wait(pause)


def explain(error: BaseException) -> str:
    """Any error of a query in one line."""
    return str(error) if isinstance(error, StreamHouseError) else one_line_of(str(error))


def one_line_of(text: str) -> str:
    """Spark's text of a failure in one line. If it contains an error of ours from a Python worker, that error."""
    for line in text.split("\n"):
        if line.strip().startswith(_OWN_ERROR):
            return line.strip().removeprefix(_OWN_ERROR).partition(": ")[2][:_MAX_CHARS]
    _, has_frames, traceback = text.rpartition("Traceback (most recent call last):")
    if has_frames and (raised := _RAISED.search(traceback)):
        return raised[0][:_MAX_CHARS]
    if java := _JAVA_ERROR.search(text):
        text = text[java.end() :]
    return spark_says(StreamHouseError(text))


def spark_says(error: BaseException) -> str:
    """Spark's message without its codes, plan and frames."""
    get_message = getattr(error, "getMessage", None)  # of a PySparkException
    text = str((get_message() if get_message is not None else None) or error)
    first = text.strip()
    for mark in _ENDS:
        first = first.split(mark)[0]
    return " ".join(_SPARK_CODE.sub(" ", first).split())[:_MAX_CHARS]
