"""Tables under their runner's eyes, without Spark: kept running, after ever longer pauses, as they are defined now."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_queries import FakeQuery

from streamhouse.cli.commands.spark_runner import stop_signals
from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import Conflict, DefinitionNotFound, InvalidSetting, StreamHouseError, TopicNotFound
from streamhouse.core.randomness import SystemRandomness
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.connection import connect
from streamhouse.spark.definitions.reports import Report, RunState, read_report
from streamhouse.spark.definitions.runner import Runner, Shown
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.definitions.supervised import LONGEST_PAUSE_MS, pause_ms
from streamhouse.spark.tables.service import Tables, storage_of
from streamhouse.spark.tables.spec import TABLES, StoredTable, TableSpec, ValueFormat, ValueSpec
from streamhouse.testing.plugin import RunningStreamHouse

WAIT_S = 200


@pytest.fixture
def service(streamhouse: RunningStreamHouse, tmp_path: Path) -> Tables:
    streamhouse.run(streamhouse.api.create_topic("orders", 1))
    options = {"dataDir": str(streamhouse.api.settings.data_dir)}
    made = Tables(Place(address_options=options, checkpoints=str(tmp_path / "checkpoints")))
    made.create(spec("orders", tmp_path), WantedState.RUNNING)
    return made


def spec(name: str, directory: Path, **more: object) -> TableSpec:
    storage = storage_of("delta", str(directory / "lake" / name), "none", "")
    values = ValueSpec(format=ValueFormat.JSON)
    return TableSpec(name=name, topic="orders", storage=storage, values=values, **more)  # type: ignore[arg-type]


class Ran:
    """A runner, with queries that are not Spark's and a clock that is moved by hand."""

    def __init__(self, service: Tables, *, once: bool = False, name: str = "r") -> None:
        self.queries: list[FakeQuery] = []
        self.started: list[StoredTable] = []
        self.refuses: Exception | None = None
        self.clock = ManualClock()
        self.stopping = threading.Event()
        self.raised: BaseException | None = None
        self._changed = threading.Condition()
        self._shown: list[Shown] = []
        self._looks = 0
        self.runner = Runner(
            connect(service.place.address),
            kind=TABLES,
            randomness=SystemRandomness(),
            start=self._start,
            explain=str,
            runner_id=name,
            clock=self.clock,
            once=once,
            show=self._show,
            tick_s=0.01,
        )
        self._once = once
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> Ran:
        self._thread.start()
        return self

    def wait(self, are: Callable[[dict[str, Report]], bool]) -> dict[str, Report]:
        with self._changed:
            assert self._changed.wait_for(lambda: are(self._reports()), WAIT_S), self._shown
            return self._reports()

    def wait_state(self, state: RunState) -> Report:
        return self.wait(lambda reports: reports.get("orders", Report()).state is state)["orders"]

    def wait_looks(self, count: int) -> None:
        """Wait until it has looked at everything so many times more."""
        with self._changed:
            until = self._looks + count
            assert self._changed.wait_for(lambda: self._looks >= until, WAIT_S)

    def end(self) -> None:
        self.stopping.set()
        self.join()

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _reports(self) -> dict[str, Report]:
        return {each.name: each.report for each in self._shown}

    def _run(self) -> None:
        try:
            self.runner.run(self.stopping, until_idle=self._once)
        except BaseException as error:
            self.raised = error

    def _start(self, stored: StoredTable) -> FakeQuery:
        self.started.append(stored)
        if self.refuses is not None:
            raise self.refuses
        self.queries.append(FakeQuery())
        return self.queries[-1]

    def _show(self, shown: list[Shown]) -> None:
        with self._changed:
            self._shown = shown
            self._looks += 1
            self._changed.notify_all()


@pytest.fixture
def ran(service: Tables) -> Iterator[Ran]:
    started = Ran(service).begin()
    yield started
    started.end()


def claims(service: Tables) -> list[str]:
    async def owners() -> list[str]:
        metadata = await connect(service.place.address).metadata()
        return [claim.name for claim in await metadata.list_claims("table")]

    return connect(service.place.address).run(owners())


def test_a_table_that_fails_is_started_again_after_ever_longer_pauses(service: Tables, ran: Ran) -> None:
    ran.wait_state(RunState.RUNNING)
    for failures in range(1, 4):
        ran.queries[-1].fail("no luck")
        report = ran.wait(
            lambda reports, failures=failures: reports["orders"].failures == failures  # type: ignore[misc]
        )["orders"]
        assert (report.state, report.error) == (RunState.FAILED, "no luck")
        ran.clock.advance(pause_ms(failures) - 1)
        before = len(ran.started)
        ran.wait_looks(3)
        assert len(ran.started) == before
        ran.clock.advance(1)
        ran.wait_state(RunState.RUNNING)
    assert len(ran.started) == 4
    assert read_report(service.get("orders").report).events[-1].what.startswith("started")


def test_what_does_not_start_is_reported_and_tried_again(service: Tables) -> None:
    ran = Ran(service)
    ran.refuses = InvalidSetting("no such column")
    ran.begin()
    assert ran.wait_state(RunState.FAILED).error == "no such column"
    ran.refuses = None
    ran.clock.advance(LONGEST_PAUSE_MS)
    ran.wait_state(RunState.RUNNING)
    ran.end()


