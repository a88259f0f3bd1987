"""The end of a run with maintenance: another process finishes what was begun, hours pass, and nothing may be left over.

The bucket must come to hold exactly what is referenced. Agents still tend what they lead, and may compact once more
meanwhile, so the passes are repeated until that is so.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from simulator.curators import Curator, CuratorPass
from simulator.evidence import pending_compactions, referenced_objects, stored_objects
from simulator.loop import Lane
from simulator.maintenance_plan import MINUTE_MS, MaintenancePlan
from simulator.world import World
from streamhouse.core.errors import StreamHouseError
from streamhouse.maintenance.key_compaction.key_map import BYTES_PER_KEY

_HOURS_MS: Final = 150 * MINUTE_MS
_PASSES: Final = (
    CuratorPass.RETENTION,
    CuratorPass.COMPACTION,
    CuratorPass.KEY_COMPACTION,
    CuratorPass.RETENTION,
    CuratorPass.VACUUM,
)
_ROUNDS: Final = 25
_PAUSE_S: Final = 0.5
_KEYS: Final = 1000
_PASS_S: Final = 40.0
"""No pass takes so long once there are no faults."""


async def tidy(world: World, plan: MaintenancePlan) -> None:
    curator = Curator(world, "last-curator", _with_memory(plan), killed=0.0)
    curator.begin()
    curator.calm()
    lane = world.loop.lane(curator.name)
    undone = "no round was made"
    for number in range(_ROUNDS):
        world.hours_pass(_HOURS_MS, pins=False)
        undone = await _round(curator, lane) or _left_over(world)
        if not lane.alive:
            world.problem(f"maintenance hangs: {undone}")
            break
        if not undone:
            world.note(f"tidy after {number + 1} rounds")
            break
        await asyncio.sleep(_PAUSE_S)
    else:
        world.problem(f"maintenance does not come to an end: {undone}")
    assert world.removals is not None
    world.removals.tidied(world.keys())


def _with_memory(plan: MaintenancePlan) -> MaintenancePlan:
    """The process that finishes has a map for all keys. With a map for two it would rightly take hundreds of passes."""
    keys = plan.upkeep.key_compactor
    rules = replace(keys.rules, map_bytes=_KEYS * BYTES_PER_KEY)
    return replace(plan, upkeep=replace(plan.upkeep, key_compactor=replace(keys, rules=rules)))


async def _round(curator: Curator, lane: Lane) -> str:
    """What could not be done; empty when all was."""
    for which in _PASSES:
        task = lane.spawn(curator.run_pass(which))
        await asyncio.wait([task], timeout=_PASS_S)
        if not task.done():
            lane.kill()
            return f"{which} does not end"
        try:
            if not task.result():
                return f"{which} has more to do"
        except StreamHouseError as error:
            return f"{which}: {error}"
        except Exception as error:  # a defect, or what a broken variant does
            curator.world.problem(f"{curator.name} breaks in {which}: {error!r}")
            return repr(error)
    return ""


def _left_over(world: World) -> str:
    if pending := pending_compactions(world.sqlite):
        return f"{pending} compactions are pending"
    stored, referenced = stored_objects(world.objects).keys(), referenced_objects(world.sqlite)
    garbage, missing = sorted(stored - referenced), sorted(referenced - stored)
    return f"garbage {garbage[:3]}, missing {missing[:3]}" if garbage or missing else ""
