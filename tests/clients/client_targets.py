"""What the clients are run against: StreamHouse and Apache Kafka, alone or as three, with one that can be killed.

Owns starting and stopping; one ``Target`` looks like the other to the scenarios.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from client_proxy import LossyProxy

import streamhouse
from streamhouse.testing.services import (
    KafkaService,
    PostgresService,
    S3Service,
    start_kafka,
    start_kafka_cluster,
    start_postgres,
    start_s3,
)
from streamhouse.testing.services.kafka import brokers_known_at
from streamhouse.testing.services.ports import LOOPBACK, free_ports
from streamhouse.testing.services.process import ServerCommand, SupervisedProcess, make_directory, wait_ready
from streamhouse.testing.services.service import Service

KAFKA: Final = "Apache Kafka"
STREAMHOUSE: Final = "StreamHouse"
_PROGRAM = Path(sys.executable).with_name("streamhouse")
_READY_TIMEOUT_MS = 60_000

# KIP-848 members hear of a change with their next heartbeat, five seconds apart by default on both.
_KAFKA_PROPERTIES: Final = {
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}
_SETTINGS: Final = {"group.consumer_heartbeat": "1s"}

S = TypeVar("S", bound=Service)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    version: str
    bootstrap: str
    lossy_bootstrap: str = ""
    proxy: LossyProxy | None = None
    kill_one: Callable[[], None] | None = None
    """Kill -9 a broker; only of three."""
    heal: Callable[[], None] | None = None
    """Bring back the brokers that were killed."""


@contextlib.contextmanager
def apache_kafka() -> Iterator[Target]:
    with (
        LossyProxy() as proxy,
        start_kafka(quick=True, heap_mb=512, proxy_port=proxy.port, properties=_KAFKA_PROPERTIES) as kafka,
    ):
        proxy.upstream_port = kafka.proxied_port
        yield Target(
            name=KAFKA,
            version=kafka.version,
            bootstrap=kafka.bootstrap,
            lossy_bootstrap=f"{LOOPBACK}:{proxy.port}",
            proxy=proxy,
        )


@contextlib.contextmanager
def apache_kafka_cluster() -> Iterator[Target]:
    with start_kafka_cluster(properties=_KAFKA_PROPERTIES) as cluster:
        kill_one, heal = _kill_and_heal(cluster.nodes, KafkaService.kill, KafkaService.restart)
        yield Target(name=KAFKA, version=cluster.version, bootstrap=cluster.bootstrap, kill_one=kill_one, heal=heal)


def _kill_and_heal(
    nodes: Sequence[S], kill: Callable[[S], None], restart: Callable[[S], None]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Kill one, the next at the next call; bring back all that were killed."""
    victims = itertools.cycle(nodes)
    dead: list[S] = []

    def kill_one() -> None:
        dead.append(next(victims))
        kill(dead[-1])

    def heal() -> None:
        while dead:
            restart(dead.pop())

    return kill_one, heal


class StreamHouseService(Service):
    """One ``streamhouse`` process with a Kafka port."""

    def __init__(self, command: str, settings: Mapping[str, str], ports: tuple[int, ...], advertised: str) -> None:
        self.home = make_directory("clients", None)
        self.port = ports[0]
        self.bootstrap = f"{LOOPBACK}:{ports[0]}"
        given = {
            **_SETTINGS,
            **settings,
            "data_dir": str(self.home / "data"),
            "admin.listen": f"{LOOPBACK}:0",
            "kafka.listen": ",".join(f"{LOOPBACK}:{port}" for port in ports),
            "kafka.advertised": advertised,
        }
        environment = {f"STREAMHOUSE_{key.upper().replace('.', '_')}": value for key, value in given.items()}
        self._command = ServerCommand(
            argv=(str(_PROGRAM), command),
            directory=self.home,
            log_path=self.home / "log",
            stop_signal=signal.SIGTERM,
            environment=environment,
        )
        self.process = SupervisedProcess(self._command)

    def wait(self, brokers: int) -> None:
        def ready() -> bool:
            with contextlib.suppress(OSError):
                return brokers_known_at(self.port) >= brokers
            return False

        try:
            wait_ready(STREAMHOUSE, self.process, self._command, ready, timeout_ms=_READY_TIMEOUT_MS)
        except BaseException:
            self.process.stop()
            raise

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)

    def restart(self, brokers: int) -> None:
        self.process.stop(keep=True)
        self.process = SupervisedProcess(self._command)
        self.wait(brokers)

    def log(self) -> str:
        return self._command.log_path.read_text(errors="replace")


@contextlib.contextmanager
def streamhouse_alone() -> Iterator[Target]:
    """Run StreamHouse on embedded defaults, as ``streamhouse dev`` does."""
    with LossyProxy() as proxy:
        ports = free_ports(2)
        advertised = f"{LOOPBACK}:{ports[0]},{LOOPBACK}:{proxy.port}"
        with StreamHouseService("dev", {}, ports, advertised) as service:
            service.wait(1)
            proxy.upstream_port = ports[1]
            yield Target(
                name=STREAMHOUSE,
                version=streamhouse.__version__,
                bootstrap=service.bootstrap,
                lossy_bootstrap=f"{LOOPBACK}:{proxy.port}",
                proxy=proxy,
            )


@contextlib.contextmanager
def streamhouse_fleet(agents: int = 3) -> Iterator[Target]:
    """Three agents on PostgreSQL and an S3 server."""
    with start_postgres() as postgres, start_s3() as s3, contextlib.ExitStack() as stack:
        settings = _fleet_settings(postgres, s3)
        fleet: list[StreamHouseService] = []
        for number in range(agents):
            (port,) = free_ports(1)
            own = {**settings, "agent.id": f"agent-{number}", "agent.address": f"{LOOPBACK}:{port}"}
            fleet.append(stack.enter_context(StreamHouseService("agent", own, (port,), f"{LOOPBACK}:{port}")))
        for service in fleet:
            service.wait(agents)
        kill_one, heal = _kill_and_heal(fleet, StreamHouseService.kill, lambda service: service.restart(agents))
        yield Target(
            name=STREAMHOUSE,
            version=streamhouse.__version__,
            bootstrap=",".join(service.bootstrap for service in fleet),
            kill_one=kill_one,
            heal=heal,
        )


def _fleet_settings(postgres: PostgresService, s3: S3Service) -> dict[str, str]:
    return {
        "profile": "fast",
        "metadata.url": postgres.create_database(),
        "store.url": f"s3://{s3.create_bucket()}/clients",
        "store.endpoint_url": s3.endpoint_url,
        "store.region": s3.region,
        "store.access_key_id": s3.access_key,
        "store.secret_access_key": s3.secret_key,
    }
