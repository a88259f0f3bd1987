"""The nemesis carries out faults and ends them, keeps an agent running, and notes when what was up. In virtual time."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import cast

import pytest

from streamhouse.chaos.checker import Span
from streamhouse.chaos.fleet import nemesis as nemesis_module
from streamhouse.chaos.fleet.agents import AgentProcess, KnownProcess
from streamhouse.chaos.fleet.nemesis import Nemesis
from streamhouse.chaos.fleet.plan import FaultSchedule, PlannedFault
from streamhouse.chaos.fleet.proxy import Proxy, ProxyMode
from streamhouse.chaos.options import FaultKind
from streamhouse.core.clock import SystemClock
from streamhouse.core.randomness import SeededRandomness


class Time:
    """What the nemesis knows as ``time``. Sleeping moves it on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)


class StandIn(AgentProcess):
    """An agent without a process: it notes what was done to it. A graceful stop takes ``stop_takes`` looks."""

    def __init__(self, name: str, *, stop_takes: int = 0) -> None:
        self.name = name
        self.disk, self.clock, self.paused = None, None, False
        self.did: list[str] = []
        self.code: int | None = None
        self.is_alive = True
        self._stop_takes = stop_takes

    def start(self) -> None:
        self.did.append("start")
        self.is_alive, self.code, self.paused = True, None, False

    def alive(self) -> bool:
        if "SIGTERM" in self.did[-1:] and self.is_alive:
            self._stop_takes -= 1
            if self._stop_takes < 0:
                self.is_alive, self.code = False, 0
        return self.is_alive

    def exit_code(self) -> int | None:
        return self.code

    def ready(self) -> bool:
        return True

    def send(self, number: signal.Signals) -> None:
        self.did.append(number.name)

    def kill(self) -> None:
        self.did.append("kill")
        self.is_alive, self.code = False, -signal.SIGKILL

    def log_tail(self) -> str:
        return "before\nthe last line"


class Script(FaultSchedule):
    """Faults one after the other, one every ten seconds."""

    def __init__(self, faults: Sequence[PlannedFault]) -> None:
        self._faults: Iterator[PlannedFault] = iter(faults)

    def pause_s(self) -> float:
        return 10.0

    def next(self) -> PlannedFault:
        return next(self._faults)


class Store:
    """A proxy that notes its modes."""

    def __init__(self) -> None:
        self.modes: list[ProxyMode] = []

    def set_mode(self, mode: ProxyMode) -> None:
        self.modes.append(mode)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(nemesis_module, "time", made)
    return made


def on_agent(kind: FaultKind, agent: int = 0, lasts_s: float = 3.0) -> PlannedFault:
    return PlannedFault(kind=kind, agent=agent, lasts_s=lasts_s)


def on_s3(lasts_s: float = 3.0) -> PlannedFault:
    return PlannedFault(kind=FaultKind.S3, agent=None, lasts_s=lasts_s, mode=ProxyMode.HOLD)


def staged(
    clock: Time, agents: Sequence[AgentProcess], *faults: PlannedFault, floor: float = 0.0, s3: Store | None = None
) -> Nemesis:
    return Nemesis(Script(faults), agents, s3=cast(Proxy, s3), database=None, floor=floor, wall_ms=clock.wall_ms)


def run(nemesis: Nemesis, seconds: float) -> None:
    nemesis.run(seconds, stopped=lambda: False, tick=lambda: None)


def test_a_killed_agent_is_started_again_when_the_fault_is_over_and_its_time_is_told(clock: Time) -> None:
    agents = [StandIn("agent-1"), StandIn("agent-2")]
    nemesis = staged(clock, agents, on_agent(FaultKind.KILL, lasts_s=3.0))
    run(nemesis, 15)
    assert agents[0].did == ["kill", "start"]
    (told,) = nemesis.happened
    assert (told.kind, told.target, told.detail) == ("kill", "agent-1", "for 3.0 s")
    assert 3_000 <= told.end_ms - told.begin_ms <= 3_100
    assert nemesis.without_agents == []


def test_the_last_agent_that_runs_is_spared_unless_it_is_the_only_one(clock: Time) -> None:
    pair = [StandIn("agent-1"), StandIn("agent-2")]
    pair[1].paused = True
    nemesis = staged(clock, pair, on_agent(FaultKind.KILL))
    run(nemesis, 11)
    assert pair[0].did == []
    assert nemesis.left_out == {FaultKind.KILL: 1}
    alone = StandIn("agent-1")
    run(staged(clock, [alone], on_agent(FaultKind.KILL)), 11)
    assert alone.did == ["kill"]


