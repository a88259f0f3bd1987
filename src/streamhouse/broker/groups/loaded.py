"""One group in a coordinator's memory, and the writes that bring its state to the store.

A client must never be told of a state that a take-over would forget. Therefore an answer that tells of a state waits
until that state is in the store. There is one write at a time: a second write beside a slow first one could finish
before it, and then the older state would overwrite the newer one. A write takes the state as it is when the write
starts, so one write covers all changes before it.

If the store does not take a state, the requests that wait are answered with CoordinatorNotAvailable, and the write is
tried again for as long as the slot is held.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.contract import Answer, GroupType
from streamhouse.broker.groups.payload import encode
from streamhouse.broker.slots.slots import HeldSlot
from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import Conflict, CoordinatorNotAvailable, LimitExceeded, StreamHouseError
from streamhouse.core.tasks import retrieve
from streamhouse.metadata.contract import MetadataStore

_log: Final = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(first_ms=100, longest_ms=2_000)

GroupMachine: TypeAlias = ClassicGroup | ConsumerGroup


@dataclass(eq=False, slots=True, kw_only=True)
class LoadedGroup:
    slot: HeldSlot
    machine: GroupMachine
    stored: bool = False
    """Whether the store has a row for it."""
    empty_since_ms: int = 0
    version: int = 0
    """Goes up by one with each change that must be saved."""
    saved_version: int = 0
    held: deque[tuple[int, Answer]] = field(default_factory=deque)
    """Answers, each with the version that must be saved before it is given."""
    saving: asyncio.Task[None] | None = None
    offsets_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Offsets of one group are committed and read one after the other. So a member that gets a partition reads what its
    former owner has committed."""

    @property
    def group_id(self) -> str:
        return self.machine.group_id

    @property
    def type(self) -> GroupType:
        return GroupType.CLASSIC if isinstance(self.machine, ClassicGroup) else GroupType.CONSUMER

    @property
    def is_blank(self) -> bool:
        """No members, and no member ids given out."""
        if isinstance(self.machine, ClassicGroup):
            return self.machine.is_blank
        return not len(self.machine.roster)


class Saver:
    """Writes loaded groups to the store."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        timeout_s: float,
        deliver: Callable[[LoadedGroup, Answer], None],
        on_fenced: Callable[[HeldSlot, str], None],
    ) -> None:
        self._metadata = metadata
        self._timeout_s = timeout_s
        self._deliver = deliver
        self._on_fenced = on_fenced

    def save(self, group: LoadedGroup) -> None:
        """The group's state has changed: write it."""
        group.version += 1
        self._start(group)

    def answer(self, group: LoadedGroup, answer: Answer) -> None:
        """Give the answer now, or when the state that it tells of is saved."""
        if not answer.after_save or group.saved_version >= group.version:
            self._deliver(group, answer)
            return
        group.held.append((group.version, answer))
        self._start(group)

    def _start(self, group: LoadedGroup) -> None:
        if group.saving is None and not group.slot.gone:
            group.saving = asyncio.create_task(self._save(group), name=f"save group {group.group_id[:64]}")

    async def _save(self, group: LoadedGroup) -> None:
        failures = 0
        try:
            while group.saved_version < group.version and not group.slot.gone:
                version = group.version
                try:
                    await self._write(group)
                except LimitExceeded as error:
                    self._fail(group, error)
                    return
                except Conflict as error:  # another coordinator has written: this agent has lost the slot
                    self._on_fenced(group.slot, str(error))
                    return
                except StreamHouseError as error:
                    problem = f"the metadata store did not take the state of group {group.group_id}: {error}"
                    self._fail(group, CoordinatorNotAvailable(problem))
                    failures += 1
                    await asyncio.sleep(_BACKOFF.step_ms(failures) / 1000)
                    continue
                failures = 0
                group.saved_version, group.stored = version, True
                while group.held and group.held[0][0] <= version:
                    self._deliver(group, group.held.popleft()[1])
        except Exception:
            _log.exception("group %s could not be saved; this is a bug", group.group_id[:64])
            self._fail(group, CoordinatorNotAvailable(f"the state of group {group.group_id} could not be saved"))
        finally:
            group.saving = None

    async def _write(self, group: LoadedGroup) -> None:
        """After the time-out the requests that wait are refused, but the call itself goes on to its end."""
        machine = group.machine
        call = asyncio.ensure_future(
            self._metadata.save_group(
                group.group_id,
                group.slot.fence,
                generation=machine.generation,
                member_count=len(machine.roster),
                payload=encode(machine.snapshot()),
            )
        )
        try:
            done, _ = await asyncio.wait({call}, timeout=self._timeout_s)
        except asyncio.CancelledError:
            call.cancel()  # the slot is lost; the store would refuse the write in any case
            call.add_done_callback(retrieve)
            raise
        if not done:
            problem = f"the metadata store takes more than {self._timeout_s:g} s to save group {group.group_id}"
            self._fail(group, CoordinatorNotAvailable(problem))
        await call

    def _fail(self, group: LoadedGroup, error: StreamHouseError) -> None:
        held, group.held = group.held, deque()
        for _, answer in held:
            self._deliver(group, Answer(answer.ticket, error))
