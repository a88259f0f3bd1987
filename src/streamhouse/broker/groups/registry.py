"""The groups of the slots that this agent holds, and what becomes of the effects of their state machines.

The state machines (classic.py, consumer.py) are pure: they get an event and the time, and return effects. The registry
carries the effects out: it sets timers, starts writes, and gives answers. It is a user of ``broker/slots``: it loads
the groups of a slot that was gained, and drops them when the slot ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Protocol

from streamhouse.broker.groups import conversion
from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.contract import Answer, Effects, Save, Ticket, Timer, TimerKey, TimerKind, TopicFact
from streamhouse.broker.groups.loaded import GroupMachine, LoadedGroup, Saver
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.groups.payload import decode
from streamhouse.broker.groups.snapshot import ClassicSnapshot
from streamhouse.broker.groups.timers import Timers
from streamhouse.broker.slots.slots import HeldSlot, Slots, not_coordinator
from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    CoordinatorNotAvailable,
    CorruptData,
    InvalidGroupId,
    InvalidRequest,
    StreamHouseError,
    UnsupportedVersion,
)
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Group, MetadataStore, Topic, slot_of

_log: Final = logging.getLogger(__name__)
_GROUPS_PER_TURN: Final = 50  # groups that are loaded before other tasks of the event loop get their turn
_HAND_OVER_SAVE_S: Final = 5.0  # how long a hand-over waits for writes that have begun
_TOPICS_FRESH_MS: Final = 5_000  # at a start fifty slots are gained at once; one read of the topics serves them all
_SILENCES_PER_S: Final = 200
"""Groups whose silent members are saved in one second. When an agent dies, the next one takes over thousands of groups
at once, and their clients need some seconds to find it. The rest waits, and most of it is not needed in the end."""
_RETRY_TIMER_MS: Final = 1_000


class TopicSource(Protocol):
    """The part of the cluster view that groups use."""

    def topics(self) -> list[Topic]: ...
    async def all_topics(self) -> list[Topic]: ...


@dataclass(eq=False, slots=True)
class SlotGroups:
    """The groups of one slot."""

    loaded: dict[str, LoadedGroup] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)
    """Groups that commits without membership have made in the store; a listing loads them. "": read all again."""


class Registry:
    def __init__(
        self, *, metadata: MetadataStore, view: TopicSource, clock: Clock, options: GroupOptions, slots: Slots
    ) -> None:
        self.metadata = metadata
        self.options = options
        self.view = view
        self.slots = slots
        self._clock = clock
        self._by_slot: dict[HeldSlot, SlotGroups] = {}
        self._group_count = 0
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._tickets = count(1)
        self._timers: Timers[tuple[LoadedGroup, TimerKey]] = Timers(clock=clock, fire=self._on_timer)
        self._saver = Saver(
            metadata, timeout_s=slots.store_timeout_ms / 1000, deliver=self._deliver, on_fenced=slots.drop
        )
        self._facts: Mapping[str, TopicFact] = {}
        self._learned_ms = -(2**62)
        self._silences_since_ms = 0
        self._silences = 0
        slots.add_user(self)

    def now_ms(self) -> int:
        return self._clock.boot_ms()

    @property
    def group_count(self) -> int:
        return self._group_count

    def close(self) -> None:
        self._timers.close()

    # Slots.

    async def load(self, slot: HeldSlot) -> None:
        self._by_slot[slot] = SlotGroups()
        groups = await self.metadata.list_groups(slot.key)
        if groups and self.now_ms() - self._learned_ms > _TOPICS_FRESH_MS:
            await self.view.all_topics()
            self.learn_topics()
        for number, group in enumerate(groups):
            if number % _GROUPS_PER_TURN == _GROUPS_PER_TURN - 1:
                await asyncio.sleep(0)
            if slot.gone:
                return
            self.load_group(slot, group)

    async def hand_over(self, slot: HeldSlot) -> None:
        groups = list(self.in_slot(slot).loaded.values())
        for group in groups:
            self.apply(group, group.machine.end(not_coordinator(slot.key)))
        saving = [group.saving for group in groups if group.saving is not None]
        if saving:
            await asyncio.wait(saving, timeout=_HAND_OVER_SAVE_S)

    def unload(self, slot: HeldSlot) -> None:
        for group in list(self.in_slot(slot).loaded.values()):
            for _, answer in group.held:
                self._deliver(group, answer)
            group.held.clear()
            self.apply(group, group.machine.end(not_coordinator(slot.key)))
            if group.saving is not None and group.saving is not asyncio.current_task():
                group.saving.cancel()
            self.forget(group)
        self._by_slot.pop(slot, None)

    def load_group(self, slot: HeldSlot, row: Group) -> None:
        """Make a loaded group from its row in the store."""
        machine, effects = self._restored(row)
        group = LoadedGroup(slot=slot, machine=machine, stored=True, empty_since_ms=self.now_ms())
        self.in_slot(slot).loaded[row.group_id] = group
        self._group_count += 1
        self.apply(group, effects)
        if isinstance(machine, ConsumerGroup):
            self.apply(group, machine.topics_changed(self._facts))

    def _restored(self, row: Group) -> tuple[GroupMachine, Effects]:
        try:
            saved = decode(row.payload)
        except (CorruptData, UnsupportedVersion) as error:
            # The offsets and the generation have their own columns. Only the members are gone: they join again.
            _log.error("the members of group %s cannot be read and must join again: %s", row.group_id[:64], error)
            return ClassicGroup(row.group_id, options=self.options, generation=row.generation), ()
        if isinstance(saved, ClassicSnapshot):
            classic = ClassicGroup(row.group_id, options=self.options, generation=row.generation)
            return classic, classic.restore(saved, self.now_ms())
        consumer = ConsumerGroup(row.group_id, options=self.options, group_epoch=row.generation)
        return consumer, consumer.restore(saved, self.now_ms())

    # Groups.

    def in_slot(self, slot: HeldSlot) -> SlotGroups:
        return self._by_slot.get(slot) or SlotGroups()

    async def ready(self, group_id: str) -> None:
        """Waits while the group's slot changes hands here. Every request for a group begins with this."""
        await self.slots.ready(slot_of(group_id))

    def slot_for(self, group_id: str) -> HeldSlot:
        """Raises NotCoordinator, CoordinatorLoading, InvalidGroupId."""
        try:
            checks.check_group(group_id)
        except InvalidRequest as error:
            raise InvalidGroupId(str(error)) from error
        return self.slots.served(slot_of(group_id))

    def find(self, group_id: str) -> LoadedGroup | None:
        """Raises the errors of ``slot_for``."""
        return self.in_slot(self.slot_for(group_id)).loaded.get(group_id)

    def find_or_make(self, group_id: str) -> LoadedGroup:
        """A new group is a classic group until a member of the consumer protocol joins it."""
        slot = self.slot_for(group_id)
        groups = self.in_slot(slot)
        group = groups.loaded.get(group_id)
        if group is None:
            if self._group_count >= self.options.max_groups:
                raise CoordinatorNotAvailable(f"this agent has {self._group_count} groups, which is the limit")
            machine = ClassicGroup(group_id, options=self.options)
            group = LoadedGroup(slot=slot, machine=machine, empty_since_ms=self.now_ms())
            groups.loaded[group_id] = group
            groups.unseen.discard(group_id)
            self._group_count += 1
        return group

    def forget(self, group: LoadedGroup) -> None:
        loaded = self.in_slot(group.slot).loaded
        if loaded.get(group.group_id) is group:
            del loaded[group.group_id]
            self._group_count -= 1

    def all_groups(self) -> Iterator[LoadedGroup]:
        for groups in list(self._by_slot.values()):
            yield from list(groups.loaded.values())

    # Topics.

    @property
    def facts(self) -> Mapping[str, TopicFact]:
        return self._facts

    def learn_topics(self) -> None:
        """Take the topics that the cluster view has in memory."""
        self._learned_ms = self.now_ms()
        self._facts = {
            topic.name: TopicFact(topic_id=topic.topic_id, name=topic.name, partition_count=topic.partition_count)
            for topic in self.view.topics()
        }

    # Events and effects.

    async def ask(self, group: LoadedGroup, event: Callable[[Ticket], Effects]) -> Any:
        """Give the state machine an event and wait for its answer. Raises the answer if it is an error."""
        ticket = Ticket(next(self._tickets))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        try:
            self.apply(group, event(ticket))
            return await future
        finally:
            self._waiting.pop(ticket, None)

    def apply(self, group: LoadedGroup, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Timer(key, at_ms):
                    self._timers.set((group, key), at_ms)
                case Save():
                    self._saver.save(group)
                case Answer():
                    self._saver.answer(group, effect)
        if isinstance(group.machine, ConsumerGroup) and group.machine.roster.only_classic and not group.slot.gone:
            self._make_classic(group, group.machine)
        if group.is_blank:
            if not group.stored and not group.version and not group.offsets_lock.locked():
                self.forget(group)
        else:
            group.empty_since_ms = self.now_ms()

    def _make_classic(self, group: LoadedGroup, machine: ConsumerGroup) -> None:
        """The last member of the consumer protocol is gone. The writes that ``apply`` has started run later, and take
        the state of the classic group."""
        now_ms = self.now_ms()
        group.machine, effects = conversion.to_classic(machine, self._facts, options=self.options, now_ms=now_ms)
        self.apply(group, effects)

    def run_due(self) -> None:
        """Fire the timers that are due; for tests that set the clock."""
        self._timers.run_due()

    def _on_timer(self, timed: tuple[LoadedGroup, TimerKey]) -> None:
        group, key = timed
        slot = group.slot
        if slot.gone or slot.closing or self.in_slot(slot).loaded.get(group.group_id) is not group:
            return
        if not slot.guard.valid():
            # The lease may have ended, so this agent must not decide now. If it has not, the member gets more time.
            self._timers.set(timed, self.now_ms() + _RETRY_TIMER_MS)
            return
        if key.kind is TimerKind.SILENCE and group.machine.silence.goes_on and not self._may_save_silence():
            self._timers.set(timed, self.now_ms() + _RETRY_TIMER_MS)
            return
        try:
            if isinstance(group.machine, ClassicGroup):
                self.apply(group, group.machine.on_timer(key, self.now_ms()))
            else:
                self.apply(group, group.machine.on_timer(key, self._facts, self.now_ms()))
        except Exception:  # a bug in one group must not stop the timers of all other groups
            _log.exception("the %s timer of group %s failed; this is a bug", key.kind.value, group.group_id[:64])

    def _may_save_silence(self) -> bool:
        now_ms = self.now_ms()
        if now_ms - self._silences_since_ms >= 1000:
            self._silences_since_ms, self._silences = now_ms, 0
        self._silences += 1
        return self._silences <= _SILENCES_PER_S

    def _deliver(self, group: LoadedGroup, answer: Answer) -> None:
        future = self._waiting.pop(answer.ticket, None)
        if future is None or future.done():
            return  # the client has disconnected
        result = answer.result if group.slot.may_answer() else not_coordinator(group.slot.key)
        if isinstance(result, StreamHouseError):
            future.set_exception(result)
        else:
            future.set_result(result)
