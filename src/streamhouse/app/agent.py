"""One agent: WAL, leased log, reader and membership, put together and taken apart in the right order.

    start   WAL recovered → store bound to its durability (R2) → log and reader → Kafka's sockets bound
            → membership takes leases → clients are let in
    stop    membership hands its partitions over, flushing each (S3.17) → clients are disconnected → log → WAL

Owns the order and the wiring; decides nothing about records or leases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from streamhouse.app.adoptions import Adoptions
from streamhouse.app.expiry import ExpiryOptions, RowExpiry
from streamhouse.app.kafka import BrokerParts, KafkaDoor, make_broker, make_groups, make_view
from streamhouse.app.metadata_progress import MetadataProgress, check_frames_follow, check_wal_directory
from streamhouse.app.ownership import LogOwner
from streamhouse.app.recovery import recovery_line
from streamhouse.app.requests import FlushRequests
from streamhouse.app.stores import Stores
from streamhouse.app.topics import TopicWatch
from streamhouse.broker.broker import Broker
from streamhouse.cluster.contract import Mode, Timings
from streamhouse.cluster.member import Member
from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MIB
from streamhouse.core.randomness import Randomness
from streamhouse.core.settings import DurabilitySetting, Settings
from streamhouse.core.urls import scheme_of
from streamhouse.log.leased.adoption import Adoption
from streamhouse.log.leased.log import LeasedLog
from streamhouse.log.leased.options import LeasedOptions
from streamhouse.log.leased.plan import FlushRules
from streamhouse.log.leased.recovery import held_by_partition
from streamhouse.log.offload import ThreadOffload
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.log.wal.opening import open_wal
from streamhouse.log.wal.options import WalOptions
from streamhouse.log.wal.recovery import Recovered
from streamhouse.log.wal.wal import Wal
from streamhouse.metadata.contract import KAFKA_LISTENER, AgentInfo, Durability

_GIVE_BACK_S: Final = 5.0
_BUSY_SEGMENT_BYTES: Final = 4 * MIB
_OFFLOAD_THREADS: Final = 2  # inflating blocks; more would only take cores from the event loop

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    agent_id: str
    address: str | None
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an agent is given and does not own."""

    settings: Settings
    stores: Stores
    identity: AgentIdentity
    clock: Clock
    randomness: Randomness
    on_fatal: Callable[[Exception], None]
    """Told once when the agent cannot go on: its disk failed, or another process runs under its name."""
    wal_dir: Path
    kafka: bool

    @property
    def durability(self) -> Durability:
        wal = self.settings.effective_durability is DurabilitySetting.WAL
        return Durability.WAL if wal else Durability.OBJECT


