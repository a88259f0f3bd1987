"""The table of behaviours: how a behaviour is written down, and the scene in which it is played.

A behaviour is a short story of calls with one expected end: a value, or the name of an error. The stories are in
behaviours_of_*.py, each with a table of its own. test_behaviours.py runs all of them through every front end.
"""

from __future__ import annotations

import itertools
from collections import UserDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from front_end_adapters import FrontEnd, Refused

from streamhouse import StreamHouse
from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import Leader, Node
from streamhouse.cluster.lease_table import Stage
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.partition import Phase
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record

OTHER = Node(node_id=77, agent_id="other", host="other.example", port=9092, rack="")
CALLER = Caller(protocol="test")
SOON_S = 0.05
_names = itertools.count()


class Scene:
    """A platform, one front end to it, and a topic of the behaviour's own."""

    def __init__(self, sh: StreamHouse, front: FrontEnd) -> None:
        self.sh = sh
        self.front = front
        self.topic = f"behaviour-{next(_names)}"

    async def create(self, partitions: int = 1, **configs: str) -> int:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        return await self.front.create_topic(self.topic, partitions, named)

    async def write(
        self,
        *values: bytes | None,
        partition: int = 0,
        at_ms: int | None = None,
        acks: int = -1,
        codec: Codec = Codec.NONE,
        timeout_ms: int = 30_000,
        topic: str | None = None,
    ) -> int | None:
        time_ms = self.sh.clock.wall_ms() if at_ms is None else at_ms
        records = [Record(value=value, timestamp_ms=time_ms) for value in values]
        (offset,) = await self.front.produce(
            topic or self.topic, partition, [records], acks=acks, codec=codec, timeout_ms=timeout_ms
        )
        return offset

    async def write_record(self, record: Record) -> Record:
        """The record as it is read back."""
        await self.front.produce(self.topic, 0, [[record]], acks=-1, codec=Codec.NONE, timeout_ms=30_000)
        (found,) = await self.front.fetch(self.topic, 0, 0, max_bytes=1 << 20, wait_ms=10_000)
        return found

    async def read(
        self,
        offset: int = 0,
        *,
        partition: int = 0,
        max_bytes: int = 1 << 20,
        wait_ms: int = 0,
        topic: str | None = None,
    ) -> list[bytes | None]:
        found = await self.front.fetch(topic or self.topic, partition, offset, max_bytes=max_bytes, wait_ms=wait_ms)
        return [record.value for record in found]

    async def offset(self, at: int, *, partition: int = 0, topic: str | None = None) -> int:
        return await self.front.list_offset(topic or self.topic, partition, at)

    async def key(self) -> PartitionKey:
        return (await self.sh.topic(self.topic)).partition_keys()[0]

    async def delete_before(self, offset: int) -> None:
        await self.sh.broker.writes.delete_before(await self.key(), offset, caller=CALLER)

    async def opening(self) -> Opening:
        return Opening(self.sh, await self.key())

    @contextmanager
    def no_acknowledgement(self) -> Iterator[None]:
        """The WAL syncs, and no one is told."""
        wal, synced = self.sh.agent.wal, list(self.sh.agent.wal._on_synced)
        held: list[int] = []
        wal._on_synced[:] = [held.append]
        try:
            yield
        finally:
            wal._on_synced[:] = synced
            for call in synced if held else ():
                call(held[-1])

    @contextmanager
    def led_elsewhere(self, key: PartitionKey) -> Iterator[None]:
        view = self.sh.broker.view
        known = view.leader
        with patch.object(view, "leader", lambda asked: Leader(node=OTHER, epoch=9) if asked == key else known(asked)):
            yield


class Opening:
    """A partition that this agent leads and has not opened yet."""

    def __init__(self, sh: StreamHouse, key: PartitionKey) -> None:
        leadership = sh.agent.member.lease_table.get(key)
        assert leadership is not None
        self._leadership, self._log = leadership, sh.agent.log
        self._partition = self._log._partitions[key]
        self._leadership.stage = Stage.OPENING
        self._partition.phase = Phase.OPENING

    def done(self) -> None:
        self._leadership.stage = Stage.SERVING
        self._log._open(self._partition)


Behaviour = Callable[[Scene], Awaitable[Any]]


class Table(UserDict[str, tuple[Any, Behaviour]]):
    """Behaviours by name: what each is expected to end with, and its story."""

    def behaviour(self, expected: Any) -> Callable[[Behaviour], Behaviour]:
        """``expected``: what the story returns, or ``refused("…")``."""

        def add(story: Behaviour) -> Behaviour:
            self.put(story.__name__, (expected, story))
            return story

        return add

    def put(self, name: str, row: tuple[Any, Behaviour]) -> None:
        assert name not in self, f"two behaviours have the name {name}"
        self[name] = row


def refused(name: str) -> tuple[str, str]:
    return ("refused", name)


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except Refused as error:
        return refused(error.name)
