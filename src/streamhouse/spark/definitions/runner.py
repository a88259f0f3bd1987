"""Keeps wanted definitions running. Reads the definitions twice a second and gives each its next step.

Several runners may read the same definitions. Each runs those whose claim it holds (claims.py). A definition that this
runner has claimed has a ``Supervised`` here, until its query has stopped and the claim is released.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic

from streamhouse.core.clock import Clock
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.connection import Connection
from streamhouse.spark.definitions.catalog import Catalog, DefinitionKind, S, Stored
from streamhouse.spark.definitions.claims import Claims, claim_name
from streamhouse.spark.definitions.reports import Report, RunState
from streamhouse.spark.definitions.supervised import Explain, Running, Supervised

LOG: Final = logging.getLogger("streamhouse.definitions")

_TICK_S: Final = 0.5
_REPORT_MS: Final = 3_000
_STARTS_AT_ONCE: Final = 1
"""A start keeps the driver busy. With two at a time, Spark's timeout for its Python processes expires."""
_STOPS_AT_ONCE: Final = 4
_STOP_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A definition as the terminal shows it."""

    name: str
    report: Report


Show = Callable[[list[Shown]], None]


class Runner(Generic[S]):
    def __init__(
        self,
        connection: Connection,
        *,
        kind: DefinitionKind[S],
        start: Callable[[Stored[S]], Running],
        explain: Explain,
        runner_id: str,
        clock: Clock,
        randomness: Randomness,
        only: Collection[str] = (),
        takes: Callable[[Stored[S]], bool] = lambda stored: True,
        once: bool = False,
        show: Show = lambda shown: None,
        healthy: Callable[[], bool] = lambda: True,
        beside: Callable[[Sequence[Stored[S]]], None] = lambda everything: None,
        tick_s: float = _TICK_S,
    ) -> None:
        """``service.Service.run`` explains the parameters. ``takes`` says whether this runner runs a definition that
        ``only`` does not name.
        """
        self._connection = connection
        self._kind = kind
        self._randomness = randomness
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
        """Run until ``stopping`` is set, or, with ``until_idle``, until nothing is wanted. False when Spark has died.
        Raises StreamHouseError only with ``once``.
        """
        try:
            while not stopping.is_set():
                try:
                    busy = self._tick()
                except StreamHouseError as error:  # the metadata store does not answer: queries go on
                    if self._once:
                        raise
                    LOG.warning("%s", error)
                    busy = True
                except Exception:  # Spark's client has no common class for a dead JVM
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
        """Look at all definitions once. Returns True while any is wanted or has not stopped."""
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

    def _step(self, name: str, known: Supervised[S], stored: Stored[S] | None) -> bool:
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
        if known.report.state is RunState.FAILED:
            if isinstance(known.refusal, StreamHouseError):
                raise known.refusal
            raise StreamHouseError(f"{known.stored.name}: {known.report.error}")

    def _supervise(self, stored: Stored[S]) -> Supervised[S]:
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

    def _is_mine(self, stored: Stored[S]) -> bool:
        return stored.name in self._only if self._only else self._takes(stored)

    @property
    def _own_claim(self) -> str:
        return runners_claim(self._kind.name) + self._id

    def _hold(self, stored: Stored[S]) -> bool:
        return self._claims.hold(claim_name(self._kind.name, stored.definition_id))

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
        self._claims.release(claim_name(self._kind.name, known.stored.definition_id))

    def _let_go(self) -> None:
        """Spark has died with every query. Release the claims, so that the next runner need not wait."""
        for known in self._watched.values():
            with suppress(StreamHouseError):
                self._release(known)
        self._watched.clear()

    def _end(self) -> None:
        """Stop all queries within a time limit. The next runner resumes what is left."""
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

    # Calls to the metadata store.

    async def _open(self) -> Catalog[S]:
        return Catalog(await self._connection.metadata(), self._kind, self._randomness)

    async def _list(self) -> Sequence[Stored[S]]:
        return await (await self._open()).list()

    async def _want_stopped(self, name: str) -> None:
        await (await self._open()).want(name, WantedState.STOPPED)

    async def _send_report(self, stored: Stored[S], text: str) -> None:
        await (await self._open()).report(stored, text)


def runners_claim(kind: str) -> str:
    """The prefix of claims that only say that a runner exists."""
    return f"{kind}-runner/"


def _state_of(report: str) -> str:
    """The part of a report that is sent at once when it changes: everything but the counters."""
    return report.partition('"batch"')[0] + report.partition('"events"')[2]
