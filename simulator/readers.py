"""Simulated readers: each follows some partitions, now and then from an older offset again, on any agent.

A reader that is told that its offset is out of range does what consumers do: it asks where the log starts, or ends, and
goes on there. So a wrong answer makes it skip records or read them twice. The answer is wrong unless the log was
trimmed beyond the offset (R16).
"""

from __future__ import annotations

import asyncio
from typing import Final

from simulator.agent import ReadAnswer, SimAgent
from simulator.clients import Client
from simulator.connections import Unanswered, Unreachable
from simulator.history import Read
from simulator.world import World, key_of
from streamhouse.core.errors import NotLeader, OffsetOutOfRange, StreamHouseError
from streamhouse.core.ids import PartitionKey

_TIMEOUT_MS: Final = 2000.0


class SimReader:
    def __init__(self, world: World, name: str) -> None:
        self.client = Client(world, name)
        self.world = world
        self.dice = self.client.dice
        self._positions: dict[PartitionKey, int] = {}

    async def run(self) -> None:
        while not self.world.over:
            await self.client.refresh()
            key = self.dice.pick(self.world.keys())
            leader = self.client.leader(key)
            agent = leader if leader is not None and self.dice.chance(0.7) else self.client.any_agent()
            try:
                await self._read(key, agent)
            except (Unanswered, Unreachable):
                self.client.doubts = True
            except NotLeader as error:
                self.client.is_refused(key, error)
            except StreamHouseError:
                pass
            await asyncio.sleep(self.dice.uniform(0, 0.25))

    async def _read(self, key: PartitionKey, agent: SimAgent) -> None:
        offset = self._positions.get(key, 0)
        if offset and self.dice.chance(0.1):
            offset = self.dice.below(offset)
        wait_ms = self.dice.pick((0, 0, 300))

        async def fetch(server: SimAgent) -> ReadAnswer:
            return await server.read(key, offset, wait_ms)

        try:
            records, next_offset = await self.client.ask(agent, fetch, timeout_ms=_TIMEOUT_MS)
        except OffsetOutOfRange as error:
            await self._reset(key, offset, agent, error)
            return
        self._positions[key] = next_offset
        if not records:
            return
        self.world.history.reads.append(
            Read(
                reader=f"{self.client.name} on {agent.name}",
                key=key_of(key),
                from_offset=offset,
                records=tuple(records),
                at_ms=self.world.now_ms(),
            )
        )

    async def _reset(self, key: PartitionKey, offset: int, agent: SimAgent, error: OffsetOutOfRange) -> None:
        """auto.offset.reset=earliest, on whatever agent the reader is connected to."""
        if offset >= self.world.log_starts.get(key, 0) and not self.world.lost_commits:
            self.world.problem(f"{self.client.name} is told at offset {offset}, which was readable: {error}")
        self._positions[key] = await self.client.ask(
            agent, lambda server: server.log_start(key), timeout_ms=_TIMEOUT_MS
        )
