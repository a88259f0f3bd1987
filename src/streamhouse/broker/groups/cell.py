"""One group in a coordinator's memory: its machine, and what is on its way to the store.

An answer that tells of a state is held until that state is saved; a later save covers earlier ones. If the store does
not take it, those who wait are told to ask again, and it goes on trying while the slot is held.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from streamhouse.broker.groups import classic_state
from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.contract import Answer, GroupType
from streamhouse.broker.groups.payload import encode
from streamhouse.cluster.lease_table import LeaseGuard
from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import Conflict, CoordinatorNotAvailable, LimitExceeded, StreamHouseError
from streamhouse.metadata.contract import MetadataStore, SlotFence

_log: Final = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(first_ms=100, longest_ms=2_000)

GroupMachine: TypeAlias = ClassicGroup | ConsumerGroup


@dataclass(eq=False, slots=True, kw_only=True)
class Slot:
    """One coordinator slot that this agent holds."""

    fence: SlotFence
    guard: LeaseGuard
    cells: dict[str, Cell] = field(default_factory=dict)
    loading: bool = True
    closing: bool = False
    gone: bool = False
    unseen: set[str] = field(default_factory=set)
    """Groups that somebody else made in the store (simple commits); for listing."""

    def authority(self) -> bool:
        """Whether an answer may be given in this slot's name (R20)."""
        return not self.gone and self.guard.valid()


@dataclass(eq=False, slots=True, kw_only=True)
class Cell:
    slot: Slot
    machine: GroupMachine
    stored: bool = False
    """The store has a row of it."""
    blank_since_ms: int = 0
    wanted: int = 0
    saved: int = 0
    held: deque[tuple[int, Answer]] = field(default_factory=deque)
    saving: asyncio.Task[None] | None = None
    order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Offsets are committed and read one after the other, so that who takes a partition over sees what was committed
    before."""

    @property
    def group_id(self) -> str:
        return self.machine.group_id

    @property
    def type(self) -> GroupType:
        return GroupType.CLASSIC if isinstance(self.machine, ClassicGroup) else GroupType.CONSUMER

    @property
    def is_blank(self) -> bool:
        if isinstance(self.machine, ClassicGroup):
            return self.machine.is_blank
        return not len(self.machine.roster)


class Saver:
    """Writes cells down."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        timeout_s: float,
        deliver: Callable[[Cell, Answer], None],
        on_fenced: Callable[[Slot, str], None],
    ) -> None:
        self._metadata = metadata
        self._timeout_s = timeout_s
        self._deliver = deliver
        self._on_fenced = on_fenced

    def want(self, cell: Cell) -> None:
        """Its state has changed."""
        cell.wanted += 1
        self._start(cell)

    def answer(self, cell: Cell, answer: Answer) -> None:
        """Now, or when what it tells is saved."""
        if not answer.after_save or cell.saved >= cell.wanted:
            self._deliver(cell, answer)
            return
        cell.held.append((cell.wanted, answer))
        self._start(cell)

    def _start(self, cell: Cell) -> None:
        if cell.saving is None and not cell.slot.gone:
            cell.saving = asyncio.create_task(self._save(cell), name=f"save group {cell.group_id[:64]}")

    async def _save(self, cell: Cell) -> None:
        failures = 0
        try:
            while cell.saved < cell.wanted and not cell.slot.gone:
                aim = cell.wanted
                try:
                    await self._write(cell)
                except LimitExceeded as error:
                    self._fail(cell, error)
                    return
                except Conflict as error:  # another coordinator has written: the slot is not ours any more
                    self._on_fenced(cell.slot, str(error))
                    return
                except StreamHouseError as error:
                    self._fail(cell, CoordinatorNotAvailable(f"the store does not take group {cell.group_id}: {error}"))
                    failures += 1
                    await asyncio.sleep(_BACKOFF.step_ms(failures) / 1000)
                    continue
                failures = 0
                cell.saved, cell.stored = aim, True
                while cell.held and cell.held[0][0] <= aim:
                    self._deliver(cell, cell.held.popleft()[1])
        except Exception:
            _log.exception("saving group %s failed", cell.group_id[:64])
            self._fail(cell, CoordinatorNotAvailable(f"group {cell.group_id} could not be saved"))
        finally:
            cell.saving = None

    async def _write(self, cell: Cell) -> None:
        """Whoever waits is told to ask again after a while, but the call itself is seen through to its end: were
        another sent beside it, the older state could overwrite the newer one."""
        machine = cell.machine
        if isinstance(machine, ClassicGroup):
            generation, payload = machine.generation, encode(classic_state.snapshot(machine))
        else:
            generation, payload = machine.group_epoch, encode(machine.snapshot())
        call = asyncio.ensure_future(
            self._metadata.save_group(
                cell.group_id,
                cell.slot.fence,
                generation=generation,
                member_count=len(machine.roster),
                payload=payload,
            )
        )
        try:
            done, _ = await asyncio.wait({call}, timeout=self._timeout_s)
        except asyncio.CancelledError:
            call.cancel()  # the slot is lost, and the store will fence it off in any case
            raise
        if not done:
            self._fail(cell, CoordinatorNotAvailable(f"the store takes long over group {cell.group_id}"))
        await call

    def _fail(self, cell: Cell, error: StreamHouseError) -> None:
        held, cell.held = cell.held, deque()
        for _, answer in held:
            self._deliver(cell, Answer(answer.ticket, error))