def test_an_agent_that_has_a_fault_already_passes_the_next_one_on(clock: Time) -> None:
    agents = [StandIn(f"agent-{number}") for number in (1, 2, 3)]
    faults = (on_agent(FaultKind.PAUSE, 0, 60), on_agent(FaultKind.KILL, 0, 60))
    nemesis = staged(clock, agents, *faults)
    run(nemesis, 22)
    assert [agent.did for agent in agents] == [["SIGSTOP"], ["kill"], []]
    assert nemesis.counts() == {"pause": 1, "kill": 1}


def test_a_fault_that_no_agent_can_have_is_left_out(clock: Time) -> None:
    agents = [StandIn("agent-1"), StandIn("agent-2")]
    nemesis = staged(clock, agents, on_agent(FaultKind.DISK), on_agent(FaultKind.CLOCK))
    run(nemesis, 22)
    assert nemesis.left_out == {FaultKind.DISK: 1, FaultKind.CLOCK: 1}


def test_a_store_is_hit_only_while_good_time_is_above_the_floor(clock: Time) -> None:
    store = Store()
    nemesis = staged(clock, [StandIn("agent-1")], on_s3(9.0), on_s3(), floor=0.7, s3=store)
    run(nemesis, 30)
    assert store.modes == [ProxyMode.HOLD, ProxyMode.PASS]
    assert nemesis.left_out == {FaultKind.S3: 1}
    (outage,) = nemesis.outages()
    assert 9_000 <= outage.end_ms - outage.begin_ms <= 9_100
    assert 0.6 < nemesis.good_share < 0.75


def test_a_stop_is_given_time_and_then_the_agent_is_killed(clock: Time) -> None:
    quick, stuck = StandIn("agent-1", stop_takes=3), StandIn("agent-2", stop_takes=10**6)
    nemesis = staged(clock, [quick, stuck], on_agent(FaultKind.STOP, 0), on_agent(FaultKind.STOP, 1))
    run(nemesis, 22)
    nemesis.watch(70, stopped=lambda: False, tick=lambda: None)
    assert quick.did == ["SIGTERM", "start"]
    assert stuck.did == ["SIGTERM", "kill", "start"]
    assert [told.detail for told in nemesis.happened] == ["for 3.0 s", "for 3.0 s; did not end, and was killed"]


def test_an_agent_that_ends_by_itself_starts_again_and_its_last_line_is_told(clock: Time) -> None:
    agent = StandIn("agent-1")
    agent.is_alive, agent.code = False, 3
    nemesis = staged(clock, [agent])
    nemesis.watch(3, stopped=lambda: False, tick=lambda: None)
    assert agent.did == ["start"]
    (told,) = nemesis.happened
    assert (told.kind, told.detail) == ("exit", "ended by itself with 3: the last line")
    (silent,) = nemesis.without_agents
    assert 900 <= silent.end_ms - silent.begin_ms <= 1_200, "the time without any agent is known"


def test_healing_ends_every_fault_and_time_without_agents_is_closed_at_the_end(clock: Time) -> None:
    store, agent = Store(), StandIn("agent-1")
    nemesis = staged(clock, [agent], on_agent(FaultKind.PAUSE, 0, 600), on_s3(600), s3=store)
    run(nemesis, 25)
    nemesis.finish()
    assert nemesis.without_agents == [Span(begin_ms=nemesis.without_agents[0].begin_ms, end_ms=clock.wall_ms())]
    nemesis.heal()
    assert agent.did == ["SIGSTOP", "SIGCONT"]
    assert store.modes == [ProxyMode.HOLD, ProxyMode.PASS]
    assert {told.kind for told in nemesis.happened} == {"pause", "s3"}


def test_whatever_went_wrong_held_processes_and_stores_are_let_go(clock: Time) -> None:
    store, agent = Store(), StandIn("agent-1")
    nemesis = staged(clock, [agent], on_agent(FaultKind.PAUSE, 0, 600), on_s3(600), s3=store)
    run(nemesis, 25)
    nemesis.release()
    assert agent.did[-1] == "SIGCONT"
    assert store.modes[-1] is ProxyMode.PASS


@pytest.mark.timeout(60)
def test_a_known_process_that_ends_is_told_once_and_is_not_time_without_agents() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        plan = FaultSchedule(SeededRandomness(1), kinds=[FaultKind.PAUSE], agents=1, every_s=5, lease_s=6)
        agent = KnownProcess(child.pid)
        nemesis = Nemesis(plan, [agent], s3=None, database=None, floor=0.5, wall_ms=SystemClock().wall_ms)
        assert agent.alive()
        child.kill()
        child.wait()
        nemesis.watch(0.3, stopped=lambda: False, tick=lambda: None)
        nemesis.heal()
        nemesis.finish()
    finally:
        child.kill()
        child.communicate()
    assert nemesis.without_agents == []
    assert nemesis.good_share == 1.0
    (told,) = nemesis.happened
    assert (told.kind, told.target) == ("exit", f"pid-{child.pid}")
