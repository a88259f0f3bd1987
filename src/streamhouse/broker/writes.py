"""Writing to partitions, for every door: what a client may write, and who takes it.

Owns the rules about a batch that hold whatever the protocol: one whole batch, no control records, no transactions yet,
times within what the topic allows. Offsets, duplicates and durability are the log's. Never decodes records, and never
awaits between looking at a batch and giving it its offsets (R11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from streamhouse.broker.cluster_view import ClusterView
from streamhouse.cluster.lease_table import LeaseTable, Stage
from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    BackPressureRejected,
    CorruptBatch,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    LimitExceeded,
    NotLeader,
    OffsetOutOfRange,
    PartitionNotFound,
    PolicyViolation,
    StreamHouseError,
    TransactionsUnsupported,
)
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.topic_config import TopicConfig
from streamhouse.log.leased.log import LeasedLog
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.writing import Append
from streamhouse.log.reader.reader import LogReader
from streamhouse.metadata.contract import MetadataStore, WriteMode
from streamhouse.wire.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    read_header,
)
from streamhouse.wire.buffers import BytesLike

__all__ = ["Append", "Writes", "partition_key"]

_REFUSED_BITS: Final = TRANSACTIONAL_BIT | CONTROL_BIT
_LENGTH_AND_MAGIC: Final = Struct(">8xi4xb")
_LENGTH_COUNTS_FROM: Final = 12
_FROM_ATTRIBUTES: Final = Struct(">hiqqqhii")
_ATTRIBUTES_AT: Final = 21


@lru_cache(maxsize=65_536)
def partition_key(topic_id: TopicId, partition: int) -> PartitionKey:
    """The same key each time: making one costs more than finding it."""
    return PartitionKey(topic_id, partition)


class Writes:
    def __init__(
        self,
        *,
        log: LeasedLog,
        reader: LogReader,
        metadata: MetadataStore,
        leases: LeaseTable,
        view: ClusterView,
        clock: Clock,
        taking_over: Callable[[PartitionKey], bool] = lambda key: False,
    ) -> None:
        """``taking_over``: whether this agent has agreed to lead a partition that another still closes."""
        self._log = log
        self._reader = reader
        self._metadata = metadata
        self._leases = leases
        self._view = view
        self._clock = clock
        self._taking_over = taking_over

    def append(self, key: PartitionKey, batch: BytesLike, *, acks: int) -> Append:
        """Give one client's batch its offsets. ``Append.done`` belongs to the log: shield it before awaiting it.

        Nothing was taken when this raises: NotLeader, PartitionNotFound, CorruptBatch, InvalidRecord, InvalidTimestamp,
        LimitExceeded, TransactionsUnsupported, BackPressureRejected, WalFailed, and what idempotent producers get.
        """
        partition = self._log.partition(key)
        if partition is None:
            raise self._nobody_here(key)
        self._check(partition, batch)
        return self._log.append_to(partition, batch, acks=acks)

    def knows_all_before(self, key: PartitionKey, batch: BytesLike) -> bool:
        """Whether all that an idempotent producer has sent before this batch is known to be in the log."""
        partition = self._log.partition(key)
        return partition is not None and partition.producers.knows_all_before(read_header(batch))

    def is_changing(self, key: PartitionKey) -> bool:
        """Whether a write had better wait here for a moment than go looking for a leader, or be refused.

        This agent is about to lead the partition, or to know where an adopted upload ends in its log (R13); or it hands
        the partition over, and will soon know to whom.
        """
        if self._log.is_behind_barrier(key) or self._view.leaving_epoch(key) is not None or self._taking_over(key):
            return True
        leadership = self._leases.get(key)
        return leadership is not None and leadership.stage in (Stage.WAITING, Stage.OPENING) and leadership.valid()

    def may_soon_take(self, key: PartitionKey, refusal: StreamHouseError, size_bytes: int) -> bool:
        """Whether what was just refused may well be taken in a moment. Room is no help where another agent leads."""
        return self.is_changing(key) or (isinstance(refusal, BackPressureRejected) and self._log.is_full(size_bytes))

    async def wait_writable(self, key: PartitionKey, size_bytes: int, timeout_s: float) -> None:
        """Returns when there is room for a batch, and nothing is in its way, or when the time is up."""
        await self._log.wait_writable(key, size_bytes, timeout_s)

    async def wait_settled(self, keys: Sequence[PartitionKey], timeout_s: float) -> bool:
        """Whether each of them is open here, or led elsewhere, before the time is up."""
        leaving = {key for key in keys if self._view.leaving_epoch(key) is not None}
        try:
            async with asyncio.timeout(timeout_s):
                await self._log.wait_open([key for key in keys if key not in leaving])
                await self._view.wait_moved(leaving)
        except TimeoutError:
            return False
        return True

    async def delete_before(self, key: PartitionKey, offset: int) -> int:
        """Raise the log start to ``offset``, to the end of what may be read with -1. Returns where it is now.

        Raises NotLeader, OffsetOutOfRange, PolicyViolation, PartitionNotFound, MetadataError.
        """
        partition = self._log.partition(key)
        if partition is None:
            raise self._nobody_here(key)
        if not partition.config.deletes:
            raise PolicyViolation(f"{partition} keeps the newest record of every key: cleanup.policy has no delete")
        ends = await self._reader.end_offsets(key)
        wanted = ends.high_watermark if offset == -1 else offset
        if not 0 <= wanted <= ends.high_watermark:
            raise OffsetOutOfRange(
                f"the log of {partition}",
                offset=wanted,
                log_start_offset=ends.log_start_offset,
                end_offset=ends.high_watermark,
            )
        if wanted > partition.high_watermark:
            await self._log.flush([key])  # the log start cannot pass what is committed
        await self._metadata.advance_log_start(key, wanted)
        return (await self._reader.end_offsets(key)).log_start_offset  # which also makes readers here see it

    def _nobody_here(self, key: PartitionKey) -> NotLeader | PartitionNotFound | InvalidRequest:
        topic = self._view.topic_by_id(key.topic_id)
        if topic is not None and not 0 <= key.partition < topic.partition_count:
            return PartitionNotFound(
                f"{topic.name} has partitions 0 to {topic.partition_count - 1}, not {key.partition}"
            )
        if topic is not None and topic.write_mode is WriteMode.LEADERLESS:
            return InvalidRequest(
                f"{topic.name} is leaderless (diskless.enable), which cannot be written yet",
                hint="create it without diskless.enable",
            )
        leader = self._view.leader(key)
        name = str(key) if topic is None else f"{topic.name}/{key.partition}"
        elsewhere = leader is not None and leader.node.node_id != self._view.node_id
        return NotLeader(name, current_leader=leader.node.agent_id if leader is not None and elsewhere else None)

    def _check(self, partition: PartitionLog, batch: BytesLike) -> None:
        size = len(batch)
        if size < HEADER_BYTES:
            if not size:
                raise InvalidRecord(f"{partition}: a write needs one batch of records")
            raise CorruptBatch(f"{partition}: {size} bytes are no record batch")
        length, magic = _LENGTH_AND_MAGIC.unpack_from(batch)
        if magic != MAGIC:
            raise InvalidRecord(f"{partition}: batches have magic {MAGIC}, not {magic}")
        length += _LENGTH_COUNTS_FROM
        config = partition.config
        if size > config.max_message_bytes or length > config.max_message_bytes:
            raise LimitExceeded(
                f"{partition}: a batch of {max(size, length)} bytes, max.message.bytes allows"
                f" {config.max_message_bytes}"
            )
        if length != size:
            if length < HEADER_BYTES or length > size:
                raise CorruptBatch(f"{partition}: a batch says that it has {length} bytes, {size} came")
            raise InvalidRecord(f"{partition}: one batch at a time; {size - length} bytes follow the first")
        attributes, last_delta, first_ms, max_ms, producer_id, _, sequence, count = _FROM_ATTRIBUTES.unpack_from(
            batch, _ATTRIBUTES_AT
        )
        if count != last_delta + 1 or count < 1:
            raise InvalidRecord(f"{partition}: a batch has {count} records for {last_delta + 1} offsets")
        if attributes & _REFUSED_BITS:
            raise _refusal(partition, attributes)
        if producer_id >= 0 and sequence < 0:
            raise InvalidRecord(f"{partition}: producer {producer_id} sends a batch without a sequence number")
        if max_ms != NO_TIMESTAMP:
            self._check_times(partition, config, attributes, first_ms, max_ms)

    def _check_times(
        self, partition: PartitionLog, config: TopicConfig, attributes: int, first_ms: int, max_ms: int
    ) -> None:
        """By the two times that a batch's header has; each record's own would mean to decode it."""
        if config.message_timestamp_type == "LogAppendTime":
            return
        if attributes & LOG_APPEND_TIME_BIT:
            raise InvalidTimestamp(f"{partition}: only the broker stamps batches with its own time")
        now_ms = self._clock.wall_ms()
        if max_ms - now_ms > config.message_timestamp_after_max_ms:
            raise InvalidTimestamp(
                f"{partition}: a record's time is {max_ms - now_ms} ms ahead, message.timestamp.after.max.ms allows"
                f" {config.message_timestamp_after_max_ms}"
            )
        if now_ms - first_ms > config.message_timestamp_before_max_ms:
            raise InvalidTimestamp(
                f"{partition}: a record's time is {now_ms - first_ms} ms ago, message.timestamp.before.max.ms allows"
                f" {config.message_timestamp_before_max_ms}"
            )


def _refusal(partition: PartitionLog, attributes: int) -> InvalidRecord | TransactionsUnsupported:
    if attributes & CONTROL_BIT:
        return InvalidRecord(f"{partition}: clients write no control batches")
    return TransactionsUnsupported(f"{partition}: transactional batches cannot be written yet")
