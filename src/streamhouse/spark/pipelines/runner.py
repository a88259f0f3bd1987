"""Keeps wanted pipelines, or tables, running: looks at the definitions twice a second, and gives each what it needs
next. Several runners may look at the same definitions; a claim decides who runs which.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, Protocol

from streamhouse.core.clock import Clock
from streamhouse.core.errors import StreamHouseError
from streamhouse.metadata.contract import MetadataStore, WantedState
from streamhouse.spark.connection import Connection
from streamhouse.spark.pipelines.claims import Claims, claim_name
from streamhouse.spark.pipelines.reports import Report, State
from streamhouse.spark.pipelines.supervised import Explain, Running, S, Supervised

LOG: Final = logging.getLogger("streamhouse.pipelines")

_TICK_S: Final = 0.5
_REPORT_MS: Final = 3_000
_STARTS_AT_ONCE: Final = 1
"""Starting is the driver's own work: with two at a time both are late, and Spark gives up on its Python processes."""
_STOPS_AT_ONCE: Final = 4
_STOP_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A pipeline as the terminal shows it."""

    name: str
    report: Report


Show = Callable[[list[Shown]], None]


class Definitions(Protocol[S]):
    """Where they are kept."""

    async def list(self) -> Sequence[S]: ...
    async def want(self, name: str, wanted: WantedState) -> object: ...
    async def report(self, stored: S, report: str, /) -> object: ...


class Runner(Generic[S]):
    def __init__(
        self,
        connection: Connection,
        *,
        kind: str,
        definitions: Callable[[MetadataStore], Definitions[S]],
        start: Callable[[S], Running],
        explain: Explain,
        runner_id: str,
        clock: Clock,
        only: Collection[str] = (),
        takes: Callable[[S], bool] = lambda stored: True,
        once: bool = False,
        show: Show = lambda shown: None,
        healthy: Callable[[], bool] = lambda: True,
        beside: Callable[[Sequence[S]], None] = lambda everything: None,
        tick_s: float = _TICK_S,
    ) -> None:
        """``only`` are names; without them each is taken that it ``takes``. ``once``: each reads what there is, stays
        wanted, and one that fails ends the run. ``beside`` sees all definitions at every look.
        """
        self._connection = connection
        self._kind = kind
        self._definitions = definitions
        self._start = start
        self._explain = explain
        self._id = runner_id
        self._clock = clock
        self._only = frozenset(only)
        self._takes = takes
        self._once = once
        self._tick_s = tick_s
        self._show = show
        self._healthy = healthy
        self._beside = beside
        self._starts = ThreadPoolExecutor(_STARTS_AT_ONCE, thread_name_prefix="pipeline-start")
        self._stops = ThreadPoolExecutor(_STOPS_AT_ONCE, thread_name_prefix="pipeline-stop")
        self._watched: dict[str, Supervised[S]] = {}
        self._claims = Claims(connection, owner=runner_id, clock=clock)
        self._reported: dict[str, tuple[int, str]] = {}

    def run(self, stopping: threading.Event, *, until_idle: bool = False) -> bool:
        """Until ``stopping``, or, with ``until_idle``, until nothing is wanted any more. False when Spark is gone.
        Raises StreamHouseError with ``once`` only.
        """
        try:
            while not stopping.is_set():
                try:
                    busy = self._tick()
                except StreamHouseError as error:  # the metadata store is away: what runs goes on
                    if self._once:
                        raise
                    LOG.warning("%s", error)
                    busy = True
                except Exception:  # whatever Spark's client raises when Spark is gone
                    if self._healthy():
                        raise
                if not self._healthy():
                    self._let_go()
                    return False
                self._show([Shown(name=name, report=each.report) for name, each in sorted(self._watched.items())])
                if until_idle and not busy:
                    return True
                stopping.wait(self._tick_s)
            return True
        finally:
            self._end()

    def _tick(self) -> bool:
        """Whether anything is wanted or still under way."""
        everything = self._connection.run(self._list())
        self._claims.hold(self._own_claim)
        self._beside(everything)
        found = {each.name: each for each in everything if self._is_mine(each)}
        others = [] if self._only else [each for each in everything if each.name not in found]
        busy = any(each.wanted is WantedState.RUNNING for each in others)
        for name in sorted({*found, *self._watched}):
            stored = found.get(name)
            known = self._watched.get(name)
            if known is None:
                if stored is None or stored.wanted is not WantedState.RUNNING or not self._hold(stored):
                    busy = busy or (stored is not None and stored.wanted is WantedState.RUNNING)
                    continue
                known = self._watched[name] = self._supervise(stored)
            busy = self._step(name, known, stored) or busy
        return busy

    def _step(self, name: str, known: Supervised[S], stored: S | None) -> bool:
        may_run = stored is not None and stored.definition_id == known.stored.definition_id
        if may_run and not known.has_finished:
            assert stored is not None
            may_run = self._hold(stored)
        known.step(stored if stored is not None and may_run else known.stored, may_run=may_run)
        self._report(known)
        is_wanted = may_run and stored is not None and stored.wanted is WantedState.RUNNING
        if self._once:
            self._raise_failure(known)
            if known.has_finished and is_wanted:
                return False
        if known.has_finished and is_wanted:
            self._connection.run(self._want_stopped(name))
            is_wanted = False
        if known.is_idle and not is_wanted:
            self._release(known)
            del self._watched[name]
        return is_wanted or not known.is_idle

    def _raise_failure(self, known: Supervised[S]) -> None:
        if known.report.state is State.FAILED:
            if isinstance(known.refusal, StreamHouseError):
                raise known.refusal
            raise StreamHouseError(f"{known.stored.name}: {known.report.error}")

    def _supervise(self, stored: S) -> Supervised[S]:
        return Supervised(
            stored,
            start=self._start,
            explain=self._explain,
            starts=self._starts,
            stops=self._stops,
            clock=self._clock,
            runner=self._id,
            once=self._once,
        )

    def _is_mine(self, stored: S) -> bool:
        return stored.name in self._only if self._only else self._takes(stored)

    @property
    def _own_claim(self) -> str:
        return runners_claim(self._kind) + self._id

    def _hold(self, stored: S) -> bool:
        return self._claims.hold(claim_name(self._kind, stored.definition_id))

    def _report(self, known: Supervised[S]) -> None:
        text = known.report.to_json()
        at_ms, before = self._reported.get(known.stored.name, (0, ""))
        now_ms = self._clock.boot_ms()
        is_due = now_ms - at_ms >= _REPORT_MS
        if is_due or _state_of(text) != _state_of(before):
            self._reported[known.stored.name] = (now_ms, text)
            self._connection.run(self._send_report(known.stored, text))

    def _release(self, known: Supervised[S]) -> None:
        self._report(known)
        self._reported.pop(known.stored.name, None)
        self._claims.release(claim_name(self._kind, known.stored.definition_id))

    def _let_go(self) -> None:
        """Spark is gone, and every query with it. Whoever comes next need not wait for the claims to expire."""
        for known in self._watched.values():
            with suppress(StreamHouseError):
                self._release(known)
        self._watched.clear()

    def _end(self) -> None:
        """Stop what runs, within a bound: whatever is left behind is resumed by the next runner."""
        until_ms = self._clock.boot_ms() + int(_STOP_S * 1000)
        waiting = threading.Event()
        while self._watched and self._clock.boot_ms() < until_ms:
            for name, known in list(self._watched.items()):
                known.step(known.stored, may_run=False)
                if known.is_idle:
                    del self._watched[name]
                    try:
                        self._release(known)
                    except StreamHouseError as error:
                        LOG.warning("%s", error)
            if self._watched:
                waiting.wait(0.05)
        with suppress(StreamHouseError):
            self._claims.release(self._own_claim)
        self._starts.shutdown(wait=False, cancel_futures=True)
        self._stops.shutdown(wait=False, cancel_futures=True)

    # What the store is asked.

    async def _open(self) -> Definitions[S]:
        return self._definitions(await self._connection.metadata())

    async def _list(self) -> Sequence[S]:
        return await (await self._open()).list()

    async def _want_stopped(self, name: str) -> None:
        await (await self._open()).want(name, WantedState.STOPPED)

    async def _send_report(self, stored: S, text: str) -> None:
        await (await self._open()).report(stored, text)


def runners_claim(kind: str) -> str:
    """Begins the names of claims that only say that a runner is there."""
    return f"{kind}-runner/"


def _state_of(report: str) -> str:
    """What is told at once; the rest can wait."""
    return report.partition('"batch"')[0] + report.partition('"events"')[2]
