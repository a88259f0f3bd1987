"""A private Apache Kafka: the oracle that says what a client sees of a real broker, alone or as a small cluster.

KRaft, every node broker and controller at once, on free loopback ports. Owns starting, asking for readiness and
killing; the clients belong to the tests.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamhouse.core.errors import ServiceFailed
from streamhouse.core.randomness import SystemRandomness
from streamhouse.testing.services.kafka_jars import SHORT_LIVED, KafkaJars, find_kafka
from streamhouse.testing.services.ports import LOOPBACK, free_ports
from streamhouse.testing.services.process import (
    Launch,
    ServerCommand,
    ServerEnded,
    ServerProcess,
    SupervisedProcess,
    make_directory,
    wait_ready,
)
from streamhouse.testing.services.service import Service, Stoppable, start_afresh

PORTS_PER_NODE: Final = 3  # clients, clients through a proxy, controllers
_START_TIMEOUT_MS = 60_000
_FORMAT_TIMEOUT_S = 60
_PROBE_TIMEOUT_S = 2.0
_MAX_PROBE_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaNode:
    node_id: int
    port: int
    proxied_port: int
    controller_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPlan:
    """What all nodes of a cluster agree on."""

    nodes: tuple[KafkaNode, ...]
    cluster_id: str
    heap_mb: int
    quick: bool  # first-tier compiler only: ready sooner, slower later
    proxy_port: int | None  # what the second listener advertises in place of its own port
    properties: Mapping[str, str]


class KafkaService(Service):
    """A running node. Made by ``start_kafka`` and ``start_kafka_cluster``."""

    def __init__(self, *, jars: KafkaJars, plan: KafkaPlan, node: KafkaNode, home: Path, launch: Launch) -> None:
        self.jars = jars
        self.version = jars.version
        self.node_id = node.node_id
        self.port = node.port
        self.bootstrap = f"{LOOPBACK}:{node.port}"
        self.proxied_port = node.proxied_port
        self._launch = launch
        self._broker_count = len(plan.nodes)
        configuration = home / "server.properties"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in _properties(plan, node, home).items()))
        if not (home / "data" / "meta.properties").exists():
            _format(jars, plan.cluster_id, configuration)
        options = [f"-Xms{plan.heap_mb}m", f"-Xmx{plan.heap_mb}m"]
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"] if plan.quick else ["-XX:+UseG1GC"]
        self._command = ServerCommand(
            argv=tuple(jars.java_argv("kafka.Kafka", str(configuration), options=options)),
            directory=home,
            log_path=home / "log",
            stop_signal=signal.SIGKILL,  # its data goes away with it; an orderly end of a quorum takes seconds
        )
        self.process: ServerProcess = launch(self._command)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> None:
        """Wait until this node knows every broker of the cluster."""
        wait_ready("Apache Kafka", self.process, self._command, self._ready, timeout_ms=_START_TIMEOUT_MS)

    def kill(self) -> None:
        """kill -9; its data stays until ``stop``."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)

    def restart(self) -> None:
        """kill -9, if it still runs, and start again on the same ports and data."""
        self.kill()
        self.process.stop(keep=True)
        self.process = self._launch(self._command)
        self.wait()

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, struct.error):
            return brokers_known_at(self.port) >= self._broker_count
        return False


class KafkaCluster(Stoppable):
    """Several nodes, one quorum. Every topic is replicated to all of them and needs all but one to be written."""

    def __init__(self, nodes: Sequence[KafkaService]) -> None:
        self.nodes = tuple(nodes)
        self.bootstrap = ",".join(node.bootstrap for node in nodes)
        self.version = nodes[0].version

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def start_kafka(
    *,
    heap_mb: int = 1024,
    quick: bool = False,
    proxy_port: int | None = None,
    properties: Mapping[str, str] | None = None,
    launch: Launch = SupervisedProcess,
) -> KafkaService:
    """One node. With ``proxy_port`` clients of ``proxied_port`` are told to come back through that port."""
    jars = find_kafka()

    def start(home: Path, ports: tuple[int, ...]) -> KafkaService:
        plan = _plan(ports, heap_mb=heap_mb, quick=quick, proxy_port=proxy_port, properties=properties)
        service = KafkaService(jars=jars, plan=plan, node=plan.nodes[0], home=home, launch=launch)
        return _ready_or_stopped([service])[0]

    return start_afresh("kafka", start, port_count=PORTS_PER_NODE)