def test_a_table_that_is_stopped_stops_and_one_that_is_wanted_again_goes_on(service: Tables, ran: Ran) -> None:
    ran.wait_state(RunState.RUNNING)
    service.want("orders", WantedState.STOPPED)
    ran.wait(lambda reports: not reports)
    assert ran.queries[0].stops == 1
    assert read_report(service.get("orders").report).state is RunState.STOPPED
    assert not [name for name in claims(service) if name.startswith("table/")]
    service.want("orders", WantedState.RUNNING)
    ran.wait_state(RunState.RUNNING)
    assert len(ran.queries) == 2


def test_a_definition_that_changes_while_it_runs_is_run_as_it_is_now(service: Tables, ran: Ran) -> None:
    ran.wait_state(RunState.RUNNING)
    service.want("orders", WantedState.RUNNING, reset=True)
    ran.wait(lambda reports: len(ran.started) == 2)
    assert ran.queries[0].stops == 1
    assert [stored.generation for stored in ran.started] == [1, 2]
    service.want("orders", WantedState.RUNNING)
    ran.wait_state(RunState.RUNNING)
    assert len(ran.started) == 2


def test_a_definition_that_is_deleted_while_it_runs_and_made_anew(service: Tables, ran: Ran, tmp_path: Path) -> None:
    ran.wait_state(RunState.RUNNING)
    first = service.get("orders")
    with pytest.raises(Conflict, match="is running"):
        service.delete("orders", data=False)

    service.ask(lambda catalog: catalog.delete(first))
    ran.wait(lambda reports: not reports)
    assert ran.queries[0].stops == 1
    with pytest.raises(DefinitionNotFound):
        service.get("orders")
    service.create(spec("orders", tmp_path), WantedState.RUNNING)
    ran.wait_state(RunState.RUNNING)
    assert ran.started[-1].definition_id != first.definition_id


def test_one_that_a_runner_still_has_is_not_deleted(service: Tables, ran: Ran) -> None:
    ran.wait_state(RunState.RUNNING)
    release = threading.Event()
    stop = ran.queries[0].stop
    ran.queries[0].stop = lambda: (release.wait(WAIT_S), stop())[1]  # type: ignore[method-assign]
    service.want("orders", WantedState.STOPPED)
    with pytest.raises(Conflict, match="still has the table orders"):
        service.delete("orders", data=False)
    release.set()
    ran.wait(lambda reports: not reports)
    service.delete("orders", data=False)
    assert service.list() == []


def test_only_one_of_two_runners_runs_a_table_and_the_other_takes_over(service: Tables, ran: Ran) -> None:
    ran.wait_state(RunState.RUNNING)
    second = Ran(service, name="s").begin()
    second.wait_looks(3)
    assert not second.started
    ran.end()
    second.wait_state(RunState.RUNNING)
    second.end()
    assert claims(service) == []


def test_a_runner_that_is_told_to_end_stops_its_queries_and_lets_go(service: Tables) -> None:
    """It is told by SIGTERM, as service managers do, and by Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGINT):
        kept = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            ran = Ran(service)
            ran.stopping = stop_signals()
            ran.begin()
            ran.wait_state(RunState.RUNNING)
            os.kill(os.getpid(), number)
            ran.join()
        finally:
            for each, handler in kept.items():
                signal.signal(each, handler)
        assert ran.raised is None
        assert ran.queries[0].stops == 1
        assert claims(service) == []
        assert read_report(service.get("orders").report).state is RunState.STOPPED
        assert service.get("orders").wanted is WantedState.RUNNING


def test_once_reads_what_there_is_and_leaves_the_table_wanted(service: Tables, tmp_path: Path) -> None:
    service.create(spec("more", tmp_path), WantedState.RUNNING)
    service.create(spec("not-wanted", tmp_path), WantedState.STOPPED)
    ran = Ran(service, once=True).begin()
    ran.wait(lambda reports: all(each.state is RunState.RUNNING for each in reports.values()) and len(reports) == 2)
    ran.queries[0].is_active = False
    ran.wait(lambda reports: RunState.FINISHED in {each.state for each in reports.values()})
    ran.queries[1].is_active = False
    ran.join()
    assert ran.raised is None
    assert len(ran.started) == 2
    assert {each.name for each in service.list() if each.wanted is WantedState.RUNNING} == {"orders", "more"}
    assert claims(service) == []


@pytest.mark.parametrize("when", ["starting", "running"])
def test_once_ends_with_the_first_failure(service: Tables, when: str) -> None:
    ran = Ran(service, once=True)
    if when == "starting":
        ran.refuses = TopicNotFound("no topic orders")
    ran.begin()
    if when == "running":
        ran.wait_state(RunState.RUNNING)
        ran.queries[0].fail("no luck")
    ran.join()
    assert type(ran.raised) is (TopicNotFound if when == "starting" else StreamHouseError)
    assert "no topic orders" in str(ran.raised) or "orders: no luck" in str(ran.raised)


def test_a_definition_that_cannot_be_read_does_not_hold_up_the_others(service: Tables, ran: Ran) -> None:
    async def spoil() -> None:
        metadata = await connect(service.place.address).metadata()
        await metadata.create_definition(
            TABLES.name,
            "newer",
            definition_id=SystemRandomness().uuid(),
            document=json.dumps({}),
            wanted=WantedState.RUNNING,
        )

    connect(service.place.address).run(spoil())
    ran.wait_state(RunState.RUNNING)
    assert [each.name for each in service.list()] == ["orders"]
