"""The broker of a process, built from its parts. Builds only: the broker decides (broker/)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

from streamhouse.app.log_parts import LogParts, Surroundings
from streamhouse.app.stores import Stores
from streamhouse.broker.broker import Broker
from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.configs import Configs
from streamhouse.broker.fetch import Fetch
from streamhouse.broker.groups.coordinator import GroupCoordinator
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.leading import Leading
from streamhouse.broker.log_offsets import LogOffsets
from streamhouse.broker.produce import Produce
from streamhouse.broker.producer_ids import ProducerIds
from streamhouse.broker.reads import Reads
from streamhouse.broker.simple_offsets import SimpleOffsets
from streamhouse.broker.slots.slots import Slots
from streamhouse.broker.topics import TopicAdmin
from streamhouse.broker.writers import LeaderlessWriter, LeasedWriter, Writer
from streamhouse.broker.writes import Writes
from streamhouse.core.clock import Clock
from streamhouse.core.randomness import Randomness
from streamhouse.core.settings import Settings
from streamhouse.log.offload import ThreadOffload
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.metadata.contract import Durability, MetadataStore, WriteMode

_PREPARING_THREADS: Final = 1
"""One batch at a time is opened in a thread: uncompressed, it may take MAX_INFLATED_BATCH_BYTES of memory."""


def make_broker(around: Surroundings, made: LogParts, parts: AsyncExitStack) -> Broker:
    """The broker of an agent. ``parts`` closes it."""
    settings, metadata, member = around.settings, around.stores.metadata, made.member
    view = ClusterView(
        metadata=metadata,
        agent_id=around.identity.agent_id,
        liveness_timeout_ms=settings.agent.liveness_timeout_ms,
        heartbeat_interval_ms=settings.agent.heartbeat_interval_ms,
        alone=around.durability is Durability.WAL,
    )
    parts.push_async_callback(view.close)
    groups = GroupCoordinator(
        metadata=metadata,
        view=view,
        clock=around.clock,
        randomness=around.randomness,
        slots=Slots(
            view=view,
            on_dropped=made.owner.dropped,
            opening=member.lease_table.is_opening,
            taking_over=member.is_taking_over,
        ),
        options=group_options(settings),
    )
    parts.push_async_callback(groups.close)
    offload = ThreadOffload(_PREPARING_THREADS)
    parts.push_async_callback(offload.close)
    leased = LeasedWriter(
        log=made.log,
        leases=member.lease_table,
        view=view,
        clock=around.clock,
        taking_over=member.is_taking_over,
        should_lead=member.should_lead,
        offload=offload,
    )
    return _broker(
        settings,
        metadata,
        view=view,
        groups=groups,
        reader=made.reader,
        writers={WriteMode.LEASED: leased, WriteMode.LEADERLESS: LeaderlessWriter(view)},
        durability=around.durability,
        clock=around.clock,
        randomness=around.randomness,
    )


def broker_without_agent(
    settings: Settings, stores: Stores, *, clock: Clock, randomness: Randomness, parts: AsyncExitStack
) -> Broker:
    """The broker of a process that leads nothing. ``parts`` closes it."""
    view = ClusterView(
        metadata=stores.metadata,
        agent_id="",
        liveness_timeout_ms=settings.agent.liveness_timeout_ms,
        heartbeat_interval_ms=settings.agent.heartbeat_interval_ms,
    )
    parts.push_async_callback(view.close)
    groups = GroupCoordinator(
        metadata=stores.metadata,
        view=view,
        clock=clock,
        randomness=randomness,
        slots=Slots(view=view),
        options=group_options(settings),
    )
    parts.push_async_callback(groups.close)
    reader = LogReader(
        metadata=stores.metadata,
        store=stores.objects,
        tail=TailCache(settings.memory.tail_cache_bytes),
        leading=None,
        clock=clock,
        options=ReaderOptions(durability=Durability.OBJECT, block_cache_bytes=settings.memory.block_cache_bytes),
    )
    parts.push_async_callback(reader.close)
    return _broker(
        settings,
        stores.metadata,
        view=view,
        groups=groups,
        reader=reader,
        writers={WriteMode.LEASED: Writer(), WriteMode.LEADERLESS: LeaderlessWriter(view)},
        durability=Durability.OBJECT,
        clock=clock,
        randomness=randomness,
    )


def _broker(
    settings: Settings,
    metadata: MetadataStore,
    *,
    view: ClusterView,
    groups: GroupCoordinator,
    reader: LogReader,
    writers: Mapping[WriteMode, Writer],
    durability: Durability,
    clock: Clock,
    randomness: Randomness,
) -> Broker:
    writes = Writes(writers=writers, reader=reader, metadata=metadata, view=view)
    reads = Reads(reader=reader, writes=writes, metadata=metadata, view=view, durability=durability)
    leading = Leading(view, writes)
    topics = TopicAdmin(
        metadata=metadata,
        view=view,
        randomness=randomness,
        default_partition_count=settings.kafka.num_partitions,
        auto_create=settings.kafka.auto_create_topics,
    )
    return Broker(
        view=view,
        topics=topics,
        configs=Configs(metadata=metadata, view=view, settings=settings),
        produce=Produce(writes, view),
        fetch=Fetch(view=view, reads=reads, writes=writes),
        offsets=LogOffsets(reads, leading),
        leading=leading,
        writes=writes,
        reads=reads,
        groups=groups,
        simple_offsets=SimpleOffsets(metadata, topics),
        producer_ids=ProducerIds(metadata),
        settings=settings,
        clock=clock,
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
