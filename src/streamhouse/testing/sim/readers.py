"""Simulated readers: each follows a partition, now and then from an older offset again, on any agent."""

from __future__ import annotations

import asyncio
from typing import Final

from streamhouse.core.errors import OffsetOutOfRange, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.testing.sim.agent import SimAgent
from streamhouse.testing.sim.clients import Client, Unanswered, Unreachable
from streamhouse.testing.sim.history import Read
from streamhouse.testing.sim.world import World, key_of

_TIMEOUT_MS: Final = 2000.0


class Reader:
    def __init__(self, world: World, name: str) -> None:
        self.client = Client(world, name)
        self.world = world
        self.dice = self.client.dice

    async def run(self) -> None:
        positions: dict[PartitionKey, int] = {}
        while not self.world.over:
            key = self.dice.pick(self.world.keys())
            offset = positions.get(key, 0)
            if offset and self.dice.chance(0.1):
                offset = self.dice.below(offset)
            wait_ms = self.dice.pick((0, 0, 300))
            agent = self.client.find_leader(key) if self.dice.chance(0.7) else self.dice.pick(self.world.agents)

            async def request(server: SimAgent) -> list[tuple[int, str]]:
                return await server.read(key, offset, wait_ms)  # noqa: B023 - awaited before the next round

            try:
                records = await self.client.ask(agent, request, timeout_ms=_TIMEOUT_MS)
            except OffsetOutOfRange:
                positions[key] = self.world.log_starts.get(key, 0)  # it was trimmed
                records = []
            except (Unanswered, Unreachable, StreamHouseError):
                records = []
            if records:
                positions[key] = records[-1][0] + 1
                self.world.history.reads.append(
                    Read(
                        reader=f"{self.client.name} on {agent.name}",
                        key=key_of(key),
                        from_offset=offset,
                        records=tuple(records),
                        at_ms=self.world.now_ms(),
                    )
                )
            await asyncio.sleep(self.dice.uniform(0, 0.25))
