"""Writers: how the partitions of one write mode are written, and whether this agent answers for them.

    LeasedWriter       one agent, the holder of the partition's lease, takes the writes and assigns the offsets
    LeaderlessWriter   any agent takes the writes, and the metadata commit assigns the offsets. Not built yet: it
                       refuses writes and answers reads
    Writer             the protocol, and a process without an agent: another agent answers for every partition

A topic's write mode never changes, so broker/writes.py asks the view for it and passes each call to that mode's writer.
No other part of the write path knows the modes; docs/architecture.md lists the modules that do.

**Preparation.** Batches of compacted topics, and of topics with a codec of their own, are opened (preparation.py).

**Checks.** ``check_batch`` has the rules about a client's batch that hold for every mode and every front end: one whole
batch, no control records, no transactions yet, no larger and no further off in time than the topic allows. It reads
the header and never decodes records. The log afterwards checks the checksum and the codec, because it copies the batch
anyway; it does not repeat what is checked here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Final

from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.preparation import prepare, prepare_now
from streamhouse.cluster.lease_table import LeaseTable, Stage
from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    LimitExceeded,
    TransactionsUnsupported,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.topic_config import TopicConfig, effective
from streamhouse.log.leased.log import LeasedLog
from streamhouse.log.leased.partition import Phase
from streamhouse.log.leased.writing import Append
from streamhouse.log.offload import InlineOffload, Offload
from streamhouse.metadata.dedup import ProducerWindow
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

_REFUSED_BITS: Final = TRANSACTIONAL_BIT | CONTROL_BIT
_LENGTH_AND_MAGIC: Final = Struct(">8xi4xb")
_LENGTH_COUNTS_FROM: Final = 12
_FROM_ATTRIBUTES: Final = Struct(">hiqqqhii")
_ATTRIBUTES_AT: Final = 21

_LOOK_AGAIN_S: Final = 0.25
_OPEN: Final = Phase.OPEN


class Writer:
    """The protocol, with the answers of a process that has no agent: it answers for no partition."""

    def append(
        self, key: PartitionKey, batch: BytesLike, *, acks: int, prepared_for: TopicConfig | None = None
    ) -> Append | None:
        """Check one client's batch and take it. None: this agent does not answer for the partition.

        Nothing is awaited between the check and the offsets (R11), and nothing was taken when it raises.
        ``prepared_for``: the configs for which ``prepare`` made this batch. Raises PrepareElsewhere for a batch that
        needs ``prepare`` first, and what ``check_batch`` and the log raise.
        """
        return None

    async def prepare(self, key: PartitionKey, batch: BytesLike) -> tuple[BytesLike, TopicConfig] | None:
        """Open a batch in a thread, and return it as it is to be stored, with the configs that say so.

        None: its topic does not need that, or this agent does not answer for the partition. Raises as ``append`` does.
        """
        return None

    def epoch(self, key: PartitionKey) -> int | None:
        """The leader epoch under which this agent answers for the partition; None if it does not."""
        return None

    def config(self, key: PartitionKey) -> TopicConfig | None:
        """The partition's configs, if this agent answers for it."""
        return None

    def knows_all_before(self, key: PartitionKey, batch: BytesLike) -> bool:
        """Whether all that an idempotent producer has sent before this batch is known to be in the log."""
        return False

    def producers(self, key: PartitionKey) -> Mapping[int, ProducerWindow]:
        """The idempotent producers that this agent remembers, by id."""
        return {}

    def is_changing(self, key: PartitionKey) -> bool:
        """Whether this agent will soon answer for the partition, or know which agent does. Then a caller waits here."""
        return False

    def is_full(self, size_bytes: int) -> bool:
        """Whether a batch of this size finds no room until others are committed."""
        return False

    async def wait_settled(self, keys: Sequence[PartitionKey], timeout_s: float) -> bool:
        """Whether this agent, or a known other one, answers for each of them before the time is up."""
        return True

    async def wait_writable(self, key: PartitionKey, size_bytes: int, timeout_s: float) -> None:
        """Returns when there is room for the batch and no barrier before it, or when the time is up."""

    async def commit_up_to(self, key: PartitionKey, offset: int) -> None:
        """Everything below ``offset`` is committed when this returns. Raises NotLeader."""


