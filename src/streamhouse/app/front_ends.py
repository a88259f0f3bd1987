"""The front ends of a process, built from its settings: which there are, where they listen, and their limits.

Builds only. What a front end is, is in gateway/front_end.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from streamhouse.broker.broker import Broker
from streamhouse.core.clock import Clock
from streamhouse.core.settings import Address, Settings, is_wildcard
from streamhouse.gateway.admin.health import HealthReport
from streamhouse.gateway.admin.server import AdminLimits, AdminServer
from streamhouse.gateway.kafka.server import KafkaServer, Listener, ServerLimits


def make_kafka(settings: Settings, broker: Broker) -> KafkaServer:
    return KafkaServer(broker=broker, listeners=listeners(settings), limits=server_limits(settings), clock=broker.clock)


def make_admin(
    settings: Settings,
    *,
    clock: Clock,
    health: Callable[[], Awaitable[HealthReport]],
    metrics: Callable[[], bytes],
    costs: Callable[[], Mapping[str, object] | None],
) -> AdminServer:
    admin = settings.admin
    return AdminServer(
        listen=admin.listen,
        limits=AdminLimits(
            max_connections=admin.max_connections,
            max_request_bytes=admin.max_request_bytes,
            request_timeout_s=admin.request_timeout_ms / 1000,
        ),
        clock=clock,
        health=health,
        metrics=metrics,
        costs=costs,
    )


def registered_http(settings: Settings, admin: AdminServer) -> str | None:
    """The address that an agent registers for HTTP: where it listens, with the host of agent.address if it listens on
    every address of the machine. None if no other process could connect to it."""
    host, _, port = admin.addresses[0].rpartition(":")
    if not is_wildcard(host.strip("[]")):
        return admin.addresses[0]
    if settings.agent.address is None:
        return None
    return f"{settings.agent.address.rpartition(':')[0]}:{port}"


def listeners(settings: Settings) -> list[Listener]:
    """Clients are told kafka.advertised, else agent.address (for the first listener, and for listeners on every
    address), else where it listens."""
    made: list[Listener] = []
    for number, listen in enumerate(settings.kafka.listen):
        told = Address(host=listen.host, port=0)
        if settings.kafka.advertised is not None:
            told = settings.kafka.advertised[number]
        elif settings.agent.address is not None and (number == 0 or is_wildcard(listen.host)):
            host, _, port = settings.agent.address.rpartition(":")
            told = Address(host=host.strip("[]"), port=int(port))
        made.append(
            Listener(
                name=f"listener-{number}",
                host=listen.host,
                port=listen.port,
                advertised_host=told.host,
                advertised_port=told.port,
            )
        )
    return made


def server_limits(settings: Settings) -> ServerLimits:
    kafka = settings.kafka
    return ServerLimits(
        max_connections=kafka.max_connections,
        max_connections_per_address=kafka.max_connections_per_ip,
        max_request_bytes=kafka.max_request_bytes,
        request_memory_bytes=settings.memory.request_bytes,
        handshake_timeout_ms=kafka.handshake_timeout_ms,
        idle_timeout_ms=kafka.idle_timeout_ms,
        slow_reader_timeout_ms=kafka.slow_reader_timeout_ms,
        max_fetch_sessions=kafka.fetch_sessions,
        stop_grace_ms=kafka.stop_grace_ms,
    )
