"""Keeps the wanted tables up to date in one Spark application: starts their queries, and starts them again.

Several runners may look at the same definitions; a claim decides who runs which. It is scheduling: that no batch counts
twice is for the tables to see to.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.connection import Connection
from streamhouse.spark.pipelines.attempt import Attempt, one_line_of
from streamhouse.spark.pipelines.backoff import failures_after, pause_ms
from streamhouse.spark.tables.catalog import StoredTable, Tables

LOG: Final = logging.getLogger("streamhouse.tables")

_TICK_S: Final = 0.5
_CLAIM_TTL_MS: Final = 15_000

Start = Callable[[StoredTable], Attempt]


@dataclass(slots=True, kw_only=True)
class _Run:
    stored: StoredTable
    attempt: Attempt | None = None
    started_ms: int = 0
    retry_ms: int = 0
    failures: int = 0
    error: str = ""
    finished: bool = False


class TableRunner:
    def __init__(
        self,
        connection: Connection,
        *,
        start: Start,
        runner_id: str,
        clock: Clock,
        randomness: Randomness,
        only: Collection[str] = (),
        once: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``once``: each table reads what there is, and that is all. ``tell`` gets a line for a person."""
        self._connection = connection
        self._start = start
        self._id = runner_id
        self._clock = clock
        self._randomness = randomness
        self._only = frozenset(only)
        self._once = once
        self._tell = tell
        self._runs: dict[str, _Run] = {}

    def run(self, stopping: threading.Event) -> None:
        """Until ``stopping``; with ``once`` until every table has all there is. Raises what a table fails with then."""
        try:
            while not stopping.is_set():
                try:
                    is_done = self._tick()
                except StreamHouseError as error:  # the metadata store is away: what runs goes on
                    if self._once:
                        raise
                    LOG.warning("%s", error)
                    is_done = False
                if self._once and is_done:
                    return
                stopping.wait(_TICK_S)
        finally:
            for run in self._runs.values():
                self._stop(run)

    def _tick(self) -> bool:
        found = {each.name: each for each in self._connection.run(self._list())}
        wanted = {
            name: each
            for name, each in found.items()
            if each.wanted is WantedState.RUNNING and (not self._only or name in self._only)
        }
        for name in sorted({*wanted, *self._runs}):
            self._step(name, wanted.get(name))
        return all(run.finished for run in self._runs.values()) and self._runs.keys() >= wanted.keys()

    def _step(self, name: str, stored: StoredTable | None) -> None:
        run = self._runs.get(name)
        if stored is None or not self._connection.run(self._claim(stored)):
            if run is not None:
                self._stop(run)
                self._say(run, "stopped")
                del self._runs[name]
            return
        if run is None:
            run = self._runs[name] = _Run(stored=stored)
        if (run.stored.definition_id, run.stored.spec) != (stored.definition_id, stored.spec):
            self._stop(run)
            run = self._runs[name] = _Run(stored=stored)
        if run.attempt is None:
            if not run.finished and self._clock.boot_ms() >= run.retry_ms:
                self._begin(run)
        elif not run.attempt.is_active:
            self._ended(run, run.attempt)
        else:
            self._say(run, "running")

    def _begin(self, run: _Run) -> None:
        run.started_ms = self._clock.boot_ms()
        try:
            run.attempt = self._start(run.stored)
        except Exception as error:  # Spark's errors have no common class
            self._failed(run, str(error) if isinstance(error, StreamHouseError) else one_line_of(str(error)), error)
            return
        self._tell(f"{run.stored.name}: started {run.attempt.resumed}")
        self._say(run, "running")

    def _ended(self, run: _Run, attempt: Attempt) -> None:
        failure = attempt.failure()
        run.attempt = None
        if failure is not None:
            self._failed(run, failure, attempt.target.failure.error)
        elif self._once:
            run.finished = True
            self._tell(f"{run.stored.name}: has everything there is")
            self._say(run, "stopped")
        else:
            self._failed(run, "Spark has stopped the query", None)

    def _failed(self, run: _Run, why: str, error: BaseException | None) -> None:
        if self._once:
            raise error if isinstance(error, StreamHouseError) else StreamHouseError(f"{run.stored.name}: {why}")
        run.failures = failures_after(run.failures, self._clock.boot_ms() - run.started_ms)
        wait_ms = pause_ms(run.failures)
        run.retry_ms, run.error = self._clock.boot_ms() + wait_ms, why
        self._tell(f"{run.stored.name}: failed: {why}; next try in {wait_ms / 1000:g} s")
        self._say(run, "failed")

    def _stop(self, run: _Run) -> None:
        attempt, run.attempt = run.attempt, None
        if attempt is not None:
            attempt.stop()

    def _say(self, run: _Run, state: str) -> None:
        report: dict[str, Any] = {"state": state, "runner": self._id}
        latest = None if run.attempt is None else run.attempt.latest()
        if latest is not None:
            report["batch"] = latest.get("batchId")
            report["rows_per_second"] = latest.get("processedRowsPerSecond") or 0.0
        if state == "failed":
            report |= {"error": run.error, "failures": run.failures}
        self._connection.run(self._report(run.stored, json.dumps(report)))

    async def _tables(self) -> Tables:
        return Tables(await self._connection.metadata(), self._randomness)

    async def _list(self) -> list[StoredTable]:
        return await (await self._tables()).list()

    async def _report(self, stored: StoredTable, text: str) -> None:
        await (await self._tables()).report(stored, text)

    async def _claim(self, stored: StoredTable) -> bool:
        metadata = await self._connection.metadata()
        name = f"table/{stored.definition_id.hex}"
        return (await metadata.acquire_claim(name, owner=self._id, ttl_ms=_CLAIM_TTL_MS)).owner == self._id
