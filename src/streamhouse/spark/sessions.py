"""A well-configured Spark session, and topics as DataFrames with one call.

spark = session()                                       this machine, all cores
spark = session(master="spark://host:7077")             a cluster; the code travels by itself
spark = session(remote="sc://host:15002")               a Connect server
read_topic(spark, "orders", dataDir="./streamhouse-data").show()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import StreamHouseError
from streamhouse.spark.java import cache_options, check_java, log_options
from streamhouse.spark.packing import directory_of, forget_unused, pack, spark_archive
from streamhouse.spark.shim import ARCHIVE_DIRECTORY, FORMAT, make_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STACK: Final = "-Xss4m"
"""Spark searches an error's text with a regular expression that overflows the default stack when a query is stopped in
the middle of a Python batch; its stop is then reported as a failure."""
_C1_ONLY: Final = "-XX:TieredStopAtLevel=1"


def session(
    *,
    master: str = "local[*]",
    remote: str | None = None,
    app_name: str = "streamhouse",
    fast_start: bool = False,
    config: Mapping[str, str] | None = None,
    archive: str | Path | None = None,
    **defaults: str,
) -> SparkSession:
    """The session of this process, made if there is none yet.

    ``config`` are Spark's own settings and win over ours. ``fast_start`` leaves Java's second compiler out: ready a few
    seconds sooner, up to three times slower at heavy work; for demos. ``archive`` is a file of ``streamhouse spark
    pack``; on a cluster one is made when none is given. ``defaults`` are options for every read and write of this
    session: ``dataDir="./data"``.
    """
    if remote is not None:
        return _remote(remote, archive, config or {}, defaults)
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # what the tasks run in: this venv, not the first python3
    if _is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else it looks for an address, and warns of its choice
    chosen = _settings(master)
    packed = None if _is_local(master) else _packed(archive)
    if packed is not None:
        chosen["spark.archives"] = spark_archive(packed)
    options = " ".join([*_java_options(fast_start=fast_start), chosen.get("spark.driver.extraJavaOptions", "")])
    chosen["spark.driver.extraJavaOptions"] = options.strip()
    chosen.update(config or {})
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    spark = _start(builder)
    register(spark, archive=packed, **defaults)
    return spark


def register(spark: SparkSession, *, archive: str | Path | None = None, **defaults: str) -> None:
    """Let a session that ``session`` did not make know the format, planned for the cores it has.

    Not needed on one machine, where Spark finds it by itself; needed where ``archive`` was given to Spark, and for
    ``defaults``: options that a read or write may leave out.
    """
    known = {name.lower() for name in defaults}
    if "parallelism" not in known:
        parallelism = _parallelism(spark)
        if parallelism is not None:
            defaults["parallelism"] = str(parallelism)
    directory = ARCHIVE_DIRECTORY if archive is None else directory_of(Path(archive))
    spark.dataSource.register(make_source(defaults, directory=directory))


def read_topic(
    spark: SparkSession,
    topics: str | Sequence[str],
    *,
    streaming: bool = False,
    text: bool = False,
    columns: str | Sequence[str] | None = None,
    **options: str | int | bool,
) -> DataFrame:
    """A topic, or several, as a DataFrame. ``text`` gives keys and values as strings. ``columns`` are the names of the
    columns, in a sequence or in one string with commas.

    ``options`` are those of the format: ``startingOffsets="earliest"``, ``maxOffsetsPerTrigger=10_000``, ``dataDir=…``.
    """
    names = topics if isinstance(topics, str) else ",".join(topics)
    reader: Any = (spark.readStream if streaming else spark.read).format(FORMAT).option("subscribe", names)
    if columns is not None:
        reader = reader.option("columns", columns if isinstance(columns, str) else ",".join(columns))
    for name, value in options.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    frame: DataFrame = reader.load()
    if text:
        for name in ("key", "value"):
            if name in frame.columns:
                frame = frame.withColumn(name, frame[name].cast("string"))
    return frame


def _start(builder: SparkSession.Builder) -> SparkSession:
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise StreamHouseError(
            "Java ended before Spark was ready", hint="its own message is above; often an option in config is wrong"
        ) from error


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if _is_local(master):
        # One machine: no name to look up, no port for others, and no 200 partitions for a small aggregation.
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 1))
        settings["spark.ui.enabled"] = "false"
    return settings


def _java_options(*, fast_start: bool) -> list[str]:
    home = Path(pyspark.__file__).parent
    cached = cache_options(
        _cache() / "jvm",
        pyspark_home=home,
        pyspark_version=pyspark.__version__,
        process_id=os.getpid(),
        clock=SystemClock(),
    )
    return [_STACK, *cached, *log_options(home), *([_C1_ONLY] if fast_start else [])]


def _remote(
    remote: str, archive: str | Path | None, config: Mapping[str, str], defaults: dict[str, str]
) -> SparkSession:
    builder = SparkSession.builder.remote(remote)
    for name, value in config.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    packed = _packed(archive)
    spark.addArtifacts(spark_archive(packed), archive=True)
    register(spark, archive=packed, **defaults)
    return spark


def _packed(archive: str | Path | None) -> Path:
    if archive is not None:
        return Path(archive)
    packed = pack(_cache() / "packs")
    os.utime(packed)  # in use: what is not for a month is removed
    forget_unused(packed.parent, now_ms=SystemClock().wall_ms())
    return packed


def _parallelism(spark: SparkSession) -> int | None:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # a Connect session has no context, and says so in ways that differ between versions
        return None


def _is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamhouse" / "spark"
