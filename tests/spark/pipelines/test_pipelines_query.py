"""A spec becomes a query, without a session: where a source begins, what has state, and what is refused in one line."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.ids import TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.spark.definitions.progress import SourcePosition
from streamhouse.spark.offsets import TopicPartition
from streamhouse.spark.pipelines.parsing import load_pipeline
from streamhouse.spark.pipelines.query import build, is_stateful, topic_loader
from streamhouse.spark.pipelines.spec import PipelineSpec
from streamhouse.spark.shim import FORMAT

TOPIC_ID = TopicId(SeededRandomness(1).uuid())


def spec(**source: Any) -> PipelineSpec:
    document = {"name": "p", "sources": {"o": source}, "sql": "SELECT value FROM o", "target": {"topic": "out"}}
    return load_pipeline(document)


class Frame:
    """A DataFrame with these columns, whose views and watermarks are noted."""

    def __init__(self, *columns: str, streaming: bool = True) -> None:
        self.columns = list(columns)
        self.isStreaming = streaming
        self.views: list[str] = []
        self.watermark: tuple[str, str] | None = None
        self.cast_columns: list[str] = []

    def __getitem__(self, name: str) -> Any:
        return SimpleNamespace(cast=lambda kind: (name, kind))

    def withColumn(self, name: str, value: Any) -> Frame:  # noqa: N802 - Spark's name
        assert value == (name, "string")
        self.cast_columns.append(name)
        return self

    def withWatermark(self, column: str, delay: str) -> Frame:  # noqa: N802 - Spark's name
        self.watermark = (column, delay)
        return self

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802 - Spark's name
        self.views.append(name)


class Session:
    """``sql`` gives the frame, or raises the error."""

    def __init__(self, answer: Frame | Exception) -> None:
        self.answer = answer

    def sql(self, text: str) -> Frame:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def built(answer: Frame | Exception, source: Frame, **more: Any) -> Any:
    return build(cast(Any, Session(answer)), spec(**more), lambda _: cast(Any, source))


def test_a_text_source_has_key_and_value_as_strings_and_its_view() -> None:
    source, result = Frame("key", "value", "timestamp"), Frame("value")
    assert built(result, source, watermark="timestamp, 5 minutes") is result
    assert (source.views, source.cast_columns) == (["o"], ["key", "value"])
    assert source.watermark == ("timestamp", "5 minutes")


def test_a_binary_source_is_left_as_it_is() -> None:
    source = Frame("key", "value")
    built(Frame("value"), source, format="binary")
    assert source.cast_columns == []


def test_a_watermark_on_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidSetting, match="source o: there is no column 'at' for the watermark") as refused:
        built(Frame("value"), Frame("key", "value"), watermark="at, 5 minutes")
    assert refused.value.hint == "its columns are key, value"


def test_a_query_that_reads_none_of_its_sources_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="sql: this reads none of the sources") as refused:
        built(Frame("value", streaming=False), Frame("key", "value"))
    assert refused.value.hint == "select from o"


class Refused(AnalysisException):
    """An error as the JVM sends it: its message begins with a code and ends with the plan."""

    def getMessage(self) -> str:  # noqa: N802 - Spark's name
        return "[UNRESOLVED_COLUMN] A column `valu` cannot be resolved. SQLSTATE: 42703;\n'Project ['valu]"


def test_what_spark_says_of_the_sql_is_one_line_without_its_codes() -> None:
    with pytest.raises(InvalidSetting) as refused:
        built(Refused("x"), Frame("key", "value"))
    assert refused.value.message.startswith("sql: A column `valu` cannot be resolved.")
    assert "\n" not in refused.value.message
    assert "SQLSTATE" not in refused.value.message


class Reader:
    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    @property
    def readStream(self) -> Reader:  # noqa: N802 - Spark's name
        return self

    def format(self, name: str) -> Reader:
        self.told["format"] = name
        return self

    def options(self, **given: str) -> Reader:
        self.told |= given
        return self

    def option(self, name: str, value: str) -> Reader:
        self.told[name] = value
        return self

    def load(self) -> Reader:
        return self


def loaded(starts: dict[str, SourcePosition] | None, **source: Any) -> dict[str, str]:
    reader, made = Reader(), spec(topic="orders", **source)
    load = topic_loader(cast(Any, reader), made, {"dataDir": "/d"}, starts=starts, partitions={"orders": 3})
    load(made.sources[0])
    return reader.told


def test_a_new_pipeline_begins_where_its_source_says() -> None:
    told = loaded(None, starting="latest", options={"maxOffsetsPerTrigger": 5})
    assert told == {
        "format": FORMAT,
        "dataDir": "/d",
        "subscribe": "orders",
        "startingOffsets": "latest",
        "kafka.group.id": "pipeline-p",
        "maxOffsetsPerTrigger": "5",
    }


def test_a_pipeline_without_its_checkpoint_goes_on_and_reads_new_partitions_from_their_beginning() -> None:
    known = SourcePosition(
        offsets={TopicPartition("orders", 0): 7, TopicPartition("orders", 1): 9}, topic_ids={"orders": TOPIC_ID}
    )
    told = loaded({"orders": known}, starting="latest")
    assert json.loads(told["startingOffsets"]) == {"orders": {"0": 7, "1": 9, "2": -2}}
    assert loaded({"bills": known}, starting="latest")["startingOffsets"] == "latest"


@pytest.mark.parametrize(
    ("plan", "stateful"),
    [
        ("Project [value]\n+- Filter x\n   +- StreamingRelation", False),
        ("Aggregate [k], [count(1)]\n+- StreamingRelation", True),
        ("Project [x]\n+- Deduplicate [k]\n   +- StreamingRelation", True),
        ("Project [x]\n:- Join Inner\n", True),
        ("Project [x]\n+- ~FlatMapGroupsWithState f", True),
        ("Project [Aggregate AS a]\n+- StreamingRelation", False),
    ],
)
def test_a_query_with_state_is_seen_in_its_plan(plan: str, stateful: bool) -> None:
    analyzed = SimpleNamespace(toString=lambda: plan)
    execution = SimpleNamespace(analyzed=lambda: analyzed)
    frame = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution))
    assert is_stateful(cast(Any, frame)) is stateful
