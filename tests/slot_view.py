"""What tests of coordinator slots and of groups control: what a cluster view says of slots, and a lease guard."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from streamhouse.broker.nodes import Node
from streamhouse.metadata.contract import SlotKey

ME = Node(node_id=1, agent_id="me", host="here", port=1, rack="")


class SlotView:
    def __init__(self) -> None:
        self.me: Node | None = ME
        self.leaving: set[SlotKey] = set()
        self.holders: dict[SlotKey, Node] = {}
        self.in_store: dict[SlotKey, Node] = {}
        """The holders that the store knows; this agent knows them after ``look_at_slots``."""
        self.looks = 0
        self._changed = asyncio.Event()

    def coordinator(self, slot: SlotKey) -> Node | None:
        return self.me if slot in self.leaving else self.holders.get(slot)

    def leaving_epoch(self, slot: SlotKey) -> int | None:
        return 1 if slot in self.leaving else None

    async def look_at_slots(self) -> None:
        self.looks += 1
        self.holders = dict(self.in_store)

    async def wait_changed(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Guard:
    def __init__(self) -> None:
        self.held = True

    def valid(self) -> bool:
        return self.held
