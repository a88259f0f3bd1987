"""A started query: its trigger, its end, and any of Spark's failures in one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.definitions.attempt import Attempt, explain, launch, one_line_of, spark_says
from streamhouse.spark.definitions.targets import LastFailure

OUR_ERROR = """\
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
streamhouse.core.errors.data.DataLost: data may have been lost: orders/0 starts at 5
\tat org.apache.spark.api.python.BasePythonRunner
"""
FOREIGN_ERROR = """\
Job aborted.
Traceback (most recent call last):
  File "a.py", line 1, in first
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in second
ValueError: the last one

\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OUR_ERROR, "data may have been lost: orders/0 starts at 5"),
        (FOREIGN_ERROR, "ValueError: the last one"),
        (
            "An error occurred while calling o1.start.\n: org.apache.spark.SparkException: no room\n\tat a.B.c(D.java)",
            "no room",
        ),
        ("[TABLE_NOT_FOUND.X] The table `a` is not there. SQLSTATE: 42P01; line 1 pos 2;\n'Project", None),
        ("two words\n\nand a plan", "two words"),
        ("Query terminated: why\n=== Streaming Query ===\nIdentifier", "Query terminated: why"),
    ],
)
def test_a_failure_is_one_line(text: str, line: str | None) -> None:
    expected = "The table `a` is not there. ; line 1 pos 2" if line is None else line
    assert one_line_of(text) == expected


def test_a_line_is_bounded() -> None:
    assert len(one_line_of("x" * 100_000)) == 1_000
    assert len(one_line_of("Traceback (most recent call last):\nE: " + "x" * 5_000)) == 1_000


def test_an_error_of_ours_is_told_as_it_is_and_sparks_by_its_message() -> None:
    assert explain(InvalidSetting("gone\nfor good")) == "gone\nfor good"

    class Sparks(Exception):
        def getMessage(self) -> str:  # noqa: N802 - Spark's name
            return "[CODE] the message"

    assert spark_says(Sparks("[CODE] the message\n\nJVM stacktrace")) == "the message"


class Query:
    def __init__(self, *, error: Exception | None = None, progress: str | None = None, looks: int = 0) -> None:
        self.error = error
        self.looks = looks
        self.lastProgress = None if progress is None else SimpleNamespace(json=progress)
        self.stopped = False

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return self.error is None and not self.stopped

    @property
    def status(self) -> dict[str, str]:
        self.looks -= 1
        return {"message": "Initializing sources" if self.looks >= 0 else "Waiting for data"}

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.stopped = True


def attempt(query: Query, noted: Exception | None = None) -> Attempt:
    target = SimpleNamespace(failure=LastFailure(error=noted))
    return Attempt(query=cast(Any, query), target=cast(Any, target), resumed="at the beginning")


def test_the_error_that_the_batch_noted_is_told_instead_of_sparks_wrapping() -> None:
    wrapped = RuntimeError(FOREIGN_ERROR)
    assert attempt(Query(error=wrapped), InvalidSetting("gone")).failure() == "gone"
    assert attempt(Query(error=wrapped)).failure() == "ValueError: the last one"
    assert attempt(Query(), InvalidSetting("of a batch that was repeated")).failure() is None


def test_progress_is_none_before_the_first_batch() -> None:
    assert attempt(Query()).latest() is None
    assert attempt(Query(progress='{"batchId": 3}')).latest() == {"batchId": 3}


class Writer:
    def __init__(self, query: Query) -> None:
        self.query = query
        self.triggers: list[dict[str, Any]] = []

    def trigger(self, **given: Any) -> Writer:
        self.triggers.append(given)
        return self

    def start(self) -> Query:
        return self.query


@pytest.mark.parametrize(
    ("trigger_ms", "available_now", "triggers"),
    [
        (None, False, []),
        (1500, False, [{"processingTime": "1500 milliseconds"}]),
        (1500, True, [{"availableNow": True}]),
    ],
)
def test_a_query_starts_with_its_trigger_and_former_checkpoints_go(
    tmp_path: Path, trigger_ms: int | None, available_now: bool, triggers: list[dict[str, Any]]
) -> None:
    stored = SimpleNamespace(definition_id=UUID(int=0xABCDEF << 104), generation=2)
    for generation in (1, 2):
        (tmp_path / f"{stored.definition_id.hex[:8]}-{generation}").mkdir()
    writer = Writer(Query(looks=2))
    made = launch(
        cast(Any, writer),
        cast(Any, stored),
        checkpoints=str(tmp_path),
        target=cast(Any, None),
        resumed="x",
        trigger_ms=trigger_ms,
        available_now=available_now,
    )
    assert writer.triggers == triggers
    assert [path.name[-2:] for path in tmp_path.iterdir()] == ["-2"]
    assert writer.query.looks < 0, "it waited until the sources had started"
    made.stop()
    assert not made.is_active
