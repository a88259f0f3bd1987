"""Everything about a write to a topic is killed, again and again; the topic holds each input once.

SPARK_KILLS says how often each story is told. A story: files are streamed into a topic, one a batch, while something
dies; whatever died is started again until the query is through.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_ground import PROGRAMS
from sink_ground import values_of

from streamhouse.app.platform import StreamHouse
from streamhouse.testing.services import PostgresService, S3Service, SparkCluster

KILLS = int(os.environ.get("SPARK_KILLS", "1"))
BATCHES = 5
ROWS = 3_000
WAIT_S = 200
PARTITIONS = 4
TASKS = 3
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "10ms",
}
"""Any task that is not the fastest is run twice."""


class Server:
    """An agent process. ``restarts``: it is started again when it dies."""

    def __init__(self, directory: Path, environment: dict[str, str], *, restarts: bool = True) -> None:
        self.deaths = 0
        self._restarts = restarts
        self._directory = directory
        directory.mkdir(exist_ok=True)
        self._environment = {**os.environ, **environment}
        self._ready = directory / "ready"
        self._child: subprocess.Popen[bytes] | None = None
        self._dies = ""
        self._closed = False
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def start(self, dies: str = "") -> None:
        self._dies = dies
        self._launch()
        self._keeper.start()

    def _launch(self) -> None:
        self._ready.unlink(missing_ok=True)
        environment = {**self._environment, **({"DIES": self._dies} if self._dies else {})}
        with (self._directory / "server.log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "sink_server.py"), str(self._ready)],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )
        self._dies = ""
        until(self._ready.exists, "the agent is ready")

    def _keep(self) -> None:
        while not self._closed:
            assert self._child is not None
            if self._child.poll() is not None and not self._closed:
                self.deaths += 1
                if not self._restarts:
                    return
                self._launch()
            time.sleep(0.05)

    def close(self) -> None:
        self._closed = True
        self._keeper.join()
        assert self._child is not None
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        self._child.wait(60)


class Story:
    def __init__(self, directory: Path, settings: dict[str, Any], rng: random.Random) -> None:
        self.directory = directory
        self.settings = settings
        self.rng = rng
        self.input = directory / "input"
        self.input.mkdir(parents=True)
        self.expected: list[str] = []
        for number in range(BATCHES):
            lines = [f"{number}-{row:05d}-{'x' * 60}" for row in range(ROWS)]
            self.expected += lines
            file = self.input / str(number)
            file.write_text("\n".join(lines) + "\n")
            os.utime(file, (number + 1, number + 1))
        self.environment = {f"STREAMHOUSE_{name.upper()}": value for name, value in settings.items()}
        self.server = Server(directory, self.environment)

    def two_agents(self) -> list[Server]:
        """Agents of one fleet. The one that dies stays dead, so that the other has to complete its adoption."""
        return [
            Server(
                self.directory / name,
                {
                    **self.environment,
                    "STREAMHOUSE_AGENT_ID": name,
                    "STREAMHOUSE_KAFKA_LISTEN": "127.0.0.1:0",
                    "STREAMHOUSE_DATA_DIR": str(self.directory / name),
                    "DIES_MARKER": str(self.directory / "an agent has died"),
                },
                restarts=False,
            )
            for name in ("agent-a", "agent-b")
        ]

    async def create_topic(self) -> None:
        async with StreamHouse.open(**self.settings) as api:
            await api.create_topic("out", PARTITIONS)

    async def found(self) -> list[str]:
        async with StreamHouse.open(**self.settings) as api:
            topic = await api.topic("out")
            assert await api.agent.wait_leading(topic.partition_keys(), timeout_s=60)
            return await values_of(api, "out")

    def kill(self, at: str, batch: int) -> dict[str, Any]:
        """Return, for ``drive``, what dies in which batch."""
        return {"at": at, "batch": batch, "marker": str(self.directory / f"killed {at}")}

    def drive(self, *kills: dict[str, Any], master: str, config: dict[str, str]) -> int:
        """The driver's exit code; negative for a signal."""
        plan = {
            "master": master,
            "config": config,
            "options": {**spark_options(self.settings), "topic": "out", "blobBytes": "64KiB"},
            "checkpoint": str(self.directory / "checkpoint"),
            "input": str(self.input),
            "tasks": TASKS,
            "kills": kills,
        }
        with (self.directory / "driver.log").open("ab") as log:
            ran = subprocess.run(
                [sys.executable, str(PROGRAMS / "sink_driver.py"), json.dumps(plan)],
                stdout=log,
                stderr=log,
                timeout=WAIT_S,
                check=False,
            )
        return ran.returncode

    def log_tail(self) -> str:
        return (self.directory / "driver.log").read_text(errors="replace")[-3000:]


