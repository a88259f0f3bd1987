"""An event loop in virtual time for many simulated processes, replayable from a seed.

A *lane* is one process's share of the loop. Whatever a lane's code starts (tasks, timers, callbacks) belongs to the
lane, because a context variable travels with it. So a process can be paused, which parks all it would run, and killed,
after which nothing of it runs again, not even a ``finally``.

Order: in asyncio the callbacks of one process run in the order in which they were scheduled, and here too within each
lane. Between lanes there is no order, as between real processes: the dice choose which lane runs next. When no lane has
anything to run, time jumps to the next timer.

No IO, no threads, no real time. Nothing here may depend on addresses or on string hashes: tasks and futures are
numbered and hash by their number, so that sets of them are walked in the same order in every process.
"""

from __future__ import annotations

import asyncio
import heapq
import struct
import zlib
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, NoReturn, TypeVar

from simulator.dice import Dice

T = TypeVar("T")

_LANE: ContextVar[Lane] = ContextVar("lane")
_MAX_STEPS_AT_ONE_INSTANT: Final = 200_000
_TEARDOWN_ROUNDS: Final = 1000
_EPOCH_MS: Final = 1_700_000_000_000
_STEP: Final = struct.Struct("<dII")


class SimulationStuck(AssertionError):
    """The simulated world cannot go on: a deadlock, or work that never lets time pass."""


