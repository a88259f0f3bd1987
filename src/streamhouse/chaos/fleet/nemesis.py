"""Carries out the plan: begins faults, ends them, starts agents again, and notes when what was up.

A fault hits an agent only while another one runs, unless there is only one. The floor: a fault hits a store only while
the share of good time so far (an agent runs, both stores answer) is above what the options ask for. The data of an
agent is never deleted.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.chaos.checker import Span
from streamhouse.chaos.fleet.agents import AgentProcess
from streamhouse.chaos.fleet.plan import FaultSchedule, PlannedFault
from streamhouse.chaos.fleet.proxy import Proxy, ProxyMode
from streamhouse.chaos.options import FaultKind

_TICK_S: Final = 0.05
_STOP_WAIT_S: Final = 40.0  # above the agents' own limit for a graceful stop
_RESTART_AFTER_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A fault as it was carried out."""

    kind: str
    target: str
    begin_ms: int
    end_ms: int
    detail: str


@dataclass(slots=True, kw_only=True)
class _Active:
    fault: PlannedFault
    agent: AgentProcess | None
    begin_ms: int
    until_s: float
    detail: str


class Nemesis:
    def __init__(
        self,
        plan: FaultSchedule,
        agents: Sequence[AgentProcess],
        *,
        s3: Proxy | None,
        database: Proxy | None,
        floor: float,
        wall_ms: Callable[[], int],
    ) -> None:
        self._plan = plan
        self._agents = agents
        self._stores = {FaultKind.S3: s3, FaultKind.DATABASE: database}
        self._floor = floor
        self._wall_ms = wall_ms
        self._active: list[_Active] = []
        self._down_since_s: dict[str, float] = {}
        """Agents that ended by themselves, and since when."""
        self._gone: set[str] = set()
        """Processes of a running fleet that ended: the run cannot start them again, and other agents may serve."""
        self.happened: list[Happened] = []
        self.left_out: Counter[FaultKind] = Counter()
        self.without_agents: list[Span] = []
        self._no_agent_since_ms: int | None = None
        self._good_s = 0.0
        self._all_s = 0.0
        self._last_s = time.monotonic()

    @property
    def good_share(self) -> float:
        return self._good_s / self._all_s if self._all_s else 1.0

    def counts(self) -> Counter[str]:
        return Counter(each.kind for each in self.happened) + Counter(each.fault.kind.value for each in self._active)

    def run(self, seconds: float, *, stopped: Callable[[], bool], tick: Callable[[], None]) -> None:
        """Cause faults for this time, or until ``stopped``."""
        end_s = time.monotonic() + seconds
        next_s = time.monotonic() + self._plan.pause_s()
        while time.monotonic() < end_s and not stopped():
            self._step()
            tick()
            if time.monotonic() >= next_s:
                self._begin(self._plan.next())
                next_s = time.monotonic() + self._plan.pause_s()
            time.sleep(_TICK_S)

    def watch(self, seconds: float, *, stopped: Callable[[], bool], tick: Callable[[], None]) -> None:
        """Watch the fleet without causing faults."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not stopped():
            self._step()
            tick()
            time.sleep(_TICK_S)

    def heal(self) -> None:
        """End every fault and start every agent."""
        for active in list(self._active):
            if active.fault.kind is FaultKind.STOP and active.agent is not None and active.agent.alive():
                active.agent.wait(_STOP_WAIT_S)
                active.until_s = 0.0  # its time is over: what still runs is killed
            self._end(active)
        for agent in self._agents:
            if agent.gone():
                self._note_gone(agent)
            elif not agent.alive():
                self._start_again(agent)

    def release(self) -> None:
        """Let go of what is held, whatever else went wrong: processes of others go on, stores answer."""
        for active in self._active:
            store = self._stores.get(active.fault.kind)
            if store is not None:
                store.set_mode(ProxyMode.PASS)
            if active.agent is not None and active.agent.paused:
                active.agent.resume()

    def finish(self) -> None:
        """Close what is open in the records."""
        self._look()
        if self._no_agent_since_ms is not None:
            self.without_agents.append(Span(begin_ms=self._no_agent_since_ms, end_ms=self._wall_ms()))
            self._no_agent_since_ms = None

    def outages(self) -> list[Span]:
        stores = {FaultKind.S3.value, FaultKind.DATABASE.value}
        return [Span(begin_ms=each.begin_ms, end_ms=each.end_ms) for each in self.happened if each.kind in stores]

    def _step(self) -> None:
        now_s = time.monotonic()
        for active in list(self._active):
            if now_s >= active.until_s:
                self._end(active)
        for agent in self._agents:
            if self._fault_on(agent) is None:
                self._mind(agent, now_s)
        self._look()

    def _mind(self, agent: AgentProcess, now_s: float) -> None:
        """An agent that ended without our doing starts again after a moment."""
        if agent.alive():
            self._down_since_s.pop(agent.name, None)
            return
        if agent.gone():
            self._note_gone(agent)
            return
        since_s = self._down_since_s.setdefault(agent.name, now_s)
        if now_s - since_s >= _RESTART_AFTER_S:
            self._start_again(agent)

    def _note_gone(self, agent: AgentProcess) -> None:
        if agent.name not in self._gone:
            self._gone.add(agent.name)
            now_ms = self._wall_ms()
            detail = "ended during the run; the run cannot start it again"
            self.happened.append(
                Happened(kind="exit", target=agent.name, begin_ms=now_ms, end_ms=now_ms, detail=detail)
            )

    def _start_again(self, agent: AgentProcess) -> None:
        code = agent.exit_code()
        if agent.name in self._down_since_s or code not in (0, -signal.SIGKILL, None):
            self._down_since_s.pop(agent.name, None)
            now_ms = self._wall_ms()
            last = agent.log_tail().splitlines()[-1:] or [""]
            detail = f"ended by itself with {code}: {last[0]}"[:300]
            self.happened.append(
                Happened(kind="exit", target=agent.name, begin_ms=now_ms, end_ms=now_ms, detail=detail)
            )
        agent.start()

    def _look(self) -> None:
        now_s, now_ms = time.monotonic(), self._wall_ms()
        known = [agent for agent in self._agents if not agent.gone()]
        served = not known or any(agent.running() for agent in known)
        out = any(not active.fault.hits_agent for active in self._active)
        self._all_s += now_s - self._last_s
        self._good_s += now_s - self._last_s if served and not out else 0.0
        self._last_s = now_s
        if not served and self._no_agent_since_ms is None:
            self._no_agent_since_ms = now_ms
        elif served and self._no_agent_since_ms is not None:
            self.without_agents.append(Span(begin_ms=self._no_agent_since_ms, end_ms=now_ms))
            self._no_agent_since_ms = None

    def _fault_on(self, agent: AgentProcess) -> _Active | None:
        return next((active for active in self._active if active.agent is agent), None)

    def _begin(self, fault: PlannedFault) -> None:
        if fault.hits_agent:
            agent = self._victim(fault)
            if agent is None:
                self.left_out[fault.kind] += 1
                return
            self._active.append(self._hit_agent(fault, agent))
            return
        busy = any(active.fault.kind is fault.kind for active in self._active)
        if busy or self.good_share < self._floor:
            self.left_out[fault.kind] += 1
            return
        self._active.append(self._hit_store(fault))

    def _victim(self, fault: PlannedFault) -> AgentProcess | None:
        """The agent of the plan, or the next one that the floor allows."""
        assert fault.agent is not None
        for step in range(len(self._agents)):
            agent = self._agents[(fault.agent + step) % len(self._agents)]
            others = [each for each in self._agents if each is not agent and each.running()]
            able = (fault.kind is not FaultKind.DISK or agent.disk) and (
                fault.kind is not FaultKind.CLOCK or agent.clock
            )
            alone = len(self._agents) == 1
            if agent.running() and self._fault_on(agent) is None and able and (others or alone):
                return agent
        return None

    def _hit_agent(self, fault: PlannedFault, agent: AgentProcess) -> _Active:
        detail = f"for {fault.lasts_s:.1f} s"
        begin_ms = self._wall_ms()
        match fault.kind:
            case FaultKind.KILL:
                agent.kill()
            case FaultKind.PAUSE:
                agent.pause()
            case FaultKind.STOP:
                agent.send(signal.SIGTERM)
            case FaultKind.DISK:
                assert agent.disk is not None
                agent.disk.fill()
            case _:
                assert agent.clock is not None
                agent.clock.set(fault.step_s)
                detail = f"{fault.step_s:+d} s"
        return _Active(
            fault=fault, agent=agent, begin_ms=begin_ms, until_s=time.monotonic() + fault.lasts_s, detail=detail
        )

    def _hit_store(self, fault: PlannedFault) -> _Active:
        store, mode = self._stores[fault.kind], fault.mode
        assert store is not None
        assert mode is not None
        begin_ms = self._wall_ms()
        store.set_mode(mode)
        detail = f"{mode.value} for {fault.lasts_s:.1f} s"
        return _Active(
            fault=fault, agent=None, begin_ms=begin_ms, until_s=time.monotonic() + fault.lasts_s, detail=detail
        )

    def _end(self, active: _Active) -> None:
        agent, kind = active.agent, active.fault.kind
        if agent is None:
            store = self._stores[kind]
            assert store is not None
            store.set_mode(ProxyMode.PASS)
        elif kind is FaultKind.STOP:
            if agent.alive():
                if time.monotonic() < active.until_s + _STOP_WAIT_S:
                    return  # it hands over; look again at the next tick
                active.detail += "; did not end, and was killed"
                agent.kill()
            agent.start()
        elif kind is FaultKind.KILL:
            agent.start()
        elif kind is FaultKind.PAUSE:
            agent.resume()
        elif kind is FaultKind.DISK:
            assert agent.disk is not None
            agent.disk.empty()
        elif agent.clock is not None:
            agent.clock.set(0)
        self._active.remove(active)
        target = kind.value if agent is None else agent.name
        self.happened.append(
            Happened(
                kind=kind.value, target=target, begin_ms=active.begin_ms, end_ms=self._wall_ms(), detail=active.detail
            )
        )
