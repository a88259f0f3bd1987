"""The coordinator slots that this agent holds: loading, unloading and fencing.

Groups (and later transactions) are spread over a fixed number of slots by a hash of their name. A slot is leased like a
partition: the agent that holds it coordinates everything in it. This package knows slots only. What lives in a slot
belongs to the users of this package (``SlotUser``): each user loads its state when the slot is gained, and drops it
when the slot ends.

       gained                          losing (planned hand-over)
    ───────────►  LOADING ──► SERVED ─────────────────────────────►  CLOSING ──► GONE
                     │           │                                                ▲
                     └───────────┴──── lost, or fenced by the store ──────────────┘

    LOADING    users read their state from the store; requests wait, or are answered with CoordinatorLoading
    CLOSING    users refuse the requests that wait, and finish their writes; new requests get NotCoordinator
    GONE       nothing is written and nothing is answered in the slot's name any more

Two rules keep two coordinators of one slot apart:

- Every write carries the slot's epoch, and the store checks it in the same transaction (R1). An agent that lost the
  slot without noticing writes nothing: the store answers StaleEpoch, and the slot is dropped here.
- Every answer is given while the lease is surely held by this agent's own clock (R20): ``HeldSlot.may_answer``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from streamhouse.broker.slots.coordinators import Coordinators, SlotView
from streamhouse.cluster.lease_table import LeaseGuard
from streamhouse.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    MetadataError,
    NotCoordinator,
    StaleEpoch,
)
from streamhouse.core.tasks import retrieve
from streamhouse.metadata.contract import Lease, SlotFence, SlotKey

MAX_STORE_CALLS: Final = 10_000
"""Calls to the store that run at one time on behalf of requests: one for each connection."""

T = TypeVar("T")


@dataclass(eq=False, slots=True, kw_only=True)
class HeldSlot:
    """One slot that this agent holds, from ``gained`` until it is gone."""

    fence: SlotFence
    guard: LeaseGuard
    loading: bool = True
    closing: bool = False
    gone: bool = False

    @property
    def key(self) -> SlotKey:
        return self.fence.slot

    def may_answer(self) -> bool:
        """Whether an answer may be given in this slot's name (R20)."""
        return not self.gone and self.guard.valid()


class SlotUser(Protocol):
    """A part of the broker that keeps state in slots."""

    async def load(self, slot: HeldSlot) -> None:
        """Read the state of the slot from the store. If it raises, ``unload`` follows."""
        ...

    async def hand_over(self, slot: HeldSlot) -> None:
        """Refuse the requests that wait, and finish the writes that have begun. ``unload`` follows."""
        ...

    def unload(self, slot: HeldSlot) -> None:
        """Refuse the requests that wait, cancel writes and forget the slot's state. Does nothing the second time."""
        ...