def spark_options(settings: dict[str, Any]) -> dict[str, str]:
    if "metadata_url" not in settings:
        return {"dataDir": settings["data_dir"]}
    names = {
        "metadata_url": "metadataUrl",
        "store_url": "storeUrl",
        "store_endpoint_url": "storeEndpointUrl",
        "store_region": "storeRegion",
        "store_access_key_id": "storeAccessKeyId",
        "store_secret_access_key": "storeSecretAccessKey",
    }
    return {option: settings[name] for name, option in names.items()}


def until(check: Any, what: str) -> None:
    deadline_s = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.02)


class Cutter:
    """Cuts every connection to a database, again and again."""

    def __init__(self, service: PostgresService, dsn: str, rng: random.Random) -> None:
        self.cuts = 0
        self._service = service
        self._dsn = dsn
        self._rng = rng
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        statement = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        while not self._over.wait(self._rng.uniform(0.2, 1.5)):
            self._service.psql(statement, dsn=self._dsn)
            self.cuts += 1

    def close(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture(params=range(KILLS))
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


@pytest.fixture
def embedded(tmp_path: Path, rng: random.Random) -> Story:
    """A data directory, and a single node that serves it."""
    return Story(tmp_path, {"data_dir": str(tmp_path / "data")}, rng)


@pytest.fixture
def fleet(tmp_path: Path, rng: random.Random, postgres_database: str, s3_service: S3Service) -> Story:
    settings = {
        "data_dir": str(tmp_path / "data"),
        "metadata_url": postgres_database,
        "store_url": f"s3://{s3_service.create_bucket()}",
        "store_endpoint_url": s3_service.endpoint_url,
        "store_region": s3_service.region,
        "store_access_key_id": s3_service.access_key,
        "store_secret_access_key": s3_service.secret_key,
        "profile": "fast",
    }
    return Story(tmp_path, settings, rng)


@pytest.fixture
def stories_end() -> Iterator[list[Any]]:
    """Whatever must be closed at the end, the last first."""
    closing: list[Any] = []
    yield closing
    for each in reversed(closing):
        each.close()


def local(memory: str = "768m") -> dict[str, Any]:
    return {"master": "local[2]", "config": {"spark.driver.memory": memory}}


def test_r8_r13_driver_and_leader_are_killed_on_a_single_node(embedded: Story, stories_end: list[Any]) -> None:
    story, rng = embedded, embedded.rng
    asyncio.run(story.create_topic())
    stories_end.append(story.server)
    story.server.start(dies=f"{rng.choice(['before', 'after'])}:{rng.randint(1, 2 * PARTITIONS)}")
    kill = story.kill(rng.choice(["before commit", "after commit"]), rng.randrange(BATCHES))
    assert story.drive(kill, **local()) == -signal.SIGKILL, story.log_tail()
    assert story.drive(**local()) == 0, story.log_tail()
    assert story.server.deaths == 1
    story.server.close()
    stories_end.clear()
    assert asyncio.run(story.found()) == story.expected


def test_r8_r13_executor_driver_leader_and_metadata_on_a_cluster(
    fleet: Story, stories_end: list[Any], spark_cluster: SparkCluster, postgres_service: PostgresService
) -> None:
    """An executor dies in a task, the driver between commits, a leader in an adoption, which the other agent completes;
    connections die all the time.
    """
    story, rng = fleet, fleet.rng
    asyncio.run(story.create_topic())
    agents = story.two_agents()
    dies = f"{rng.choice(['before', 'after'])}:{rng.randint(1, PARTITIONS)}"
    for agent in agents:
        stories_end.append(agent)
        agent.start(dies=dies)
    cutter = Cutter(postgres_service, story.settings["metadata_url"], rng)
    stories_end.append(cutter)
    cluster: dict[str, Any] = {
        "master": spark_cluster.master_url,
        "config": {"spark.executor.memory": "512m", "spark.cores.max": "2", **SPECULATION},
    }
    in_a_task = story.kill("in a task", rng.randrange(2))
    between = story.kill("after commit", rng.randrange(2, BATCHES))
    assert story.drive(in_a_task, between, **cluster) == -signal.SIGKILL, story.log_tail()
    assert Path(in_a_task["marker"]).exists()
    assert story.drive(**cluster) == 0, story.log_tail()
    assert cutter.cuts > 2
    assert sorted(agent.deaths for agent in agents) == [0, 1]
    cutter.close()
    for agent in agents:
        agent.close()
    stories_end.clear()
    assert asyncio.run(story.found()) == story.expected
