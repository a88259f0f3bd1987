"""What all simulated producer clients have in common: batches, requests in flight, and connections.

A request is one unit on its connection: it carries batches of one partition or of several, and each batch is answered
by itself. java.py, librdkafka.py and plain.py decide what to send next and how to handle an answer.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from simulator.agent import Appended, SimAgent
from simulator.clients import Client
from simulator.connections import Unanswered, Unreachable
from simulator.history import Write
from simulator.scenario import ProducerPlan
from streamhouse.core.errors import NotLeader, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.wire.records import Header, Record, build_batch

MAX_IN_FLIGHT: Final = 5
"""Requests on one connection: the most that a client with idempotence allows, and what it uses from the start."""
RETRIABLE: Final = frozenset({2, 3, 5, 6, 7, 13, 19, 20, 56, 100})
"""Kafka error codes after which clients send the same batch again."""
OUTDATED: Final = frozenset({3, 5, 6, 13, 100})
"""Error codes after which clients ask who leads."""
_INVALID: Final = frozenset({2, 32, 42, 87})
"""CORRUPT_MESSAGE, INVALID_TIMESTAMP, INVALID_REQUEST, INVALID_RECORD: the batch itself is wrong."""
OUT_OF_ORDER, DUPLICATE, STALE_EPOCH, UNKNOWN_PRODUCER = 45, 46, 47, 59

_BACKOFF_MS: Final = (20.0, 150.0)
_LOOK_AGAIN_S: Final = 0.05
_IDLE_S: Final = 1.0
_METADATA_PAUSE_S: Final = 0.05


@dataclass(slots=True, kw_only=True, eq=False)
class SimBatch:
    """One batch on its way. ``sequence`` is -1 until it has one."""

    key: PartitionKey
    write: Write
    number: int
    """Its place among all batches of its session."""
    created_ms: float
    epoch: int = -1
    sequence: int = -1
    sent: int = 0
    reset: bool = False
    """Its sequence was changed since it was last sent."""
    not_before_ms: float = 0.0
    expired: bool = False
    """The client gave up on it while it was in flight."""

    @property
    def next_sequence(self) -> int:
        return self.sequence + len(self.write.values)

    def encode(self, producer_id: int) -> bytes:
        records = records_of(self.write)
        if self.sequence < 0:
            return build_batch(records)
        return build_batch(records, producer_id=producer_id, producer_epoch=self.epoch, base_sequence=self.sequence)


def records_of(write: Write) -> list[Record]:
    keys = write.record_keys or ("key",) * len(write.values)
    return [
        Record(key=key.encode(), headers=(Header("text", value.encode()),), timestamp_ms=write.time_ms)
        if at in write.tombstones
        else Record(key=key.encode(), value=value.encode(), timestamp_ms=write.time_ms)
        for at, (key, value) in enumerate(zip(keys, write.values, strict=True))
    ]


class Session(ABC):
    """One producer object of an application, from its creation to its close."""

    def __init__(self, client: Client, plan: ProducerPlan, producer_id: int) -> None:
        self.client = client
        self.world = client.world
        self.dice = client.dice
        self.plan = plan
        self.producer_id = producer_id
        self.broken = ""
        """Why the client cannot go on: what librdkafka calls a fatal error."""
        self.unfinished: dict[SimBatch, None] = {}
        """Neither acknowledged nor given up."""
        self._requests: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    # What the kinds of client differ in.

    @abstractmethod
    def add(self, batch: SimBatch) -> None:
        """The application has written something."""

    @abstractmethod
    def next_requests(self) -> Iterator[tuple[SimAgent, list[SimBatch]]]:
        """What may be sent now. Every batch that is returned is in flight from then on."""

    @abstractmethod
    def answered(self, batch: SimBatch, outcome: Appended | StreamHouseError | None) -> None: ...

    @abstractmethod
    def unanswered(self, batch: SimBatch) -> None:
        """Its connection ended first."""

    @abstractmethod
    def forget(self, batch: SimBatch) -> None:
        """Its topic is gone, or the application has given up; it is not in flight."""

    # What they share.

    def take(self, batch: SimBatch) -> None:
        self.unfinished[batch] = None
        self.add(batch)
        self._wake.set()

    async def run(self, finished: asyncio.Event) -> None:
        """Returns when the application has finished writing and nothing is left to send, or when it cannot go on."""
        while not self.broken and (self.unfinished or not finished.is_set()):
            self._drop_deleted_topics()
            self._ask_who_leads()
            for agent, batches in self.next_requests():
                self._start(agent, batches)
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S if self.unfinished else _IDLE_S):
                    await self._wake.wait()

    async def close(self) -> None:
        """The process ends, with or without answers."""
        if self._asking is not None:
            self._asking.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.client.hang_up()

    def wake(self) -> None:
        self._wake.set()

    def has_room(self, agent: SimAgent, most: int = MAX_IN_FLIGHT) -> bool:
        return self._requests.get(agent.name, 0) < most

    def leader(self, key: PartitionKey) -> SimAgent | None:
        found = self.client.leader(key)
        if found is None:
            self.client.doubts = True
        return found

    def finished(self, batch: SimBatch) -> None:
        self.unfinished.pop(batch, None)

    def acknowledged(self, batch: SimBatch, appended: Appended | None) -> None:
        """None: the client knows that it was written, and not where."""
        self.finished(batch)
        write = batch.write
        if batch.expired or write.acked_ms is not None:
            return
        write.acked_ms = self.world.now_ms()
        if appended is not None:
            write.base_offset = appended.base_offset
            write.acked_by = appended.agent
            write.taken_ms = appended.at_ms
            write.epoch = appended.epoch
        where = "without an offset" if appended is None else f"by {appended.agent} at {appended.base_offset}"
        self.world.note(f"{write.values[0]} acknowledged {where}")

    def heard(self, batch: SimBatch, error: StreamHouseError) -> None:
        """An error came back: is what the client knows about leaders out of date?"""
        batch.write.error = f"{error.kafka_code}: {error}"
        self.world.note(f"{batch.write.values[0]} gets {error.kafka_code}")
        if error.kafka_code in _INVALID:
            # Else a whole kind of scenario would pass because none of its records is ever written.
            self.world.problem(f"a valid batch of {batch.write.producer} is refused: {error}")
        if isinstance(error, NotLeader):
            self.client.is_refused(batch.key, error)
        elif error.kafka_code in OUTDATED:
            self.client.doubts = True

    def back_off(self, batch: SimBatch) -> None:
        batch.not_before_ms = self.world.now_ms() + self.dice.uniform(*_BACKOFF_MS)

    def still_there(self, key: PartitionKey) -> bool:
        return any(topic.topic_id == key.topic_id for topic in self.world.topics.values())

    def _drop_deleted_topics(self) -> None:
        there = {topic.topic_id for topic in self.world.topics.values()}
        for batch in list(self.unfinished):
            if batch.key.topic_id not in there:
                self.forget(batch)
                self.finished(batch)

    def _ask_who_leads(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        doubted = self.client.doubts
        await self.client.refresh()
        if doubted:
            self._wake.set()
            await asyncio.sleep(_METADATA_PAUSE_S)

    def _start(self, agent: SimAgent, batches: Sequence[SimBatch]) -> None:
        self._requests[agent.name] = self._requests.get(agent.name, 0) + 1
        task = asyncio.create_task(self._send(agent, batches))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, agent: SimAgent, batches: Sequence[SimBatch]) -> None:
        encoded: list[tuple[PartitionKey, bytes]] = []
        for batch in batches:
            batch.sent += 1
            batch.reset = False
            batch.write.attempts += 1
            if batch.sequence >= 0:
                batch.write.identities.add((self.producer_id, batch.epoch, batch.sequence))
            encoded.append((batch.key, batch.encode(self.producer_id)))
        plan = self.plan
        try:
            outcomes = await self.client.connection(agent).ask(
                lambda server, connection: server.produce(connection.server, encoded, plan.acks, plan.timeout_ms),
                timeout_ms=plan.wait_factor * plan.timeout_ms,
            )
        except (Unanswered, Unreachable) as error:
            self.client.doubts = True
            for batch in batches:
                if isinstance(error, Unreachable):
                    batch.write.attempts -= 1
                batch.write.error = type(error).__name__
                if batch in self.unfinished:
                    self.unanswered(batch)
        except StreamHouseError as error:
            for batch in batches:
                self._hear(batch, error)
        else:
            for batch, outcome in zip(batches, outcomes, strict=True):
                self._hear(batch, outcome)
        finally:
            self._requests[agent.name] -= 1
            self._wake.set()

    def _hear(self, batch: SimBatch, outcome: Appended | StreamHouseError | None) -> None:
        if isinstance(outcome, StreamHouseError):
            self.heard(batch, outcome)
        if batch in self.unfinished:
            self.answered(batch, outcome)
