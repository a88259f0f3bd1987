"""Simulated producers: plain ones that may give up, idempotent ones that send until they know."""

from __future__ import annotations

import asyncio
from typing import Final

from streamhouse.core.errors import DuplicateSequence, OutOfOrderSequence, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.testing.sim.agent import Appended, SimAgent
from streamhouse.testing.sim.clients import Client, Unanswered, Unreachable
from streamhouse.testing.sim.history import Write
from streamhouse.testing.sim.scenario import ProducerPlan
from streamhouse.testing.sim.world import World, key_of
from streamhouse.wire.records import Record, build_batch

_MOMENT_MS: Final = 10.0
_PATIENCE_MS: Final = 40_000.0
"""After everything has healed; a producer that still cannot write by then has met a bug."""


class _Producer:
    def __init__(self, world: World, name: str, plan: ProducerPlan) -> None:
        self.client = Client(world, name)
        self.world = world
        self.plan = plan
        self.dice = self.client.dice
        self._values = 0
        self._give_up_ms: float | None = None

    def new_write(self, key: PartitionKey, producer: str, sequence: int | None = None) -> Write:
        values = []
        for _ in range(self.dice.between(1, self.world.scenario.batch_records)):
            self._values += 1
            values.append(f"{producer}:{self._values:04d}".ljust(self.world.scenario.value_bytes, "."))
        write = Write(
            producer=producer,
            key=key_of(key),
            values=tuple(values),
            acks=self.plan.acks,
            invoked_ms=self.world.now_ms(),
            sequence=sequence,
        )
        self.world.history.writes.append(write)
        return write

    async def send(self, key: PartitionKey, write: Write, batch: bytes, agent: SimAgent) -> None:
        """Once. Notes the acknowledgement if one comes; raises otherwise."""
        write.attempts += 1

        async def request(server: SimAgent) -> Appended | None:
            return await server.produce(key, batch, write.acks)

        try:
            appended = await self.client.ask(agent, request, timeout_ms=self.plan.timeout_ms)
        except Unreachable:
            write.attempts -= 1
            raise
        if appended is not None and write.acked_ms is None:
            write.acked_ms = self.world.now_ms()
            write.base_offset = appended.base_offset
            write.acked_by = agent.name
            write.taken_ms = appended.at_ms
            write.epoch = appended.epoch
            self.world.note(f"{write.values[0]} acknowledged by {agent.name} at {appended.base_offset}")

    def pick_key(self) -> PartitionKey:
        return self.dice.pick(self.world.keys())

    def still_there(self, key: PartitionKey) -> bool:
        return any(topic.topic_id == key.topic_id for topic in self.world.topics.values())

    def out_of_patience(self) -> bool:
        if not self.world.over:
            return False
        if self._give_up_ms is None:
            self._give_up_ms = self.world.now_ms() + _PATIENCE_MS
        return self.world.now_ms() > self._give_up_ms

    async def breathe(self, written: int) -> None:
        """A moment within a burst, a rest after it."""
        if written % self.plan.burst == self.plan.burst - 1:
            await self.world.rest(self.dice.uniform(0, self.plan.rest_ms) / 1000)
        else:
            await self.pause(_MOMENT_MS)

    async def pause(self, most_ms: float) -> None:
        await asyncio.sleep(self.dice.uniform(0, most_ms) / 1000)


class PlainProducer(_Producer):
    """Writes to any partition, a few at a time and in no order among themselves."""

    async def run(self) -> None:
        room = asyncio.Semaphore(self.plan.in_flight)
        async with asyncio.TaskGroup() as writing:
            for number in range(self.plan.writes):
                await room.acquire()
                if self.world.over:
                    return
                writing.create_task(self._write(room))
                await self.breathe(number)

    async def _write(self, room: asyncio.Semaphore) -> None:
        key = self.pick_key()
        write = self.new_write(key, self.client.name)
        batch = build_batch([Record(value=value.encode(), timestamp_ms=1) for value in write.values])
        try:
            await self._send_until_told(key, write, batch)
        finally:
            room.release()

    async def _send_until_told(self, key: PartitionKey, write: Write, batch: bytes) -> None:
        while write.attempts < self.plan.attempts:
            try:
                await self.send(key, write, batch, self.client.find_leader(key))
                return
            except (Unanswered, Unreachable, StreamHouseError) as error:
                write.error = str(error) or type(error).__name__
            if not self.still_there(key) or self.out_of_patience() or self.dice.chance(0.02):
                return
            await self.pause(200)


class IdempotentProducer(_Producer):
    """To one partition, with sequences: a few in flight, and after a failure all that are not acknowledged again.

    What is not acknowledged is sent until it is, to whoever leads. A sequence error on the oldest of them would mean
    that the log has forgotten what it acknowledged.
    """

    def __init__(self, world: World, name: str, plan: ProducerPlan, producer_id: int) -> None:
        super().__init__(world, name, plan)
        self._producer_id = producer_id
        self._generation = 0

    async def run(self) -> None:
        left = self.plan.writes
        while left > 0 and not self.world.over:
            self._generation += 1
            left -= await self._session(left)

    async def _session(self, most: int) -> int:
        """Write on as one producer epoch to one partition; returns how many writes were begun."""
        key = self.pick_key()
        name = f"{self.client.name}.{self._generation}"
        epoch = self._generation
        waiting: list[tuple[Write, bytes]] = []
        sequence = begun = 0
        known = False
        while begun < most or waiting:
            # A log accepts any first sequence of a producer it does not know, so the first goes alone, as in Kafka.
            room = self.plan.in_flight if known else 1
            while len(waiting) < room and begun < most and not self.world.over:
                write = self.new_write(key, name, sequence)
                records = [Record(value=value.encode(), timestamp_ms=1) for value in write.values]
                batch = build_batch(
                    records, producer_id=self._producer_id, producer_epoch=epoch, base_sequence=sequence
                )
                waiting.append((write, batch))
                sequence += len(records)
                begun += 1
            if not waiting:
                break
            await self._send_all(key, waiting)
            while waiting and waiting[0][0].acked_ms is not None:
                waiting.pop(0)
                known = True
            if not self.still_there(key):
                break
            if self.out_of_patience():
                self.world.trouble(f"{name} cannot write {waiting[0][0].values[0]}: {waiting[0][0].error}")
                break
            if waiting:
                await self.pause(150)
            else:
                await self.breathe(begun)
            if self.dice.chance(0.02):
                break  # a restarted producer: a new epoch, and nothing known of what was in flight
        return max(begun, 1)

    async def _send_all(self, key: PartitionKey, waiting: list[tuple[Write, bytes]]) -> None:
        """All to one agent, as on one connection."""
        agent = self.client.find_leader(key)
        sent = [(write, batch) for write, batch in waiting if write.acked_ms is None]
        outcomes = await asyncio.gather(
            *(self.send(key, write, batch, agent) for write, batch in sent), return_exceptions=True
        )
        for (write, _), outcome in zip(sent, outcomes, strict=True):
            if outcome is None:
                continue
            if not isinstance(outcome, (Unanswered, Unreachable, StreamHouseError)):
                raise outcome
            write.error = str(outcome) or type(outcome).__name__
        if isinstance(outcomes[0], (OutOfOrderSequence, DuplicateSequence)):
            self.world.trouble(f"{sent[0][0].producer}: the log has forgotten what it acknowledged: {outcomes[0]}")
