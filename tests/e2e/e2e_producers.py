"""Producers and readers that run beside everything a test does to the agents, and write down what they were told."""

from __future__ import annotations

import asyncio
import base64
import random
from typing import Any, Final

from e2e_clients import FAILURES, PADDING, Connection, Ledger, Refused, Router, Unreachable, Write, answer

from streamhouse.core.ids import PartitionKey, topic_id_text
from streamhouse.metadata.contract import MetadataStore
from streamhouse.wire.records import Record, build_batch

_BACK_OFF_S: Final = 0.05
_MAX_BATCH_RECORDS: Final = 3
_SEQUENCE_ERRORS: Final = ("OutOfOrderSequence", "DuplicateSequence", "StaleProducer")


class Client:
    """A loop of its own, from ``start`` until ``finish`` has let it end in order."""

    def __init__(
        self, name: str, key: PartitionKey, *, metadata: MetadataStore, ledger: Ledger, pause_s: float
    ) -> None:
        self.name = name
        self.key = key
        self.ledger = ledger
        self._router = Router(metadata)
        self._pause_s = pause_s
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def finish(self) -> None:
        """No new writes; those on their way come to an end first. Raises what the client died of."""
        self._stop.set()
        assert self._task is not None
        await self._task

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._router.close()

    async def _run(self) -> None:
        while not self._stop.is_set():
            await self._step()
            await asyncio.sleep(self._pause_s)

    async def _step(self) -> None:
        raise NotImplementedError


class Producer(Client):
    """Writes to one partition, each value once in the world.

    Without ``producer_id``: one at a time, sent once, whatever comes of it. With one: idempotent, up to ``in_flight``
    at a time, and what is not acknowledged is sent again, in order, until it is.
    """

    def __init__(
        self,
        name: str,
        key: PartitionKey,
        *,
        acks: int,
        metadata: MetadataStore,
        ledger: Ledger,
        producer_id: int | None = None,
        in_flight: int = 3,
        pause_s: float = 0.01,
        padding_bytes: int = 0,
    ) -> None:
        super().__init__(name, key, metadata=metadata, ledger=ledger, pause_s=pause_s)
        self._acks = acks
        self._producer_id = producer_id
        self._in_flight = in_flight if producer_id is not None else 1
        self._padding_bytes = padding_bytes
        self._values = self._sequence = 0
        self._waiting: list[Write] = []
        self._rng = random.Random(name)
        self._known = self._gave_up = False

    async def _run(self) -> None:
        await super()._run()
        while self._waiting:
            await self._step()

    async def _step(self) -> None:
        # A log takes any first sequence of a producer it does not know, so the first goes alone, as in Kafka's client.
        room = self._in_flight if self._known else 1
        while len(self._waiting) < room and not self._stop.is_set():
            self._waiting.append(self._new_write())
        if not self._waiting:
            return
        try:
            agent, connection = await self._router.leader(self.key)
            await self._send(self._waiting, agent, connection)
        except Unreachable as error:
            self._waiting[0].error = str(error)
        while self._waiting and self._waiting[0].offset is not None:
            self._waiting.pop(0)
            self._known = True
        if self._waiting:
            await asyncio.sleep(_BACK_OFF_S)
        if self._producer_id is None or self._gave_up:
            self._waiting.clear()

    async def _send(self, writes: list[Write], agent: str, connection: Connection) -> None:
        """All on one connection, one behind the other; then wait for every answer."""
        sent = []
        for write in [write for write in writes if write.offset is None]:
            write.attempts += 1
            sent.append((write, connection.send("produce", **self._request(write))))
        for write, future in sent:
            try:
                write.acknowledged(await answer(future), agent)
            except FAILURES as error:
                write.error = str(error)
                self._check_verdict(write, error)

    def _check_verdict(self, write: Write, error: Exception) -> None:
        """A sequence error on the oldest that is not acknowledged: the log has forgotten what it acknowledged."""
        oldest = next(write for write in self._waiting if write.offset is None)
        if isinstance(error, Refused) and error.error in _SEQUENCE_ERRORS and write is oldest:
            self.ledger.contradictions.append(f"{self.name}: {write.values[0]} was answered {error}")
            self._gave_up = True
            self._stop.set()

    def _new_write(self) -> Write:
        values = []
        for _ in range(self._rng.randint(1, _MAX_BATCH_RECORDS)):
            self._values += 1
            values.append(f"{self.name}/{self._values}")
        sequence = None if self._producer_id is None else self._sequence
        self._sequence += len(values)
        write = Write(producer=self.name, key=self.key, values=tuple(values), acks=self._acks, sequence=sequence)
        self.ledger.writes.append(write)
        return write

    def _request(self, write: Write) -> dict[str, Any]:
        return produce_request(write, self._producer_id, padding_bytes=self._padding_bytes)


class Watcher(Client):
    """Reads one partition from its beginning at its leader, over and over: what was seen once must stay."""

    def __init__(self, key: PartitionKey, *, metadata: MetadataStore, ledger: Ledger, pause_s: float = 0.02) -> None:
        super().__init__(f"watcher of {key.partition}", key, metadata=metadata, ledger=ledger, pause_s=pause_s)
        self._offset = 0

    async def _step(self) -> None:
        try:
            _, connection = await self._router.leader(self.key)
            found = await connection.ask(
                "read",
                topic_id=topic_id_text(self.key.topic_id),
                partition=self.key.partition,
                offset=self._offset,
                max_bytes=64 * 1024,
            )
        except Refused as error:
            if error.error == "OffsetOutOfRange":
                self.ledger.contradictions.append(f"what was read below {self._offset} of {self.key} is gone: {error}")
                self._stop.set()
        except FAILURES:
            await asyncio.sleep(_BACK_OFF_S)
        else:
            for offset, value in found["records"]:
                if offset != self._offset:
                    self.ledger.contradictions.append(f"{self.key}: read {offset} where {self._offset} must follow")
                self.ledger.saw(self.key, offset, value.rstrip(PADDING))
                self._offset = offset + 1


def produce_request(write: Write, producer_id: int | None = None, *, padding_bytes: int = 0) -> dict[str, Any]:
    padding = PADDING * padding_bytes
    records = [Record(value=f"{value}{padding}".encode(), timestamp_ms=1) for value in write.values]
    if producer_id is None or write.sequence is None:
        batch = build_batch(records)
    else:
        batch = build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=write.sequence)
    return {
        "topic_id": topic_id_text(write.key.topic_id),
        "partition": write.key.partition,
        "acks": write.acks,
        "batch": base64.b64encode(batch).decode(),
    }
