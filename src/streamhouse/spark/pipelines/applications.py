"""The Spark application that pipelines share: one JVM, a FAIR pool and a session of its own for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.sessions import register, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT: Final = "sc://"
_MASTERS: Final = ("local", "spark://", _CONNECT, "yarn", "k8s://")


class Application:
    """``master`` is local[*], spark://host:port or sc://host:port, the address of a Connect server."""

    def __init__(self, master: str, *, config: Mapping[str, str] | None = None, fast_start: bool = False) -> None:
        if not master.startswith(_MASTERS):
            raise InvalidSetting(
                f"{master[:80]!r} is no master of Spark", hint="write local[*], spark://host:7077 or sc://host:15002"
            )
        self._is_remote = master.startswith(_CONNECT)
        settings = {"spark.scheduler.mode": "FAIR", "spark.sql.session.timeZone": "UTC"} | dict(config or {})
        if self._is_remote:
            # The scheduler and the JVM are the server's own.
            settings.pop("spark.scheduler.mode")
            self._spark = session(remote=master, config=settings)
        else:
            self._spark = session(
                master=master, app_name="streamhouse pipelines", config=settings, fast_start=fast_start
            )

    def session_for(self, pipeline: str) -> SparkSession:
        """To be called, and used, in the thread that starts the query: a pool belongs to a thread."""
        if self._is_remote:
            return self._spark
        own = self._spark.newSession()
        register(own)
        own.sparkContext.setLocalProperty("spark.scheduler.pool", pipeline)
        return own

    def is_alive(self) -> bool:
        """Whether its JVM, or server, answers."""
        try:
            if self._is_remote:
                return bool(self._spark.version)
            return not self._spark.sparkContext._jsc.sc().isStopped()
        except Exception:  # Py4J and gRPC have no common class for "gone"
            return False

    def stop(self) -> None:
        self._spark.stop()
