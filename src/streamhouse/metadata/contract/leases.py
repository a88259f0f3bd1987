"""Leases on partitions and coordinator slots, and their transfer.

One machine for both kinds. The fencing epoch lives in the row it protects (a partition's own, a slot's own); a lease
row beside it says who holds it and until when. Lease rows are never deleted: release means "expires now", so an epoch
never goes back.

Atomicity asked of a backend: per key, "no other agent holds it" is checked by the write that bumps the epoch, and that
same write returns the watermark (R1). Keys of one call are independent of each other and answered one by one (R10).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from streamhouse.core.errors import LeaseHeldByOther, PartitionNotFound
from streamhouse.core.ids import PartitionKey

NEVER_MS: Final = 253_402_300_799_000
"""The expiry of a lease that the data directory's lock stands for (R2): the end of year 9999."""


@dataclass(frozen=True, slots=True, order=True)
class SlotKey:
    """One of COORDINATOR_SLOTS group (and later transaction) coordinator slots."""

    slot: int

    def __str__(self) -> str:
        return f"slot {self.slot}"


LeaseKey = PartitionKey | SlotKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The agent that asks for a lease: its id, its incarnation, and the WAL that it writes."""

    agent_id: str
    incarnation: UUID
    """The incarnation, made at process start. Another one of the same agent is another leader: it bumps the epoch."""
    wal_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    key: LeaseKey
    topic: str | None
    """The topic's name; None for a slot."""
    agent_id: str
    incarnation: UUID | None
    """None for a lease that an operator wrote by hand."""
    epoch: int
    acquired_at_ms: int
    expires_at_ms: int
    expired: bool
    """Whether it had expired by the store's clock when it was read."""
    high_watermark: int
    """The watermark of the same write or read as the epoch; -1 for a slot."""


class AcquireVerdict(StrEnum):
    ACQUIRED = "acquired"
    """A new leadership began; the epoch is one higher and stands in the partition's history."""
    EXTENDED = "extended"
    """This incarnation already held it, unexpired: same epoch, later expiry."""
    HELD = "held"
    """Another agent holds it; ``lease`` is that agent's."""
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireOutcome:
    key: LeaseKey
    verdict: AcquireVerdict
    lease: Lease | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease as its holder knows it."""

    key: LeaseKey
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewOutcome:
    key: LeaseKey
    renewed: bool
    lease: Lease | None
    """The lease as it is now; None when the partition is gone."""


class TransferState(StrEnum):
    PENDING = "pending"
    ACCEPTED = "accepted"
    COMPLETED = "completed"
    REJECTED = "rejected"
    FAILED = "failed"


OPEN_TRANSFER_STATES: Final = frozenset({TransferState.PENDING, TransferState.ACCEPTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    transfer_id: UUID
    key: LeaseKey
    from_agent: str
    to_agent: str
    epoch: int
    """The sender's epoch, which completion must still find."""
    state: TransferState
    reason: str
    created_at_ms: int
    deadline_ms: int


