"""A lease and a user of slots that tests control."""

from __future__ import annotations

import asyncio
from uuid import UUID

from streamhouse.broker.nodes import Node
from streamhouse.broker.slots.slots import HeldSlot
from streamhouse.metadata.contract import Lease, SlotKey

SLOT = SlotKey(7)
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
