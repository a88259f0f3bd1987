"""The types of this package that others use: what it calls, how it is configured, what it shows of itself. Pure.

``Owner`` is the only interface to what a lease protects (a partition's log, a coordinator's groups).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol
from uuid import UUID

from streamhouse.core.errors import ConfigError
from streamhouse.core.settings import Settings
from streamhouse.metadata.contract import Lease, LeaseKey

_LONGEST_TRANSFER_MS: Final = 10_000  # a flush and three small writes; a target that takes longer is no help


class Mode(StrEnum):
    FLEET = "fleet"
    """Leases expire; the ring spreads them over the live agents."""
    SINGLE_NODE = "single_node"
    """The lock on the data directory is the lease: this agent leads everything and its leases never expire (R2)."""


class Loss(StrEnum):
    """The reason for which a leadership ended."""

    EXPIRED = "expired"
    """The agent could not renew the lease before its local deadline."""
    FENCED = "fenced"
    """Another agent leads, or the lease has expired in the store."""
    GONE = "gone"
    """The topic was deleted."""
    NOT_FLUSHED = "not flushed"
    """``losing`` failed, so it cannot be handed over in order."""
    SUPERSEDED = "superseded"
    """Another process runs under the id of this agent."""
    STOPPED = "stopped"
    """This agent stops without waiting."""
    GIVEN_UP = "given up"
    """The owner dropped it and called ``Member.give_up``. Never passed to ``Owner.lost``."""


class Owner(Protocol):
    """Each ``gained`` that returned has exactly one end: a ``losing`` that returned, one ``lost``, or the owner's own
    call of ``Member.give_up``.

    Calls for one key never overlap, with one exception: ``lost`` may come while ``gained`` or ``losing`` runs. That
    call is then cancelled, and the next ``gained`` waits until it has ended."""

    async def gained(self, lease: Lease) -> None:
        """Open what the lease protects. If this raises, the lease is released and acquired again later; clean up
        first."""
        ...

    async def losing(self, key: LeaseKey) -> int:
        """Take no more writes, flush, close. Returns the next offset (any number for a slot).

        The lease is renewed meanwhile. If this raises, ``lost`` follows.
        """
        ...

    def lost(self, key: LeaseKey, reason: Loss) -> None:
        """The leadership has ended: stop at once. Its guard is invalid already."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    heartbeat_interval_ms: int
    liveness_timeout_ms: int
    """An agent without a heartbeat for longer counts as dead."""
    lease_ttl_ms: int | None
    """The time that a lease is valid; None for leases that never expire (single node only)."""
    renew_interval_ms: int
    assign_interval_ms: int
    transfer_timeout_ms: int
    """A transfer must be complete this long after it was initiated. The target has a quarter of it to accept."""
    margin_ms: int
    """This agent counts a lease as expired so much earlier than the store, because clocks run at different speeds."""

    def __post_init__(self) -> None:
        for name in ("heartbeat_interval_ms", "renew_interval_ms", "assign_interval_ms", "transfer_timeout_ms"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.liveness_timeout_ms <= self.heartbeat_interval_ms:
            raise ConfigError(
                "liveness_timeout_ms must be larger than heartbeat_interval_ms: an agent would count as dead too early"
            )
        if self.margin_ms < 0:
            raise ConfigError(
                f"margin_ms is {self.margin_ms}; it must be 0 or more, so that the store never expires a lease first"
            )
        if self.lease_ttl_ms is not None and self.renew_interval_ms + self.margin_ms >= self.lease_ttl_ms:
            raise ConfigError(
                "lease_ttl_ms must be larger than renew_interval_ms + margin_ms: a lease would expire between renewals"
            )

    @classmethod
    def from_settings(cls, settings: Settings, mode: Mode) -> Timings:
        ttl_ms = settings.lease.ttl_ms
        return cls(
            heartbeat_interval_ms=settings.agent.heartbeat_interval_ms,
            liveness_timeout_ms=settings.agent.liveness_timeout_ms,
            lease_ttl_ms=ttl_ms if mode is Mode.FLEET else None,
            renew_interval_ms=settings.lease.renew_interval_ms,
            assign_interval_ms=settings.assigner.interval_ms,
            transfer_timeout_ms=min(ttl_ms, _LONGEST_TRANSFER_MS),
            margin_ms=ttl_ms // 10,
        )


class HealthState(StrEnum):
    STARTING = "starting"
    OK = "ok"
    DEGRADED = "degraded"
    """Something fails, and the agent tries it again; ``reason`` says what fails."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    """The agent leads nothing and never will again: restart the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    state: HealthState
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class MemberStats:
    """Counters since the start."""

    ticks: int = 0
    acquired: int = 0
    adopted: int = 0
    """How many of ``acquired`` another agent handed over."""
    released: int = 0
    lost: int = 0
    open_failures: int = 0
    renewals: int = 0
    """Answered calls; one call renews up to 10,000 leases."""
    transfers_completed: int = 0
    transfers_refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    key: LeaseKey
    topic: str | None
    epoch: int
    stage: str
    valid: bool
    valid_for_ms: int | None
    """The time that the lease is still valid; None when it never expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One agent for an operator, as the agent sees itself."""

    agent_id: str
    incarnation: UUID
    agent_group: str
    availability_zone: str
    mode: Mode
    health: Health
    leases: tuple[LeaseView, ...]
    wanted: int
    """Partitions and slots that the ring gives to this agent."""
    live_agents: tuple[str, ...]
    """The agents of every group, as last seen."""
    handing_over: tuple[LeaseKey, ...]
    """The leases that this agent hands over to another agent, or plans to."""
    taking_over: tuple[LeaseKey, ...]
    """The leases that this agent has accepted from another one and does not hold yet."""
    stats: MemberStats
