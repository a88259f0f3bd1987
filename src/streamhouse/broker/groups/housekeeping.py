"""The periodic work of a coordinator, in three loops:

    changes    receives changes of topics, and groups that commits without membership have made
    topics     gives consumer groups the new topics, so that they assign them
    expiry     deletes groups that have been empty for the retention time, with their offsets

An error does not end a loop: its work is done later.
"""

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
_TOPICS_EVERY_S: Final = 60.0  # notifications can be lost; then topics are read after this time
_BURST_S: Final = 0.1  # topics are created in bursts; one read serves all of them
_RETRY_S: Final = 1.0
_EXPIRED_PER_CALL: Final = 1_000
_EXPIRING_SLOT: Final = SlotKey(0)
"""The agent that holds this slot expires the groups of all slots."""
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
            self._heard(Change(kind=ChangeKind.ANY))  # for changes before the subscription
            async for change in changes:
                self._heard(change)
        await asyncio.sleep(_RETRY_S)

    def _heard(self, change: Change) -> None:
        if change.kind in (ChangeKind.TOPICS, ChangeKind.ANY):
            self._topics_changed.set()
        if change.kind is ChangeKind.GROUPS:
            slot = self._registry.slots.get(slot_of(change.name))
            if slot is not None:
                groups = self._registry.in_slot(slot)
                if change.name not in groups.loaded and len(groups.unseen) < _MAX_UNSEEN:
                    groups.unseen.add(change.name)
        elif change.kind is ChangeKind.ANY:
            for slot in self._registry.slots.all():
                self._registry.in_slot(slot).unseen.add("")  # the next listing reads the whole slot

    # Topics.

    async def _follow_topics(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOPICS_EVERY_S):
                await self._topics_changed.wait()
        self._topics_changed.clear()
        try:
            await self.look_at_topics()
        except StreamHouseError:
            self._topics_changed.set()
            raise
        await asyncio.sleep(_BURST_S)

    async def look_at_topics(self) -> None:
        """Give every consumer group the topics that exist now."""
        if not any(isinstance(group.machine, ConsumerGroup) for group in self._registry.all_groups()):
            return
        await self._registry.view.all_topics()
        self._registry.learn_topics()
        for group in self._registry.all_groups():
            machine = group.machine
            if isinstance(machine, ConsumerGroup) and group.slot.may_answer() and not group.slot.closing:
                self._registry.apply(group, machine.topics_changed(self._registry.facts))

    # Expiry.

    async def _expire_later(self) -> None:
        await asyncio.sleep(self._registry.options.offsets_retention_check_ms / 1000)
        await self.expire()

    async def expire(self) -> None:
        """Delete groups that have been empty for the retention time, and forget groups that are gone from the store."""
        retention_ms = self._registry.options.offsets_retention_ms
        slot = self._registry.slots.get(_EXPIRING_SLOT)
        if slot is not None and slot.may_answer():
            while True:
                expired = await self._registry.metadata.expire_groups(
                    empty_for_ms=retention_ms, limit=_EXPIRED_PER_CALL
                )
                if expired:
                    _log.info("deleted %d groups that had no members for %d ms", len(expired), retention_ms)
                for group_id in expired:
                    self._forget(group_id)
                if len(expired) < _EXPIRED_PER_CALL:
                    break
        now_ms = self._registry.now_ms()
        for group in self._registry.all_groups():
            if group.is_blank and now_ms - group.empty_since_ms >= retention_ms:
                try:
                    await self._registry.metadata.get_group(group.group_id)
                except GroupNotFound:
                    self._forget(group.group_id)

    def _forget(self, group_id: str) -> None:
        slot = self._registry.slots.get(slot_of(group_id))
        group = None if slot is None else self._registry.in_slot(slot).loaded.get(group_id)
        if group is not None and group.is_blank and group.saving is None:
            self._registry.forget(group)


async def _forever(name: str, step: Callable[[], Awaitable[None]]) -> None:
    """Runs ``step`` again and again. An error does not end the loop: the work is done later."""
    reported = False
    while True:
        try:
            await step()
            reported = False
        except StreamHouseError as error:
            if not reported:  # once for each outage of the store
                _log.warning("the loop %r of the group coordinator failed and tries again: %s", name, error)
            reported = True
            await asyncio.sleep(_RETRY_S)
        except Exception:
            _log.exception("the loop %r of the group coordinator failed and tries again; this is a bug", name)
            await asyncio.sleep(_RETRY_S)
