"""What a coordinator does unasked: follow the topics for its KIP-848 groups, hear of simple commits, expire groups."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.registry import Registry
from streamhouse.core.errors import GroupNotFound, StreamHouseError
from streamhouse.metadata.contract import Change, ChangeKind, SlotKey, slot_of

_log: Final = logging.getLogger(__name__)
_LOOK_EVERY_S: Final = 60.0  # notifications may be lost; this bounds for how long that matters
_PAUSE_S: Final = 0.1  # topics are created and grown in bursts
_RETRY_S: Final = 1.0
_EXPIRED_PER_CALL: Final = 1_000
_EXPIRING_SLOT: Final = SlotKey(0)
"""Whoever holds this one expires groups for everybody."""
_MAX_UNSEEN: Final = 1_000


class Housekeeping:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._topics_changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loops = {"changes": self._listen, "topics": self._follow_topics, "expiry": self._expire_later}
        self._tasks = [asyncio.create_task(_forever(name, step), name=f"groups {name}") for name, step in loops.items()]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Changes.

    async def _listen(self) -> None:
        async with self._registry.metadata.subscribe() as changes:
            self._heard(Change(kind=ChangeKind.ANY))  # whatever happened before
            async for change in changes:
                self._heard(change)
        await asyncio.sleep(_RETRY_S)

    def _heard(self, change: Change) -> None:
        if change.kind in (ChangeKind.TOPICS, ChangeKind.ANY):
            self._topics_changed.set()
        if change.kind is ChangeKind.GROUPS:
            slot = self._registry.slots.get(slot_of(change.name))
            if slot is not None and change.name not in slot.cells and len(slot.unseen) < _MAX_UNSEEN:
                slot.unseen.add(change.name)
        elif change.kind is ChangeKind.ANY:
            for slot in self._registry.slots.values():
                slot.unseen.add("")  # any name: a listing then reads the slot again

    # Topics.

    async def _follow_topics(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY_S):
                await self._topics_changed.wait()
        self._topics_changed.clear()
        try:
            await self.look_at_topics()
        except StreamHouseError:
            self._topics_changed.set()
            raise
        await asyncio.sleep(_PAUSE_S)

    async def look_at_topics(self) -> None:
        """Tell every KIP-848 group what topics there are now."""
        if not any(isinstance(cell.machine, ConsumerGroup) for cell in self._registry.cells()):
            return
        await self._registry.view.all_topics()
        self._registry.learn_topics()
        for cell in self._registry.cells():
            machine = cell.machine
            if isinstance(machine, ConsumerGroup) and cell.slot.authority() and not cell.slot.closing:
                self._registry.apply(cell, machine.topics_changed(self._registry.facts))

    # Expiry.

    async def _expire_later(self) -> None:
        await asyncio.sleep(self._registry.options.offsets_retention_check_ms / 1000)
        await self.expire()

    async def expire(self) -> None:
        """Delete groups that have been empty for long, with their offsets, and forget those that others deleted."""
        retention_ms = self._registry.options.offsets_retention_ms
        slot = self._registry.slots.get(_EXPIRING_SLOT)
        if slot is not None and slot.authority():
            while True:
                expired = await self._registry.metadata.expire_groups(
                    empty_for_ms=retention_ms, limit=_EXPIRED_PER_CALL
                )
                if expired:
                    _log.info("%d groups without members for %d ms have been deleted", len(expired), retention_ms)
                for group_id in expired:
                    self._forget(group_id)
                if len(expired) < _EXPIRED_PER_CALL:
                    break
        now_ms = self._registry.now_ms()
        for cell in self._registry.cells():
            if cell.is_blank and now_ms - cell.blank_since_ms >= retention_ms:
                try:
                    await self._registry.metadata.get_group(cell.group_id)
                except GroupNotFound:
                    self._forget(cell.group_id)

    def _forget(self, group_id: str) -> None:
        slot = self._registry.slots.get(slot_of(group_id))
        cell = None if slot is None else slot.cells.get(group_id)
        if cell is not None and cell.is_blank and cell.saving is None:
            self._registry.forget(cell)


async def _forever(name: str, step: Callable[[], Awaitable[None]]) -> None:
    """A store that is away, or a defect, ends no loop: what it does not do now it does later."""
    complained = False
    while True:
        try:
            await step()
            complained = False
        except StreamHouseError as error:
            if not complained:  # once for each time it is away
                _log.warning("groups, %s: %s", name, error)
            complained = True
            await asyncio.sleep(_RETRY_S)
        except Exception:
            _log.exception("groups, %s", name)
            await asyncio.sleep(_RETRY_S)
