"""The Spark application of a runner: one JVM, with a session and a FAIR scheduler pool for each query."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.packing import pack, spark_archive
from streamhouse.spark.sessions import register, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT: Final = "sc://"
_NOISE: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")
"""PySpark's loggers that print every error it raises, as a screen of JSON."""
_MASTERS: Final = ("local", "spark://", _CONNECT, "yarn", "k8s://")


class Application:
    """``remote`` is the address of a Connect server; there, each query gets a session of its own from the server."""

    def __init__(self, spark: SparkSession, *, archive: Path | None = None, remote: str | None = None) -> None:
        self._spark = spark
        self._archive = archive
        self._remote = remote

    @classmethod
    def open(
        cls,
        master: str,
        *,
        name: str = "streamhouse",
        config: Mapping[str, str] | None = None,
        fast_start: bool = False,
    ) -> Application:
        """``master`` is local[*], spark://host:port or sc://host:port, the address of a Connect server."""
        if not master.startswith(_MASTERS):
            raise InvalidSetting(
                f"{master[:80]!r} is not a Spark master", hint="write local[*], spark://host:7077 or sc://host:15002"
            )
        settings = {"spark.scheduler.mode": "FAIR", "spark.sql.session.timeZone": "UTC"} | dict(config or {})
        archive = None if _is_here(master) else pack(_packs())
        if master.startswith(_CONNECT):
            settings.pop("spark.scheduler.mode")  # the scheduler and the JVM belong to the server
            return cls(session(remote=master, config=settings, archive=archive), archive=archive, remote=master)
        spark = session(master=master, app_name=name, config=settings, fast_start=fast_start, archive=archive)
        return cls(spark, archive=archive)

    def session_for(self, pool: str) -> SparkSession:
        """Call it, and use the session, in the thread that starts the query: a pool belongs to a thread."""
        if self._remote is not None:
            assert self._archive is not None
            own = self._spark.builder.remote(self._remote).create()
            own.conf.set("spark.sql.session.timeZone", "UTC")
            own.addArtifacts(spark_archive(self._archive), archive=True)
        else:
            own = self._spark.newSession()
            own.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        register(own, archive=self._archive)
        return own

    def is_alive(self) -> bool:
        """True while the JVM or the Connect server answers."""
        try:
            if self._remote is not None:
                return bool(self._spark.version)
            return not self._spark.sparkContext._jsc.sc().isStopped()
        except Exception:  # Py4J and gRPC have no common class for "gone"
            return False

    def stop(self) -> None:
        self._spark.stop()


def _is_here(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def _packs() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamhouse" / "spark" / "packs"


def quieten() -> None:
    for name in _NOISE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
