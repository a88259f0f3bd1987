"""A private Spark standalone cluster, started from pyspark's own wheel: one master and some workers, each a process.

Executors are children of the workers, so tasks run in other processes than the driver, with a Python of their own.
Owns starting, readiness and stopping; drivers belong to the tests.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from streamhouse.core.errors import ServiceMissing
from streamhouse.testing.services.ports import LOOPBACK, free_ports
from streamhouse.testing.services.process import (
    ServerCommand,
    ServerEnded,
    SupervisedProcess,
    make_directory,
    wait_ready,
)

_START_TIMEOUT_MS: Final = 90_000
_START_ATTEMPTS: Final = 3
_PROBE_TIMEOUT_S: Final = 2.0
_DAEMON_MEMORY: Final = "192m"


def find_spark() -> Path:
    """Where pyspark is installed; its wheel holds all of Spark."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServiceMissing("pyspark is not installed", hint="run scripts/setup")
    if shutil.which("java") is None:
        raise ServiceMissing(
            "Spark needs Java, and there is none on PATH",
            hint="run scripts/setup --services, or install Debian's package 'openjdk-17-jre-headless'",
        )
    return Path(found.origin).parent


class SparkCluster:
    """A running master and its workers. Made by ``start_spark``."""

    def __init__(self, *, master_url: str, processes: list[SupervisedProcess], status_url: str) -> None:
        self.master_url = master_url
        self._processes = processes
        self._status_url = status_url

    @property
    def worker_pids(self) -> list[int]:
        return [process.pid for process in self._processes[1:]]

    def alive_workers(self) -> int:
        """As the master sees it; 0 while it does not answer."""
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(self._status_url, timeout=_PROBE_TIMEOUT_S) as answer:
                workers = json.load(answer)["workers"]
            return sum(worker["state"] == "ALIVE" for worker in workers)
        return 0

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def start_spark(
    *, workers: int = 2, cores: int = 1, memory: str = "1g", environment: Mapping[str, str] | None = None
) -> SparkCluster:
    """``cores`` and ``memory`` are each worker's. ``environment`` reaches workers and executors."""
    home = find_spark()
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            return _start(home, workers, cores, memory, environment or {})
        except ServerEnded:
            if attempt == _START_ATTEMPTS:
                raise
    raise AssertionError("the loop returns or raises")


def _start(home: Path, workers: int, cores: int, memory: str, environment: Mapping[str, str]) -> SparkCluster:
    port, status_port, *worker_ports = free_ports(2 + 2 * workers)
    master_url = f"spark://{LOOPBACK}:{port}"
    status_url = f"http://{LOOPBACK}:{status_port}/json/"
    started: list[SupervisedProcess] = []

    def launch(name: str, *arguments: str) -> ServerCommand:
        directory = make_directory(f"spark-{name}", None)
        command = ServerCommand(
            argv=(
                str(home / "bin" / "spark-class"),
                *(part.replace("{directory}", str(directory)) for part in arguments),
            ),
            directory=directory,
            log_path=directory / "log",
            stop_signal=signal.SIGTERM,
            environment={
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": LOOPBACK,
                "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
                "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                **environment,
            },
        )
        started.append(SupervisedProcess(command))
        return command

    cluster = SparkCluster(master_url=master_url, processes=started, status_url=status_url)
    try:
        package = "org.apache.spark.deploy"
        master = launch(
            "master",
            f"{package}.master.Master",
            "--host",
            LOOPBACK,
            "--port",
            str(port),
            "--webui-port",
            str(status_port),
        )
        for number in range(workers):
            own_port, ui_port = worker_ports[2 * number : 2 * number + 2]
            launch(
                "worker",
                f"{package}.worker.Worker",
                *("--host", LOOPBACK, "--port", str(own_port), "--webui-port", str(ui_port)),
                *("--cores", str(cores), "--memory", memory, "--work-dir", "{directory}"),
                master_url,
            )
        wait_ready(
            "Spark", started[0], master, lambda: cluster.alive_workers() >= workers, timeout_ms=_START_TIMEOUT_MS
        )
    except BaseException:
        cluster.stop()
        raise
    return cluster
