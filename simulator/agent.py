"""A simulated machine with an agent process on it: the real WAL, log, reader and membership.

They are put together as in app/log_parts.py, but with a simulated disk, a task instead of the WAL's thread, and links
that fail instead of the stores' clients. A process is killed, or ends because its WAL fails, or stops in order; its
supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from simulator.disk import SimDisk
from simulator.history import DiskLost, GivenUp, TakenBatch
from simulator.ledger import WalLedger, WatchedWal
from simulator.loop import Lane, SimClock
from simulator.metadata import process_died, remote_metadata
from simulator.network import Weather
from simulator.rawbytes import Unreadable, batches_in
from simulator.store import RemoteStore
from streamhouse.app.ownership import LogOwner
from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.produce import Outcome, Produce, ProduceCall, WriteOrder
from streamhouse.broker.producer_ids import ProducerIds
from streamhouse.broker.writers import LeaderlessWriter, LeasedWriter
from streamhouse.broker.writes import Writes
from streamhouse.cluster.contract import Mode
from streamhouse.cluster.member import FleetMember
from streamhouse.core.errors import CorruptData, NotAcknowledged, NotLeader, StreamHouseError, TopicNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.adoption import Adoption
from streamhouse.log.leased.log import LeasedLog
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.recovery import HeldFrame, held_by_partition
from streamhouse.log.leased.writing import Append
from streamhouse.log.offload import InlineOffload
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.log.wal import TaskPump, Wal, open_wal
from streamhouse.maintenance.adoptions import Adoptions
from streamhouse.maintenance.flush_requests import FlushRequests
from streamhouse.maintenance.topic_watch import TopicWatch
from streamhouse.maintenance.upkeep import Upkeep
from streamhouse.metadata.contract import AgentInfo, Durability, WriteMode
from streamhouse.objectstore.retries import RetryingStore
from streamhouse.wire.buffers import BytesLike

if TYPE_CHECKING:
    from simulator.connections import SimConnection
    from simulator.world import World

_STOP_TIMEOUT_S: Final = 3.0
_CALLER: Final = Caller(protocol="sim")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a running agent."""

    wal: Wal
    log: LeasedLog
    reader: LogReader
    member: FleetMember
    view: ClusterView
    produce: Produce
    producer_ids: ProducerIds
    topics: TopicWatch
    flushes: FlushRequests
    adoptions: Adoptions
    upkeep: Upkeep | None

    async def stop(self) -> None:
        """Stop the parts in the order of app/log_parts.py."""
        self.log.limit_closing(_STOP_TIMEOUT_S)
        await self.member.stop()
        if self.upkeep is not None:
            await self.upkeep.close()
        for part in (self.view, self.adoptions, self.flushes, self.topics, self.reader, self.log, self.wal):
            await part.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    agent: str
    base_offset: int
    epoch: int
    at_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What an agent tells clients about the cluster."""

    agents: Sequence[str]
    leaders: Mapping[PartitionKey, str]


class ReadAnswer(NamedTuple):
    records: list[tuple[int, str]]
    next_offset: int
    """Where the reader goes on: as real clients do, behind the last batch, even if key compaction has emptied it."""


class ServerSide:
    """What an agent keeps for one connection."""

    def __init__(self) -> None:
        self.order = WriteOrder()
        self.calls: dict[ProduceCall, None] = {}
        """The running requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A fault that hits an agent at its next such step: "sent" is just before the effect, "done" just after it."""

    step: str
    stage: str
    springs: Callable[[], None]


class SimAgent:
    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.world = world
        self.dice = world.dice.child(name)
        self.clock = SimClock(
            world.loop,
            wall_ahead_ms=self.dice.between(-2000, 2000),
            boot_base_ms=self.dice.below(10_000_000),
            speed=self.dice.uniform(0.99, 1.01),
        )
        self.starved_for: Callable[[], float] | None = None
        """Returns for how many seconds its process gets no CPU; called after each round of the event loop. None on an
        idle machine."""
        self.disk = SimDisk(name, self.dice.child("disk"))
        self.metadata_weather = Weather()
        self.store_weather = Weather(latency_ms=(2.0, 20.0), timeout_ms=700.0)
        self.store = RemoteStore(
            world.objects,
            world.loop,
            self.dice.child("store"),
            self.store_weather,
            name=f"{name} to objects",
            tell=self._reaches,
        )
        self.sync_ms = (0.2, 2.0)
        self.wanted = True
        """Whether it is to be started again when it ends."""
        self.lane: Lane | None = None
        self.stopping: Lane | None = None
        """The process that was asked to stop; without room for its last frames it fails instead."""
        self.parts: Parts | None = None
        self._log: LeasedLog | None = None
        """That of the last process, also while it starts."""
        self.runs = 0
        self.rotten = False
        self.connections: list[SimConnection] = []
        self._taken: dict[tuple[PartitionKey, int], tuple[int, float]] = {}
        """Epoch and time at which the batch at an offset was last given to a client."""
        self._ledger = WalLedger()
        self.trap: Trap | None = None
        self._metadata = remote_metadata(
            world.metadata,
            world.loop,
            self.dice.child("metadata"),
            self.metadata_weather,
            name=f"{name} to metadata",
            tell=self._reaches,
        )

    @property
    def is_running(self) -> bool:
        return self.lane is not None

    # Beginning and end of the process.

    def start(self) -> None:
        self.wanted = True
        if self.lane is not None:
            return
        self.runs += 1
        self.lane = self.world.loop.lane(f"{self.name}#{self.runs}")
        self.lane.starved_for = self.starved_for
        self.world.note(f"{self.lane.name} starts")
        self.lane.spawn(self._run(self.lane)).add_done_callback(self._started, context=self.world.loop.world.context)

    def kill(self, *, power: bool = False) -> None:
        """kill -9, or a power cut of the machine."""
        if self.lane is not None:
            self.world.note(f"{self.lane.name} is killed" + (" by a power cut" if power else ""))
            self.lane.kill()
            self.lane = self.parts = None
            for connection in self.connections:
                connection.breaks(silently=power)
            self.connections = []
            self.disk.process_died()
            process_died(self._metadata)
        if power:
            self.disk.power_cut()

    def _reaches(self, step: str, stage: str) -> None:
        """A point of the write path. A fault that waits for it happens as soon as this step has ended."""
        trap = self.trap
        if trap is not None and (trap.step, trap.stage) == (step, stage):
            self.trap = None
            self.world.note(f"{self.name} has reached: {step} {stage}")
            self.world.loop.world.call_later(0, trap.springs)

    def hours_pass(self, by_ms: int) -> None:
        """Its wall clock goes on. Its boot clock does not, so what it has measured by it long ago is measured anew."""
        self.clock.set_wall(by_ms)
        if self._log is not None:
            self._log._committer.stamps._measured_boot_ms = None

    def lose_disk(self) -> None:
        self.kill()
        self.world.note(f"{self.name} loses its disk")
        self.disk.wipe()
        self._ledger.forget()
        self.rotten = False
        self.world.history.disks_lost.append(DiskLost(agent=self.name, at_ms=self.world.now_ms()))

    def rot(self) -> None:
        """Found out at the next start, or never."""
        self.kill()
        self.world.note(f"{self.name}: a bit rots")
        self.disk.rot()
        self.rotten = True
        self.world.history.disks_lost.append(DiskLost(agent=self.name, at_ms=self.world.now_ms()))

    def stop(self) -> None:
        """SIGTERM: hand everything over, then end."""
        self.wanted = False
        self.stopping = self.lane
        if self.lane is not None and self.parts is not None:
            self.world.note(f"{self.lane.name} is asked to stop")
            self.lane.spawn(self._stop(self.lane, self.parts))
        elif self.lane is not None:
            self.kill()

    def _ends(self, lane: Lane, why: str) -> None:
        """The process ends by itself. Its supervisor starts it again soon."""
        if self.lane is not lane:
            return
        self.world.note(f"{lane.name} ends: {why}")
        self.kill()
        if self.wanted:
            delay_s = self.dice.uniform(0.1, 0.6)
            self.world.loop.world.call_later(delay_s, lambda: self.start() if self.wanted else None)

    def _wal_failed(self, lane: Lane, why: str) -> None:
        if errno.errorcode[errno.ENOSPC] in why and lane is not self.stopping:
            self.world.problem(f"{lane.name}: a full disk ends the process: {why}")
        self._ends(lane, why)

    def _started(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.broken = error

    async def _run(self, lane: Lane) -> None:
        try:
            parts = await self._open(lane)
            await parts.member.start()
            assert parts.member.agent is not None
            await parts.view.start(parts.member.agent)
            self.parts = parts
            self.world.note(f"{lane.name} is up")
        except CorruptData as error:
            if not self.rotten:
                self.world.problem(f"{lane.name} refuses its own WAL: {error}")
            self.world.loop.world.call_later(0, self.lose_disk)
            self._ends(lane, f"its WAL is damaged: {error}")
        except (StreamHouseError, OSError) as error:
            self._ends(lane, str(error))

    async def _stop(self, lane: Lane, parts: Parts) -> None:
        try:
            await parts.stop()
        except StreamHouseError as error:
            self.world.note(f"{lane.name} did not stop in order: {error}")
        self._ends(lane, "it was asked to stop")

    async def _open(self, lane: Lane) -> Parts:
        world, scenario = self.world, self.world.scenario
        dice = self.dice.child(f"run {self.runs}")
        wal, recovered = await open_wal(
            self.disk,
            clock=self.clock,
            randomness=dice,
            options=scenario.wal,
            pump=TaskPump(pause=self._sync_latency),
        )
        wal.on_failed(lambda error: self._wal_failed(lane, str(error)))
        durability = scenario.durability
        await self._metadata.bind_durability(durability, wal.wal_id if durability is Durability.WAL else None)
        tail = TailCache(scenario.tail_bytes)
        owner = LogOwner()
        objects = RetryingStore(self.store, clock=self.clock, randomness=dice, policy=scenario.store_retries)
        log = LeasedLog(
            metadata=self._metadata,
            store=objects,
            wal=WatchedWal(wal, self._ledger),
            tail=tail,
            clock=self.clock,
            randomness=dice,
            options=scenario.leased,
            on_dropped=owner.dropped,
            on_given_up=self._gave_up,
        )
        self._log = log
        self._watch_appends(log)
        wrong = self._ledger.judge((frame.lsn, frame.payload) for frame in recovered.frames())
        if wrong and not self.rotten:
            world.problem(f"{lane.name}: the WAL: {'; '.join(wrong)}")
        for key, frames in held_by_partition(recovered.frames()).items():
            log.hold_frames(key, frames)
        await log.check_held_frames()
        reader = LogReader(
            metadata=self._metadata,
            store=objects,
            tail=tail,
            leading=log,
            clock=self.clock,
            options=ReaderOptions(durability=durability),
        )
        member = FleetMember(
            metadata=self._metadata,
            clock=self.clock,
            randomness=dice,
            info=AgentInfo(agent_id=self.name, incarnation=dice.uuid(), listeners={"kafka": f"{self.name}:1"}),
            wal_id=wal.wal_id,
            timings=scenario.timings,
            owner=owner,
            mode=Mode.SINGLE_NODE if durability is Durability.WAL else Mode.FLEET,
            on_fatal=lambda error: self._ends(lane, str(error)),
        )
        wal.on_room(lambda problem: self._room_on_disk(log, member, problem))
        topics = TopicWatch(metadata=self._metadata, on_changed=log.configure, report=member.report)
        view = ClusterView(
            metadata=self._metadata,
            agent_id=self.name,
            liveness_timeout_ms=scenario.timings.liveness_timeout_ms,
            heartbeat_interval_ms=scenario.timings.heartbeat_interval_ms,
            alone=durability is Durability.WAL,
        )
        leased = LeasedWriter(
            log=log,
            leases=member.lease_table,
            view=view,
            clock=self.clock,
            taking_over=member.is_taking_over,
            should_lead=member.should_lead,
        )
        writes = Writes(
            writers={WriteMode.LEASED: leased, WriteMode.LEADERLESS: LeaderlessWriter(view)},
            reader=reader,
            metadata=self._metadata,
            view=view,
        )
        owner.attach(log=log, member=member, topics=topics, routes=view)
        flushes = FlushRequests(metadata=self._metadata, log=log, report=member.report)
        log.start()
        topics.start()
        flushes.start()
        adoptions = Adoptions(
            adoption=Adoption(metadata=self._metadata, store=objects, log=log, randomness=dice),
            metadata=self._metadata,
            log=log,
            clock=self.clock,
            report=member.report,
        )
        if scenario.sinks:
            adoptions.start()
        upkeep: Upkeep | None = None
        if scenario.maintenance is not None:
            upkeep = Upkeep(
                metadata=self._metadata,
                objects=objects,
                leading=log,
                offload=InlineOffload(),
                clock=self.clock,
                randomness=dice,
                owner=self.name,
                options=scenario.maintenance.upkeep,
                report=member.report,
            )
            upkeep.start()
        return Parts(
            wal=wal,
            log=log,
            reader=reader,
            member=member,
            view=view,
            produce=Produce(writes, view),
            producer_ids=ProducerIds(self._metadata),
            topics=topics,
            flushes=flushes,
            adoptions=adoptions,
            upkeep=upkeep,
        )

    def _gave_up(self, key: PartitionKey, frames: Sequence[HeldFrame]) -> None:
        where = (key.topic_id.hex, key.partition)
        self.world.note(f"{self.name} gives {len(frames)} batches of {where} up for want of room")
        self.world.history.given_up += (
            GivenUp(
                agent=self.name,
                key=where,
                epoch=frame.epoch,
                base_offset=frame.base_offset,
                end_offset=frame.next_offset - 1,
            )
            for frame in frames
        )

    def _room_on_disk(self, log: LeasedLog, member: FleetMember, problem: Exception | None) -> None:
        """Report a full disk as app/log_parts.py does."""
        member.report("the write-ahead log's disk", problem)
        if problem is None:
            log.look_for_room()

    def _watch_appends(self, log: LeasedLog) -> None:
        """Write down which batch got which offset under which leadership, at the moment it happens."""
        append_to = log.append_to

        def watched(partition: PartitionLog, batch: BytesLike, *, acks: int) -> Append:
            appended = append_to(partition, batch, acks=acks)
            key, at_ms = partition.key, self.world.now_ms()
            if appended.duplicate:
                self._taken.setdefault((key, appended.base_offset), (partition.epoch, at_ms))
            else:
                self._taken[key, appended.base_offset] = (partition.epoch, at_ms)
                self.world.history.taken.append(
                    TakenBatch(
                        key=(key.topic_id.hex, key.partition), epoch=partition.epoch, agent=self.name, at_ms=at_ms
                    )
                )
            return appended

        log.append_to = watched  # type: ignore[method-assign]

    async def _sync_latency(self) -> None:
        self._reaches("sync", "sent")
        await asyncio.sleep(self.dice.uniform(*self.sync_ms) / 1000)

    # What clients may ask of it. Runs in the process's lane.

    def leads(self, key: PartitionKey) -> bool:
        return self.parts is not None and self.parts.log.partition(key) is not None

    def leaderships(self, keys: Sequence[PartitionKey]) -> tuple[int, list[int | None]]:
        """This process, and the epoch under which it leads each partition; None for one that it does not lead."""
        log = None if self.parts is None else self.parts.log
        led = [None if log is None else log.partition(key) for key in keys]
        return self.runs, [None if partition is None else partition.epoch for partition in led]

    def hung_up(self, connection: ServerSide) -> None:
        """A connection's end has arrived: as the gateway does, drop what has no offsets yet."""
        for call in list(connection.calls):
            if call.waits_for_offsets:
                call.abandon()

    async def describe(self) -> Described:
        parts = self._serving()
        view = parts.view
        leaders: dict[PartitionKey, str] = {}
        for topic in view.topics():
            for key in topic.partition_keys():
                if (leader := view.leader(key)) is not None:
                    leaders[key] = leader.node.agent_id
        return Described(agents=[node.agent_id for node in view.nodes()], leaders=leaders)

    async def new_producer_id(self) -> int:
        return await self._serving().producer_ids.next(caller=_CALLER)

    async def produce(
        self, connection: ServerSide, batches: Sequence[tuple[PartitionKey, bytes]], acks: int, timeout_ms: float
    ) -> list[Appended | StreamHouseError | None]:
        """One request with batches of several partitions. Each has an outcome of its own; None with acks=0."""
        parts = self._serving()
        known = [parts.view.topic_by_id(key.topic_id) is not None for key, _ in batches]
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = parts.produce.begin(
            [batch for batch, is_known in zip(batches, known, strict=True) if is_known],
            acks=acks,
            timeout_ms=int(timeout_ms),
            order=connection.order,
            caller=_CALLER,
            on_done=lambda _: ended.set_result(None),
        )
        if not call.done:
            connection.calls[call] = None
            await ended
            del connection.calls[call]
        outcomes = iter(call.outcomes)
        return [
            self._outcome(next(outcomes), acks) if is_known else TopicNotFound(f"there is no topic {key.topic_id}")
            for (key, _), is_known in zip(batches, known, strict=True)
        ]

    def _outcome(self, outcome: Outcome, acks: int) -> Appended | StreamHouseError | None:
        error, append = outcome.error, outcome.append
        if error is not None or append is None:
            return error if isinstance(error, StreamHouseError) else NotAcknowledged("its outcome is unknown")
        if acks == 0:
            return None
        assert outcome.key is not None
        epoch, at_ms = self._taken[outcome.key, append.base_offset]
        return Appended(agent=self.name, base_offset=append.base_offset, epoch=epoch, at_ms=at_ms)

    def _serving(self) -> Parts:
        if self.parts is None:
            raise NotLeader(self.name, current_leader=None)
        return self.parts

    async def read(self, key: PartitionKey, offset: int, max_wait_ms: int) -> ReadAnswer:
        result = await self._serving().reader.read(key, offset, max_bytes=2000, max_wait_ms=max_wait_ms)
        records: list[tuple[int, str]] = []
        next_offset = offset
        try:
            for run in result.batches:
                for batch in batches_in(bytes(run)):
                    records += ((batch.base_offset + record.delta, record.value) for record in batch.records)
                    next_offset = batch.base_offset + batch.last_delta + 1
        except Unreadable as error:
            self.world.problem(f"{self.name} serves from offset {offset} of {key} what is no batch: {error}")
            return ReadAnswer([], offset)
        return ReadAnswer([(at, value) for at, value in records if at >= offset], next_offset)

    async def log_start(self, key: PartitionKey) -> int:
        return (await self._serving().reader.end_offsets(key)).log_start_offset

    async def bring_everything_out(self) -> int:
        """Commit everything, drop what can never be committed. Returns how many bytes the WAL still needs."""
        assert self.parts is not None
        await self.parts.log.flush()
        await self.parts.log.sweep_held()
        return self.parts.wal.unsettled_bytes
