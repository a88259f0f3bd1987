"""LeasedLog: every partition this agent leads, one buffer budget, one flush loop, one WAL.

Owns leaderships, from their opening to their end, and what all of them share. writing.py has the path of a batch.
Knows no client. Of a lease it knows only the guard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from streamhouse.core import topic_config
from streamhouse.core.clock import Clock
from streamhouse.core.errors import NotLeader
from streamhouse.core.ids import PartitionKey
from streamhouse.core.outage import Outage
from streamhouse.core.randomness import Randomness
from streamhouse.log.leased.budget import WriteBudget
from streamhouse.log.leased.closing import Closing
from streamhouse.log.leased.commit import Committer, FlushHealth
from streamhouse.log.leased.flusher import Flusher, FlushFigures
from streamhouse.log.leased.held import HeldFrames, Swept
from streamhouse.log.leased.lost_commits import LostCommits
from streamhouse.log.leased.opening import Openings
from streamhouse.log.leased.options import LeasedOptions, LeasedStats
from streamhouse.log.leased.partition import Chunk, PartitionLog, Phase
from streamhouse.log.leased.pending import lsns_of
from streamhouse.log.leased.producers import ProducerLoader
from streamhouse.log.leased.protocols import WriteAheadLog, WriteGuard
from streamhouse.log.leased.recovery import HeldFrame
from streamhouse.log.leased.replay import Replay
from streamhouse.log.leased.resubmission import Resubmission
from streamhouse.log.leased.writing import Append, Writing
from streamhouse.log.tail import TailCache
from streamhouse.metadata.contract import Durability, Lease, MetadataStore, SliceOutcome, Topic
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.wire.buffers import BytesLike

_log = logging.getLogger(__name__)

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
        on_given_up: Callable[[PartitionKey, Sequence[HeldFrame]], None] = lambda key, frames: None,
    ) -> None:
        """``on_alarm`` is called with a text that an operator must read, once for each event. ``on_given_up`` is called
        with acknowledged acks=1 frames that are dropped for want of room."""
        self.stats = LeasedStats()
        self._metadata = metadata
        self._wal = wal
        self._tail = tail
        self._clock = clock
        self._options = options
        self._wal_is_durable = options.durability is Durability.WAL
        self._on_dropped = on_dropped
        self._on_given_up = on_given_up
        self._partitions: dict[PartitionKey, PartitionLog] = {}
        self._opened = asyncio.Event()
        self._budget = WriteBudget(options.max_buffer_bytes, urge=self._urge)
        self._urged = False
        self._refused_for_room = False
        self._limited_bytes = 0
        self._held = HeldFrames(
            metadata=metadata,
            wal=wal,
            clock=clock,
            budget=self._budget,
            wal_is_durable=self._wal_is_durable,
            max_age_ms=options.resubmit_max_age_ms,
            pressed_age_ms=options.resubmit_pressed_age_ms,
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
        self._resubmission = Resubmission(committer=self._committer, held=self._held, wal_id=wal.wal_id)
        self._replay = Replay(
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
            failing=self._committer.failing,
            wal_is_durable=self._wal_is_durable,
        )
        wal.on_synced(self._writing.synced)
        wal.on_synced(self._held.synced)
        wal.on_synced(lambda _: self._budget.look_again())  # a file of the WAL goes when the next one is durable

    @property
    def health(self) -> FlushHealth:
        return self._committer.health

    @property
    def buffer_bytes(self) -> int:
        """The memory of batches that wait for their commit, and of frames held for a later leadership."""
        return self._budget.used_bytes

    @property
    def buffer_limit_bytes(self) -> int:
        return self._budget.max_bytes

    @property
    def flushes(self) -> int:
        return self._flusher.flushes

    @property
    def flush_pace(self) -> FlushFigures:
        return self._flusher.figures()

    @property
    def flushes_under_way(self) -> int:
        return self._flusher.under_way

    @property
    def oldest_stamp_ms(self) -> int | None:
        """The oldest stamp of an object that flushes have uploaded and may still commit; None when there is none."""
        return self._committer.oldest_stamp_ms()

    def outages(self) -> list[Outage]:
        """What keeps flushes from finishing at this time."""
        return self._committer.outages()

    @property
    def limited_bytes(self) -> int:
        """The bytes that were committed here since the start, of partitions with a size limit."""
        return self._limited_bytes

    @property
    def writes_wait(self) -> bool:
        """Whether a write waits for room."""
        return self._budget.is_awaited

    def hold_writes(self, why: str) -> None:
        """Writes wait for room until this is called with an empty reason."""
        self._budget.stop_for(why)

    @property
    def held_batches(self) -> int:
        """Batches that only the WAL holds, for partitions that are not led here."""
        return self._held.count()

    @property
    def held_is_in_the_way(self) -> bool:
        """Writes were refused because there was no room, and held frames use some of the memory or of the WAL."""
        return self._refused_for_room and self._held.count() > 0

    def start(self) -> None:
        self._flusher.start()

    async def close(self) -> None:
        """Stop without flushing. To flush, call ``close_partition`` for each partition first."""
        await self._flusher.close()
        await self._resubmission.close()
        for key in list(self._partitions):
            self.drop_partition(key, "the agent stops")

    def hold_frames(self, key: PartitionKey, frames: Iterable[HeldFrame]) -> None:
        """Keep frames that recovery found in the WAL until this agent leads the partition again."""
        self._held.add(key, frames)

    async def check_held_frames(self) -> None:
        """Call this before the first partition is opened. Where the WAL is the durability, raises DurabilityMismatch if
        it holds acknowledged records that do not continue the log (R2, R23)."""
        if self._wal_is_durable:
            await self._held.check()

    async def wait_open(self, keys: Sequence[PartitionKey]) -> None:
        """Returns once each of these partitions is served here, writes too. Cancel the call to stop waiting."""
        while any((found := self.partition(key)) is None or found.phase is Phase.ADOPTING for key in keys):
            await self._opened.wait()

    async def wait_any_opened(self) -> None:
        """Returns when the next partition is served here."""
        await self._opened.wait()

    def led_keys(self) -> set[PartitionKey]:
        return {key for key, found in self._partitions.items() if found.phase in (Phase.OPEN, Phase.ADOPTING)}

    def size_limits(self) -> dict[PartitionKey, int]:
        """``retention.bytes`` of each partition led here that has such a limit."""
        return {key: found.config.retention_bytes for key, found in self._partitions.items() if _has_size_limit(found)}

    def partition(self, key: PartitionKey) -> PartitionLog | None:
        """The partition if it is led here and served."""
        found = self._partitions.get(key)
        return found if found is not None and found.phase in _SERVED else None

    async def open_partition(self, lease: Lease, topic: Topic, *, guard: WriteGuard) -> None:
        """Take over a partition: producers, epochs and held frames first, then serve (R3, R4, R9).

        Raises NotLeader if the leadership has ended meanwhile, or if this epoch was led here before.
        """
        key = self._openings.check_epoch(lease)
        if key in self._partitions:
            self.drop_partition(key, "a new leadership begins")
        partition, frames = await self._openings.prepare(lease, topic, guard)
        self._partitions[key] = partition
        self.stats.dropped_batches += len(frames.dropped)
        try:
            brought_back = await self._replay.run(partition, frames)
        except BaseException:
            self.drop_partition(key, "its recovery did not finish")
            raise
        if partition.phase is Phase.DROPPED:
            raise partition.not_leader()
        self.stats.replayed_batches += brought_back.replayed
        self.stats.resubmitted_batches += brought_back.resubmitted
        if frames.stranded:
            self.stats.stranded_batches += len(frames.stranded)
            self.drop_partition(key, "the metadata store had lost commits")
            raise await self._lost_commits.write_off(lease, partition, frames)
        partition.producers.led_from(self._clock.boot_ms, 0 if self._wal_is_durable else self._options.resume_after_ms)
        self._open(partition)

    @contextmanager
    def barrier(self, partition: PartitionLog) -> Iterator[None]:
        """Inside this context no batch of the open partition gets an offset (R13). Flushes and reads go on."""
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
        """Whether a batch of this size finds no room, in memory or in the WAL, until other batches are committed."""
        if not self._budget.has_room(size_bytes):
            return self._budget.can_ever_take(size_bytes)
        if self._wal.is_full(size_bytes):
            self._urge()
            return True
        return False

    def look_for_room(self) -> None:
        """The WAL may take writes again that it has refused: wake those that wait for room."""
        self._budget.look_again()

    async def wait_writable(self, key: PartitionKey, size_bytes: int, timeout_s: float | None = None) -> None:
        """Waits for the end of a barrier and for room. Returns also when the time is up; then ``append`` raises an
        error that says what is missing.

        Append without an await in between: otherwise the state may have changed. The leadership may have ended.
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
        """A topic's configs have changed. They apply from the next append on."""
        config = topic_config.effective(topic.configs)
        for partition in (*self._partitions.values(), *self._openings.under_way()):
            if partition.key.topic_id == topic.topic_id:
                partition.config = config

    def append(self, key: PartitionKey, batch: BytesLike, *, acks: int) -> Append:
        """Give one client's batch its offsets. Every check comes first, and nothing is awaited (R11).

        ``batch`` is one whole batch. Raises NotLeader, CorruptBatch, LimitExceeded for a batch that no WAL takes,
        BackPressureRejected, WalFailed, and the sequence errors of idempotent producers.
        """
        partition = self._partitions.get(key)
        if partition is None:
            raise NotLeader(str(key), current_leader=None)
        return self._writing.append_to(partition, batch, acks=acks)

    def append_to(self, partition: PartitionLog, batch: BytesLike, *, acks: int) -> Append:
        """``append`` for a partition that ``partition()`` has just returned."""
        return self._writing.append_to(partition, batch, acks=acks)

    async def flush(self, keys: Sequence[PartitionKey] | None = None) -> None:
        """When this returns, everything appended so far to these partitions (or to all) is committed.

        Raises NotLeader for a named partition that is not led here, and if a leadership ends first.
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
        """Returns once a record at ``beyond_offset`` can be read here. Raises NotLeader. Cancel it to stop waiting."""
        partition = self._led(key)
        future = partition.wait_visible(beyond_offset)
        if partition.wanted:
            self._flusher.wake()
        try:
            await future
        finally:
            partition.forget_waiter(future)

    async def close_partition(self, key: PartitionKey) -> int:
        """Take no more writes, commit everything, and stop leading. Returns the next offset.

        Raises NotLeader if the leadership ends before, and StoreUnavailable if the time of ``limit_closing`` is up. The
        WAL then keeps what is not committed.
        """
        partition = self._led(key)
        partition.phase = Phase.CLOSING
        if partition.barrier_over is not None:
            await asyncio.shield(partition.barrier_over)  # before its end the end of the log is not known
        await self._closing.wait_for(partition, lambda: self.flush([key]))
        return partition.next_offset

    def limit_closing(self, timeout_s: float) -> None:
        """The process stops: from now on all closings together take no longer than this."""
        self._closing.limit(timeout_s)

    def drop_partition(self, key: PartitionKey, reason: str) -> None:
        """The leadership has ended: fail what waits, and keep the frames of the WAL for the next leadership (R4)."""
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
        """End a leadership that cannot go on, and have its lease released (``on_dropped``)."""
        self.drop_partition(key, reason)
        self._on_dropped(key, reason)

    async def sweep_held(self) -> int:
        """Drop WAL frames that can never be used again, and more if they are in the way; see HeldFrames.sweep.

        Returns how many.
        """
        pressed, self._refused_for_room = self.held_is_in_the_way, False
        count = 0
        async for swept in self._held.sweep(self._partitions, pressed=pressed):
            count += swept.never_again + len(swept.given_up)
            self.stats.dropped_batches += swept.never_again
            if swept.given_up:
                self._tell_given_up(swept)
        return count

    def _tell_given_up(self, swept: Swept) -> None:
        self.stats.given_up_batches += len(swept.given_up)
        _log.warning(
            "%s: gave up %d batches that were acknowledged with acks=1 and not committed when another agent took"
            " the partition over: there was no room left for new writes. They are lost unless their producers send"
            " them again; use acks=all for what must not be lost",
            swept.name,
            len(swept.given_up),
        )
        self._on_given_up(swept.key, swept.given_up)

    # Called by the committer.

    def committed(self, chunk: Chunk, outcome: SliceOutcome) -> None:
        partition = chunk.partition
        partition.committed(chunk)
        self._budget.free(chunk.size_bytes, len(chunk.batches))
        self._urged = False
        self._wal.settle(lsns_of(chunk.batches))
        self.stats.committed_batches += len(chunk.batches)
        if _has_size_limit(partition):
            self._limited_bytes += chunk.size_bytes
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
        """There is no room: flush what waits, whatever its age. Once is enough until a commit has made room."""
        self._refused_for_room = True
        if self._urged:
            return
        for partition in self._partitions.values():
            if partition.pending:
                partition.wanted = partition.urgent = self._urged = True
        self._flusher.wake()

    def _flush_broke(self, error: BaseException) -> None:
        """Only a bug leads here. The partitions concerned cannot go on: their order of commits is broken."""
        for key in [key for key, partition in self._partitions.items() if partition.frozen or partition.pending]:
            self.give_up(key, f"a flush failed unexpectedly: {error!r}")


def _has_size_limit(partition: PartitionLog) -> bool:
    return partition.config.deletes and partition.config.retention_bytes >= 0
