"""Lets hours pass: grace periods and retention times end while something is under way.

Virtual time is cheap, and a heartbeat every 300 ms is not. So hours pass in an instant, for the metadata's clock and
for wall clocks, as if every agent had renewed its leases meanwhile. That happens at any moment, and at the moments
for which R6, R7 and R24 were made: a writer has uploaded and not committed, a compaction is between its upload and its
commits, a vacuum is between the horizon and its deletes. The one that is under way stands still for a while; the others
vacuum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from simulator.agent import SimAgent, Trap
from simulator.curators import Curator
from simulator.loop import Lane
from simulator.maintenance_plan import MINUTE_MS, MaintenancePlan
from simulator.world import World

_WRITING: Final = (("put", "done"), ("put", "done"), ("complete", "done"), ("commit_leased", "sent"))
_CURATING: Final = (
    ("complete", "done"),
    ("begin_compaction", "sent"),
    ("begin_compaction", "done"),
    ("apply_compaction", "sent"),
    ("raise_gc_horizon", "sent"),
    ("raise_gc_horizon", "done"),
    ("list", "sent"),
    ("find_unreferenced", "done"),
    ("list_dereferenced", "done"),
    ("delete", "sent"),
    ("advance_log_start", "sent"),
)
_WAIT_MS: Final = 1500.0
_STALL_MS: Final = 900.0


class Hours:
    def __init__(self, world: World, plan: MaintenancePlan, curators: Sequence[Curator]) -> None:
        self._world = world
        self._plan = plan
        self._curators = curators
        self._dice = world.dice.child("hours")

    async def run(self) -> None:
        while not self._world.over:
            await asyncio.sleep(self._dice.uniform(0.3, 1.7) * self._plan.hours_every_ms / 1000)
            draw = self._dice.uniform(0, 1)
            if draw < 0.25:
                self._pass(None)
            elif draw < 0.6:
                self._stall(self._dice.pick(self._world.agents), self._dice.pick(_WRITING))
            else:
                self._stall(self._dice.pick(self._curators), self._dice.pick(_CURATING))

    def _stall(self, process: SimAgent | Curator, point: tuple[str, str]) -> None:
        """At its next such step the process stands still, and hours pass."""
        if process.trap is not None:
            return

        def springs() -> None:
            lane = process.lane
            if lane is None or self._world.over:
                return
            lane.pause()
            stalled_s = self._dice.uniform(0.1, 1.0) * _STALL_MS / 1000
            self._world.loop.world.call_later(stalled_s, lane.resume)
            self._pass(lane)

        trap = process.trap = Trap(step=point[0], stage=point[1], springs=springs)
        self._world.loop.world.call_later(_WAIT_MS / 1000, _forget(process, trap))

    def _pass(self, stalled: Lane | None) -> None:
        self._world.hours_pass(self._dice.between(7, 90) * MINUTE_MS, pins=self._dice.chance(0.5))
        for curator in self._curators:
            if curator.lane is not stalled and self._dice.chance(0.8):
                curator.vacuums_now()


def _forget(process: SimAgent | Curator, trap: Trap) -> Callable[[], None]:
    def forget() -> None:
        if process.trap is trap:
            process.trap = None

    return forget
