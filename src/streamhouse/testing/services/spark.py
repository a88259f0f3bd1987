"""A private Spark standalone cluster, started from pyspark's own wheel: one master and some workers, each a process.

Executors are children of the workers, so tasks run in other processes than the driver, with a Python of their own.
Owns starting, readiness and stopping; drivers belong to the tests.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from streamhouse.core.errors import ServiceMissing
from streamhouse.testing.services.ports import LOOPBACK, free_ports
from streamhouse.testing.services.process import (
    ServerCommand,
    ServerEnded,
    SupervisedProcess,
    make_directory,
    wait_ready,
)
from streamhouse.testing.services.service import Service, Stoppable, start_afresh

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


class SparkCluster(Stoppable):
    """A running master and its workers. Made by ``start_spark``."""

    def __init__(self, *, master_url: str, processes: list[SupervisedProcess], status_url: str) -> None:
        self.master_url = master_url
        self._processes = processes
        self._status_url = status_url

    def alive_workers(self) -> int:
        """Return the number of workers that the master counts as alive; 0 while it does not answer."""
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(self._status_url, timeout=_PROBE_TIMEOUT_S) as answer:
                workers = json.load(answer)["workers"]
            return sum(worker["state"] == "ALIVE" for worker in workers)
        return 0

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.stop()


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


class SparkConnectService(Service):
    """A Connect server on this machine's cores. Made by ``start_spark_connect``."""

    def __init__(self, *, home: Path, directory: Path, port: int, cores: int, environment: Mapping[str, str]) -> None:
        self.url = f"sc://{LOOPBACK}:{port}"
        settings = {
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.memory": "768m",
            "spark.driver.extraJavaOptions": "-Xss4m -XX:TieredStopAtLevel=1",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(directory),
            "spark.sql.shuffle.partitions": "2",
        }
        command = ServerCommand(
            argv=(
                str(home / "bin" / "spark-submit"),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", f"local[{cores}]"),
                *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            ),
            directory=directory,
            log_path=directory / "log",
            stop_signal=signal.SIGTERM,
            environment={"SPARK_HOME": str(home), "SPARK_LOCAL_IP": LOOPBACK, **environment},
        )
        self.process = SupervisedProcess(command)
        wait_ready("Spark Connect", self.process, command, lambda: _answers(port), timeout_ms=_START_TIMEOUT_MS)


def start_spark_connect(*, cores: int = 2, environment: Mapping[str, str] | None = None) -> SparkConnectService:
    """``environment`` reaches the server, and with it its planners and tasks."""
    home = find_spark()
    return start_afresh(
        "spark-connect",
        lambda directory, ports: SparkConnectService(
            home=home, directory=directory, port=ports[0], cores=cores, environment=environment or {}
        ),
        port_count=1,
    )


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=_PROBE_TIMEOUT_S):
        return True
    return False


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