class Agent:
    """Made by ``Agent.start``; ends with ``stop``."""

    def __init__(
        self,
        *,
        wal: Wal,
        recovered: Recovered,
        log: LeasedLog,
        reader: LogReader,
        member: Member,
        stop_timeout_s: float,
        wal_dir: Path,
        leads_all: bool,
    ) -> None:
        """``leads_all``: a single node, which leads everything and has brought everything back when it has started."""
        self.wal = wal
        self.log = log
        self.reader = reader
        self.member = member
        self.kafka: KafkaDoor | None = None
        """None unless it was asked for."""
        self.left_behind = ""
        """After ``stop``: what is not in the log, in one line for people."""
        self._recovered = recovered
        self._stop_timeout_s = stop_timeout_s
        self._wal_dir = wal_dir
        self._leads_all = leads_all
        self._parts = AsyncExitStack()

    @classmethod
    async def start(
        cls,
        settings: Settings,
        stores: Stores,
        *,
        identity: AgentIdentity,
        clock: Clock,
        randomness: Randomness,
        on_fatal: Callable[[Exception], None],
        wal_dir: Path | None = None,
        kafka: bool = False,
    ) -> Agent:
        """``wal_dir``: another WAL than the settings', for several agents in one process. ``kafka``: with a Kafka door.

        If it raises, nothing is left behind.
        """
        around = Surroundings(
            settings=settings,
            stores=stores,
            identity=identity,
            clock=clock,
            randomness=randomness,
            on_fatal=on_fatal,
            wal_dir=wal_dir or settings.wal.dir,
            kafka=kafka,
        )
        async with AsyncExitStack() as parts:
            agent = await _assemble(around, parts)
            await agent._join()
            agent._parts = parts.pop_all()
            return agent

    async def _join(self) -> None:
        door = self.kafka
        if door is None:
            await self.member.start()
            return
        await door.bind()
        await self.member.start(listeners={KAFKA_LISTENER: door.address})
        try:
            assert self.member.agent is not None
            await door.broker.view.start(self.member.agent, door.endpoints)
            door.broker.groups.start()
            await door.open()
        except BaseException:
            await self.member.stop()
            raise

    async def stop(self, *, graceful: bool = True) -> None:
        """Graceful: everything acknowledged is in the log and the partitions are handed over when this returns, or
        ``agent.stop_timeout`` has passed and ``left_behind`` tells what is not."""
        try:
            if graceful:
                self.log.limit_closing(self._stop_timeout_s)
            with suppress(TimeoutError):
                # The rest is for the leases. Those that could not be given back run out by themselves.
                async with asyncio.timeout(self._stop_timeout_s + _GIVE_BACK_S if graceful else None):
                    await self.member.stop(graceful=graceful)
            self.left_behind = self._left_behind()
        finally:
            await self._parts.aclose()  # also when somebody cuts the graceful part short

    def recovery(self) -> str:
        """What the start found in the WAL, in one line for people."""
        # An agent of a fleet leads nothing yet when it has started, so it could only say that nothing was replayed.
        replayed = self.log.stats.replayed_batches if self._leads_all else None
        return recovery_line(self._recovered, replayed=replayed)

    def _left_behind(self) -> str:
        count = self.log.held_batches
        if not count:
            return ""
        batches = "one batch is" if count == 1 else f"{count} batches are"
        return f"{batches} not in the log yet, and kept in the WAL in {self._wal_dir} until this agent starts again"

    async def wait_leading(self, keys: list[PartitionKey], *, timeout_s: float) -> bool:
        """Whether every one of these partitions is served here before the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.log.wait_open(keys)
        except TimeoutError:
            return False
        return True


async def _assemble(around: Surroundings, parts: AsyncExitStack) -> Agent:
    """Everything but the membership's start. ``parts`` closes in the opposite order."""
    settings, stores, durability = around.settings, around.stores, around.durability
    info = await stores.metadata.cluster_info()
    on_sqlite = scheme_of(settings.metadata.url) == "sqlite"
    if on_sqlite:
        await check_wal_directory(stores.metadata, around.wal_dir)
    wal, recovered = await open_wal(
        around.wal_dir,
        clock=around.clock,
        randomness=around.randomness,
        options=WalOptions.of(settings.wal),
        cluster_id=info.cluster_id,
        bound_wal_id=info.wal_id if durability is Durability.WAL else None,
    )
    parts.push_async_callback(wal.close)
    _tell_recovered(around.wal_dir, recovered)
    held = held_by_partition(recovered.frames())
    if durability is Durability.WAL:
        await check_frames_follow(stores.metadata, held)
    progress = _metadata_progress(around, info.cluster_id)
    if on_sqlite:
        parts.push_async_callback(progress.close)  # after the log's end: its last commits count
    await stores.metadata.bind_durability(durability, wal.wal_id if durability is Durability.WAL else None)
    wal.on_failed(around.on_fatal)
    owner = LogOwner()
    tail = TailCache(settings.memory.tail_cache_bytes)
    log = LeasedLog(
        metadata=stores.metadata,
        store=stores.objects,
        wal=wal,
        tail=tail,
        clock=around.clock,
        randomness=around.randomness,
        options=leased_options(settings, durability),
        on_dropped=owner.dropped,
        on_alarm=lambda words: member.report("lost commits", MetadataError(words)),
    )
    for key, frames in held.items():
        log.hold_frames(key, frames)
    await log.check_held_frames()
    log.start()
    parts.push_async_callback(log.close)
    member = _member(around, wal, owner)
    if on_sqlite:
        progress.start(member.report)
    wal.on_room(lambda problem: _tell_room(log, member, problem))
    reader = _reader(around, parts, tail, log, member)
    topics = TopicWatch(metadata=stores.metadata, on_changed=log.configure, report=member.report)
    topics.start()
    parts.push_async_callback(topics.close)
    flushes = FlushRequests(metadata=stores.metadata, log=log, report=member.report)
    flushes.start()
    parts.push_async_callback(flushes.close)
    expiry = RowExpiry(
        metadata=stores.metadata, randomness=around.randomness, options=expiry_options(settings), report=member.report
    )
    expiry.start()
    parts.push_async_callback(expiry.close)
    adoptions = _adoptions(around, parts, log, member)
    adoptions.start()
    parts.push_async_callback(adoptions.close)
    agent = Agent(
        wal=wal,
        recovered=recovered,
        log=log,
        reader=reader,
        member=member,
        stop_timeout_s=settings.agent.stop_timeout_ms / 1000,
        wal_dir=around.wal_dir,
        leads_all=durability is Durability.WAL,
    )
    if not around.kafka:
        owner.attach(log=log, member=member, topics=topics)
        return agent
    broker = _broker(around, parts, agent, owner)
    owner.attach(log=log, member=member, topics=topics, routes=broker.view, slots=broker.groups.slots)
    agent.kafka = KafkaDoor(settings, broker)
    parts.push_async_callback(agent.kafka.close)
    return agent


