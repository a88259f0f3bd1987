"""Partitions, as every front end writes and asks them: which writer takes a batch, and the error when none does.

Passes each call to the writer of the topic's mode (broker/writers.py). Owns the one answer for a partition that this
agent does not answer for: it does not exist, or another agent leads it, or none does now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView, TopicRef
from streamhouse.broker.writers import Writer
from streamhouse.core.errors import (
    BackPressureRejected,
    NotLeader,
    OffsetOutOfRange,
    PartitionNotFound,
    PolicyViolation,
    StreamHouseError,
    TopicNotFound,
    UnknownTopicId,
)
from streamhouse.core.ids import PartitionKey, TopicId, topic_id_text
from streamhouse.core.topic_config import TopicConfig
from streamhouse.log.leased.writing import Append
from streamhouse.log.reader.reader import LogReader
from streamhouse.metadata.contract import MetadataStore, WriteMode
from streamhouse.wire.buffers import BytesLike

__all__ = ["Append", "Writes", "partition_key", "unknown_topic"]


@lru_cache(maxsize=65_536)
def partition_key(topic_id: TopicId, partition: int) -> PartitionKey:
    """The same key each time: making one costs more than finding it."""
    return PartitionKey(topic_id, partition)


def unknown_topic(ref: TopicRef) -> TopicNotFound:
    """The error for a topic that this agent does not know, by name or by id."""
    if isinstance(ref, str):
        return TopicNotFound(f"there is no topic {ref}")
    return UnknownTopicId(f"there is no topic with the id {topic_id_text(TopicId(ref))}")


class Writes:
    def __init__(
        self, *, writers: Mapping[WriteMode, Writer], reader: LogReader, metadata: MetadataStore, view: ClusterView
    ) -> None:
        self._writers = writers
        self._leased = writers[WriteMode.LEASED]
        self._reader = reader
        self._metadata = metadata
        self._view = view

    def writer(self, key: PartitionKey) -> Writer:
        topic = self._view.topic_by_id(key.topic_id)
        return self._leased if topic is None else self._writers[topic.write_mode]

    def append(
        self, key: PartitionKey, batch: BytesLike, *, acks: int, prepared_for: TopicConfig | None = None
    ) -> Append:
        """Give one client's batch its offsets. ``Append.done`` belongs to the log: shield it before awaiting it.

        Nothing was taken when this raises: NotLeader, PartitionNotFound, CorruptBatch, InvalidRecord, InvalidTimestamp,
        LimitExceeded, TransactionsUnsupported, BackPressureRejected, WalFailed, and what idempotent producers get.
        PrepareElsewhere: call ``prepare`` first, and pass its configs as ``prepared_for``.
        """
        # Most partitions are leased and led here: the view need not be asked for their mode.
        append = self._leased.append(key, batch, acks=acks, prepared_for=prepared_for)
        if append is None:
            self._check_exists(key)
            writer = self.writer(key)
            append = None if writer is self._leased else writer.append(key, batch, acks=acks, prepared_for=prepared_for)
            if append is None:
                raise self.not_here(key)
        return append

    async def prepare(self, key: PartitionKey, batch: BytesLike) -> tuple[BytesLike, TopicConfig] | None:
        """Open a large batch for a topic that needs it, off the event loop. See Writer.prepare."""
        return await self.writer(key).prepare(key, batch)

    def epoch(self, key: PartitionKey) -> int | None:
        """The epoch under which this agent answers for the partition; None if it does not.

        Raises PartitionNotFound.
        """
        epoch = self._leased.epoch(key)
        if epoch is None:
            self._check_exists(key)
            writer = self.writer(key)
            epoch = None if writer is self._leased else writer.epoch(key)
        return epoch

    def not_here(self, key: PartitionKey) -> NotLeader:
        """The error for a partition that this agent does not answer for; names its leader if one is known."""
        leader = self._view.leader(key)
        elsewhere = leader is not None and leader.node.node_id != self._view.node_id
        return NotLeader(
            self._view.name_of(key), current_leader=leader.node.agent_id if leader is not None and elsewhere else None
        )

    def knows_all_before(self, key: PartitionKey, batch: BytesLike) -> bool:
        """Whether all that an idempotent producer has sent before this batch is known to be in the log."""
        return self.writer(key).knows_all_before(key, batch)

    def is_changing(self, key: PartitionKey) -> bool:
        """Whether a caller had better wait here for a moment than look for another leader. See Writer.is_changing."""
        return self.writer(key).is_changing(key)

    def may_soon_take(self, key: PartitionKey, refusal: StreamHouseError, size_bytes: int) -> bool:
        """Whether a batch that was just refused may well be taken in a moment."""
        writer = self.writer(key)
        # Room is no help where another agent leads.
        return writer.is_changing(key) or (isinstance(refusal, BackPressureRejected) and writer.is_full(size_bytes))

    async def wait_writable(self, key: PartitionKey, size_bytes: int, timeout_s: float) -> None:
        """Returns when there is room for a batch and no barrier before it, or when the time is up."""
        await self.writer(key).wait_writable(key, size_bytes, timeout_s)

    async def wait_settled(self, keys: Sequence[PartitionKey], timeout_s: float) -> bool:
        """Whether each of them is open here, or led elsewhere, before the time is up."""
        return await self._leased.wait_settled(keys, timeout_s)  # only leases change hands

    async def delete_before(self, key: PartitionKey, offset: int, *, caller: Caller) -> int:
        """Raise the log start to ``offset``; with -1, to the end of what may be read. Returns the new log start.

        Raises NotLeader, OffsetOutOfRange, PolicyViolation, PartitionNotFound, MetadataError.
        """
        self._check_exists(key)
        writer = self.writer(key)
        config = writer.config(key)
        if config is None:
            raise self.not_here(key)
        name = self._view.name_of(key)
        if not config.deletes:
            raise PolicyViolation(f"{name} keeps the newest record of every key: cleanup.policy has no delete")
        ends = await self._reader.end_offsets(key)
        wanted = ends.high_watermark if offset == -1 else offset
        if not 0 <= wanted <= ends.high_watermark:
            raise OffsetOutOfRange(
                f"the log of {name}",
                offset=wanted,
                log_start_offset=ends.log_start_offset,
                end_offset=ends.high_watermark,
            )
        await writer.commit_up_to(key, wanted)  # the log start cannot pass what is committed
        await self._metadata.advance_log_start(key, wanted)
        return (await self._reader.end_offsets(key)).log_start_offset  # which also makes readers here see it

    def _check_exists(self, key: PartitionKey) -> None:
        topic = self._view.topic_by_id(key.topic_id)
        if topic is not None and not 0 <= key.partition < topic.partition_count:
            raise PartitionNotFound(
                f"{topic.name} has partitions 0 to {topic.partition_count - 1}, not {key.partition}"
            )
