"""Makes a streaming DataFrame of a spec: topics become views, and the SELECT runs over them.

A JSON source has the columns of its schema, and ``_key``, ``_topic``, ``_partition``, ``_offset`` and ``_timestamp`` of
the record. A text source has the columns of the format, with key and value as strings. A binary source has them
unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.definitions.attempt import spark_says
from streamhouse.spark.definitions.progress import SourcePosition
from streamhouse.spark.offsets import EARLIEST, TopicPartition, offsets_document
from streamhouse.spark.pipelines.spec import BadRecords, Format, PipelineSpec, SourceSpec
from streamhouse.spark.shim import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP_PREFIX: Final = "pipeline-"
"""The prefix of the consumer group that shows a pipeline's progress to Kafka's tools."""

_BAD: Final = "_streamhouse_bad"
_RAW: Final = "_streamhouse_raw"
_DDL: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
)
_STATEFUL: Final = re.compile(
    r"^[\s:+|\-*]*~?(Aggregate|Deduplicate\w*|Distinct|Join|GlobalLimit|LocalLimit|Window|\w*WithState\w*|\w*StateInPandas\w*)\b",
    re.MULTILINE,
)

Load = Callable[[SourceSpec], "DataFrame"]


def build(spark: SparkSession, spec: PipelineSpec, load: Load) -> DataFrame:
    """The streaming DataFrame whose rows go to the target. ``spark`` is a session for this pipeline alone, because the
    views are in it. Raises InvalidSetting.
    """
    for source in spec.sources:
        with _explained(f"source {source.view}"):
            _view(load(source), source)
    with _explained("sql"):
        frame = spark.sql(spec.sql)
    if not frame.isStreaming:
        raise InvalidSetting(
            "sql: this reads none of the sources",
            hint=f"select from {', '.join(source.view for source in spec.sources)}",
        )
    return frame


def topic_loader(
    spark: SparkSession,
    spec: PipelineSpec,
    address: Mapping[str, str],
    *,
    starts: Mapping[str, SourcePosition] | None,
    partitions: Mapping[str, int],
) -> Load:
    """Loads the real topics. ``starts``: where a query without a checkpoint goes on. ``partitions``: how many there are
    of each topic; a partition that is new since then is read from its beginning.
    """

    def load(source: SourceSpec) -> DataFrame:
        starting = source.starting
        known = None if starts is None else starts.get(source.topic)
        if known is not None:
            offsets = {TopicPartition(source.topic, number): EARLIEST for number in range(partitions[source.topic])}
            offsets.update(known.offsets)
            starting = json.dumps(offsets_document(offsets))
        reader = spark.readStream.format(FORMAT).options(**address).option("subscribe", source.topic)
        reader = reader.option("startingOffsets", starting).option("kafka.group.id", GROUP_PREFIX + spec.name)
        return reader.options(**source.options).load()

    return load


def empty_loader(spark: SparkSession) -> Load:
    """Loads streams with the right columns that never have a row, to check a query."""

    def load(source: SourceSpec) -> DataFrame:
        nothing = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1)
        columns = [f"CAST(NULL AS {field.split()[1]}) AS {field.split()[0]}" for field in _DDL.split(", ")]
        return nothing.load().selectExpr(*columns).where("offset IS NOT NULL")

    return load


def is_stateful(frame: DataFrame) -> bool:
    """True if Spark keeps state between batches, which offsets alone cannot restore. Found in the text of the plan, and
    in doubt true.
    """
    return _STATEFUL.search(_plan(frame)) is not None


def _view(frame: DataFrame, source: SourceSpec) -> None:
    shaped = _json(frame, source) if source.format is Format.JSON else frame
    if source.format is Format.TEXT:
        shaped = frame.withColumn("key", frame["key"].cast("string"))
        shaped = shaped.withColumn("value", frame["value"].cast("string"))
    if source.watermark is not None:
        if source.watermark.column not in shaped.columns:
            raise InvalidSetting(
                f"source {source.view}: there is no column {source.watermark.column!r} for the watermark",
                hint=f"its columns are {', '.join(shaped.columns)}",
            )
        shaped = shaped.withWatermark(source.watermark.column, source.watermark.delay)
    shaped.createOrReplaceTempView(source.view)


def _json(frame: DataFrame, source: SourceSpec) -> DataFrame:
    """A record without a value (a tombstone) gives no row."""
    schema = _schema(source)
    if source.bad_records is BadRecords.FAIL:
        parsed = fn.from_json(fn.col("value").cast("string"), schema, {"mode": "FAILFAST"})
    else:
        asked = StructType([*schema.fields]).add(_BAD, "string")
        parsed = fn.from_json(fn.col("value").cast("string"), asked, {"columnNameOfCorruptRecord": _BAD})
    rows = frame.where("value IS NOT NULL").withColumn(_RAW, parsed)
    if source.bad_records is BadRecords.DROP:
        rows = rows.where(f"{_RAW}.{_BAD} IS NULL")
    columns = [fn.col(_RAW)[field.name].alias(field.name) for field in schema.fields]
    record = [
        fn.col("key").cast("string").alias("_key"),
        *(fn.col(name).alias(f"_{name}") for name in ("topic", "partition", "offset", "timestamp")),
    ]
    return rows.select(*columns, *record)


def _schema(source: SourceSpec) -> StructType:
    assert source.schema is not None
    try:
        schema = StructType.fromDDL(source.schema)
        assert isinstance(schema, StructType)
    except Exception as error:  # its own parser's errors have no common class
        raise InvalidSetting(
            f"source {source.view}: the schema cannot be read: {spark_says(error)}",
            hint="write it like id BIGINT, amount DOUBLE, at TIMESTAMP",
        ) from error
    return schema


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except AnalysisException as error:
        raise InvalidSetting(f"{what}: {spark_says(error)}") from error


def _plan(frame: DataFrame) -> str:
    if hasattr(frame, "_jdf"):
        return str(frame._jdf.queryExecution().analyzed().toString())
    return str(frame._explain_string(extended=True)).split("== Optimized")[0]  # type: ignore[operator]
