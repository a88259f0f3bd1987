"""Handing a lease over to another agent: what each side decides (R20). Pure.

    sender                                        target
    initiate ──────────── PENDING ───────────►  wants it? ── no ──► REJECTED
    (goes on serving)                              │ yes
    losing: stop, flush ◄─ ACCEPTED ───────────────┘
    guard invalid, complete ─ COMPLETED, epoch + 1 ─►  acquire answers EXTENDED: adopt, open

The sender serves until the target has accepted, so an offer without an answer costs nothing. Once the completion has
been sent, only the store knows who leads: the sender sends the identical completion until it has a verdict, and never
serves again under its old epoch.

The target takes a completed transfer by acquiring it. That returns the watermark and an expiry counted from the
target's own request. It also works if the sender died on the way and its lease has expired."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from enum import StrEnum
from uuid import UUID

from streamhouse.cluster.assigner import Wish
from streamhouse.core.errors import MetadataUnavailable, NotLeader, PartitionNotFound
from streamhouse.metadata.contract import LeaseKey, Transfer, TransferState


class Offer(StrEnum):
    """The state of a transfer that this agent has initiated."""

    OPEN = "open"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The transfer was rejected, has failed by its deadline, or is gone: the lease has not moved."""


def judge_offer(listed: Transfer | None) -> Offer:
    """``listed``: the transfer among the open ones in the store; None if it is not there any more."""
    if listed is None:
        return Offer.REFUSED
    if listed.state is TransferState.PENDING:
        return Offer.OPEN
    return Offer.ACCEPTED if listed.state is TransferState.ACCEPTED else Offer.REFUSED


class Completion(StrEnum):
    MOVED = "moved"
    """The target leads."""
    NOT_MINE = "not mine"
    """The epoch is later now, by this transfer or otherwise: this agent does not lead."""
    REFUSED = "refused"
    """The transfer will not move the lease, which may still be this agent's."""
    UNKNOWN = "unknown"
    """The store gave no verdict: send the identical call again."""


def judge_completion(error: Exception | None) -> Completion:
    if error is None:
        return Completion.MOVED
    if isinstance(error, (MetadataUnavailable, TimeoutError)):
        return Completion.UNKNOWN
    return Completion.NOT_MINE if isinstance(error, (NotLeader, PartitionNotFound)) else Completion.REFUSED


def refusal(
    transfer: Transfer,
    *,
    agent_id: str,
    wish: Wish,
    holds: Container[LeaseKey],
    draining: Container[str],
    stopping: bool,
) -> str | None:
    """Why this agent rejects an incoming transfer, or None to accept it.

    ``wish`` must be fresh: both sides then agree on who should lead. A lease of a leaving agent is accepted even when
    the ring names a third agent, which perhaps did not answer: the leaving agent cannot get it back, so it cannot move
    to and fro.
    """
    if stopping:
        return f"{agent_id} is stopping"
    if transfer.key in holds:
        return f"{agent_id} leads {transfer.key} already"
    if transfer.key not in wish.leader_of:
        return f"{transfer.key} does not exist"
    leader = wish.leader_of[transfer.key]
    if leader != agent_id and transfer.from_agent not in draining:
        return f"{leader or 'no agent'} should lead {transfer.key}"
    return None


class Accepted:
    """Incoming transfers that this agent has accepted and that have not ended yet, as far as it knows."""

    def __init__(self) -> None:
        self._transfers: dict[LeaseKey, UUID] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._transfers

    def __len__(self) -> int:
        return len(self._transfers)

    def keys(self) -> tuple[LeaseKey, ...]:
        return tuple(self._transfers)

    def add(self, transfer: Transfer) -> None:
        self._transfers[transfer.key] = transfer.transfer_id

    def forget(self, keys: Iterable[LeaseKey]) -> None:
        for key in keys:
            self._transfers.pop(key, None)

    def ended(self, listed: Mapping[UUID, Transfer]) -> list[LeaseKey]:
        """The accepted transfers that are no longer open. Most are completed; acquiring tells."""
        return [key for key, transfer_id in self._transfers.items() if transfer_id not in listed]
