"""The settings of the Kafka port. Declared like those in declared.py, which has all sections."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from streamhouse.core.limits import MAX_BATCH_BYTES, MAX_PARTITIONS_PER_TOPIC
from streamhouse.core.settings.kinds import Address
from streamhouse.core.settings.schema import (
    addresses,
    boolean,
    duration,
    number,
    optional_addresses,
    optional_boolean,
    size,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """The Kafka port: where it listens, which address it tells clients, and its limits."""

    enabled: bool | None = optional_boolean(
        doc="Serve the Kafka protocol. Unset: yes in `streamhouse dev`, `agent` and `server`, no when opened from "
        "Python.",
        why="a program that uses the Python API did not ask for a network port",
    )
    listen: tuple[Address, ...] = addresses(
        "127.0.0.1:9092",
        ports_from=0,
        doc="Where Kafka clients connect. Port 0 takes any free one. Hosts other than this machine's loopback need "
        "kafka.allow_remote.",
        why="Kafka's own port, reachable from this machine alone",
    )
    advertised: tuple[Address, ...] | None = optional_addresses(
        example="broker-1.example.com:9092",
        doc="What clients are told to connect to: one address for each of kafka.listen, in the same order. Unset: "
        "agent.address (for the first listener, and for listeners on every address), else where it listens.",
        why="right wherever no proxy or container stands between",
    )
    allow_remote: bool = boolean(
        False,
        doc="Allow kafka.listen to name an address that other machines reach.",
        why="there is no authentication yet: every client that reaches the port can read and write everything",
    )
    auto_create_topics: bool = boolean(
        True,
        doc="Create a topic when a client asks for its metadata and allows that, as producers do.",
        why="Kafka's default, which quickstarts rely on",
    )
    num_partitions: int = number(
        1,
        at_least=1,
        at_most=MAX_PARTITIONS_PER_TOPIC,
        doc="How many partitions a topic gets if its creation does not say.",
        why="Kafka's default (num.partitions)",
    )
    max_connections: int = number(
        10_000,
        at_least=1,
        at_most=1_000_000,
        doc="Connections of all clients together; further ones are closed at once.",
        why="a thousand clients with ten brokers each; about 10 KB each when idle",
    )
    max_connections_per_ip: int = number(
        5_000,
        at_least=1,
        at_most=1_000_000,
        doc="Connections from one address; further ones are closed at once.",
        why="one machine's runaway client cannot lock all others out",
    )
    max_request_bytes: int = size(
        "100MiB",
        at_least="1MiB",
        at_most=MAX_BATCH_BYTES,
        doc="The largest request; a client that announces a larger one is disconnected.",
        why="Kafka's socket.request.max.bytes",
    )
    handshake_timeout_ms: int = duration(
        "30s",
        at_least="100ms",
        at_most="10m",
        doc="How long a new connection may take for its first complete request.",
        why="a client speaks at once; a port scanner never does",
    )
    idle_timeout_ms: int = duration(
        "10m",
        at_least="1s",
        at_most="24h",
        doc="A connection without a request for this long is closed.",
        why="Kafka's connections.max.idle.ms",
    )
    slow_reader_timeout_ms: int = duration(
        "30s",
        at_least="1s",
        at_most="1h",
        doc="A client that does not take its answers for this long is disconnected.",
        why="Kafka's request.timeout.ms: the client has given the request up by then",
    )
    stop_grace_ms: int = duration(
        "5s",
        at_least="0ms",
        at_most="10m",
        doc="How long requests under way may take to end when the process stops.",
        why="a produce waits for a flush at most",
    )
    fetch_sessions: int = number(
        1_000,
        at_least=0,
        at_most=100_000,
        doc="Incremental fetch sessions kept; a consumer without one names all its partitions in every fetch.",
        why="Kafka's max.incremental.fetch.session.cache.slots",
    )
    producer_id_expiration_ms: int = duration(
        "24h",
        at_least="10m",
        at_most="365d",
        doc="The log forgets an idempotent producer that has not written to a partition for this long. Set it to the "
        "same value on all agents: the shortest one counts.",
        why="Kafka's default (producer.id.expiration.ms); the lower bound is twice as long as clients retry by default",
    )

    @property
    def remote_hosts(self) -> list[str]:
        """Hosts of ``listen`` that other machines may reach."""
        return [address.host for address in self.listen if not is_loopback(address.host)]


def is_loopback(host: str) -> bool:
    """A name other than localhost counts as remote: what it resolves to is the resolver's business."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_wildcard(host: str) -> bool:
    """An address to listen on that no client can connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
