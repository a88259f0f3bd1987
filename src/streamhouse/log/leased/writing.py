"""How a batch is appended: offsets, WAL, buffer, and the acknowledgement once the WAL is synced.

Nothing here awaits, so that nothing else runs between the checks of a batch and the assignment of its offsets (R11).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import BackPressureRejected, LimitExceeded
from streamhouse.log.leased.budget import WriteBudget
from streamhouse.log.leased.commit import FlushHealth
from streamhouse.log.leased.options import LeasedStats
from streamhouse.log.leased.partition import PartitionLog, Phase
from streamhouse.log.leased.pending import PendingBatch
from streamhouse.log.leased.protocols import WriteAheadLog
from streamhouse.log.tail import TailCache
from streamhouse.wire.batch import BatchHeader, patch, read_header, stamp_log_append_time, validate
from streamhouse.wire.buffers import BytesLike

# Looked up once: to find an enum's member takes longer than all that is done with it for a batch.
_OPEN: Final = Phase.OPEN
_DROPPED: Final = Phase.DROPPED


@dataclass(slots=True, kw_only=True, eq=False)
class Append:
    """The place of a batch. ``done`` is done when the batch is as durable as its acks ask for, or has failed."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    duplicate: bool
    header: BatchHeader
    done: asyncio.Future[None]


class Writing:
    def __init__(
        self,
        *,
        wal: WriteAheadLog,
        wal_is_durable: bool,
        tail: TailCache,
        clock: Clock,
        budget: WriteBudget,
        stats: LeasedStats,
        health: FlushHealth,
        on_grown: Callable[[PartitionLog, PendingBatch], None],
    ) -> None:
        self._wal = wal
        self._wal_is_durable = wal_is_durable
        self._tail = tail
        self._clock = clock
        self._budget = budget
        self._stats = stats
        self._health = health
        self._on_grown = on_grown
        self._unsynced: deque[tuple[PartitionLog, PendingBatch]] = deque()

    def append_to(self, partition: PartitionLog, batch: BytesLike, *, acks: int) -> Append:
        """``LeasedLog.append`` for a partition that was looked up. This is the hottest path there is.

        What a client may write is checked before, in broker/writers.py. Here come the checksum, the codec, the
        producer's sequence and the room.
        """
        if partition.phase is not _OPEN or not partition.guard.valid():
            raise partition.not_open()
        key, epoch, config = partition.key, partition.epoch, partition.config
        now_ms = self._clock.wall_ms()
        base_offset = partition.next_offset
        data = bytearray(batch)
        size = len(data)
        # Patched before it is checked, so that its header is read once. Nothing is assigned until ``take``.
        patch(data, 0, base_offset=base_offset, leader_epoch=epoch)
        header = validate(data)
        assert header.size == size, "the broker has checked that this is one batch (broker/writers.py)"
        has_producer = header.has_producer
        if has_producer and (original := partition.producers.judge(header, partition)) is not None:
            return self._repeat(original.base_offset, original.pending, header)
        self._check_room(partition, size)
        append_time_ms = -1
        if config.message_timestamp_type == "LogAppendTime":
            append_time_ms = now_ms
            stamp_log_append_time(data, 0, timestamp_ms=now_ms)
            header = read_header(data)
        waits_for_commit = self._waits_for_commit(acks, has_producer)
        try:
            lsn = self._wal.append(
                topic_id=key.topic_id,
                partition=key.partition,
                epoch=epoch,
                base_offset=base_offset,
                timestamp_ms=now_ms,
                acks=acks,
                batch=data,
                lazy=waits_for_commit,
            )
        except BackPressureRejected:
            self._budget.urge()
            raise
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        last_offset = base_offset + header.last_offset_delta
        pending = PendingBatch(
            base_offset=base_offset,
            next_offset=last_offset + 1,
            data=data,
            header=header,
            lsn=lsn,
            acks=acks,
            appended_ms=self._clock.boot_ms(),
            timestamp_ms=now_ms,
            waits_for_commit=waits_for_commit,
            done=done,
        )
        self.take(partition, pending)
        self._unsynced.append((partition, pending))
        return Append(
            base_offset=base_offset,
            last_offset=last_offset,
            log_append_time_ms=append_time_ms,
            duplicate=False,
            header=header,
            done=done,
        )

    def take(self, partition: PartitionLog, pending: PendingBatch) -> None:
        """The only way into a partition's buffer, for a client's batch and for a replayed one."""
        partition.take(pending)
        size = len(pending.data)
        self._budget.take(size)
        stats = self._stats
        stats.appended_batches += 1
        stats.appended_bytes += size
        stats.appended_records += pending.next_offset - pending.base_offset
        self._on_grown(partition, pending)

    def synced(self, lsn: int) -> None:
        """The WAL has synced everything up to this LSN."""
        published: list[tuple[PartitionLog, PendingBatch]] = []
        unsynced = self._unsynced
        while unsynced and unsynced[0][1].lsn <= lsn:
            each = unsynced.popleft()
            partition, pending = each
            if self._wal_is_durable and partition.phase is not _DROPPED:
                self._tail.publish(partition.key, pending.base_offset, (pending.data,))
            published.append(each)
        for partition, pending in published:
            partition.synced(pending)

    def _repeat(self, base_offset: int, pending: PendingBatch | None, header: BatchHeader) -> Append:
        """A retry gets the offsets of its original, and waits while the original is not durable yet (R9)."""
        if pending is None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
        else:
            done = pending.repeat()
        return Append(
            base_offset=base_offset,
            last_offset=base_offset + header.record_count - 1,
            log_append_time_ms=-1,
            duplicate=True,
            header=header,
            done=done,
        )

    def _check_room(self, partition: PartitionLog, size_bytes: int) -> None:
        if not self._budget.has_room(size_bytes):
            budget = self._budget
            if not budget.can_ever_take(size_bytes):
                raise LimitExceeded(
                    f"{partition}: a batch of {size_bytes} bytes; the memory for what waits to be committed"
                    f" (memory.write_buffer_bytes) holds {budget.max_bytes} in all",
                    hint="send smaller batches, or raise memory.write_buffer_bytes",
                )
            held = f", {budget.held_bytes} more are held for a new leadership" if budget.held_bytes else ""
            health = self._health
            waits_for = health.store_problem or health.metadata_problem or budget.stopped_by or "the flushes under way"
            raise BackPressureRejected(
                f"{partition}: {budget.waiting_bytes} bytes wait to be committed{held}, the limit is"
                f" {budget.max_bytes}; waiting for: {waits_for}"
            )

    def _waits_for_commit(self, acks: int, has_producer: bool) -> bool:
        # R9: a producer's retry must never be acknowledged before its original is safe from a take-over.
        return not self._wal_is_durable and (acks == -1 or has_producer)