def start_kafka_cluster(
    *, nodes: int = 3, heap_mb: int = 512, quick: bool = True, properties: Mapping[str, str] | None = None
) -> KafkaCluster:
    jars = find_kafka()
    plan = _plan(
        free_ports(nodes * PORTS_PER_NODE), heap_mb=heap_mb, quick=quick, proxy_port=None, properties=properties
    )
    services: list[KafkaService] = []
    homes: list[Path] = []
    try:
        for node in plan.nodes:
            homes.append(make_directory("kafka", None))
            services.append(KafkaService(jars=jars, plan=plan, node=node, home=homes[-1], launch=SupervisedProcess))
        return KafkaCluster(_ready_or_stopped(services))
    except BaseException:
        for service in services:
            service.stop()
        for home in homes:
            shutil.rmtree(home, ignore_errors=True)
        raise


def _ready_or_stopped(services: list[KafkaService]) -> list[KafkaService]:
    try:
        for service in services:
            service.wait()
    except BaseException:
        for service in services:
            service.process.stop(keep=True)
        raise
    return services


def _plan(
    ports: tuple[int, ...],
    *,
    heap_mb: int,
    quick: bool,
    proxy_port: int | None,
    properties: Mapping[str, str] | None,
) -> KafkaPlan:
    groups = [ports[start : start + PORTS_PER_NODE] for start in range(0, len(ports), PORTS_PER_NODE)]
    nodes = tuple(
        KafkaNode(node_id=number, port=group[0], proxied_port=group[1], controller_port=group[2])
        for number, group in enumerate(groups, start=1)
    )
    cluster_id = base64.urlsafe_b64encode(SystemRandomness().uuid().bytes).decode().rstrip("=")
    return KafkaPlan(
        nodes=nodes,
        cluster_id=f"A{cluster_id[1:]}",  # one that starts with a dash would be read as a flag
        heap_mb=heap_mb,
        quick=quick,
        proxy_port=proxy_port,
        properties=properties or {},
    )


def _properties(plan: KafkaPlan, node: KafkaNode, home: Path) -> dict[str, str]:
    replicas = min(3, len(plan.nodes))
    proxied = plan.proxy_port or node.proxied_port
    voters = ",".join(f"{each.node_id}@{LOOPBACK}:{each.controller_port}" for each in plan.nodes)
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{LOOPBACK}:{node.port},PROXIED://{LOOPBACK}:{node.proxied_port},"
        f"CONTROLLER://{LOOPBACK}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{node.port},PROXIED://{LOOPBACK}:{proxied}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(home / "data"),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
        "offsets.topic.replication.factor": str(replicas),
        "offsets.topic.num.partitions": "4",  # fifty, the default, take seconds to open on a small machine
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(max(1, replicas - 1)),
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        **plan.properties,
    }


def _format(jars: KafkaJars, cluster_id: str, configuration: Path) -> None:
    argv = jars.java_argv(
        "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(configuration), options=SHORT_LIVED
    )
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S)
    if ran.returncode != 0:
        raise ServiceFailed(f"Kafka's storage was not formatted: {ran.stderr.strip()[-800:] or ran.stdout[-800:]}")


def brokers_known_at(port: int) -> int:
    """A Metadata request (v1, no topics): an open port alone does not say that requests are served."""
    header = struct.pack(">hhihs", 3, 1, 1, 1, b"p")
    request = header + struct.pack(">i", 0)
    with socket.create_connection((LOOPBACK, port), timeout=_PROBE_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        if not 8 <= length <= _MAX_PROBE_ANSWER_BYTES:
            raise ServerEnded(f"port {port} answered {length} bytes, which is no answer of Kafka's")
        answer = connection.recv(length, socket.MSG_WAITALL)
    (brokers,) = struct.unpack_from(">i", answer, 4)
    return int(brokers)