def _tell_recovered(wal_dir: Path, recovered: Recovered) -> None:
    _log.log(
        logging.INFO if recovered.frame_count or recovered.torn_bytes else logging.DEBUG,
        "the write-ahead log in %s is open: %s",
        wal_dir,
        recovery_line(recovered, replayed=None),
        extra={
            "wal_dir": str(wal_dir),
            "batches": recovered.frame_count,
            "bytes": recovered.batch_bytes,
            "torn_bytes": recovered.torn_bytes,
        },
    )


def _tell_room(log: LeasedLog, member: Member, problem: Exception | None) -> None:
    member.report("the write-ahead log's disk", problem)
    if problem is None:
        log.look_for_room()


def _broker(around: Surroundings, parts: AsyncExitStack, agent: Agent, owner: LogOwner) -> Broker:
    settings, metadata = around.settings, around.stores.metadata
    view = make_view(settings, metadata, agent_id=around.identity.agent_id, durability=around.durability)
    parts.push_async_callback(view.close)
    groups = make_groups(
        settings,
        metadata,
        view=view,
        clock=around.clock,
        randomness=around.randomness,
        member=agent.member,
        on_dropped=owner.dropped,
    )
    parts.push_async_callback(groups.close)
    return make_broker(
        BrokerParts(
            settings=settings,
            metadata=metadata,
            clock=around.clock,
            randomness=around.randomness,
            durability=around.durability,
            log=agent.log,
            reader=agent.reader,
            member=agent.member,
            view=view,
            groups=groups,
        )
    )


def _reader(around: Surroundings, parts: AsyncExitStack, tail: TailCache, log: LeasedLog, member: Member) -> LogReader:
    offload = ThreadOffload(_OFFLOAD_THREADS)
    parts.push_async_callback(offload.close)
    reader = LogReader(
        metadata=around.stores.metadata,
        store=around.stores.objects,
        tail=tail,
        leading=log,
        clock=around.clock,
        options=ReaderOptions(
            durability=around.durability,
            block_cache_bytes=around.settings.memory.block_cache_bytes,
            max_ahead_bytes=around.settings.memory.block_cache_bytes,
        ),
        offload=offload,
        report=member.report,
    )
    parts.push_async_callback(reader.close)
    return reader


def _adoptions(around: Surroundings, parts: AsyncExitStack, log: LeasedLog, member: Member) -> Adoptions:
    offload = ThreadOffload(1)
    parts.push_async_callback(offload.close)
    adoption = Adoption(
        metadata=around.stores.metadata,
        store=around.stores.objects,
        log=log,
        randomness=around.randomness,
        offload=offload,
    )
    return Adoptions(
        adoption=adoption, metadata=around.stores.metadata, log=log, clock=around.clock, report=member.report
    )


def _metadata_progress(around: Surroundings, cluster_id: UUID) -> MetadataProgress:
    return MetadataProgress(
        metadata=around.stores.metadata,
        objects=around.stores.objects,
        wal_dir=around.wal_dir,
        cluster_id=cluster_id,
        clock=around.clock,
        randomness=around.randomness,
    )


def _member(around: Surroundings, wal: Wal, owner: LogOwner) -> Member:
    mode = Mode.SINGLE_NODE if around.durability is Durability.WAL else Mode.FLEET
    return Member(
        metadata=around.stores.metadata,
        clock=around.clock,
        randomness=around.randomness,
        info=AgentInfo(
            agent_id=around.identity.agent_id,
            incarnation=around.randomness.uuid(),
            listeners={} if around.identity.address is None else {KAFKA_LISTENER: around.identity.address},
            availability_zone=around.identity.zone,
            agent_group=around.settings.agent.group,
        ),
        wal_id=wal.wal_id,
        timings=Timings.from_settings(around.settings, mode),
        owner=owner,
        mode=mode,
        on_fatal=around.on_fatal,
    )


def expiry_options(settings: Settings) -> ExpiryOptions:
    return ExpiryOptions(
        producer_idle_ms=settings.kafka.producer_id_expiration_ms,
        commit_keep_ms=settings.metadata.commit_retention_ms,
    )


def leased_options(settings: Settings, durability: Durability) -> LeasedOptions:
    return LeasedOptions(
        durability=durability,
        rules=FlushRules(
            segment_max_bytes=settings.segment.max_bytes,
            busy_segment_bytes=_BUSY_SEGMENT_BYTES if durability is Durability.WAL else 0,
            segment_max_age_ms=settings.segment.max_age_ms,
            flush_interval_ms=settings.flush.interval_ms,
        ),
        max_buffer_bytes=settings.memory.write_buffer_bytes,
        producer_expiration_ms=settings.kafka.producer_id_expiration_ms,
    )
