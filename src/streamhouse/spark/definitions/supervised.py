"""One definition and its query: start it, watch it, start it again after a pause, stop it.

Knows no Spark. What starts and stops a query is passed in, and may block, so it runs in threads. ``step`` never blocks.

                 wanted, pause over                 started
    (nothing) ──────────────────────► starting ────────────────► running ──┐ not wanted, or another definition
        ▲  ▲                             │ error                   │ error │
        │  └──────── pause ──────────────┴─────────────────────────┘       │
        └──────────────────────────── stopping ◄───────────────────────────┘
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any, Final, Generic, Protocol

from streamhouse.core.backoff import Backoff
from streamhouse.core.clock import Clock
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.definitions.catalog import S, Stored
from streamhouse.spark.definitions.reports import Report, RunState, lag_of, read_report

LOG: Final = logging.getLogger("streamhouse.definitions")


class Running(Protocol):
    """A started query, as ``attempt.Attempt`` is one."""

    @property
    def resumed(self) -> str: ...
    @property
    def is_active(self) -> bool: ...
    def latest(self) -> Mapping[str, Any] | None: ...
    def failure(self) -> str | None: ...
    def stop(self) -> None: ...


Explain = Callable[[BaseException], str]

LONGEST_PAUSE_MS: Final = 60_000
_RESTART: Final = Backoff(first_ms=1_000, longest_ms=LONGEST_PAUSE_MS)
HEALTHY_MS: Final = 60_000
"""After a query ran for this long, its next failure counts as the first."""


def pause_ms(failures: int) -> int:
    """The pause before the next start, after so many failures in a row."""
    return _RESTART.step_ms(failures)


def failures_after(failures: int, ran_ms: int) -> int:
    return 1 if ran_ms >= HEALTHY_MS else failures + 1


class Supervised(Generic[S]):
    def __init__(
        self,
        stored: Stored[S],
        *,
        start: Callable[[Stored[S]], Running],
        explain: Explain,
        starts: Executor,
        stops: Executor,
        clock: Clock,
        runner: str,
        once: bool = False,
    ) -> None:
        """``once``: the query ends by itself, whatever its definition says."""
        self.stored = stored
        self.report = Report(runner=runner, events=read_report(stored.report).events)
        self._start = start
        self._explain = explain
        self._starts = starts
        self._stops = stops
        self._clock = clock
        self._starting: Future[Running] | None = None
        self._running: Running | None = None
        self._stopping: Future[None] | None = None
        self._once = once
        self._runs: Stored[S] | None = None
        """The definition that was started."""
        self._finished: Stored[S] | None = None
        self.refusal: BaseException | None = None
        """The error of the last start, if it failed."""
        self._started_ms = 0
        self._retry_ms = 0
        self._counted_batch: tuple[str, int] | None = None

    @property
    def is_idle(self) -> bool:
        return self._starting is None and self._running is None and self._stopping is None

    @property
    def has_finished(self) -> bool:
        """True when the query has read what there was, as its definition or ``once`` asks."""
        return self._finished is not None and self._finished.run_key == self.stored.run_key

    def step(self, stored: Stored[S], *, may_run: bool) -> None:
        """Look at the query and do the next thing. Never blocks."""
        is_new = stored.run_key != self.stored.run_key
        self.stored = stored
        if is_new:
            self._retry_ms = 0
        wanted = may_run and stored.wanted is WantedState.RUNNING
        if self._stopping is not None:
            self._look_at_stop()
        elif self._starting is not None:
            self._look_at_start()
        elif self._running is not None:
            self._look_at_query(self._running, wanted=wanted)
        elif wanted and not self.has_finished and self._clock.boot_ms() >= self._retry_ms:
            self._begin()

    def _begin(self) -> None:
        self._runs, self._started_ms = self.stored, self._clock.boot_ms()
        self.report = replace(self.report, state=RunState.STARTING, retry_at_ms=None)
        self._starting = self._starts.submit(self._start, self.stored)

    def _look_at_start(self) -> None:
        assert self._starting is not None
        if not self._starting.done():
            return
        starting, self._starting = self._starting, None
        self.refusal = error = starting.exception()
        if error is not None:
            self._failed(self._explain(error))
            return
        self._running = starting.result()
        self.report = replace(self.report, state=RunState.RUNNING, rows=0, batch=None)
        self._tell(f"started {self._running.resumed}")

    def _look_at_query(self, running: Running, *, wanted: bool) -> None:
        assert self._runs is not None
        self._measure(running)
        if not running.is_active:
            failure = running.failure()
            self._running = None
            if failure is not None:
                self._failed(failure)
            elif self._once or self._runs.ends:
                self._finished = self._runs
                self.report = replace(self.report, state=RunState.FINISHED, error="", failures=0)
                self._tell("finished: everything there was is in the target")
            else:
                self._failed("Spark has stopped the query")
        elif not wanted or self._runs.run_key != self.stored.run_key:
            self._stopping = self._stops.submit(running.stop)

    def _look_at_stop(self) -> None:
        assert self._stopping is not None
        if not self._stopping.done():
            return
        error = self._stopping.exception()
        self._stopping = self._running = None
        if error is not None:
            self._tell(f"stopped with an error: {self._explain(error)}")
        self.report = replace(self.report, state=RunState.STOPPED, rows_per_second=0.0, error="")
        self._tell("stopped")

    def _failed(self, why: str) -> None:
        ran_ms = self._clock.boot_ms() - self._started_ms
        failures = failures_after(self.report.failures, ran_ms)
        wait_ms = pause_ms(failures)
        self._retry_ms = self._clock.boot_ms() + wait_ms
        self.report = replace(
            self.report,
            state=RunState.FAILED,
            failures=failures,
            error=why,
            rows_per_second=0.0,
            retry_at_ms=self._clock.wall_ms() + wait_ms,
        )
        self._tell(f"failed: {why}; next try in {wait_ms / 1000:g} s")

    def _measure(self, running: Running) -> None:
        latest = running.latest()
        if latest is None:
            return
        batch, rows = int(latest.get("batchId", 0)), int(latest.get("numInputRows", 0))
        seen = (str(latest.get("runId", "")), batch)
        if seen != self._counted_batch and rows:
            self._counted_batch = seen
            self.report = replace(self.report, rows=self.report.rows + rows)
        lag = lag_of(latest)
        self.report = replace(
            self.report,
            batch=batch,
            rows_per_second=float(latest.get("processedRowsPerSecond") or 0.0),
            lag=self.report.lag if lag is None else lag,
            error="",
        )

    def _tell(self, what: str) -> None:
        self.report = self.report.telling(self._clock.wall_ms(), what)
        LOG.info("%s: %s", self.stored.name, what)
