"""LeasedLog: every partition this agent leads, one buffer budget, one flush loop, one WAL.

Owns leaderships, from their opening to their end, and what belongs to all of them; writing.py has the path of a batch.
Knows nothing of clients, and of leases only what a guard tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from streamhouse.core import topic_config
from streamhouse.core.clock import Clock
from streamhouse.core.errors import NotLeader
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.log.leased.budget import WriteBudget
from streamhouse.log.leased.closing import Closing
from streamhouse.log.leased.comeback import Comeback
from streamhouse.log.leased.commit import Committer, FlushHealth
from streamhouse.log.leased.flusher import Flusher
from streamhouse.log.leased.held import HeldFrames
from streamhouse.log.leased.lost_commits import LostCommits
from streamhouse.log.leased.opening import Openings
from streamhouse.log.leased.options import LeasedOptions, LeasedStats
from streamhouse.log.leased.partition import Chunk, PartitionLog, Phase
from streamhouse.log.leased.pending import lsns_of
from streamhouse.log.leased.producers import ProducerLoader
from streamhouse.log.leased.recovery import HeldFrame
from streamhouse.log.leased.resubmission import Resubmission
from streamhouse.log.leased.seams import LeaseGuard, WriteAheadLog
from streamhouse.log.leased.writing import Append, Writing
from streamhouse.log.tail import TailCache
from streamhouse.metadata.contract import Durability, Lease, MetadataStore, SliceOutcome, Topic
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.wire.buffers import BytesLike

_BACKGROUND_PAUSE_S: Final = 0.0005
_SERVED: Final = frozenset({Phase.OPEN, Phase.ADOPTING, Phase.CLOSING})


class LeasedLog:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        store: ObjectStore,
        wal: WriteAheadLog,
        tail: TailCache,
        clock: Clock,
        randomness: Randomness,
        options: LeasedOptions,
        on_dropped: Callable[[PartitionKey, str], None] = lambda key, reason: None,
        on_alarm: Callable[[str], None] = lambda words: None,
    ) -> None:
        """``on_alarm`` is told in words of what a person must look at, once each time."""
        self.stats = LeasedStats()
        self._metadata = metadata
        self._wal = wal
        self._tail = tail
        self._clock = clock
        self._options = options
        self._wal_is_durable = options.durability is Durability.WAL
        self._on_dropped = on_dropped
        self._partitions: dict[PartitionKey, PartitionLog] = {}
        self._opened = asyncio.Event()
        self._budget = WriteBudget(options.max_buffer_bytes, urge=self._urge)
        self._urged = False
        self._refused_for_room = False
        self._held = HeldFrames(
            metadata=metadata,
            wal=wal,
            clock=clock,
            budget=self._budget,
            wal_is_durable=self._wal_is_durable,
            max_age_ms=options.resubmit_max_age_ms,
        )
        self._lost_commits = LostCommits(metadata=metadata, randomness=randomness, on_alarm=on_alarm)
        self._openings = Openings(
            producers=ProducerLoader(metadata, idle_ms=options.producer_expiration_ms),
            held=self._held,
            visible_when_synced=options.durability is Durability.WAL,
        )
        self._committer = Committer(
            metadata=metadata,
            store=store,
            clock=clock,
            randomness=randomness,
            outcomes=self,
            pause_s=_BACKGROUND_PAUSE_S if options.durability is Durability.WAL else 0,
        )
        self._flusher = Flusher(
            self._committer,
            options.rules,
            clock=clock,
            max_in_flight=options.max_flushes_in_flight,
            max_chunk_bytes=options.max_chunk_bytes,
            on_bug=self._flush_broke,
        )
        self._writing = Writing(
            wal=wal,
            wal_is_durable=self._wal_is_durable,
            tail=tail,
            clock=clock,
            budget=self._budget,
            stats=self.stats,
            health=self._committer.health,
            on_grown=self._flusher.grew,
        )
        self.append_to = self._writing.append_to
        self._resubmission = Resubmission(committer=self._committer, held=self._held, wal_id=wal.wal_id)
        self._comeback = Comeback(
            held=self._held,
            budget=self._budget,
            resubmission=self._resubmission,
            tail=tail,
            clock=clock,
            wal_is_durable=self._wal_is_durable,
            take=self._writing.take,
            flush=self.flush,
        )
        self._closing = Closing(
            wal=wal,
            in_trouble=self._committer.in_trouble,
            wal_is_durable=self._wal_is_durable,
        )
        wal.on_synced(self._writing.synced)
        wal.on_synced(lambda _: self._budget.look_again())  # a file of the WAL goes when the next one is durable

    @property
    def health(self) -> FlushHealth:
        return self._committer.health

    @property
    def buffer_bytes(self) -> int:
        """Of batches that wait for their commit, and of frames held for a leadership to come."""
        return self._budget.used_bytes

    @property
    def flushes(self) -> int:
        return self._flusher.flushes

    @property
    def held_batches(self) -> int:
        """Batches that only the WAL holds, of partitions that are not led here."""
        return self._held.count()

    @property
    def held_is_in_the_way(self) -> bool:
        """Writes were refused for want of room, and some of it, in memory or in the WAL, is taken by held frames."""
        return self._refused_for_room and self._held.count() > 0

    def start(self) -> None:
        self._flusher.start()

    async def close(self) -> None:
        """Stop without flushing: partitions are closed one by one before, by whoever wants their data out."""
        await self._flusher.close()
        await self._resubmission.close()
        for key in list(self._partitions):
            self.drop_partition(key, "the agent stops")

    def hold_frames(self, key: PartitionKey, frames: Iterable[HeldFrame]) -> None:
        """Frames that recovery found in the WAL; they are dealt with when this agent leads the partition again."""
        self._held.add(key, frames)

    async def check_held_frames(self) -> None:
        """Where the WAL is the durability, before the first partition is opened: raises DurabilityMismatch if it holds
        acknowledged records that do not continue the log (R2, R23)."""
        if self._wal_is_durable:
            await self._held.check()

    async def wait_open(self, keys: Sequence[PartitionKey]) -> None:
        """Returns once every one of these partitions is served here, writes too. Cancel it to give up."""
        while any((found := self.partition(key)) is None or found.phase is Phase.ADOPTING for key in keys):
            await self._opened.wait()

    async def wait_any_opened(self) -> None:
        """Returns when the next partition is served here."""
        await self._opened.wait()

    def led_keys(self) -> set[PartitionKey]:
        return {key for key, found in self._partitions.items() if found.phase in (Phase.OPEN, Phase.ADOPTING)}

    def partition(self, key: PartitionKey) -> PartitionLog | None:
        """The partition if it is led here and served."""
        found = self._partitions.get(key)
        return found if found is not None and found.phase in _SERVED else None

    async def open_partition(self, lease: Lease, topic: Topic, *, guard: LeaseGuard) -> None:
        """Take over a partition: producers, epochs and held frames first, then serve (R3, R4, R9)."""
        key = self._openings.check_epoch(lease)
        if key in self._partitions:
            self.drop_partition(key, "a new leadership begins")
        partition, frames = await self._openings.prepare(lease, topic, guard)
        self._partitions[key] = partition
        self.stats.dropped_batches += len(frames.dropped)
        try:
            came = await self._comeback.bring_back(partition, frames)
        except BaseException:
            self.drop_partition(key, "its recovery did not finish")
            raise
        if partition.phase is Phase.DROPPED:
            raise partition.not_leader()
        self.stats.replayed_batches += came.replayed
        self.stats.resubmitted_batches += came.resubmitted
        if frames.stranded:
            self.stats.stranded_batches += len(frames.stranded)
            self.drop_partition(key, "the metadata store had lost commits")
            raise await self._lost_commits.write_off(lease, partition, frames)
        partition.producers.led_from(self._clock.boot_ms, 0 if self._wal_is_durable else self._options.resume_after_ms)
        self._open(partition)

    @contextmanager
    def barrier(self, partition: PartitionLog) -> Iterator[None]:
        """While it lasts, no batch of an open partition gets an offset (R13). Flushes and reads go on."""
        assert partition.phase is Phase.OPEN
        partition.phase = Phase.ADOPTING
        partition.barrier_over = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            partition.barrier_over.set_result(None)
            partition.barrier_over = None
            if partition.phase is Phase.ADOPTING:
                self._open(partition)

    def is_behind_barrier(self, key: PartitionKey) -> bool:
        found = self._partitions.get(key)
        return found is not None and found.phase is Phase.ADOPTING

    def is_full(self, size_bytes: int) -> bool:
        """Whether a batch of this size finds no room, in memory or in the WAL, until others are committed."""
        if not self._budget.has_room(size_bytes):
            return self._budget.can_ever_take(size_bytes)
        if self._wal.is_full(size_bytes):
            self._urge()
            return True
        return False

    def look_for_room(self) -> None:
        """The WAL may take writes again that it has refused: those who wait for room try again."""
        self._budget.look_again()

    async def wait_writable(self, key: PartitionKey, size_bytes: int, timeout_s: float | None = None) -> None:
        """Returns at once unless a batch must wait: for the end of a barrier, or for room. Else when it need not any
        more, or when the time is up: then an append says what it would have waited for.

        What is appended without awaiting anything in between finds it so; the leadership may be over, though.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while (found := self._partitions.get(key)) is not None:
                    if found.barrier_over is not None:
                        await asyncio.shield(found.barrier_over)
                    elif self.is_full(size_bytes):
                        await self._budget.wait_freed()
                    else:
                        return

    def configure(self, topic: Topic) -> None:
        """A topic's configs have changed; from the next append on they hold."""
        config = topic_config.effective(topic.configs)
        for partition in (*self._partitions.values(), *self._openings.under_way()):
            if partition.key.topic_id == topic.topic_id:
                partition.config = config

    def append(self, key: PartitionKey, batch: BytesLike, *, acks: int) -> Append:
        """Give one client's batch its offsets. Every refusal comes first; nothing is awaited (R11).

        ``batch`` is one whole batch. Raises NotLeader, CorruptBatch, LimitExceeded for a batch that no WAL takes,
        BackPressureRejected, WalFailed, and the sequence errors of idempotent producers.
        """
        partition = self._partitions.get(key)
        if partition is None:
            raise NotLeader(str(key), current_leader=None)
        return self._writing.append_to(partition, batch, acks=acks)

    async def flush(self, keys: Sequence[PartitionKey] | None = None) -> None:
        """Everything appended so far, of these partitions or all, is committed when this returns.

        Raises NotLeader for a partition that was named and is not led here, and if a leadership ends first.
        """
        wanted = list(self._partitions.values()) if keys is None else [self._led(key) for key in keys]
        waits = []
        for partition in wanted:
            waits.append(partition.wait_committed(partition.next_offset))
            if partition.pending:
                partition.wanted = partition.urgent = True
        self._flusher.wake()
        try:
            await asyncio.gather(*waits)
        finally:
            for partition, future in zip(wanted, waits, strict=True):
                partition.forget_waiter(future)
                future.cancel()

    async def wait_visible(self, key: PartitionKey, beyond_offset: int) -> None:
        """Returns once a record at ``beyond_offset`` can be read here. Raises NotLeader. Cancel it to give up."""
        partition = self._led(key)
        future = partition.wait_visible(beyond_offset)
        if partition.wanted:
            self._flusher.wake()
        try:
            await future
        finally:
            partition.forget_waiter(future)

    async def close_partition(self, key: PartitionKey) -> int:
        """Take no more writes, bring everything into the log, and stop leading. Returns the next offset.

        Raises NotLeader if the leadership ends before, StoreUnavailable if ``limit_closing`` has set a time and it is
        up: then the WAL has what is not in the log.
        """
        partition = self._led(key)
        partition.phase = Phase.CLOSING
        if partition.barrier_over is not None:
            await asyncio.shield(partition.barrier_over)  # the end of the log is not known before
        await self._closing.wait_for(partition, lambda: self.flush([key]))
        return partition.next_offset

    def limit_closing(self, timeout_s: float) -> None:
        """The process stops: from now on no partition is waited for longer than that, all together."""
        self._closing.limit(timeout_s)

    def drop_partition(self, key: PartitionKey, reason: str) -> None:
        """The leadership is over: fail what waits, keep what the WAL holds for whoever leads next (R4)."""
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        self._flusher.forget(partition)
        self._urged = False
        left = partition.drop(NotLeader(str(partition), current_leader=None, hint=reason))
        self._tail.drop(key)
        self._budget.free(sum(batch.header.size for batch in left), len(left))
        self._held.add_left(partition, left)

    def give_up(self, key: PartitionKey, reason: str) -> None:
        """End a leadership that cannot go on, and let its lease go."""
        self.drop_partition(key, reason)
        self._on_dropped(key, reason)

    async def sweep_held(self) -> int:
        """Let go of WAL frames that can never come back; see HeldFrames.sweep."""
        self._refused_for_room = False
        let_go = await self._held.sweep(self._partitions)
        self.stats.dropped_batches += let_go
        return let_go

    # What the committer reports.

    def committed(self, chunk: Chunk, outcome: SliceOutcome) -> None:
        partition = chunk.partition
        partition.committed(chunk)
        self._budget.free(chunk.size_bytes, len(chunk.batches))
        self._urged = False
        self._wal.settle(lsns_of(chunk.batches))
        self.stats.committed_batches += len(chunk.batches)
        if self._options.durability is Durability.OBJECT:
            self._tail.publish(partition.key, chunk.base_offset, [batch.data for batch in chunk.batches])

    def refused(self, chunk: Chunk, outcome: SliceOutcome) -> None:
        self.stats.refused_commits += 1
        reason = f"the commit at offset {chunk.base_offset} was refused: {outcome.verdict.value}"
        self.give_up(chunk.partition.key, reason)

    # Inside.

    def _led(self, key: PartitionKey) -> PartitionLog:
        partition = self._partitions.get(key)
        if partition is None:
            raise NotLeader(str(key), current_leader=None)
        return partition

    def _open(self, partition: PartitionLog) -> None:
        partition.phase = Phase.OPEN
        self._opened.set()
        self._opened = asyncio.Event()

    def _urge(self) -> None:
        """No room: what waits for its age must not. Once is enough until a commit has made some."""
        self._refused_for_room = True
        if self._urged:
            return
        for partition in self._partitions.values():
            if partition.pending:
                partition.wanted = partition.urgent = self._urged = True
        self._flusher.wake()

    def _flush_broke(self, error: BaseException) -> None:
        """Nothing but a bug gets here. The partitions concerned cannot go on: their order of commits is broken."""
        for key in [key for key, partition in self._partitions.items() if partition.frozen or partition.pending]:
            self.give_up(key, f"a flush failed unexpectedly: {error!r}")
