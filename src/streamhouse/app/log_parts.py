"""The log of an agent, built from its settings: WAL, leased log, reader, membership, and the loops beside them.

Builds and starts in this order, and closes in the opposite one:

    WAL recovered → store bound to its durability (R2) → log → membership (made, not started) → reader → loops

Builds only: what the parts do is in log/, cluster/ and maintenance/.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamhouse.app.ownership import LogOwner
from streamhouse.app.stores import Stores
from streamhouse.cluster.contract import Mode, Timings
from streamhouse.cluster.member import FleetMember
from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataError
from streamhouse.core.limits import MIB
from streamhouse.core.randomness import Randomness
from streamhouse.core.settings import DurabilitySetting, Settings
from streamhouse.core.units import format_size
from streamhouse.core.urls import scheme_of
from streamhouse.log.flush_policy import ENOUGH_BYTES, FlushPace
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
from streamhouse.maintenance.adoptions import Adoptions
from streamhouse.maintenance.compaction.compactor import CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.expiry import ExpiryOptions, RowExpiry
from streamhouse.maintenance.flush_requests import FlushRequests
from streamhouse.maintenance.metadata_progress import MetadataProgress, check_frames_follow, check_wal_directory
from streamhouse.maintenance.topic_watch import TopicWatch
from streamhouse.maintenance.upkeep import Upkeep, UpkeepOptions
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.metadata.contract import KAFKA_LISTENER, AgentInfo, Durability

WAL_DISK: Final = "the write-ahead log's disk"
"""The name of the problem that the disk has no room for another file."""
LOST_COMMITS: Final = "lost commits"
"""The name of the problem that the metadata store had lost commits."""
_BUSY_SEGMENT_BYTES: Final = 4 * MIB
_LOCAL_RULES: Final = CompactionRules(large_entry_bytes=MIB, target_object_bytes=16 * MIB, max_object_bytes=32 * MIB)
"""On a local disk, where a read has no round trip, an entry of a busy partition is large enough as it is."""
_OFFLOAD_THREADS: Final = 2  # inflating blocks; more would only take cores from the event loop

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    agent_id: str
    address: str | None
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The values that an agent gets from its process, which owns them."""

    settings: Settings
    stores: Stores
    identity: AgentIdentity
    clock: Clock
    randomness: Randomness
    on_fatal: Callable[[Exception], None]
    """Called once, when the agent cannot go on: its disk failed, or another process runs under its name."""
    wal_dir: Path

    @property
    def durability(self) -> Durability:
        wal = self.settings.effective_durability is DurabilitySetting.WAL
        return Durability.WAL if wal else Durability.OBJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class LogParts:
    wal: Wal
    recovered: Recovered
    log: LeasedLog
    reader: LogReader
    member: FleetMember
    """The membership, which is made and not started."""
    owner: LogOwner
    """The owner of leases, not attached yet: it reports them to the broker too, which is made from these parts."""
    topics: TopicWatch
    tail: TailCache
    adoption: Adoption
    expiry: RowExpiry
    upkeep: Upkeep | None
    """None where the settings turn it off."""


async def open_log(around: Surroundings, parts: AsyncExitStack) -> LogParts:
    """``parts`` closes everything in the opposite order."""
    settings, stores, durability = around.settings, around.stores, around.durability
    metadata = stores.metadata
    info = await metadata.cluster_info()
    on_sqlite = scheme_of(settings.metadata.url) == "sqlite"
    if on_sqlite:
        await check_wal_directory(metadata, around.wal_dir)
    wal, recovered = await open_wal(
        around.wal_dir,
        clock=around.clock,
        randomness=around.randomness,
        options=WalOptions.of(settings.wal),
        cluster_id=info.cluster_id,
        bound_wal_id=info.wal_id if durability is Durability.WAL else None,
    )
    parts.push_async_callback(wal.close)
    _log_recovered(around.wal_dir, recovered)
    held = held_by_partition(recovered.frames())
    if durability is Durability.WAL:
        await check_frames_follow(metadata, held)
    progress = MetadataProgress(
        metadata=metadata,
        objects=stores.objects,
        wal_dir=around.wal_dir,
        cluster_id=info.cluster_id,
        clock=around.clock,
        randomness=around.randomness,
    )
    if on_sqlite:
        parts.push_async_callback(progress.close)  # after the log's end: its last commits count
    await metadata.bind_durability(durability, wal.wal_id if durability is Durability.WAL else None)
    wal.on_failed(around.on_fatal)
    owner = LogOwner()
    tail = TailCache(settings.memory.tail_cache_bytes)
    log = LeasedLog(
        metadata=metadata,
        store=stores.objects,
        wal=wal,
        tail=tail,
        clock=around.clock,
        randomness=around.randomness,
        options=leased_options(settings, durability),
        on_dropped=owner.dropped,
        on_alarm=lambda words: member.report(LOST_COMMITS, MetadataError(words)),
    )
    for key, frames in held.items():
        log.hold_frames(key, frames)
    await log.check_held_frames()
    log.start()
    parts.push_async_callback(log.close)
    member = _member(around, wal, owner)
    if on_sqlite:
        progress.start(member.report)
    wal.on_room(lambda problem: _report_room(log, member, problem))
    reader = _reader(around, parts, tail, log, member)
    topics, adoption, expiry = _start_loops(around, parts, log, member)
    around.stores.meter.topics.name_of = topics.name_of
    upkeep = _start_upkeep(around, parts, log, member) if settings.maintenance.enabled else None
    return LogParts(
        wal=wal,
        recovered=recovered,
        log=log,
        reader=reader,
        member=member,
        owner=owner,
        topics=topics,
        tail=tail,
        adoption=adoption,
        expiry=expiry,
        upkeep=upkeep,
    )


