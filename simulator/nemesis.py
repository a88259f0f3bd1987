"""Causes the faults that the scenario and the dice choose, and ends them all at the end of the run."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from simulator.agent import SimAgent, Trap
from simulator.dice import Dice
from simulator.scenario import LEASE_TTL_MS, Mischief
from simulator.world import World

_LAG_MS: Final = 340.0  # less than the members' time-out for one call, more than their margin
_MINUTES_MS: Final = 300_000
_STARVED_ROUNDS: Final = 0.25
"""The share of its rounds after which an event loop on a busy machine has to wait."""
_POINTS: Final = (
    ("sync", "sent"),
    ("sync", "sent"),
    ("put", "sent"),
    ("put", "done"),
    ("commit_leased", "sent"),
    ("commit_leased", "done"),
    ("acquire_leases", "done"),
    ("load_producers", "done"),
)

_ADOPTION_POINTS: Final = (
    ("adopt_intent", "sent"),
    ("adopt_intent", "done"),
    ("list_unadopted", "done"),
)


class SimNemesis:
    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = world.dice.child("nemesis")
        self._healed = False
        if world.scenario.starved_ms:
            for agent in world.agents:
                agent.starved_for = partial(self._starved_for, agent.dice.child("starving"))

    def set_weather(self) -> None:
        """The scenario's constant rate of faults."""
        scenario = self.world.scenario
        for agent in self.world.agents:
            for weather in (agent.metadata_weather, agent.store_weather):
                weather.lost_request = scenario.lost_request
                weather.lost_reply = scenario.lost_reply
                weather.delayed = scenario.delayed
                weather.repeated = scenario.repeated
            agent.store.faults.rate = scenario.store_faults

    async def run(self) -> None:
        world, dice = self.world, self.dice
        late = world.agents[len(world.agents) - world.scenario.late_agents :]
        for agent in world.agents:
            if agent in late:
                agent.wanted = False
                world.loop.world.call_later(dice.uniform(0.3, 0.8) * world.scenario.run_ms / 1000, self._start, agent)
            else:
                agent.start()
        self.set_weather()
        end_ms = world.now_ms() + world.scenario.run_ms
        while world.broken is None:
            pause_ms = dice.uniform(0.2, 1.8) * world.scenario.mischief_every_ms
            if world.now_ms() + pause_ms >= end_ms:
                await asyncio.sleep((end_ms - world.now_ms()) / 1000)
                return
            await asyncio.sleep(pause_ms / 1000)
            self._act(dice.pick(world.scenario.mischief), self._victim())
            world.stir()

    def _victim(self) -> SimAgent:
        """Mostly an agent that leads: faults of the others have little effect."""
        keys = self.world.keys()
        leaders = [agent for agent in self.world.agents if any(agent.leads(key) for key in keys)]
        if leaders and self.dice.chance(0.7):
            return self.dice.pick(leaders)
        return self.dice.pick(self.world.agents)

    def heal(self) -> None:
        """No more faults from here on; what was sent before may still arrive late."""
        self.world.note("everything heals")
        self._healed = True
        for agent in self.world.agents:
            agent.metadata_weather.calm()
            agent.store_weather.calm()
            agent.store.faults.rate = 0.0
            agent.disk.failing = ""
            agent.sync_ms = (0.2, 2.0)
            if agent.lane is not None:
                agent.lane.resume(all_pauses=True)

    # One act each.

    def _act(self, mischief: Mischief, agent: SimAgent) -> None:
        world = self.world
        world.note(f"{mischief}: {agent.name}")
        match mischief:
            case Mischief.KILL | Mischief.POWER_CUT:
                self._kill(agent, power=mischief is Mischief.POWER_CUT)
            case Mischief.PAUSE:
                self._pause(agent)
            case Mischief.CUT_METADATA:
                self._cut([agent], metadata=True, objects=False)
            case Mischief.CUT_OBJECTS:
                self._cut([agent], metadata=False, objects=True)
            case Mischief.CUT_BOTH:
                self._cut([agent], metadata=True, objects=True)
            case Mischief.METADATA_OUTAGE:
                self._cut(world.agents, metadata=True, objects=False)
            case Mischief.OBJECTS_OUTAGE:
                self._cut(world.agents, metadata=False, objects=True)
            case Mischief.STOP:
                if agent.is_running and agent.wanted:
                    agent.stop()
                    self._start_later(agent, 3000)
            case Mischief.WALL_CLOCK:
                agent.clock.set_wall(self.dice.between(-60_000, 60_000))
            case Mischief.STORE_CLOCK:
                self._set_store_clock()
            case Mischief.SLOW_DISK:
                self._slow_disk(agent)
            case Mischief.SYNC_ERROR:
                agent.disk.failing = "sync"
            case Mischief.WRITE_ERROR:
                agent.disk.failing = "write"
            case Mischief.LOSSY_METADATA:
                world.take_snapshot()
                self.world.loop.world.call_later(self.dice.uniform(0.05, 0.8), self._lose_commits)
            case Mischief.FULL_DISK:
                self._fill_disk(agent)
            case Mischief.DISK_LOST:
                agent.lose_disk()
                self._start_later(agent)
            case Mischief.BIT_ROT:
                agent.rot()
                self._start_later(agent)

    def _kill(self, agent: SimAgent, *, power: bool) -> None:
        """Now, or at the next of some step of the write path."""

        def act() -> None:
            if not self._healed:
                agent.kill(power=power)
                self._start_later(agent)

        if self.dice.chance(0.3):
            act()
            return
        points = (*_POINTS, *_ADOPTION_POINTS) if self.world.scenario.sinks else _POINTS
        step, stage = self.dice.pick(points)
        trap = agent.trap = Trap(step=step, stage=stage, springs=act)

        def give_up_waiting() -> None:
            if agent.trap is trap:
                agent.trap = None
                act()

        self._later(1000, give_up_waiting)

    def _later(self, most_ms: float, act: object) -> None:
        assert callable(act)
        self.world.loop.world.call_later(self.dice.uniform(0.05, 1.0) * most_ms / 1000, act)

    def _start_later(self, agent: SimAgent, most_ms: float = 2 * LEASE_TTL_MS) -> None:
        agent.wanted = False
        self._later(most_ms, lambda: self._start(agent))

    def _start(self, agent: SimAgent) -> None:
        if not self._healed:
            agent.start()

    def _pause(self, agent: SimAgent) -> None:
        lane = agent.lane
        if lane is not None:
            lane.pause()
            self.world.loop.world.call_later(self.dice.uniform(0.3, 2.2) * LEASE_TTL_MS / 1000, lane.resume)

    def _starved_for(self, dice: Dice) -> float:
        """Return for how many seconds a process does not run now, because its machine is busy. In the next round of its
        event loop it finds all that came meanwhile, and all that was due."""
        if self._healed or not dice.chance(_STARVED_ROUNDS):
            return 0.0
        return dice.uniform(0, self.world.scenario.starved_ms) / 1000

    def _cut(self, agents: list[SimAgent], *, metadata: bool, objects: bool) -> None:
        weathers = [agent.metadata_weather for agent in agents if metadata]
        weathers += [agent.store_weather for agent in agents if objects]

        def cut() -> None:
            for weather in weathers:
                weather.cut = not self._healed

        def mend() -> None:
            for weather in weathers:
                weather.cut, weather.lag_ms = False, 0.0

        delay_s = 0.0
        if self.dice.chance(0.5):  # it gets slow first: what was sent last is answered late
            delay_s = self.dice.uniform(0.3, 0.8)
            for weather in weathers:
                weather.lag_ms = _LAG_MS
        self.world.loop.world.call_later(delay_s, cut)
        self.world.loop.world.call_later(delay_s + self.dice.uniform(0.3, 2.5) * LEASE_TTL_MS / 1000, mend)

    def _set_store_clock(self) -> None:
        by_ms = -_MINUTES_MS if self.dice.chance(0.3) else self.dice.between(-3000, 3000)
        self.world.store_clock.set_wall(by_ms)
        if by_ms > 0:
            self.world.history.store_clock_set_ms.append(self.world.now_ms())

    def _lose_commits(self) -> None:
        if not self._healed:
            self.world.lose_last_commits()

    def _fill_disk(self, agent: SimAgent) -> None:
        """The disk has no room, also for a process that starts meanwhile, until there is room again."""
        agent.disk.failing = "create"

        def mend() -> None:
            if agent.disk.failing == "create":
                agent.disk.failing = ""

        self._later(2500, mend)

    def _slow_disk(self, agent: SimAgent) -> None:
        agent.sync_ms = (50.0, 900.0)

        def mend() -> None:
            agent.sync_ms = (0.2, 2.0)

        self._later(3000, mend)
