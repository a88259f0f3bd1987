"""The slots this agent holds and the groups in them: who may be answered, and what becomes of a machine's effects.

    gained   groups of the slot are read from the store; until then requests wait, and are told CoordinatorLoading
    losing   those who wait are sent on; what is not saved yet is saved
    lost     those who wait are sent on; nothing is written any more

Every answer in a slot's name is given while its lease is surely held (R20); every write is fenced by its epoch (R1), so
that one who lost a slot without noticing commits nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from streamhouse.broker.groups import classic_state
from streamhouse.broker.groups.cell import Cell, GroupMachine, Saver, Slot
from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.contract import Answer, Effects, Save, Ticket, Timer, TimerKey, TimerKind, TopicFact
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.groups.payload import decode
from streamhouse.broker.groups.places import Places, SlotView
from streamhouse.broker.groups.snapshot import ClassicSnapshot
from streamhouse.broker.groups.timers import Timers
from streamhouse.cluster.lease_table import LeaseGuard
from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    CorruptData,
    InvalidGroupId,
    InvalidRequest,
    MetadataError,
    NotCoordinator,
    StaleEpoch,
    StreamHouseError,
    UnsupportedVersion,
)
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Group, Lease, MetadataStore, SlotFence, SlotKey, Topic, slot_of

_log: Final = logging.getLogger(__name__)
_GROUPS_PER_TURN: Final = 50  # read in one go when a slot is taken over, before others get their turn
_HAND_OVER_S: Final = 5.0  # how long losing waits for what is not saved yet
_TOPICS_GOOD_FOR_MS: Final = 5_000  # at a start fifty slots are gained at once; one look at the topics serves them all
_SILENCES_PER_S: Final = 200
"""Groups whose silent members are written down in one second. When an agent dies, the next one takes over thousands of
groups at once, whose clients need a few seconds to find it: the rest waits, and most of it turns out to be needless."""
_MAX_UNDER_WAY: Final = 10_000  # calls to the store that somebody waits for: one a connection

T = TypeVar("T")


class TopicSource(Protocol):
    """What is asked of the cluster view."""

    def topics(self) -> list[Topic]: ...
    async def all_topics(self) -> list[Topic]: ...


class GroupsView(TopicSource, SlotView, Protocol):
    """What a coordinator asks of the cluster view."""


class Registry:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        view: GroupsView,
        clock: Clock,
        options: GroupOptions,
        on_dropped: Callable[[SlotKey, str], None],
        opening: Callable[[SlotKey], bool],
        taking_over: Callable[[SlotKey], bool],
    ) -> None:
        """``opening``, ``taking_over``: see Places."""
        self.metadata = metadata
        self.options = options
        self.view: TopicSource = view
        self.places = Places(view=view, served=self.serves, opening=opening, taking_over=taking_over)
        self.slots: dict[SlotKey, Slot] = {}
        self._clock = clock
        self._on_dropped = on_dropped
        self._group_count = 0
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._tickets = count(1)
        self._timers: Timers[tuple[Cell, TimerKey]] = Timers(clock=clock, fire=self._on_timer)
        self._timeout_s = options.store_timeout_ms / 1000
        self._saver = Saver(metadata, timeout_s=self._timeout_s, deliver=self._deliver, on_fenced=self.drop)
        self._facts: Mapping[str, TopicFact] = {}
        self._learned_ms = -(2**62)
        self._silences_since_ms = 0
        self._silences = 0
        self._under_way: set[asyncio.Task[Any]] = set()

    def now_ms(self) -> int:
        return self._clock.boot_ms()

    @property
    def group_count(self) -> int:
        return self._group_count

    # Slots.

    async def gained(self, lease: Lease, guard: LeaseGuard) -> None:
        """Raises what the store raises; nothing is left behind then."""
        assert isinstance(lease.key, SlotKey)
        self.lost(lease.key)
        slot = Slot(fence=SlotFence(slot=lease.key, epoch=lease.epoch), guard=guard)
        self.slots[lease.key] = slot
        try:
            groups = await self.metadata.list_groups(lease.key)
            if groups and self.now_ms() - self._learned_ms > _TOPICS_GOOD_FOR_MS:
                await self.view.all_topics()
                self.learn_topics()
            for number, group in enumerate(groups):
                if number % _GROUPS_PER_TURN == _GROUPS_PER_TURN - 1:
                    await asyncio.sleep(0)
                self.load(slot, group)
        except BaseException:
            self._end(slot)
            raise
        slot.loading = False

    async def losing(self, key: SlotKey) -> None:
        slot = self.slots.get(key)
        if slot is None:
            return
        slot.closing = True
        for cell in list(slot.cells.values()):
            self.apply(cell, cell.machine.end(_moved(cell.group_id)))
        saving = [cell.saving for cell in slot.cells.values() if cell.saving is not None]
        if saving:
            await asyncio.wait(saving, timeout=_HAND_OVER_S)
        self._end(slot)

    def lost(self, key: SlotKey) -> None:
        slot = self.slots.get(key)
        if slot is not None:
            self._end(slot)

    def drop(self, slot: Slot, reason: str) -> None:
        """The store says that this slot is another's."""
        if not slot.gone:
            self._end(slot)
            self._on_dropped(slot.fence.slot, reason)

    def _end(self, slot: Slot) -> None:
        slot.gone = True
        if self.slots.get(slot.fence.slot) is slot:
            del self.slots[slot.fence.slot]
        for cell in list(slot.cells.values()):
            for _, answer in cell.held:
                self._deliver(cell, answer)
            cell.held.clear()
            self.apply(cell, cell.machine.end(_moved(cell.group_id)))
            if cell.saving is not None and cell.saving is not asyncio.current_task():
                cell.saving.cancel()
            self.forget(cell)

    async def close(self) -> None:
        for slot in list(self.slots.values()):
            self._end(slot)
        self._timers.close()
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def load(self, slot: Slot, group: Group) -> None:
        """One group as the store has it."""
        machine, effects = self._restored(group)
        cell = Cell(slot=slot, machine=machine, stored=True, blank_since_ms=self.now_ms())
        slot.cells[group.group_id] = cell
        self._group_count += 1
        self.apply(cell, effects)
        if isinstance(machine, ConsumerGroup):
            self.apply(cell, machine.topics_changed(self._facts))

    def _restored(self, group: Group) -> tuple[GroupMachine, Effects]:
        try:
            saved = decode(group.payload)
        except (CorruptData, UnsupportedVersion) as error:
            # Offsets stand by themselves, and the generation in the row: its members only have to join again.
            _log.error("group %s is taken over without its members: %s", group.group_id[:64], error)
            return ClassicGroup(group.group_id, options=self.options, generation=group.generation), ()
        if isinstance(saved, ClassicSnapshot):
            classic = ClassicGroup(group.group_id, options=self.options, generation=group.generation)
            return classic, classic_state.restore(classic, saved, self.now_ms())
        consumer = ConsumerGroup(group.group_id, options=self.options, group_epoch=group.generation)
        return consumer, consumer.restore(saved, self.now_ms())

    # Groups.

    def serves(self, key: SlotKey) -> bool:
        """Whether groups of this slot are answered here now."""
        slot = self.slots.get(key)
        return slot is not None and not slot.loading and not slot.closing and slot.authority()

    async def ready(self, group_id: str) -> None:
        """Wait while the group's slot changes hands here. Every request about a group begins with it."""
        key = slot_of(group_id)
        if not self.serves(key) and self.places.is_changing(key):
            await self.places.wait_settled(key, self.options.hand_over_wait_ms / 1000)

    def slot_for(self, group_id: str) -> Slot:
        """Raises NotCoordinator, CoordinatorLoading, InvalidGroupId."""
        try:
            checks.check_group(group_id)
        except InvalidRequest as error:
            raise InvalidGroupId(str(error)) from error
        key = slot_of(group_id)
        slot = self.slots.get(key)
        if slot is None or slot.closing or not slot.authority():
            raise _moved(group_id)
        if slot.loading:
            raise CoordinatorLoading(f"the groups of {key} are being read")
        return slot

    def find(self, group_id: str) -> Cell | None:
        """Raises what ``slot_for`` raises."""
        return self.slot_for(group_id).cells.get(group_id)

    def find_or_make(self, group_id: str) -> Cell:
        """A new one is a classic group until somebody says otherwise."""
        slot = self.slot_for(group_id)
        cell = slot.cells.get(group_id)
        if cell is None:
            if self._group_count >= self.options.max_groups:
                raise CoordinatorNotAvailable(f"this agent coordinates {self._group_count} groups and takes no more")
            machine = ClassicGroup(group_id, options=self.options)
            cell = Cell(slot=slot, machine=machine, blank_since_ms=self.now_ms())
            slot.cells[group_id] = cell
            slot.unseen.discard(group_id)
            self._group_count += 1
        return cell

    def forget(self, cell: Cell) -> None:
        if cell.slot.cells.get(cell.group_id) is cell:
            del cell.slot.cells[cell.group_id]
            self._group_count -= 1

    def cells(self) -> Iterator[Cell]:
        for slot in list(self.slots.values()):
            yield from list(slot.cells.values())

    # Topics.

    @property
    def facts(self) -> Mapping[str, TopicFact]:
        return self._facts

    def learn_topics(self) -> None:
        """From the view's memory."""
        self._learned_ms = self.now_ms()
        self._facts = {
            topic.name: TopicFact(topic_id=topic.topic_id, name=topic.name, partition_count=topic.partition_count)
            for topic in self.view.topics()
        }

    # Events and effects.

    async def ask(self, cell: Cell, event: Callable[[Ticket], Effects]) -> Any:
        """Tell the machine something and wait for its answer. Raises the answer if it is an error."""
        ticket = Ticket(next(self._tickets))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        try:
            self.apply(cell, event(ticket))
            return await future
        finally:
            self._waiting.pop(ticket, None)

    def apply(self, cell: Cell, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Timer(key, at_ms):
                    self._timers.set((cell, key), at_ms)
                case Save():
                    self._saver.want(cell)
                case Answer():
                    self._saver.answer(cell, effect)
        if cell.is_blank:
            if not cell.stored and not cell.wanted and not cell.order.locked():
                self.forget(cell)
        else:
            cell.blank_since_ms = self.now_ms()

    def run_due(self) -> None:
        """Fire the timers that are due; for a clock that is moved by hand."""
        self._timers.run_due()

    def _on_timer(self, timed: tuple[Cell, TimerKey]) -> None:
        cell, key = timed
        slot = cell.slot
        if slot.gone or slot.closing or slot.cells.get(cell.group_id) is not cell:
            return
        if not slot.guard.valid():
            # Not ours to decide; if it turns out to be ours after all, the member gets a little longer.
            self._timers.set(timed, self.now_ms() + 1000)
            return
        if key.kind is TimerKind.SILENCE and cell.machine.silence.goes_on and not self._may_write_silence():
            self._timers.set(timed, self.now_ms() + 1000)
            return
        try:
            if isinstance(cell.machine, ClassicGroup):
                self.apply(cell, cell.machine.on_timer(key, self.now_ms()))
            else:
                self.apply(cell, cell.machine.on_timer(key, self._facts, self.now_ms()))
        except Exception:  # a defect; it must not take the timers of all other groups along
            _log.exception("group %s failed at its %s timer", cell.group_id[:64], key.kind.value)

    def _may_write_silence(self) -> bool:
        now_ms = self.now_ms()
        if now_ms - self._silences_since_ms >= 1000:
            self._silences_since_ms, self._silences = now_ms, 0
        self._silences += 1
        return self._silences <= _SILENCES_PER_S

    def _deliver(self, cell: Cell, answer: Answer) -> None:
        future = self._waiting.pop(answer.ticket, None)
        if future is None or future.done():
            return  # the client has gone
        result = answer.result if cell.slot.authority() else _moved(cell.group_id)
        if isinstance(result, StreamHouseError):
            future.set_exception(result)
        else:
            future.set_result(result)

    # The store.

    async def bounded(self, slot: Slot, call: Coroutine[Any, Any, T]) -> T:
        """The outcome of a call that uses the store; CoordinatorNotAvailable when it takes too long, though it goes on;
        NotCoordinator when the store, or the clock, says that the slot is another's."""
        try:
            result = await self.from_store(call)
        except StaleEpoch as error:
            self.drop(slot, str(error))
            raise NotCoordinator(str(error)) from error
        if not slot.authority():
            raise NotCoordinator(f"{slot.fence.slot} has moved to another agent")
        return result

    async def from_store(self, call: Coroutine[Any, Any, T]) -> T:
        """The outcome of a call that uses the store and needs no slot; CoordinatorNotAvailable as in ``bounded``."""
        if len(self._under_way) >= _MAX_UNDER_WAY:
            call.close()
            raise CoordinatorNotAvailable("too many wait for the metadata store")
        task = asyncio.create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        if not done:
            raise CoordinatorNotAvailable("the metadata store takes long")
        try:
            return task.result()
        except StaleEpoch:
            raise
        except MetadataError as error:
            raise CoordinatorNotAvailable(str(error)) from error

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone; nobody else needs to hear of it


def _moved(group_id: str) -> NotCoordinator:
    return NotCoordinator(f"group {group_id[:64]!r} is not coordinated here")
