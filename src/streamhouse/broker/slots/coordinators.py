"""Finds the agent that coordinates a slot, and tells whether a slot changes hands here at this moment.

    before            its holder closes it         the new holder loads its state       after
    ─────────────────┬────────────────────────────┬────────────────────────────────────┬──────────
    store says:      │  the old holder            │  the new holder                    │
    requests         │  wait at the old holder    │  wait at the new holder            │

A request for a slot that is in between waits here, for a bounded time, until the slot is served here or another agent
holds it. If it were refused at once, the client would ask for the coordinator before the store can name the new one,
and would come back to the old one.

FindCoordinator reads the store unless the slot is served here: an answer from memory may name an agent that has already
handed the slot over. If the store does not answer in time, the answer is what this agent knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, Protocol

from streamhouse.broker.nodes import Node
from streamhouse.core.errors import StreamHouseError
from streamhouse.metadata.contract import SlotKey

_FIND_TIMEOUT_S: Final = 0.05
"""librdkafka sends a second FindCoordinator when 100 ms have passed without an answer. If every answer takes longer, a
synchronous commit of it never ends (docs/chaos.md)."""
_RECHECK_S: Final = 0.25  # no change is announced when a transfer fails


class SlotView(Protocol):
    """The part of the cluster view that this module uses."""

    @property
    def me(self) -> Node | None: ...
    def coordinator(self, slot: SlotKey) -> Node | None: ...
    def leaving_epoch(self, slot: SlotKey) -> int | None: ...
    async def look_at_slots(self) -> None: ...
    async def wait_changed(self, timeout_s: float) -> None: ...


class Coordinators:
    def __init__(
        self,
        *,
        view: SlotView,
        served: Callable[[SlotKey], bool],
        opening: Callable[[SlotKey], bool],
        taking_over: Callable[[SlotKey], bool],
    ) -> None:
        """``served``: whether this agent answers requests for the slot. ``opening``: whether this agent holds the slot
        and does not serve it yet. ``taking_over``: whether this agent has agreed to hold a slot that another agent is
        still closing.
        """
        self._view = view
        self._served = served
        self._opening = opening
        self._taking_over = taking_over

    def is_changing(self, slot: SlotKey) -> bool:
        """Whether this agent is about to serve the slot, or hands it over and will soon know to which agent."""
        if self._served(slot):
            return False
        return self._opening(slot) or self._taking_over(slot) or self._view.leaving_epoch(slot) is not None

    async def wait_settled(self, slot: SlotKey, timeout_s: float) -> None:
        """Returns when the slot no longer changes hands here, or after ``timeout_s``."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + timeout_s
        while self.is_changing(slot) and (left_s := give_up_s - loop.time()) > 0:
            await self._view.wait_changed(min(left_s, _RECHECK_S))

    async def find(self, slots: Collection[SlotKey]) -> dict[SlotKey, Node | None]:
        """The agent that coordinates each slot: it holds the slot, or is about to. None: no agent does now."""
        if not all(map(self._served, slots)):
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIND_TIMEOUT_S):
                    await self._look(slots)
        return {slot: self._coordinator(slot) for slot in slots}

    async def _look(self, slots: Collection[SlotKey]) -> None:
        with suppress(StreamHouseError):  # the store does not answer: use what is known here
            await self._view.look_at_slots()
        while any(self.is_changing(slot) or self._coordinator(slot) is None for slot in slots):
            await self._view.wait_changed(_RECHECK_S)

    def _coordinator(self, slot: SlotKey) -> Node | None:
        me, node = self._view.me, self._view.coordinator(slot)
        if self._served(slot) or self._opening(slot):
            return me
        if me is not None and node == me and self._view.leaving_epoch(slot) is None:
            return None  # the lease has run out by this agent's clock, and the view does not know that yet
        return node
