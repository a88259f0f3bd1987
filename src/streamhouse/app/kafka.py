"""The Kafka door of an agent: the broker behind it, put together from the agent's parts, and the server in front.

    bind     the sockets, so that the agent can register where it will be reached
    open     once the agent leads: clients are let in
    close    once it has handed over: requests under way are answered, then everybody is disconnected

Owns the wiring; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamhouse.broker.broker import Broker
from streamhouse.broker.cluster_view import ClusterView, Endpoint
from streamhouse.broker.configs import Configs
from streamhouse.broker.groups.coordinator import GroupCoordinator
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.produce import Produce
from streamhouse.broker.producer_ids import ProducerIds
from streamhouse.broker.reads import Reads
from streamhouse.broker.slots.slots import Slots
from streamhouse.broker.topics import TopicAdmin
from streamhouse.broker.writes import Writes
from streamhouse.cluster.member import Member
from streamhouse.core.clock import Clock
from streamhouse.core.randomness import Randomness
from streamhouse.core.settings import Address, Settings, is_wildcard
from streamhouse.gateway.kafka.server import KafkaServer, Listener, ServerLimits, ServerStats
from streamhouse.log.leased.log import LeasedLog
from streamhouse.log.reader.reader import LogReader
from streamhouse.metadata.contract import Durability, MetadataStore, SlotKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """What the broker is made of and does not own."""

    settings: Settings
    metadata: MetadataStore
    clock: Clock
    randomness: Randomness
    durability: Durability
    log: LeasedLog
    reader: LogReader
    member: Member
    view: ClusterView
    groups: GroupCoordinator


def make_view(settings: Settings, metadata: MetadataStore, *, agent_id: str, durability: Durability) -> ClusterView:
    return ClusterView(
        metadata=metadata,
        agent_id=agent_id,
        liveness_timeout_ms=settings.agent.liveness_timeout_ms,
        heartbeat_interval_ms=settings.agent.heartbeat_interval_ms,
        alone=durability is Durability.WAL,
    )


def make_broker(parts: BrokerParts) -> Broker:
    settings, metadata, view = parts.settings, parts.metadata, parts.view
    writes = Writes(
        log=parts.log,
        reader=parts.reader,
        metadata=metadata,
        leases=parts.member.lease_table,
        view=view,
        clock=parts.clock,
        taking_over=parts.member.is_taking_over,
    )
    return Broker(
        view=view,
        topics=TopicAdmin(
            metadata=metadata,
            view=view,
            randomness=parts.randomness,
            default_partition_count=settings.kafka.num_partitions,
        ),
        configs=Configs(metadata=metadata, view=view, settings=settings),
        produce=Produce(writes),
        writes=writes,
        reads=Reads(reader=parts.reader, log=parts.log, metadata=metadata, view=view, durability=parts.durability),
        groups=parts.groups,
        producer_ids=ProducerIds(metadata),
        settings=settings,
        clock=parts.clock,
    )


def make_groups(
    settings: Settings,
    metadata: MetadataStore,
    *,
    view: ClusterView,
    clock: Clock,
    randomness: Randomness,
    member: Member,
    on_dropped: Callable[[SlotKey, str], None],
) -> GroupCoordinator:
    slots = Slots(
        view=view, on_dropped=on_dropped, opening=member.lease_table.is_opening, taking_over=member.is_taking_over
    )
    return GroupCoordinator(
        metadata=metadata,
        view=view,
        clock=clock,
        randomness=randomness,
        slots=slots,
        options=group_options(settings),
    )


def group_options(settings: Settings) -> GroupOptions:
    group = settings.group
    return GroupOptions(
        initial_rebalance_delay_ms=group.initial_rebalance_delay_ms,
        min_session_timeout_ms=group.min_session_timeout_ms,
        max_session_timeout_ms=group.max_session_timeout_ms,
        max_size=group.max_size,
        consumer_session_timeout_ms=group.consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=group.consumer_heartbeat_ms,
        offsets_retention_ms=group.offsets_retention_ms,
        offsets_retention_check_ms=group.offsets_retention_check_ms,
    )


class KafkaDoor:
    def __init__(self, settings: Settings, broker: Broker) -> None:
        self.broker = broker
        self._grace_s = settings.kafka.stop_grace_ms / 1000
        self._server = KafkaServer(broker=broker, listeners=listeners(settings), limits=server_limits(settings))

    @property
    def stats(self) -> ServerStats:
        return self._server.stats

    @property
    def addresses(self) -> list[str]:
        """Where clients connect, one for each listener; after ``bind``."""
        return [str(Address(host=each.advertised_host, port=each.advertised_port)) for each in self._server.addresses]

    @property
    def address(self) -> str:
        """What the agent registers: other agents' clients are told this one."""
        return self.addresses[0]

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        return {
            each.name: Endpoint(host=each.advertised_host, port=each.advertised_port) for each in self._server.addresses
        }

    async def bind(self) -> None:
        """Raises ConfigError where an address cannot be had."""
        await self._server.bind()

    async def open(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self._server.stop(self._grace_s)


def listeners(settings: Settings) -> list[Listener]:
    """Clients are told kafka.advertised, else agent.address for the first listener, else where it listens."""
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
    )
