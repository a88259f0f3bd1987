"""What Spark needs beside the log: sink intents (exactly-once writes) and flush requests.

An **intent** is the manifest of one micro-batch into one topic: which objects hold the rows of which partition. The
first manifest of a (query, topic, batch) wins; afterwards every partition *adopts* its share under its own fence, once,
whichever agent does it (R8, R13).

Atomicity asked of a backend: registering is one write on the (query, topic) record; adoption is per partition, with the
same check-and-move as a commit, and marks the share in that same step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract.log import ObjectRef, SliceOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentKey:
    query_id: str
    topic_id: TopicId
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentSlice:
    """Rows of one partition in one object. A partition may have several; they are adopted in the order listed."""

    partition: int
    object: ObjectRef
    byte_offset: int
    byte_length: int
    record_count: int
    encoding: str
    min_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    key: IntentKey
    slices: tuple[IntentSlice, ...]
    adopted: frozenset[int] = frozenset()
    """Partitions whose share is in the log."""

    @property
    def complete(self) -> bool:
        return {piece.partition for piece in self.slices} <= self.adopted


class IntentVerdict(StrEnum):
    REGISTERED = "registered"
    """Mine won, now or on an earlier sending of the same slices; wait until it is complete. Also the answer when it is
    complete already: the winner must never be told to discard what is in the log."""
    PENDING = "pending"
    """Another manifest for this batch was first; discard mine and wait for it."""
    COMPLETE = "complete"
    """Another manifest for this batch is in the log already, or it has no rows; discard mine."""
    PREVIOUS_INCOMPLETE = "previous_incomplete"
    """An earlier batch of this query is not complete yet; wait and send again."""
    STALE_OBJECT = "stale_object"
    """An object is older than the GC horizon; upload again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentOutcome:
    verdict: IntentVerdict
    intent: Intent | None
    """The manifest that counts (the winner's; the earlier batch's for PREVIOUS_INCOMPLETE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRequest:
    request_id: UUID
    key: PartitionKey
    requested_at_ms: int
    expires_at_ms: int


class Pipeline(ABC):
    @abstractmethod
    async def register_intent(self, intent: Intent) -> IntentOutcome:
        """First wins per key. A batch without rows is COMPLETE at once. The last batch id of a (query, topic) never
        expires. Raises BatchRegressed (older than the last), TopicNotFound, PartitionNotFound (a slice beyond the
        topic's partitions), LimitExceeded, InvalidRequest.
        """

    @abstractmethod
    async def get_intent(self, key: IntentKey) -> Intent | None:
        """None when it was never registered or a later batch has replaced it."""

    @abstractmethod
    async def last_batch(self, query_id: str, topic_id: TopicId) -> int | None: ...

    @abstractmethod
    async def list_unadopted(self, keys: Sequence[PartitionKey]) -> list[tuple[IntentKey, int]]:
        """(intent, partition) pairs still to be adopted on these partitions, oldest first. A new leader asks (R13)."""

    @abstractmethod
    async def adopt_intent(
        self, key: IntentKey, partition: int, *, epoch: int, base_offset: int | None
    ) -> SliceOutcome:
        """Put the partition's slices into its log as WAL entries from ``base_offset`` on, by the rules of a leased
        commit; on a leaderless topic with ``epoch`` 0 and ``base_offset`` None, at the watermark. FENCED when asked by
        the other write mode's rules, and on a leased partition that was never leased. Marks the share in the same
        step. Repeatable: an adopted share answers COMMITTED, ``repeated``, at its first offsets, whatever
        the epoch and base offset asked with.

        Never STALE_OBJECT: the intent refers to its objects, so no horizon can have cost them, and a manifest that won
        but could not be adopted would hold up its query for ever.

        Raises NotFound when there is no such intent or it has no slice for that partition.
        """

    @abstractmethod
    async def request_flush(self, request_id: UUID, keys: Sequence[PartitionKey], *, ttl_ms: int) -> list[FlushRequest]:
        """Ask the leaders to bring everything they have acknowledged into objects. Repeatable; keys that do not exist
        are left out.
        """

    @abstractmethod
    async def list_flush_requests(self, keys: Sequence[PartitionKey] | None = None) -> list[FlushRequest]:
        """Open and unexpired ones, oldest first: of these partitions (a leader asks), or all."""

    @abstractmethod
    async def complete_flushes(self, requests: Sequence[tuple[UUID, PartitionKey]]) -> int:
        """What the leader answers once all it had when it saw the request is committed."""

    @abstractmethod
    async def pending_flush(self, request_id: UUID) -> list[PartitionKey]:
        """Which partitions of a request are still open: empty when it is done or has expired."""

    @abstractmethod
    async def expire_flush_requests(self, *, keep_ms: int, limit: int) -> int:
        """Drop up to ``limit`` rows of requests, one for each partition asked about, that expired longer ago than
        ``keep_ms`` by the store's clock, answered or not. Returns how many.
        """