class Leases(ABC):
    @abstractmethod
    async def acquire_leases(
        self, holder: Holder, keys: Sequence[LeaseKey], *, ttl_ms: int | None
    ) -> list[AcquireOutcome]:
        """Free, expired or released → take with epoch + 1; mine → extend; another's → HELD.

        "Mine" is agent id *and* incarnation. Another incarnation under my agent id does not hold me off: it is taken
        over at once with epoch + 1. ``ttl_ms`` None is for ``durability=wal`` only: it never expires, and any lease of
        the same wal_id is taken over, even if another agent holds it (R2). Each new leadership of a partition appends
        (epoch, wal_id, start_offset = watermark) to its epoch history (R3).
        A leaderless partition has no leader: GONE, like a partition or a slot that does not exist. Answers in the order
        asked.
        Raises AgentSuperseded when a newer incarnation of this agent id has registered (the asking one is among those
        replaced; one that never registered is not); DurabilityMismatch when the store is bound to ``durability=wal``
        and the WAL is not this one, or when ``ttl_ms`` is None and the store is not bound to it; LimitExceeded.
        """

    @abstractmethod
    async def renew_leases(
        self, holder: Holder, held: Sequence[HeldLease], *, ttl_ms: int | None
    ) -> list[RenewOutcome]:
        """Extend those that are still (me, this incarnation, my epoch, unexpired). Never bumps an epoch.

        An expiry never moves back. Answers in the order asked.
        """

    @abstractmethod
    async def release_leases(self, holder: Holder, held: Sequence[HeldLease]) -> list[LeaseKey]:
        """Expire now those that are still mine at that epoch; returns them. The rows and their epochs stay.

        Repeatable: one that has already expired under my name and epoch is returned too.
        """

    @abstractmethod
    async def list_leases(self, *, agent_id: str | None = None, keys: Sequence[LeaseKey] | None = None) -> list[Lease]:
        """Every lease ever taken of topics that exist and of slots, expired ones included; filtered, in key order
        (partitions first)."""

    @abstractmethod
    async def initiate_transfer(
        self, transfer_id: UUID, held: HeldLease, *, holder: Holder, to_agent: str, timeout_ms: int
    ) -> Transfer:
        """PENDING. The lease must be mine at that epoch and unexpired (else NotLeader). ``to_agent`` must be registered
        (AgentNotFound) and another agent (InvalidRequest). One open transfer per key (TransferConflict), those past
        their deadline counting as FAILED. Repeating it with the same id returns it as it stands.
        """

    @abstractmethod
    async def accept_transfer(self, transfer_id: UUID, *, target: Holder) -> Transfer:
        """PENDING → ACCEPTED by the target, whose incarnation and wal_id are kept for the completion. Repeatable.

        Raises TransferNotFound, TransferConflict (another state, past its deadline, or not the target).
        """

    @abstractmethod
    async def reject_transfer(self, transfer_id: UUID, *, agent_id: str, reason: str) -> Transfer:
        """PENDING or ACCEPTED → REJECTED, by either side. Repeatable.

        Raises TransferNotFound, TransferConflict (another state, past its deadline, or a third agent).
        """

    @abstractmethod
    async def complete_transfer(
        self, transfer_id: UUID, *, holder: Holder, next_offset: int, ttl_ms: int | None, liveness_timeout_ms: int
    ) -> Lease:
        """One compare-and-swap on (ACCEPTED within its deadline, my epoch, watermark = ``next_offset``, target alive
        and still the incarnation that accepted) that makes the target the holder, epoch + 1, with a history row (R20).

        ``next_offset`` is ignored for a slot. Repeating a completed one returns the target's lease as it stands.
        Raises TransferNotFound, NotLeader (the epoch moved on), TransferConflict (anything else; it says what), also
        where ``acquire_leases`` would raise DurabilityMismatch: another WAL, or no expiry on a store not bound to one.
        """

    @abstractmethod
    async def list_transfers(self, *, agent_id: str | None = None, open_only: bool = True) -> list[Transfer]:
        """Those from or to ``agent_id``, oldest first. Past its deadline an open one is listed as FAILED, and so left
        out when ``open_only``.
        """

    @abstractmethod
    async def expire_transfers(self, *, keep_ms: int) -> list[Transfer]:
        """Turn open transfers past their deadline to FAILED and return them; drop ended ones older than ``keep_ms``."""

    async def acquire_partition_lease(self, key: LeaseKey, holder: Holder, *, ttl_ms: int | None) -> Lease:
        """Acquire one lease and return it. Raises LeaseHeldByOther, PartitionNotFound."""
        (outcome,) = await self.acquire_leases(holder, [key], ttl_ms=ttl_ms)
        if outcome.lease is None or outcome.verdict is AcquireVerdict.GONE:
            raise PartitionNotFound(f"{key} does not exist or has no leader")
        if outcome.verdict is AcquireVerdict.HELD:
            raise LeaseHeldByOther(str(key), agent_id=outcome.lease.agent_id)
        return outcome.lease
