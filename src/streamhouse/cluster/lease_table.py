"""The leases this agent holds, and until when it may act on each. Pure; time comes from the injected clock.

       acquired, extended,                     renewed: deadline = when it was SENT + ttl − margin (R20)
       handed to me                              ┌───┐
            │                                    │   ▼
            └────────────────────────────────►  HELD ──── release or complete sent ────►  IN DOUBT
                                                 │                                     guard invalid, not renewed
                     refused, fenced, gone,      │                                          │
                     past its local deadline     ▼                                          ▼
                                               ENDED: this epoch never begins again here ◄──┘

Partitions and coordinator slots share this state machine. The deadline is on the boot clock, which runs on while the
machine is suspended: a process that wakes up late finds its guards invalid before it asks the store.

Why an ended epoch stays ended: a commit sent under it may still be on its way. If the same epoch were opened again,
that commit could arrive in the middle of the new leadership. To lead again, release first and acquire a new epoch.

Must not do IO, and must not decide who should lead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Final, Protocol

from streamhouse.core.clock import Clock
from streamhouse.metadata.contract import HeldLease, Lease, LeaseKey

_FOR_EVER_MS: Final = 2**62
_NEVER_MS: Final = -(2**62)


class LeaseGuard(Protocol):
    def valid(self) -> bool:
        """Whether the lease is certainly still held. Called before every append: one comparison."""
        ...


class Stage(StrEnum):
    """Says what the owner knows of a leadership."""

    WAITING = "waiting"
    """This agent holds the lease, and the owner does not know that yet."""
    OPENING = "opening"
    SERVING = "serving"
    CLOSING = "closing"
    CLOSED = "closed"
    """The owner has closed it, or was told that it is lost."""


_OWNED: Final = frozenset({Stage.OPENING, Stage.SERVING, Stage.CLOSING})


class Leadership:
    """One lease from the moment it is held until it ends. It is its own guard."""

    __slots__ = ("_clock", "_deadline_ms", "_good_until_ms", "lease", "stage")

    def __init__(self, lease: Lease, *, clock: Clock, deadline_ms: int) -> None:
        self.lease = lease
        self.stage = Stage.WAITING
        self._clock = clock
        self._deadline_ms = deadline_ms
        self._good_until_ms = deadline_ms  # the deadline, or never: so that ``valid`` is one comparison

    def valid(self) -> bool:
        return self._clock.boot_ms() < self._good_until_ms

    @property
    def key(self) -> LeaseKey:
        return self.lease.key

    @property
    def held(self) -> HeldLease:
        return HeldLease(key=self.lease.key, epoch=self.lease.epoch)

    @property
    def deadline_ms(self) -> int | None:
        """The time on the boot clock at which it expires here; None when it never expires."""
        return None if self._deadline_ms == _FOR_EVER_MS else self._deadline_ms

    @property
    def in_doubt(self) -> bool:
        return self._good_until_ms == _NEVER_MS

    @property
    def owned(self) -> bool:
        """Whether the owner must be told of the end."""
        return self.stage in _OWNED

    def _extend(self, deadline_ms: int) -> None:
        self._deadline_ms = max(self._deadline_ms, deadline_ms)
        if not self.in_doubt:
            self._good_until_ms = self._deadline_ms

    def _bar(self) -> None:
        self._good_until_ms = _NEVER_MS


class _NotHeld:
    """The guard of a key that is not held."""

    def valid(self) -> bool:
        return False


_NOT_HELD: Final = _NotHeld()


class LeaseTable:
    def __init__(self, *, clock: Clock, ttl_ms: int | None, margin_ms: int) -> None:
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._margin_ms = margin_ms
        self._held: dict[LeaseKey, Leadership] = {}
        self._ended: dict[LeaseKey, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[Leadership]:
        """The leaderships held now; the table may change during the iteration."""
        return iter(list(self._held.values()))

    def get(self, key: LeaseKey) -> Leadership | None:
        return self._held.get(key)

    def is_opening(self, key: LeaseKey) -> bool:
        """Whether it is held and the owner does not serve it yet."""
        leadership = self._held.get(key)
        return leadership is not None and leadership.stage in (Stage.WAITING, Stage.OPENING) and leadership.valid()

    def guard(self, key: LeaseKey) -> LeaseGuard:
        """The guard of the present leadership; a later one of the same key has another guard."""
        return self._held.get(key, _NOT_HELD)

    def is_current(self, leadership: Leadership) -> bool:
        return self._held.get(leadership.key) is leadership

    # Beginning and going on.

    def hold(self, lease: Lease, *, sent_ms: int) -> Leadership | None:
        """The store has answered that this agent holds it; the call was sent at ``sent_ms``.

        Returns None if this epoch has ended here before: release it first. A lease held at the same epoch is extended.
        """
        present = self._held.get(lease.key)
        if present is not None:
            if present.lease.epoch != lease.epoch:
                raise ValueError(f"{lease.key} is held at epoch {present.lease.epoch}; end that before {lease.epoch}")
            present._extend(self._deadline(sent_ms))
            return present
        if lease.epoch <= self._ended.get(lease.key, 0):
            return None
        leadership = Leadership(lease, clock=self._clock, deadline_ms=self._deadline(sent_ms))
        self._held[lease.key] = leadership
        return leadership

    def renewable(self) -> list[Leadership]:
        """Return the leases to renew now: those that are held, not in doubt, and not past their deadline."""
        now_ms = self._clock.boot_ms()
        return [leadership for leadership in self._held.values() if now_ms < leadership._good_until_ms]

    def renewed(self, leadership: Leadership, *, sent_ms: int) -> bool:
        """Record that a lease was renewed. Returns False when the answer came too late: the leadership is over."""
        if not self.is_current(leadership) or self._clock.boot_ms() >= leadership._deadline_ms:
            return False
        leadership._extend(self._deadline(sent_ms))
        return True

    # Doubt and ending.

    def doubt(self, leadership: Leadership) -> None:
        """A release or the completion of a transfer is about to be sent: take no more writes (R20)."""
        leadership._bar()

    def end(self, leadership: Leadership) -> bool:
        """End it for good. False if it had ended before."""
        leadership._bar()
        if not self.is_current(leadership):
            return False
        del self._held[leadership.key]
        self._ended[leadership.key] = leadership.lease.epoch
        return True

    def overdue(self) -> list[Leadership]:
        """Return the leases past their local deadline. They are lost, also if the store says otherwise."""
        now_ms = self._clock.boot_ms()
        return [leadership for leadership in self._held.values() if now_ms >= leadership._deadline_ms]

    def next_deadline_ms(self) -> int | None:
        return min((leadership._deadline_ms for leadership in self._held.values()), default=None)

    def forget_except(self, existing: Collection[LeaseKey]) -> None:
        """Forget the ended epochs of keys that no longer exist, so that the memory has a bound."""
        for key in [key for key in self._ended if key not in existing]:
            del self._ended[key]

    def _deadline(self, sent_ms: int) -> int:
        return _FOR_EVER_MS if self._ttl_ms is None else sent_ms + self._ttl_ms - self._margin_ms
