"""Simulated processes that do nothing but maintenance: ``streamhouse compactor`` and the passes of an operator.

Each runs one pass after the other with the real code: retention, both kinds of compaction, vacuum, DeleteRecords. It is
killed at any step, and its next process knows nothing of what it did. Several of them work on the same partitions, and
beside them each agent tends what it leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final

from simulator.agent import Trap
from simulator.loop import Lane, SimClock
from simulator.maintenance_plan import MaintenancePlan
from simulator.metadata import process_died, remote_metadata
from simulator.network import Weather
from simulator.store import RemoteStore
from simulator.world import World, key_of
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.compaction.compactor import Compactor
from streamhouse.maintenance.compaction.policy import compacted_logs, small_object_logs
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.objectstore.retries import RetryingStore

_RESTART_MS: Final = 500.0


class CuratorPass(StrEnum):
    RETENTION = "retention"
    COMPACTION = "compaction"
    KEY_COMPACTION = "key compaction"
    VACUUM = "vacuum"
    DELETE_RECORDS = "DeleteRecords"


_OFTEN: Final = (
    (2.0, CuratorPass.RETENTION),
    (4.0, CuratorPass.COMPACTION),
    (4.0, CuratorPass.KEY_COMPACTION),
    (2.0, CuratorPass.VACUUM),
    (0.4, CuratorPass.DELETE_RECORDS),
)


class Curator:
    def __init__(self, world: World, name: str, plan: MaintenancePlan, *, killed: float) -> None:
        self.name = name
        self.world = world
        self.lane: Lane | None = None
        self.trap: Trap | None = None
        self.passes = 0
        self._plan = plan
        self._killed = killed
        self._dice = world.dice.child(name)
        self._runs = 0
        self._vacuum_now = asyncio.Event()
        self._weathers = (Weather(), Weather(latency_ms=(2.0, 20.0), timeout_ms=700.0))
        self._metadata = remote_metadata(
            world.metadata,
            world.loop,
            self._dice.child("metadata"),
            self._weathers[0],
            name=f"{name} to metadata",
            tell=self._reaches,
        )
        self._store = RemoteStore(
            world.objects,
            world.loop,
            self._dice.child("store"),
            self._weathers[1],
            name=f"{name} to objects",
            tell=self._reaches,
        )

    def start(self) -> None:
        if self.lane is not None or self.world.over:
            return
        self._runs += 1
        self.lane = self.world.loop.lane(f"{self.name}#{self._runs}")
        self._vacuum_now = asyncio.Event()
        self.begin()
        self.lane.spawn(self._run(self.lane))

    def begin(self) -> None:
        """A new process: nothing is remembered."""
        scenario, plan = self.world.scenario, self._plan
        for weather in self._weathers:
            weather.lost_request = scenario.lost_request
            weather.lost_reply = scenario.lost_reply
            weather.delayed = scenario.delayed
            weather.repeated = scenario.repeated
        self._store.faults.rate = scenario.store_faults
        dice = self._dice.child(f"run {self._runs}")
        clock, owner = SimClock(self.world.loop), f"{self.name}#{self._runs}"
        self._objects = RetryingStore(self._store, clock=clock, randomness=dice, policy=scenario.store_retries)
        self._retention = Retention(metadata=self._metadata)
        self._compactor = Compactor(
            metadata=self._metadata,
            store=self._objects,
            offload=InlineOffload(),
            clock=clock,
            randomness=dice,
            owner=owner,
            options=plan.upkeep.compactor,
        )
        self._key_compactor = KeyCompactor(
            metadata=self._metadata,
            store=self._objects,
            offload=InlineOffload(),
            clock=clock,
            randomness=dice,
            owner=owner,
            options=plan.upkeep.key_compactor,
        )

    def kill(self) -> None:
        if self.lane is not None:
            self.world.note(f"{self.lane.name} is killed")
            self.lane.kill()
            self.lane = None
            process_died(self._metadata)

    def calm(self) -> None:
        for weather in self._weathers:
            weather.calm()
        self._store.faults.rate = 0.0
        self._killed = 0.0

    def vacuums_now(self) -> None:
        """Much time has passed: its next pass is a vacuum, and begins at once."""
        self._vacuum_now.set()

    async def _run(self, lane: Lane) -> None:
        try:
            while not self.world.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._dice.uniform(0, self._plan.pause_ms) / 1000):
                        await self._vacuum_now.wait()
                which = CuratorPass.VACUUM if self._vacuum_now.is_set() else self._dice.weighted(_OFTEN)
                self._vacuum_now.clear()
                self.world.note(f"{lane.name}: {which}")
                try:
                    await self.run_pass(which)
                except StreamHouseError as error:
                    self.world.note(f"{lane.name}: {which} failed: {error}")
        except Exception as error:  # a defect, or what a broken variant does
            self.world.problem(f"{lane.name} breaks: {error!r}")

    async def run_pass(self, which: CuratorPass) -> bool:
        """Returns whether the pass did all that there was to do."""
        topics = await self._metadata.list_topics()
        complete = True
        match which:
            case CuratorPass.RETENTION:
                complete = not (await self._retention.run()).failed
            case CuratorPass.COMPACTION:
                done = await self._compactor.compact_once(small_object_logs(topics))
                complete = not (done.more or done.failures or done.partitions_left)
            case CuratorPass.KEY_COMPACTION:
                compacted = await self._key_compactor.compact_once(compacted_logs(topics))
                complete = not (compacted.more or compacted.failures or compacted.partitions_left)
            case CuratorPass.VACUUM:
                vacuum = Vacuum(metadata=self._metadata, objects=self._objects, options=self._plan.upkeep.vacuum)
                complete = not (await vacuum.run()).problems
            case CuratorPass.DELETE_RECORDS:
                await self._delete_records([key for topic in topics for key in topic.partition_keys()])
        self.passes += 1
        return complete

    async def _delete_records(self, keys: Sequence[PartitionKey]) -> None:
        assert self.world.removals is not None
        if not keys:
            return
        key = self._dice.pick(keys)
        states = await self._metadata.get_partitions([key])
        if not states:
            return
        offset = self._dice.between(0, states[0].high_watermark)
        asked = self.world.removals.asked_offsets
        asked[key_of(key)] = max(asked.get(key_of(key), 0), offset)
        await self._metadata.advance_log_start(key, offset)

    def _reaches(self, step: str, stage: str) -> None:
        trap = self.trap
        if trap is not None and (trap.step, trap.stage) == (step, stage):
            self.trap = None
            self.world.note(f"{self.name} has reached: {step} {stage}")
            self.world.loop.world.call_later(0, trap.springs)
        elif self._killed and self.lane is not None and self._dice.chance(self._killed):
            self.world.loop.world.call_later(0, self._die, self.lane)

    def _die(self, lane: Lane) -> None:
        if self.lane is lane:
            self.kill()
            self.world.loop.world.call_later(self._dice.uniform(0, _RESTART_MS) / 1000, self.start)
