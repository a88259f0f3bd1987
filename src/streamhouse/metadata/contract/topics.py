"""Topics, their configs and their partitions.

Atomicity asked of a backend: creating a topic makes the topic and all its partitions visible at once (a store without
multi-key transactions writes the partitions first and the topic's name last). Everything else touches one topic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamhouse.core.ids import PartitionKey, TopicId


class WriteMode(StrEnum):
    """Says who assigns offsets. It is fixed at creation, because a change would reuse offsets (R19)."""

    LEASED = "leased"
    LEADERLESS = "leaderless"


class LogState(StrEnum):
    """A FENCED log refuses every commit until it is opened again."""

    OPEN = "OPEN"
    FENCED = "FENCED"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """``topic_id`` is made by the caller, so that a repeated create after a lost reply finds its own topic."""

    topic_id: TopicId
    name: str
    partition_count: int
    configs: Mapping[str, str]
    write_mode: WriteMode = WriteMode.LEASED


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    topic_id: TopicId
    name: str
    partition_count: int
    configs: Mapping[str, str]
    write_mode: WriteMode
    created_at_ms: int
    version: int
    """Grows by one with every change of configs or partition count."""

    def partition_keys(self) -> list[PartitionKey]:
        return [PartitionKey(self.topic_id, partition) for partition in range(self.partition_count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition's own row: the watermark and the epoch that fences it stand together (R1)."""

    key: PartitionKey
    log_state: LogState
    high_watermark: int
    """The next offset; everything below is committed."""
    log_start_offset: int
    last_stable_offset: int
    """The last stable offset, which is the watermark until transactions exist."""
    leader_epoch: int
    """0 until the first lease; always 0 on a leaderless topic."""
    write_mode: WriteMode
    gc_horizon_ms: int
    """Objects stamped before this may be gone; committing one is refused (R6)."""
    compaction_cursor: int


class Topics(ABC):
    @abstractmethod
    async def create_topic(self, new: NewTopic) -> Topic:
        """Create the topic and partitions 0 … n-1, each at offset 0.

        A partition's leader epoch goes on from what the name's lease rows last held, so that an epoch never goes back
        even for a recreated name; its GC horizon starts at the store-wide one.
        Repeating it with the same ``topic_id`` returns the topic as it stands. The id of a deleted topic is refused
        while entries of it are left, under whatever name: a repeat that arrives late must not set a log at offset 0
        beside them (R19). Once all are purged nothing of its first life is known any more, and the id is free again.
        Raises TopicExists (another id under that name, or that), InvalidTopicName, InvalidPartitions, InvalidRequest.
        """

    @abstractmethod
    async def get_topic(self, name: str) -> Topic:
        """Raises TopicNotFound."""

    @abstractmethod
    async def get_topic_by_id(self, topic_id: TopicId) -> Topic:
        """Raises TopicNotFound."""

    @abstractmethod
    async def list_topics(self) -> list[Topic]:
        """Return all topics, in the order of their names."""

    @abstractmethod
    async def delete_topic(self, topic_id: TopicId) -> bool:
        """Remove the topic, its partitions, group offsets, producer windows, open transfers, flush requests, sink
        intents and pending compactions (the last two dereference their objects); expire its leases with their epoch
        bumped. False when it was already gone.

        From here on every commit to it answers GONE. Its entries stay until ``purge_deleted_topics``, so that the work
        of one call is bounded and no object loses its last reference unrecorded.
        """

    @abstractmethod
    async def alter_topic_configs(
        self,
        topic_id: TopicId,
        *,
        set_configs: Mapping[str, str],
        delete_configs: Sequence[str] = (),
        expected_version: int | None = None,
    ) -> Topic:
        """Merge. Values were validated by the caller (core.topic_config). When the configs already are as asked, the
        topic is returned as it stands, whatever ``expected_version``: that is a repeat.

        Raises TopicNotFound, and Conflict when ``expected_version`` is given and is not the current one.
        """

    @abstractmethod
    async def grow_topic(self, topic_id: TopicId, partition_count: int) -> Topic:
        """Add partitions up to ``partition_count``; equal is a repeat and changes nothing. New partitions start as in
        ``create_topic``: at the store-wide GC horizon, their epochs going on from the name's lease rows.

        Raises TopicNotFound, and InvalidPartitions for fewer than there are.
        """

    @abstractmethod
    async def get_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionState]:
        """Fresh from the store, in the order asked for; those that do not exist are left out (R16)."""

    @abstractmethod
    async def set_log_state(self, key: PartitionKey, state: LogState) -> PartitionState:
        """Raises PartitionNotFound."""
