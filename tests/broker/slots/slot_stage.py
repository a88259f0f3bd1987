"""A cluster view, a lease guard and a user of slots that tests control."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import UUID

from streamhouse.broker.nodes import Node
from streamhouse.broker.slots.slots import HeldSlot
from streamhouse.metadata.contract import Lease, SlotKey

SLOT = SlotKey(7)
ME = Node(node_id=1, agent_id="me", host="here", port=1, rack="")
OTHER = Node(node_id=2, agent_id="other", host="there", port=2, rack="")


def lease(epoch: int = 1) -> Lease:
    return Lease(
        key=SLOT,
        topic=None,
        agent_id="me",
        incarnation=UUID(int=1),
        epoch=epoch,
        acquired_at_ms=0,
        expires_at_ms=1,
        expired=False,
        high_watermark=-1,
    )


class View:
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


class User:
    """Notes what it is told, with the epoch of the slot."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.error: Exception | None = None

    async def load(self, slot: HeldSlot) -> None:
        self.calls.append(("load", slot.fence.epoch))
        await self.may_load.wait()
        if self.error is not None:
            raise self.error

    async def hand_over(self, slot: HeldSlot) -> None:
        assert slot.closing
        assert not slot.gone
        self.calls.append(("hand over", slot.fence.epoch))

    def unload(self, slot: HeldSlot) -> None:
        assert slot.gone
        self.calls.append(("unload", slot.fence.epoch))
