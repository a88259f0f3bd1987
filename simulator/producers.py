"""Simulated applications that produce: what they write, to which partitions, and how long one producer object lives.

An application writes in bursts, so that several batches are waiting when its client looks for something to send. Most
make a new producer, with a new producer id, after a few writes; some end without waiting for their answers.
"""

from __future__ import annotations

import asyncio
from typing import Final

from simulator.clients import Client
from simulator.connections import Unanswered, Unreachable
from simulator.history import Write
from simulator.java import JavaSession
from simulator.librdkafka import LibrdkafkaSession
from simulator.maintenance_plan import MINUTE_MS, MaintenancePlan
from simulator.plain import PlainSession
from simulator.scenario import LARGE_BYTES, ClientKind, ProducerPlan
from simulator.sending import Session, SimBatch
from simulator.world import RetryLimit, World, key_of
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey

_MOMENT_MS: Final = 10.0
_AGAIN_MS: Final = 150.0
_RECORD_OVERHEAD_BYTES: Final = 8
_SILENT: Final = 0.3
"""How often a burst is followed by a silence, of those that fall silent at all."""
_MAX_WAITING: Final = 25
"""Batches that an application lets its client collect."""
_OLDEST_MS: Final = 120 * MINUTE_MS
"""How far back a record may be dated."""
_SESSIONS: Final[dict[ClientKind, type[Session]]] = {
    ClientKind.PLAIN: PlainSession,
    ClientKind.JAVA: JavaSession,
    ClientKind.LIBRDKAFKA: LibrdkafkaSession,
}


class SimProducer:
    def __init__(self, world: World, name: str, plan: ProducerPlan) -> None:
        self.client = Client(world, name)
        self.world = world
        self.plan = plan
        self.dice = self.client.dice
        self._values = 0
        self._sessions = 0
        self._retries = RetryLimit(world)
        self._maintenance_dice = self.dice.child("maintenance")

    async def run(self) -> None:
        left = self.plan.writes
        while left > 0 and not self.world.over:
            left -= await self._session(min(left, self.plan.session_writes))

    async def _session(self, writes: int) -> int:
        """Write with one producer object; returns how many batches were begun."""
        self._sessions += 1
        producer_id = await self._new_producer_id() if self.plan.idempotent else -1
        if producer_id is None:
            return writes
        session = _SESSIONS[self.plan.kind](self.client, self.plan, producer_id)
        finished = asyncio.Event()
        feeding = asyncio.create_task(self._feed(session, writes, finished))
        sending = asyncio.create_task(session.run(finished))
        dies_s = self.dice.uniform(0, 3) if self.dice.chance(self.plan.dies) else None
        try:
            await self._wait(session, sending, dies_s)
        finally:
            feeding.cancel()
            sending.cancel()
            await asyncio.gather(feeding, sending, return_exceptions=True)
            await session.close()
        if session.broken:
            self.world.note(f"{self._name()} cannot go on: {session.broken}")
        return writes

    async def _new_producer_id(self) -> int | None:
        """Asks agents in turn until one answers; None when the run ends before."""
        while not self.world.over:
            try:
                return await self.client.ask(
                    self.client.any_agent(), lambda server: server.new_producer_id(), timeout_ms=self.plan.timeout_ms
                )
            except (Unanswered, Unreachable, StreamHouseError):
                await self._pause(_AGAIN_MS)
                self.client.doubts = True
                await self.client.refresh()
        return None

    async def _wait(self, session: Session, sending: asyncio.Task[None], dies_s: float | None) -> None:
        while not sending.done():
            await asyncio.wait([sending], timeout=0.5 if dies_s is None else dies_s)
            if dies_s is not None and not self.world.over:
                self.world.note(f"{self._name()} ends without waiting for {len(session.unfinished)} batches")
                return
            if self._retries.too_long():
                stuck = next(iter(session.unfinished), None)
                if stuck is not None:
                    what = f"{stuck.write.values[0]}: {stuck.write.error}"
                    self.world.problem(f"{self._name()} cannot write {what}")
                return
        sending.result()

    async def _feed(self, session: Session, writes: int, finished: asyncio.Event) -> None:
        keys = self._pick_keys()
        for number in range(writes):
            if self.world.over or session.broken:
                break
            while len(session.unfinished) >= _MAX_WAITING:
                await self._pause(_MOMENT_MS)
            if not all(session.still_there(key) for key in keys):
                keys = self._pick_keys()
            key = self.dice.pick(keys)
            write = self._new_write(key, number)
            session.take(SimBatch(key=key, write=write, number=number, created_ms=self.world.now_ms()))
            if number % self.plan.burst == self.plan.burst - 1:
                await self.world.rest(self.dice.uniform(0, self.plan.rest_ms) / 1000)
                if self.plan.silence_ms and self.dice.chance(_SILENT):
                    await asyncio.sleep(self.plan.silence_ms / 1000)
            elif self.dice.chance(0.3):
                await self._pause(self.plan.gap_ms)
        finished.set()
        session.wake()

    def _pick_keys(self) -> list[PartitionKey]:
        keys = self.world.keys()
        return sorted({self.dice.pick(keys) for _ in range(self.dice.between(1, 3))})

    def _new_write(self, key: PartitionKey, number: int) -> Write:
        values = []
        name = self._name()
        for _ in range(self._record_count()):
            self._values += 1
            values.append(f"{name}:{self._values:04d}".ljust(self.world.scenario.value_bytes, "."))
        write = Write(
            producer=name,
            key=key_of(key),
            values=tuple(values),
            acks=self.plan.acks,
            invoked_ms=self.world.now_ms(),
            sequence=number if self.plan.idempotent else None,
        )
        if self.world.scenario.maintenance is not None:
            self._add_keys_and_times(write, self.world.scenario.maintenance)
        self.world.history.writes.append(write)
        return write

    def _add_keys_and_times(self, write: Write, plan: MaintenancePlan) -> None:
        dice = self._maintenance_dice
        write.record_keys = tuple(f"key {dice.below(plan.record_keys)}" for _ in write.values)
        write.tombstones = frozenset(at for at in range(len(write.values)) if dice.chance(plan.tombstones))
        write.time_ms = self.world.store_clock.wall_ms()
        if dice.chance(plan.old_records):
            write.time_ms -= dice.between(0, _OLDEST_MS)

    def _record_count(self) -> int:
        scenario = self.world.scenario
        if scenario.large_batches and self.dice.chance(scenario.large_batches):
            return self.dice.pick(LARGE_BYTES) // (scenario.value_bytes + _RECORD_OVERHEAD_BYTES)
        return self.dice.between(1, scenario.batch_records)

    def _name(self) -> str:
        return f"{self.client.name}.{self._sessions}"

    async def _pause(self, most_ms: float) -> None:
        await asyncio.sleep(self.dice.uniform(0, most_ms) / 1000)