class Slots:
    def __init__(
        self,
        *,
        view: SlotView,
        store_timeout_ms: int = 5_000,
        hand_over_wait_ms: int = 5_000,
        on_dropped: Callable[[SlotKey, str], None] = lambda slot, reason: None,
        opening: Callable[[SlotKey], bool] = lambda slot: False,
        taking_over: Callable[[SlotKey], bool] = lambda slot: False,
    ) -> None:
        """``store_timeout_ms``: how long a request waits for the metadata store before the client must try again.
        ``hand_over_wait_ms``: how long a request waits for a slot that changes hands here; clients give up a request
        after 30 s or later. ``on_dropped``: called with (slot, reason) when the store says that another agent holds the
        slot; the caller must end the lease. ``opening``, ``taking_over``: see Coordinators.
        """
        self.coordinators = Coordinators(view=view, served=self.serves, opening=opening, taking_over=taking_over)
        self._users: list[SlotUser] = []
        self._held: dict[SlotKey, HeldSlot] = {}
        self._on_dropped = on_dropped
        self.store_timeout_ms = store_timeout_ms
        self._store_timeout_s = store_timeout_ms / 1000
        self._hand_over_wait_s = hand_over_wait_ms / 1000
        self._store_calls: set[asyncio.Task[Any]] = set()

    def add_user(self, user: SlotUser) -> None:
        """Must be called before the first slot is gained."""
        self._users.append(user)

    # Gaining and losing.

    async def gained(self, lease: Lease, *, guard: LeaseGuard) -> None:
        """The slot is served when this returns. Raises what the store raises; the slot is not held then."""
        assert isinstance(lease.key, SlotKey)
        self.lost(lease.key)
        slot = HeldSlot(fence=SlotFence(slot=lease.key, epoch=lease.epoch), guard=guard)
        self._held[lease.key] = slot
        try:
            for user in self._users:
                await user.load(slot)
        except BaseException:
            self._end(slot)
            raise
        slot.loading = False

    async def losing(self, key: SlotKey) -> None:
        """Everything that clients were told is in the store when this returns."""
        slot = self._held.get(key)
        if slot is None:
            return
        slot.closing = True
        for user in self._users:
            await user.hand_over(slot)
        self._end(slot)

    def lost(self, key: SlotKey) -> None:
        """The lease has ended: the slot's state is dropped at once."""
        slot = self._held.get(key)
        if slot is not None:
            self._end(slot)

    def drop(self, slot: HeldSlot, reason: str) -> None:
        """The store says that another agent holds this slot."""
        if not slot.gone:
            self._end(slot)
            self._on_dropped(slot.key, reason)

    def _end(self, slot: HeldSlot) -> None:
        slot.gone = True
        if self._held.get(slot.key) is slot:
            del self._held[slot.key]
        for user in self._users:
            user.unload(slot)

    async def close(self) -> None:
        for slot in list(self._held.values()):
            self._end(slot)
        tasks = list(self._store_calls)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Requests.

    def get(self, key: SlotKey) -> HeldSlot | None:
        return self._held.get(key)

    def all(self) -> list[HeldSlot]:
        return list(self._held.values())

    def serves(self, key: SlotKey) -> bool:
        """Whether this agent answers requests for the slot now."""
        slot = self._held.get(key)
        return slot is not None and not slot.loading and not slot.closing and slot.may_answer()

    async def ready(self, key: SlotKey) -> None:
        """Waits while the slot changes hands here. Every request for a slot begins with this."""
        if not self.serves(key) and self.coordinators.is_changing(key):
            await self.coordinators.wait_settled(key, self._hand_over_wait_s)

    def served(self, key: SlotKey) -> HeldSlot:
        """The slot, if this agent serves it. Raises NotCoordinator, CoordinatorLoading."""
        slot = self._held.get(key)
        if slot is None or slot.closing or not slot.may_answer():
            raise not_coordinator(key)
        if slot.loading:
            raise CoordinatorLoading(f"this agent is reading the state of {key} from the metadata store")
        return slot

    # The store.

    async def fenced(self, slot: HeldSlot, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call that uses the store in the slot's name. Raises CoordinatorNotAvailable if it takes too
        long, though the call goes on; NotCoordinator if the store or the clock says that another agent may have the
        slot."""
        try:
            result = await self.from_store(call)
        except StaleEpoch as error:
            self.drop(slot, str(error))
            raise NotCoordinator(str(error)) from error
        if not slot.may_answer():
            raise not_coordinator(slot.key)
        return result

    async def from_store(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call that uses the store and needs no slot. Raises CoordinatorNotAvailable as ``fenced``."""
        if len(self._store_calls) >= MAX_STORE_CALLS:
            call.close()
            raise CoordinatorNotAvailable(f"{MAX_STORE_CALLS} requests wait for the metadata store")
        task = asyncio.create_task(call)
        self._store_calls.add(task)
        task.add_done_callback(self._store_calls.discard)
        task.add_done_callback(retrieve)  # the request may have given up
        done, _ = await asyncio.wait({task}, timeout=self._store_timeout_s)
        if not done:
            raise CoordinatorNotAvailable(f"the metadata store did not answer within {self._store_timeout_s:g} s")
        try:
            return task.result()
        except StaleEpoch:
            raise
        except MetadataError as error:
            raise CoordinatorNotAvailable(str(error)) from error


def not_coordinator(key: SlotKey) -> NotCoordinator:
    return NotCoordinator(f"this agent does not coordinate {key}")