class _SimTask(asyncio.Task[T]):
    def __init__(self, coro: Coroutine[Any, Any, T], *, loop: SimLoop, context: Context | None = None) -> None:
        self._number = loop.next_number()
        super().__init__(coro, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[T]):
    def __init__(self, *, loop: SimLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class Lane:
    """One process on the loop."""

    __slots__ = (
        "_holds",
        "alive",
        "context",
        "loop",
        "name",
        "number",
        "overslept",
        "paused",
        "prune_at",
        "ready",
        "starved_for",
        "tasks",
    )

    def __init__(self, loop: SimLoop, name: str, number: int) -> None:
        self.loop = loop
        self.name = name
        self.number = number
        self.ready: deque[events.Handle] = deque()
        self.overslept: deque[events.Handle] = deque()
        self.tasks: list[_SimTask[Any]] = []
        self.prune_at = 50
        self.alive = True
        self.paused = False
        """Whether it has holds. Kept beside them, because the loop looks at it at every step."""
        self._holds = 0
        self.starved_for: Callable[[], float] | None = None
        """Asked after each round of its event loop: for how many seconds the process gets no CPU now. None: it always
        does."""
        self.context = copy_context()
        self.context.run(_LANE.set, self)

    @property
    def runs(self) -> bool:
        return self.alive and not self.paused

    def spawn(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(coro, context=self.context)

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_s, callback, *args, context=self.context)

    def pause(self) -> None:
        """Stop the lane until there was a ``resume`` for each ``pause``."""
        self._holds += 1
        self.paused = True

    def resume(self, *, all_pauses: bool = False) -> None:
        """End one pause, or all. Like an event loop that was stopped: first what arrived meanwhile, then the overdue
        timers."""
        self._holds = 0 if all_pauses else max(self._holds - 1, 0)
        self.paused = self._holds > 0
        if not self.paused:
            self.ready.extend(self.overslept)
            self.overslept.clear()
            self.loop.wake(self)

    def kill(self) -> None:
        """Ends the process: none of its code runs any more. Messages that it has sent still arrive."""
        self.alive = False


class SimLoop(base_events.BaseEventLoop):
    _ready: deque[events.Handle]

    def __init__(self, dice: Dice) -> None:
        super().__init__()
        self._dice = dice
        self._now = 0.0
        self._numbers = 0
        self._at_this_instant = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._lanes: list[Lane] = []
        self._busy: dict[Lane, None] = {}
        self.steps = 0
        self.trace = 0
        """A checksum of every step so far: who ran, when, how much, and what was noted."""
        self.uncaught: list[str] = []
        """Exceptions that were not caught."""
        self.world = self.lane("world")
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_uncaught)

    def lane(self, name: str) -> Lane:
        lane = Lane(self, name, len(self._lanes))
        self._lanes.append(lane)
        return lane

    def wake(self, lane: Lane) -> None:
        if lane.ready:
            self._busy[lane] = None

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def note(self, text: str) -> None:
        """Make it part of what two runs of a seed are compared by."""
        self.trace = zlib.crc32(text.encode(), self.trace)

    def time(self) -> float:
        return self._now

    def now_ms(self) -> float:
        return self._now * 1000

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def simulate(self, main: Coroutine[Any, Any, T]) -> T:
        """Run ``main`` in the world's lane to its end, then end everything else."""
        try:
            return self.run_until_complete(self.world.spawn(main))
        finally:
            self._tear_down()
            self.close()

    # What replaces the selector.

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Timers of the same moment fire in the order they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _run_once(self) -> None:
        while True:
            self._sort_ready()
            runnable = [lane for lane in self._busy if lane.alive and not lane.paused]
            if runnable:
                break
            self._advance()
        lane = runnable[0] if len(runnable) == 1 else self._dice.pick(runnable)
        ready = lane.ready
        count = len(ready)
        self.trace = zlib.crc32(_STEP.pack(self._now, lane.number, count), self.trace)
        self.steps += count
        self._at_this_instant += count
        if self._at_this_instant > _MAX_STEPS_AT_ONE_INSTANT:
            raise SimulationStuck(f"{lane.name} runs on and on at {self._now:.3f} s, last {ready[0]!r}")
        for _ in range(count):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
                if not lane.alive or lane.paused:
                    break
        if not ready:
            self._busy.pop(lane, None)
        if lane.starved_for is not None and lane.alive and (starved_s := lane.starved_for()):
            lane.pause()
            self.world.call_later(starved_s, lane.resume)

    def _sort_ready(self) -> None:
        arrived = self._ready
        world = self.world
        while arrived:
            handle = arrived.popleft()
            lane = handle._context.get(_LANE, world)  # type: ignore[attr-defined]
            if lane.paused and isinstance(handle, events.TimerHandle):
                lane.overslept.append(handle)
                continue
            lane.ready.append(handle)
            self._busy[lane] = None

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            waiting = [lane.name for lane in self._lanes if lane.runs and any(not task.done() for task in lane.tasks)]
            raise SimulationStuck(f"at {self._now:.3f} s every task waits, and no timer is set: {waiting}")
        self._now = max(self._now, timers[0][0])
        self._at_this_instant = 0
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Any, *, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: _SimTask[Any] = _SimTask(coro, loop=self, context=context)
        lane = _LANE.get(self.world) if context is None else context.get(_LANE, self.world)
        lane.tasks.append(task)
        if len(lane.tasks) > lane.prune_at:
            lane.tasks = [each for each in lane.tasks if not each.done()]
            lane.prune_at = 2 * len(lane.tasks) + 50
        return task

    def _note_uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.uncaught.append(f"{context.get('message')}: {error!r}")

    def _tear_down(self) -> None:
        """End every task, the killed ones too. The checker has everything it needs by now."""
        self.set_exception_handler(_ignore)
        self._at_this_instant = 0
        for lane in self._lanes:
            lane.alive = True
            lane.starved_for = None
            lane.resume(all_pauses=True)
        for _ in range(_TEARDOWN_ROUNDS):
            left = [task for lane in self._lanes for task in lane.tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.sleep(0))

    # What a simulated world does not have.

    def _process_events(self, event_list: Any) -> None:
        pass

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """An abandoned generator is not closed: when the garbage collector finds it must not be part of a run."""

    def _write_to_self(self) -> NoReturn:
        raise AssertionError("a thread calls into the simulation")

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> NoReturn:
        raise AssertionError(f"the simulation has no threads, {func!r} asks for one")


class SimClock:
    """The clocks of one simulated machine. Its boot clock runs on while its processes are paused."""

    def __init__(self, loop: SimLoop, *, wall_ahead_ms: int = 0, boot_base_ms: int = 0, speed: float = 1.0) -> None:
        """``speed``: how much faster than true time both clocks run."""
        self._loop = loop
        self._wall_ahead_ms = wall_ahead_ms
        self._boot_base_ms = boot_base_ms
        self._speed = speed

    def wall_ms(self) -> int:
        return _EPOCH_MS + self._wall_ahead_ms + int(self._loop.time() * 1000 * self._speed)

    def boot_ms(self) -> int:
        return self._boot_base_ms + int(self._loop.time() * 1000 * self._speed)

    def set_wall(self, by_ms: int) -> None:
        """What an operator or NTP does, in either direction."""
        self._wall_ahead_ms += by_ms


def _ignore(*_: object) -> None:
    pass
