"""Keeps wanted pipelines running: looks at the definitions every second and gives each what it needs next.

Several runners may look at the same definitions; a claim decides who runs which. It is scheduling: that no batch is
written twice is for the targets to see to. A claim expires when its runner is killed, and another takes over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.connection import Connection
from streamhouse.spark.pipelines.catalog import Catalog, StoredPipeline
from streamhouse.spark.pipelines.identity import is_surely_gone
from streamhouse.spark.pipelines.reports import Report
from streamhouse.spark.pipelines.supervised import Explain, Start, Supervised

LOG: Final = logging.getLogger("streamhouse.pipelines")

RUNNERS: Final = "pipeline-runner/"
"""Begins the names of claims that only say that a runner is there."""

_TICK_S: Final = 0.5
_CLAIM_TTL_MS: Final = 15_000
_RENEW_MS: Final = 3_000
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


class Runner:
    def __init__(
        self,
        connection: Connection,
        *,
        start: Start,
        explain: Explain,
        runner_id: str,
        clock: Clock,
        randomness: Randomness,
        only: Collection[str] = (),
        takes_isolated: bool = True,
        show: Callable[[list[Shown]], None] = lambda shown: None,
        healthy: Callable[[], bool] = lambda: True,
        beside: Callable[[list[StoredPipeline]], None] = lambda pipelines: None,
    ) -> None:
        """``only`` are names; without them every pipeline is taken that is not isolated, unless ``takes_isolated``.
        ``beside`` sees all definitions at every look.
        """
        self._connection = connection
        self._start = start
        self._explain = explain
        self._id = runner_id
        self._clock = clock
        self._randomness = randomness
        self._only = frozenset(only)
        self._takes_isolated = takes_isolated
        self._show = show
        self._healthy = healthy
        self._beside = beside
        self._starts = ThreadPoolExecutor(_STARTS_AT_ONCE, thread_name_prefix="pipeline-start")
        self._stops = ThreadPoolExecutor(_STOPS_AT_ONCE, thread_name_prefix="pipeline-stop")
        self._pipelines: dict[str, Supervised] = {}
        self._claims: dict[str, int] = {}
        """Until when each is surely ours, on the boot clock."""
        self._reported: dict[str, tuple[int, str]] = {}

    def run(self, stopping: threading.Event, *, until_idle: bool = False) -> bool:
        """Until ``stopping``, or, with ``until_idle``, until nothing is wanted any more. False when Spark is gone."""
        try:
            while not stopping.is_set():
                try:
                    busy = self._tick()
                except StreamHouseError as error:  # the metadata store is away: what runs goes on
                    LOG.warning("%s", error)
                    busy = True
                except Exception:  # whatever Spark's client raises when Spark is gone
                    if self._healthy():
                        raise
                if not self._healthy():
                    self._let_go()
                    return False
                self._show([Shown(name=name, report=each.report) for name, each in sorted(self._pipelines.items())])
                if until_idle and not busy:
                    return True
                stopping.wait(_TICK_S)
            return True
        finally:
            self._end()

    def _tick(self) -> bool:
        """Whether anything is wanted or still under way."""
        everything = self._connection.run(self._list())
        self._claim(RUNNERS + self._id)
        self._beside(everything)
        found = {each.name: each for each in everything if self._is_mine(each)}
        others = [] if self._only else [each for each in everything if each.name not in found]
        busy = any(each.wanted is WantedState.RUNNING for each in others)
        for name in sorted({*found, *self._pipelines}):
            stored = found.get(name)
            known = self._pipelines.get(name)
            if known is None:
                if stored is None or stored.wanted is not WantedState.RUNNING or not self._claim(claim_name(stored)):
                    busy = busy or (stored is not None and stored.wanted is WantedState.RUNNING)
                    continue
                known = self._pipelines[name] = self._supervise(stored)
            busy = self._step(name, known, stored) or busy
        return busy

    def _step(self, name: str, known: Supervised, stored: StoredPipeline | None) -> bool:
        may_run = stored is not None and stored.definition_id == known.stored.definition_id
        if may_run and not known.has_finished:
            assert stored is not None
            may_run = self._claim(claim_name(stored))
        known.step(stored if stored is not None and may_run else known.stored, may_run=may_run)
        self._report(known)
        is_wanted = may_run and stored is not None and stored.wanted is WantedState.RUNNING
        if known.has_finished and is_wanted:
            self._connection.run(self._catalog_want_stopped(name))
            is_wanted = False
        if known.is_idle and not is_wanted:
            self._release(known)
            del self._pipelines[name]
        return is_wanted or not known.is_idle

    def _supervise(self, stored: StoredPipeline) -> Supervised:
        return Supervised(
            stored,
            start=self._start,
            explain=self._explain,
            starts=self._starts,
            stops=self._stops,
            clock=self._clock,
            runner=self._id,
        )

    def _is_mine(self, stored: StoredPipeline) -> bool:
        if self._only:
            return stored.name in self._only
        return self._takes_isolated or not stored.spec.isolated

    def _claim(self, name: str) -> bool:
        """Renewed well before it expires; what the store does not confirm counts as long as it surely holds."""
        now_ms = self._clock.boot_ms()
        until_ms = self._claims.get(name, 0)
        if until_ms - now_ms > _CLAIM_TTL_MS - _RENEW_MS:
            return True
        try:
            owner = self._connection.run(self._acquire(name))
        except StreamHouseError as error:
            LOG.warning("%s", error)
            return until_ms > now_ms
        if owner == self._id:
            self._claims[name] = now_ms + _CLAIM_TTL_MS
            return True
        self._claims.pop(name, None)
        return False

    def _report(self, known: Supervised) -> None:
        text = known.report.to_json()
        at_ms, before = self._reported.get(known.stored.name, (0, ""))
        now_ms = self._clock.boot_ms()
        is_due = now_ms - at_ms >= _REPORT_MS
        if is_due or _state_of(text) != _state_of(before):
            self._reported[known.stored.name] = (now_ms, text)
            self._connection.run(self._send_report(known.stored, text))

    def _release(self, known: Supervised) -> None:
        self._report(known)
        self._reported.pop(known.stored.name, None)
        name = claim_name(known.stored)
        if self._claims.pop(name, None) is not None:
            self._connection.run(self._release_claim(name))

    def _let_go(self) -> None:
        """Spark is gone, and every query with it. Whoever comes next need not wait for the claims to expire."""
        for known in self._pipelines.values():
            with suppress(StreamHouseError):
                self._release(known)
        self._pipelines.clear()

    def _end(self) -> None:
        """Stop what runs, within a bound: whatever is left behind is resumed by the next runner."""
        until_ms = self._clock.boot_ms() + int(_STOP_S * 1000)
        waiting = threading.Event()
        while self._pipelines and self._clock.boot_ms() < until_ms:
            for name, known in list(self._pipelines.items()):
                known.step(known.stored, may_run=False)
                if known.is_idle:
                    del self._pipelines[name]
                    try:
                        self._release(known)
                    except StreamHouseError as error:
                        LOG.warning("%s", error)
            if self._pipelines:
                waiting.wait(0.05)
        with suppress(StreamHouseError):
            self._connection.run(self._release_claim(RUNNERS + self._id))
        self._starts.shutdown(wait=False, cancel_futures=True)
        self._stops.shutdown(wait=False, cancel_futures=True)

    # What the store is asked.

    async def _catalog(self) -> Catalog:
        return Catalog(await self._connection.metadata(), self._randomness)

    async def _list(self) -> list[StoredPipeline]:
        return await (await self._catalog()).list()

    async def _catalog_want_stopped(self, name: str) -> None:
        await (await self._catalog()).want(name, WantedState.STOPPED)

    async def _send_report(self, stored: StoredPipeline, text: str) -> None:
        await (await self._catalog()).report(stored, text)

    async def _acquire(self, name: str) -> str:
        """The owner. What a process of this machine held that has ended need not expire first."""
        metadata = await self._connection.metadata()
        owner = (await metadata.acquire_claim(name, owner=self._id, ttl_ms=_CLAIM_TTL_MS)).owner
        if owner != self._id and is_surely_gone(owner):
            await metadata.release_claim(name, owner=owner)
            owner = (await metadata.acquire_claim(name, owner=self._id, ttl_ms=_CLAIM_TTL_MS)).owner
        return owner

    async def _release_claim(self, name: str) -> None:
        await (await self._connection.metadata()).release_claim(name, owner=self._id)


def claim_name(stored: StoredPipeline) -> str:
    return f"pipeline/{stored.definition_id.hex}"


def _state_of(report: str) -> str:
    """What is told at once; the rest can wait."""
    return report.partition('"batch"')[0] + report.partition('"events"')[2]
