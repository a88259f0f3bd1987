"""Which agent coordinates a slot, and whether a slot changes hands here at this moment.

    before            its holder closes it         the new holder reads its groups      after
    ─────────────────┬────────────────────────────┬────────────────────────────────────┬──────────
    store says:      │  the old holder            │  the new holder                    │
    requests         │  wait at the old holder    │  wait at the new holder            │

A group request that meets a slot in between waits here, for a bounded time, until the slot is open here or another
agent holds it. A client that is refused at once asks for the coordinator before the store can name the new one, and
comes back.

FindCoordinator reads the store unless the slot is served here: an answer from memory may name an agent that has handed
the slot over. If the store does not answer in time, what is known here has to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, Protocol

from streamhouse.broker.nodes import Node
from streamhouse.core.errors import StreamHouseError
from streamhouse.metadata.contract import SlotKey

_FINDING_S: Final = 0.05
"""librdkafka sends a second FindCoordinator when 100 ms have passed without an answer. If every answer takes longer, a
synchronous commit of it never ends (docs/chaos.md)."""
_LOOK_AGAIN_S: Final = 0.25  # a transfer that fails is not announced


class SlotView(Protocol):
    """What is asked of the cluster view."""

    @property
    def me(self) -> Node | None: ...
    def coordinator(self, slot: SlotKey) -> Node | None: ...
    def leaving_epoch(self, slot: SlotKey) -> int | None: ...
    async def look_at_slots(self) -> None: ...
    async def wait_changed(self, timeout_s: float) -> None: ...


class Places:
    def __init__(
        self,
        *,
        view: SlotView,
        served: Callable[[SlotKey], bool],
        opening: Callable[[SlotKey], bool],
        taking_over: Callable[[SlotKey], bool],
    ) -> None:
        """``served``: whether groups of the slot are answered here. ``opening``: whether this agent holds the slot and
        does not serve it yet. ``taking_over``: whether it has agreed to hold a slot that another agent still closes.
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
        """Returns when the slot does not change hands here any more, or when the time is up."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + timeout_s
        while self.is_changing(slot) and (left_s := give_up_s - loop.time()) > 0:
            await self._view.wait_changed(min(left_s, _LOOK_AGAIN_S))

    async def find(self, slots: Collection[SlotKey]) -> dict[SlotKey, Node | None]:
        """The agent that coordinates each slot: it holds the slot, or is about to. None: no agent does now."""
        if not all(map(self._served, slots)):
            with suppress(TimeoutError):
                async with asyncio.timeout(_FINDING_S):
                    await self._look(slots)
        return {slot: self._named(slot) for slot in slots}

    async def _look(self, slots: Collection[SlotKey]) -> None:
        with suppress(StreamHouseError):  # the store is away: what is known here has to do
            await self._view.look_at_slots()
        while any(self.is_changing(slot) or self._named(slot) is None for slot in slots):
            await self._view.wait_changed(_LOOK_AGAIN_S)

    def _named(self, slot: SlotKey) -> Node | None:
        me, node = self._view.me, self._view.coordinator(slot)
        if self._served(slot) or self._opening(slot):
            return me
        if me is not None and node == me and self._view.leaving_epoch(slot) is None:
            return None  # its lease has run out here, and this agent has not been told yet
        return node
