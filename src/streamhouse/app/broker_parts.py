"""The broker of a process, built from its parts. Builds only: the broker decides (broker/)."""

from __future__ import annotations

from contextlib import AsyncExitStack

from streamhouse.app.log_parts import LogParts, Surroundings
from streamhouse.broker.broker import Broker
from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.configs import Configs
from streamhouse.broker.fetch import Fetch
from streamhouse.broker.groups.coordinator import GroupCoordinator
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.leading import Leading
from streamhouse.broker.offsets import Offsets
from streamhouse.broker.produce import Produce
from streamhouse.broker.producer_ids import ProducerIds
from streamhouse.broker.reads import Reads
from streamhouse.broker.topics import TopicAdmin
from streamhouse.broker.writers import LeaderlessWriter, LeasedWriter
from streamhouse.broker.writes import Writes
from streamhouse.core.settings import Settings
from streamhouse.metadata.contract import Durability, WriteMode


def make_broker(around: Surroundings, made: LogParts, parts: AsyncExitStack) -> Broker:
    """``parts`` closes it."""
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
        options=group_options(settings),
        on_dropped=made.owner.dropped,
        opening=member.lease_table.is_opening,
        taking_over=member.is_taking_over,
    )
    parts.push_async_callback(groups.close)
    leased = LeasedWriter(
        log=made.log,
        leases=member.lease_table,
        view=view,
        clock=around.clock,
        taking_over=member.is_taking_over,
    )
    writes = Writes(
        writers={WriteMode.LEASED: leased, WriteMode.LEADERLESS: LeaderlessWriter(view)},
        reader=made.reader,
        metadata=metadata,
        view=view,
    )
    reads = Reads(reader=made.reader, writes=writes, metadata=metadata, view=view, durability=around.durability)
    leading = Leading(view, writes)
    return Broker(
        view=view,
        topics=TopicAdmin(
            metadata=metadata,
            view=view,
            randomness=around.randomness,
            default_partition_count=settings.kafka.num_partitions,
        ),
        configs=Configs(metadata=metadata, view=view, settings=settings),
        produce=Produce(writes, view),
        fetch=Fetch(view=view, reads=reads, writes=writes),
        offsets=Offsets(reads, leading),
        leading=leading,
        writes=writes,
        reads=reads,
        groups=groups,
        producer_ids=ProducerIds(metadata),
        settings=settings,
        clock=around.clock,
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