def _start_loops(
    around: Surroundings, parts: AsyncExitStack, log: LeasedLog, member: FleetMember
) -> tuple[TopicWatch, Adoption, RowExpiry]:
    """Start what an agent does by itself, beside its membership."""
    metadata, report = around.stores.metadata, member.report
    topics = TopicWatch(metadata=metadata, on_changed=log.configure, report=report)
    offload = ThreadOffload(1)
    parts.push_async_callback(offload.close)
    adoption = Adoption(
        metadata=metadata,
        store=around.stores.objects,
        log=log,
        randomness=around.randomness,
        offload=offload,
    )
    expiry = RowExpiry(
        metadata=metadata,
        randomness=around.randomness,
        options=expiry_options(around.settings),
        report=report,
    )
    loops = (
        topics,
        FlushRequests(metadata=metadata, log=log, report=report),
        expiry,
        Adoptions(adoption=adoption, metadata=metadata, log=log, clock=around.clock, report=report),
    )
    for loop in loops:
        loop.start()
        parts.push_async_callback(loop.close)
    return topics, adoption, expiry


def _start_upkeep(around: Surroundings, parts: AsyncExitStack, log: LeasedLog, member: FleetMember) -> Upkeep:
    offload = ThreadOffload(1)
    parts.push_async_callback(offload.close)
    upkeep = Upkeep(
        metadata=around.stores.metadata,
        objects=around.stores.objects,
        leading=log,
        offload=offload,
        clock=around.clock,
        randomness=around.randomness,
        owner=around.identity.agent_id,
        options=upkeep_options(around.settings),
        report=member.report,
    )
    upkeep.start()
    parts.push_async_callback(upkeep.close)
    return upkeep


def _log_recovered(wal_dir: Path, recovered: Recovered) -> None:
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


def _report_room(log: LeasedLog, member: FleetMember, problem: Exception | None) -> None:
    member.report(WAL_DISK, problem)
    if problem is None:
        log.look_for_room()


def _reader(
    around: Surroundings, parts: AsyncExitStack, tail: TailCache, log: LeasedLog, member: FleetMember
) -> LogReader:
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


def _member(around: Surroundings, wal: Wal, owner: LogOwner) -> FleetMember:
    mode = Mode.SINGLE_NODE if around.durability is Durability.WAL else Mode.FLEET
    return FleetMember(
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


def upkeep_options(settings: Settings) -> UpkeepOptions:
    chosen, on_local_disk = settings.maintenance, settings.single_node
    return UpkeepOptions(
        retention_interval_ms=chosen.retention_interval_ms,
        compaction_interval_ms=chosen.compaction_interval_ms,
        compaction_bytes_per_second=chosen.max_rate_bytes,
        vacuum_interval_ms=chosen.vacuum_interval_ms,
        compactor=CompactorOptions(rules=_LOCAL_RULES if on_local_disk else CompactionRules(), max_parallel_items=1),
        vacuum=VacuumOptions(writer_grace_ms=chosen.writer_grace_ms, reader_grace_ms=chosen.reader_grace_ms),
        dereferenced_keep_bytes=chosen.garbage_max_bytes if on_local_disk else None,
    )


def leased_options(settings: Settings, durability: Durability) -> LeasedOptions:
    return LeasedOptions(
        durability=durability,
        rules=FlushRules(
            segment_max_bytes=settings.segment.max_bytes,
            busy_segment_bytes=_BUSY_SEGMENT_BYTES if durability is Durability.WAL else 0,
            segment_max_age_ms=settings.segment.max_age_ms,
            flush_interval_ms=settings.flush.interval_ms,
            pace=None if durability is Durability.WAL else _pace(settings),
        ),
        max_buffer_bytes=settings.memory.write_buffer_bytes,
        producer_expiration_ms=settings.kafka.producer_id_expiration_ms,
    )


def _pace(settings: Settings) -> FlushPace:
    return FlushPace(
        puts_per_second=settings.flush.max_puts_per_second,
        longest_wait_ms=settings.flush.interval_ms,
        unbudgeted_bytes=settings.segment.max_bytes,
        enough_bytes=max(ENOUGH_BYTES, settings.segment.max_bytes),
    )


def recovery_line(found: Recovered, *, replayed: int | None) -> str:
    """What a start found in the write-ahead log, in one line for people.

    ``replayed``: how many of the batches were not in the log yet and are now; None when that is not known.
    """
    if not found.file_count:
        return "a new write-ahead log"
    size = f" ({format_size(found.batch_bytes)})" if found.frame_count else ""
    parts = [f"{_count(found.frame_count, 'batch', 'batches')}{size} in {_count(found.file_count, 'file', 'files')}"]
    if replayed is not None and found.frame_count:
        parts.append(f"{replayed or 'none'} replayed")
    if found.torn_bytes:
        parts.append(f"a torn end of {format_size(found.torn_bytes)} cut off")
    if found.discarded_file_count:
        parts.append(f"{_count(found.discarded_file_count, 'file', 'files')} behind it discarded")
    return f"write-ahead log recovered: {', '.join(parts)}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number or 'no'} {one if number == 1 else many}"