class LeaderlessWriter(Writer):
    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def append(
        self, key: PartitionKey, batch: BytesLike, *, acks: int, prepared_for: TopicConfig | None = None
    ) -> Append | None:
        raise InvalidRequest(
            f"{self._view.name_of(key)} is leaderless (diskless.enable), which cannot be written yet",
            hint="create the topic without diskless.enable",
        )

    def epoch(self, key: PartitionKey) -> int | None:
        """Any agent reads it, all under one epoch: nothing that was written is ever taken back."""
        return 0

    def config(self, key: PartitionKey) -> TopicConfig | None:
        topic = self._view.topic_by_id(key.topic_id)
        return None if topic is None else effective(topic.configs)


class LeasedWriter(Writer):
    def __init__(
        self,
        *,
        log: LeasedLog,
        leases: LeaseTable,
        view: ClusterView,
        clock: Clock,
        taking_over: Callable[[PartitionKey], bool] = lambda key: False,
        should_lead: Callable[[PartitionKey], bool] = lambda key: False,
        offload: Offload | None = None,
    ) -> None:
        """``taking_over``: whether this agent has agreed to lead a partition that another agent still closes.

        ``should_lead``: whether this agent should lead it as far as is known; asks for the lease at once if so.
        ``offload``: where large batches are prepared; None does it on the event loop.
        """
        self._log = log
        self._leases = leases
        self._view = view
        self._clock = clock
        self._taking_over = taking_over
        self._should_lead = should_lead
        self._offload = offload or InlineOffload()
        self._next_change: asyncio.Task[None] | None = None
        """Shared by all callers that wait: a change wakes each of them once."""

    def append(
        self, key: PartitionKey, batch: BytesLike, *, acks: int, prepared_for: TopicConfig | None = None
    ) -> Append | None:
        partition = self._log.partition(key)
        if partition is None:
            return None
        config = partition.config
        check_batch(partition, config, batch, self._clock)
        if config.opens_batches and config != prepared_for:
            batch = prepare_now(partition, config, batch)
        return self._log.append_to(partition, batch, acks=acks)

    async def prepare(self, key: PartitionKey, batch: BytesLike) -> tuple[BytesLike, TopicConfig] | None:
        partition = self._log.partition(key)
        if partition is None or not partition.config.opens_batches:
            return None
        name, config = str(partition), partition.config
        check_batch(name, config, batch, self._clock)
        return await self._offload.run(prepare, name, config, batch), config

    def epoch(self, key: PartitionKey) -> int | None:
        partition = self._log.partition(key)
        return partition.epoch if partition is not None and partition.guard.valid() else None

    def config(self, key: PartitionKey) -> TopicConfig | None:
        partition = self._log.partition(key)
        return None if partition is None else partition.config

    def knows_all_before(self, key: PartitionKey, batch: BytesLike) -> bool:
        partition = self._log.partition(key)
        return partition is not None and partition.producers.knows_all_before(read_header(batch))

    def producers(self, key: PartitionKey) -> Mapping[int, ProducerWindow]:
        partition = self._log.partition(key)
        return {} if partition is None else partition.producers.windows

    def is_changing(self, key: PartitionKey) -> bool:
        """This agent is about to lead the partition, or to know where an adopted upload ends in its log (R13); or it
        hands the partition over, and will soon know to which agent; or no agent is known to lead it, and this one
        should."""
        partition = self._log.partition(key)
        if partition is not None and partition.phase is _OPEN and partition.guard.valid():
            return False
        if self._log.is_behind_barrier(key) or self._view.leaving_epoch(key) is not None or self._taking_over(key):
            return True
        leadership = self._leases.get(key)
        if leadership is not None:
            return leadership.stage in (Stage.WAITING, Stage.OPENING) and leadership.valid()
        return self._view.leader(key) is None and self._should_lead(key)

    def is_full(self, size_bytes: int) -> bool:
        return self._log.is_full(size_bytes)

    async def wait_settled(self, keys: Sequence[PartitionKey], timeout_s: float) -> bool:
        waiting = list(keys)
        try:
            async with asyncio.timeout(timeout_s):
                while waiting := [key for key in waiting if self.is_changing(key)]:
                    await self._wait_for_change()
        except TimeoutError:
            return False
        return True

    async def _wait_for_change(self) -> None:
        if self._next_change is None or self._next_change.done():
            self._next_change = asyncio.create_task(self._change(), name="writer-change")
        await asyncio.wait((self._next_change,))

    async def _change(self) -> None:
        """Returns when a partition is opened here, when a lease changes hands, or after a moment: some ends of a
        change are not announced, such as a transfer that fails."""
        opened = asyncio.ensure_future(self._log.wait_any_opened())
        changed = asyncio.ensure_future(self._view.wait_changed(_LOOK_AGAIN_S))
        try:
            await asyncio.wait((opened, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
            changed.cancel()

    async def wait_writable(self, key: PartitionKey, size_bytes: int, timeout_s: float) -> None:
        await self._log.wait_writable(key, size_bytes, timeout_s)

    async def commit_up_to(self, key: PartitionKey, offset: int) -> None:
        partition = self._log.partition(key)
        if partition is None or offset > partition.high_watermark:
            await self._log.flush([key])


def check_batch(name: object, config: TopicConfig, batch: BytesLike, clock: Clock) -> None:
    """``name``: the partition, for the message. Raises CorruptBatch, InvalidRecord, LimitExceeded, InvalidTimestamp,
    TransactionsUnsupported."""
    size = len(batch)
    if size < HEADER_BYTES:
        if not size:
            raise InvalidRecord(f"{name}: a write needs one batch of records")
        raise CorruptBatch(f"{name}: {size} bytes are no record batch")
    length, magic = _LENGTH_AND_MAGIC.unpack_from(batch)
    if magic != MAGIC:
        raise InvalidRecord(f"{name}: batches have magic {MAGIC}, not {magic}")
    length += _LENGTH_COUNTS_FROM
    if size > config.max_message_bytes or length > config.max_message_bytes:
        raise LimitExceeded(
            f"{name}: a batch of {max(size, length)} bytes, max.message.bytes allows {config.max_message_bytes}"
        )
    if length != size:
        if length < HEADER_BYTES or length > size:
            raise CorruptBatch(f"{name}: a batch says that it has {length} bytes, {size} came")
        raise InvalidRecord(f"{name}: one batch at a time; {size - length} bytes follow the first")
    attributes, last_delta, first_ms, max_ms, producer_id, _, sequence, count = _FROM_ATTRIBUTES.unpack_from(
        batch, _ATTRIBUTES_AT
    )
    if count != last_delta + 1 or count < 1:
        raise InvalidRecord(f"{name}: a batch has {count} records for {last_delta + 1} offsets")
    if attributes & _REFUSED_BITS:
        if attributes & CONTROL_BIT:
            raise InvalidRecord(f"{name}: clients write no control batches")
        raise TransactionsUnsupported(f"{name}: transactional batches cannot be written yet")
    if producer_id >= 0 and sequence < 0:
        raise InvalidRecord(f"{name}: producer {producer_id} sends a batch without a sequence number")
    if max_ms != NO_TIMESTAMP and config.message_timestamp_type != "LogAppendTime":
        _check_times(name, config, attributes, first_ms, max_ms, clock.wall_ms())


def _check_times(name: object, config: TopicConfig, attributes: int, first_ms: int, max_ms: int, now_ms: int) -> None:
    """Check the two times of a batch's header. Each record's own time would mean to decode it."""
    if attributes & LOG_APPEND_TIME_BIT:
        raise InvalidTimestamp(f"{name}: only the broker stamps batches with its own time")
    if max_ms - now_ms > config.message_timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"{name}: a record's time is {max_ms - now_ms} ms ahead, message.timestamp.after.max.ms allows"
            f" {config.message_timestamp_after_max_ms}"
        )
    if now_ms - first_ms > config.message_timestamp_before_max_ms:
        raise InvalidTimestamp(
            f"{name}: a record's time is {now_ms - first_ms} ms ago, message.timestamp.before.max.ms allows"
            f" {config.message_timestamp_before_max_ms}"
        )
