"""S3.22, with the timings people get from `--profile fast`: join, spread, death, take-over, join again, leave in order.

A producer with acks=all runs on every partition from the first minute to the last. How long a producer had to wait is
told at the end of the run and not judged.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_fleet import Agent, Stage, fleet_stage, stop_in_order
from e2e_judge import judge
from e2e_processes import eventually

from streamhouse.core.ids import PartitionKey, topic_id_text
from streamhouse.metadata.contract import TransferState
from streamhouse.testing.services import S3Service

DEMO_TOPICS = {"orders": 3, "user-events": 2, "metrics": 4}  # S1.19
FAST = {"profile": "fast"}


class Service:
    """The service as its producers see it: the longest silence of any partition in each act of the story."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._began_s = asyncio.get_running_loop().time()
        self.acts: list[str] = []

    async def act_ends(self, name: str) -> None:
        """End the act after every partition has been written to again."""
        await self._stage.acknowledged_since(5)
        gaps = self._stage.ledger.longest_gaps_s(since_s=self._began_s)
        worst = max(gaps.values())
        self.acts.append(f"{name} {worst:.1f} s")
        self._began_s = asyncio.get_running_loop().time()


@pytest.mark.timeout(400)
async def test_s3_22_agents_join_die_and_leave_and_every_acks_all_record_is_there_once_and_in_order(
    tmp_path: Path, postgres_database: str, s3_service: S3Service, tell: Callable[[str], None]
) -> None:
    async with fleet_stage(tmp_path, postgres_database, s3_service, FAST) as stage:
        first, second, third = (
            stage.agent(f"agent-{number}", agent__zone=zone) for number, zone in enumerate(("a", "b", "a"), 1)
        )
        for agent in (first, second, third):
            await agent.up()
        keys = await stage.create_topics(first, DEMO_TOPICS)
        await registered_with_zones(stage, {"agent-1": "a", "agent-2": "b", "agent-3": "a"})
        await stage.all_led_by([first, second, third])
        spread = Counter((await stage.leaders()).values())
        assert len(spread) >= 2, f"all nine on one agent: {spread}"

        ids = iter(await stage.stores.metadata.allocate_producer_ids(len(keys)))
        producers = [stage.producer("story", key, acks=-1, producer_id=next(ids), pause_s=0.02) for key in keys]
        service = Service(stage)
        await service.act_ends("steady")

        victim = max((first, second, third), key=lambda agent: spread[agent.name])
        left = [agent for agent in (first, second, third) if agent is not victim]
        await victim.kill()
        await stage.all_led_by(left)
        await service.act_ends(f"kill -9 of {victim.name} with {spread[victim.name]} partitions")

        fourth = stage.agent("agent-4", agent__zone="b")
        await fourth.up()
        await eventually("the fourth has its share", fourth.leads_some)
        await stage.all_led_by([*left, fourth])
        await service.act_ends("a fourth joins")

        leaver = left[0]
        await leaves_through_transfers(stage, leaver)
        team = [left[1], fourth]
        await stage.all_led_by(team)
        await service.act_ends(f"SIGTERM to {leaver.name}")

        await stage.finish(producers)
        await all_agents_read_alike(stage, team)
        await stop_in_order(team)
        problems = judge(await stage.logs(), stage.ledger, wal_is_durable=False)
        tell(f"longest silence of a partition: {'; '.join(service.acts)}")
        assert problems == []
        assert all(write.offset is not None for write in stage.ledger.writes)


async def registered_with_zones(stage: Stage, zones: dict[str, str]) -> None:
    listed = await stage.stores.metadata.list_agents()
    assert {agent.agent_id: agent.availability_zone for agent in listed} == zones


async def leaves_through_transfers(stage: Stage, leaver: Agent) -> None:
    """S3.17: the next epoch of each lease was begun by a completed transfer, so no agent waited for it to run out."""
    metadata = stage.stores.metadata
    before = await stage.leases()
    held = {key: lease for key, lease in before.items() if lease.agent_id == leaver.name}
    assert held, f"{leaver.name} leads nothing: the story proves nothing"
    assert await leaver.stopped_by(signal.SIGTERM) == 0
    transfers = await metadata.list_transfers(agent_id=leaver.name, open_only=False)
    completed = {
        transfer.key: transfer
        for transfer in transfers
        if transfer.state is TransferState.COMPLETED and transfer.from_agent == leaver.name
    }
    assert leaver.name not in {agent.agent_id for agent in await metadata.list_agents()}
    for key, lease in held.items():
        transfer = completed.get(key)
        assert transfer is not None, f"{key} was not handed over: {[t for t in transfers if t.key == key]}"
        assert transfer.epoch == lease.epoch
        (next_start,) = [start for start in await metadata.epoch_history(key) if start.epoch == lease.epoch + 1]
        assert next_start.agent_id == transfer.to_agent


async def all_agents_read_alike(stage: Stage, agents: list[Agent]) -> None:
    """What is committed can be read at any agent, leader or not."""
    logs = await stage.logs()
    for agent in agents:
        for key, log in logs.items():
            assert tuple(await read_all(agent, key)) == log.values, f"{key} at {agent.name}"


async def read_all(agent: Agent, key: PartitionKey) -> list[str]:
    values: list[str] = []
    while True:
        found = await agent.ask(
            "read",
            topic_id=topic_id_text(key.topic_id),
            partition=key.partition,
            offset=len(values),
            max_bytes=256 * 1024,
        )
        if not found["records"]:
            return values
        values.extend(value for _, value in found["records"])
