"""A pipeline under its runner's eyes, without Spark: started, started again after ever longer pauses, stopped."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_queries import FakeQuery

from streamhouse.core.clock import ManualClock, SystemClock
from streamhouse.core.errors import Conflict, DefinitionNotFound, InvalidSetting
from streamhouse.core.randomness import SystemRandomness
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.connection import Connection, connect
from streamhouse.spark.definitions.catalog import Stored
from streamhouse.spark.definitions.reports import Report, RunState, read_report
from streamhouse.spark.definitions.runner import Runner, Shown
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.definitions.supervised import HEALTHY_MS, LONGEST_PAUSE_MS, Supervised, failures_after, pause_ms
from streamhouse.spark.pipelines.isolated import IsolatedRunners
from streamhouse.spark.pipelines.parsing import PIPELINES, StoredPipeline, load_pipeline
from streamhouse.spark.pipelines.service import Pipelines
from streamhouse.spark.pipelines.spec import PipelineSpec
from streamhouse.spark.pipelines.yaml_file import WantedPipeline
from streamhouse.testing.plugin import RunningStreamHouse


class AtOnce(Executor):
    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def spec(**changes: Any) -> PipelineSpec:
    document = {"name": "p", "sources": ["a"], "sql": "SELECT key, value FROM a", "target": {"topic": "out"}}
    return load_pipeline({**document, **changes})


def stored(**changes: Any) -> StoredPipeline:
    whole = Stored(
        spec=spec(),
        generation=0,
        definition_id=uuid.UUID(int=1),
        version=1,
        wanted=WantedState.RUNNING,
    )
    return replace(whole, **changes)


class Watched:
    def __init__(self, first: StoredPipeline) -> None:
        self.clock = ManualClock()
        self.queries: list[FakeQuery] = []
        self.refuses: Exception | None = None
        self.under = Supervised(
            first, start=self._start, explain=str, starts=AtOnce(), stops=AtOnce(), clock=self.clock, runner="r"
        )

    def _start(self, stored: StoredPipeline) -> FakeQuery:
        if self.refuses is not None:
            raise self.refuses
        self.queries.append(FakeQuery())
        return self.queries[-1]

    def steps(self, stored: StoredPipeline, *, may_run: bool = True) -> RunState:
        for _ in range(3):
            self.under.step(stored, may_run=may_run)
        return self.under.report.state


def test_a_failed_pipeline_is_started_again_after_ever_longer_pauses() -> None:
    watched = Watched(stored())
    assert watched.steps(stored()) is RunState.RUNNING
    for failures in range(1, 5):
        watched.queries[-1].fail("no luck")
        assert watched.steps(stored()) is RunState.FAILED
        assert (watched.under.report.failures, watched.under.report.error) == (failures, "no luck")
        watched.clock.advance(pause_ms(failures) - 1)
        assert watched.steps(stored()) is RunState.FAILED
        watched.clock.advance(1)
        assert watched.steps(stored()) is RunState.RUNNING
    assert len(watched.queries) == 5
    watched.clock.advance(HEALTHY_MS)
    watched.queries[-1].fail("once")
    watched.steps(stored())
    assert watched.under.report.failures == 1


def test_pauses_have_a_bound() -> None:
    assert [pause_ms(number) for number in (0, 1, 2, 3)] == [0, 1_000, 2_000, 4_000]
    assert pause_ms(1_000_000) == LONGEST_PAUSE_MS
    assert failures_after(3, 10) == 4


def test_what_fails_to_start_is_tried_again_at_once_when_its_definition_changes() -> None:
    watched = Watched(stored())
    watched.refuses = InvalidSetting("no such column")
    assert watched.steps(stored()) is RunState.FAILED
    assert watched.under.report.error == "no such column"
    watched.refuses = None
    assert watched.steps(stored()) is RunState.FAILED
    assert watched.steps(stored(spec=spec(sql="SELECT value FROM a"), version=2)) is RunState.RUNNING


def test_stopping_and_changing_end_the_query_and_wanting_it_again_starts_one() -> None:
    watched = Watched(stored())
    watched.steps(stored())
    assert watched.steps(stored(wanted=WantedState.STOPPED, version=2)) is RunState.STOPPED
    assert watched.under.is_idle
    assert watched.steps(stored(version=3)) is RunState.RUNNING
    watched.steps(stored(version=4))
    assert len(watched.queries) == 2
    watched.steps(stored(generation=1, version=5))
    assert watched.steps(stored(generation=1, version=5)) is RunState.RUNNING
    assert [query.stops for query in watched.queries] == [1, 1, 0]
    assert watched.steps(stored(generation=1), may_run=False) is RunState.STOPPED


def test_one_that_reads_what_there_is_finishes() -> None:
    finite = stored(spec=spec(trigger="available-now"))
    watched = Watched(finite)
    watched.steps(finite)
    watched.queries[-1].is_active = False
    assert watched.steps(finite) is RunState.FINISHED
    assert watched.under.has_finished
    assert len(watched.queries) == 1
    endless = Watched(stored())
    endless.steps(stored())
    endless.queries[-1].is_active = False
    assert endless.steps(stored()) is RunState.FAILED


def test_batches_rows_and_lag_are_reported() -> None:
    watched = Watched(stored())
    watched.steps(stored())
    source = {"endOffset": {"a": {"0": 5}, "$query": "x"}, "latestOffset": {"a": {"0": 9, "1": 2}}}
    said = {"runId": "r", "batchId": 3, "numInputRows": 10, "processedRowsPerSecond": 4.0, "sources": [source]}
    watched.queries[-1].said = said
    watched.steps(stored())
    watched.queries[-1].said = {**said, "batchId": 4}
    watched.steps(stored())
    report = watched.under.report
    assert (report.batch, report.rows, report.rows_per_second, report.lag) == (4, 20, 4.0, 6)


def test_the_events_of_an_earlier_runner_are_kept() -> None:
    report = Report(state=RunState.FAILED).telling(5, "failed")
    later = Supervised(
        stored(report=report.to_json()),
        start=lambda stored: FakeQuery(),
        explain=str,
        starts=AtOnce(),
        stops=AtOnce(),
        clock=ManualClock(),
        runner="r",
    )
    assert later.report.events == report.events


# With a metadata store.


@pytest.fixture
def pipelines(streamhouse: RunningStreamHouse, tmp_path: Path) -> Pipelines:
    options = {"dataDir": str(streamhouse.api.settings.data_dir)}
    return Pipelines(Place(address_options=options, checkpoints=str(tmp_path / "checkpoints")))


class Ran:
    """A runner in a thread, with queries that are not Spark's."""

    def __init__(self, pipelines: Pipelines, connection: Connection, name: str) -> None:
        self.queries: dict[str, FakeQuery] = {}
        self.changed = threading.Condition()
        self.shown: list[Shown] = []
        self.stopping = threading.Event()
        runner = Runner(
            connection,
            kind=PIPELINES,
            randomness=SystemRandomness(),
            start=self._start,
            explain=str,
            runner_id=name,
            clock=SystemClock(),
            tick_s=0.02,
            show=self._show,
            healthy=lambda: not self.spark_is_gone,
        )
        self.spark_is_gone = False
        self.went_well: bool | None = None
        self.thread = threading.Thread(target=self._run, args=(runner,), daemon=True)
        self.thread.start()

    def _start(self, stored: StoredPipeline) -> FakeQuery:
        self.queries[stored.name] = query = FakeQuery()
        return query

    def _run(self, runner: Runner[PipelineSpec]) -> None:
        self.went_well = runner.run(self.stopping)

    def _show(self, shown: list[Shown]) -> None:
        with self.changed:
            self.shown = shown
            self.changed.notify_all()

    def wait(self, are: Callable[[dict[str, RunState]], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(
                lambda: are({each.name: each.report.state for each in self.shown}), timeout=60
            ), self.shown

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(60)


def test_a_runner_runs_what_is_wanted_and_only_one_runner_does(pipelines: Pipelines) -> None:
    pipelines.create(spec(name="one"), WantedState.RUNNING)
    pipelines.create(spec(name="two"), WantedState.STOPPED)
    assert not pipelines.has_runner()
    first = Ran(pipelines, pipelines.connection, "first")
    first.wait(lambda states: states == {"one": RunState.RUNNING})
    assert pipelines.has_runner()
    second = Ran(pipelines, pipelines.connection, "second")
    pipelines.want("two", WantedState.RUNNING)
    first_or_second = [first, second]
    while not any("two" in ran.queries for ran in first_or_second):
        first.stopping.wait(0.05)
    assert "one" not in second.queries
    pipelines.want("one", WantedState.STOPPED)
    first.wait(lambda states: "one" not in states)
    assert first.queries["one"].stops == 1
    assert read_report(pipelines.get("one").report).state is RunState.STOPPED
    with pytest.raises(Conflict, match="stop it first"):
        pipelines.delete("two")
    first.stop()
    second.stop()
    # When the first stops, the second may still take "two" over. Each stops what it ran, once.
    stops = [ran.queries["two"].stops for ran in first_or_second if "two" in ran.queries]
    assert stops
    assert set(stops) == {1}
    pipelines.want("two", WantedState.STOPPED)
    pipelines.delete("two")
    with pytest.raises(DefinitionNotFound, match="no pipeline 'two'"):
        pipelines.get("two")
    assert not pipelines.has_runner()
    assert connect(pipelines.place.address) is pipelines.connection


def test_a_runner_whose_spark_has_died_says_so_and_lets_go_at_once(pipelines: Pipelines) -> None:
    pipelines.create(spec(name="one"), WantedState.RUNNING)
    first = Ran(pipelines, pipelines.connection, "first")
    first.wait(lambda states: states == {"one": RunState.RUNNING})
    first.spark_is_gone = True

    def gone() -> None:
        raise ConnectionRefusedError("no JVM")

    first.queries["one"].latest = gone  # type: ignore[method-assign,assignment]
    first.thread.join(60)
    assert first.went_well is False
    second = Ran(pipelines, pipelines.connection, "second")
    second.wait(lambda states: states == {"one": RunState.RUNNING})
    second.stop()
    assert second.went_well is True


class AtTheEnd(Pipelines):
    """Its queries have read everything when they are looked at."""

    def start_query(self, spark: Any, stored: StoredPipeline, *, once: bool) -> FakeQuery:
        query = FakeQuery()
        query.is_active = False
        return query


class NoApplication:
    def session_for(self, pool: str) -> None:
        return None

    def is_alive(self) -> bool:
        return True


def test_once_runs_isolated_pipelines_too_and_leaves_all_of_them_started(pipelines: Pipelines) -> None:
    at_the_end = AtTheEnd(pipelines.place)
    for name, isolated in (("one", False), ("two", True)):
        pipelines.create(spec(name=name, isolated=isolated), WantedState.RUNNING)
    ended: list[bool] = []
    run = threading.Thread(
        target=lambda: ended.append(at_the_end.run(NoApplication(), threading.Event(), once=True)),  # type: ignore[arg-type]
        daemon=True,
    )
    run.start()
    run.join(60)
    assert ended == [True]
    for stored in pipelines.list():
        assert (read_report(stored.report).state, stored.wanted) == (RunState.FINISHED, WantedState.RUNNING)


def test_applying_a_file_twice_changes_nothing_the_second_time(pipelines: Pipelines) -> None:
    def wanted(**changes: Any) -> list[WantedPipeline]:
        return [WantedPipeline(spec=spec(**changes), wanted=None, line=1)]

    def apply(given: list[WantedPipeline], *, dry_run: bool = False) -> list[tuple[str, tuple[str, ...]]]:
        return [(done.action, done.changes) for done in pipelines.apply(given, dry_run=dry_run)]

    assert apply(wanted(), dry_run=True) == [("created", ())]
    assert pipelines.list() == []
    assert apply(wanted()) == [("created", ())]
    before = pipelines.get("p")
    assert apply(wanted()) == [("unchanged", ())]
    assert pipelines.get("p") == before
    assert before.wanted is WantedState.RUNNING
    pipelines.want("p", WantedState.STOPPED)
    other = wanted(sql="SELECT value FROM a", trigger="1s")
    assert apply(other, dry_run=True) == [("updated", ("sql", "trigger"))]
    assert pipelines.get("p").spec == before.spec
    assert apply(other) == [("updated", ("sql", "trigger"))]
    assert pipelines.get("p").wanted is WantedState.STOPPED
    assert apply([replace(other[0], wanted=WantedState.RUNNING)]) == [("updated", ("state",))]
    assert pipelines.get("p").wanted is WantedState.RUNNING


def test_what_an_isolated_pipeline_s_process_says_is_told_line_by_line() -> None:
    said: list[str] = []
    heard = threading.Condition()

    def tell(line: str) -> None:
        with heard:
            said.append(line)
            heard.notify_all()

    program = "import sys, time; print('one\\ntwo', file=sys.stderr); time.sleep(60 if sys.argv[1] == 'long' else 0)"
    clock = ManualClock()
    runners = IsolatedRunners([sys.executable, "-c", program], clock, tell=tell)
    long, short = (stored(spec=spec(name=name, isolated=True)) for name in ("long", "short"))
    runners.look([long, short, stored(wanted=WantedState.STOPPED)])
    with heard:
        assert heard.wait_for(lambda: sorted(said) == ["one", "one", "two", "two"], 60)
    while len(said) < 6:  # the short one is started again, once its pause is over
        clock.advance(pause_ms(1))
        runners.look([long, short])
        with heard:
            heard.wait(0.05)
    assert [each.name for each in runners.reports([long, short, stored()])] == ["long", "short"]
    runners.stop()
