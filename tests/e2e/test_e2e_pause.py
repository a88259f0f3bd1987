"""An agent that the kernel stops for longer than its lease, and that goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e_clients import Connection, Refused, Write, answer
from e2e_fleet import SEED, SHORT_LEASES, SMALL_FILES, Agent, Stage, fleet_stage, stop_in_order
from e2e_judge import judge
from e2e_processes import eventually
from e2e_producers import produce_request
from e2e_traps import WRITE_POINTS, some_count

from streamhouse.core.ids import PartitionKey
from streamhouse.testing.services import S3Service

PAUSES = 2
NO_FLUSHES_BY_AGE = {"segment.max_age": "60s"}  # but for those who wait for a commit


async def test_r20_a_paused_agent_cannot_commit_and_its_clients_are_sent_away(
    tmp_path: Path, postgres_database: str, s3_service: S3Service
) -> None:
    """R1, R4, R20. It is stopped during a commit; when it goes on, another agent has led and written."""
    async with fleet_stage(tmp_path, postgres_database, s3_service, {**SHORT_LEASES, **NO_FLUSHES_BY_AGE}) as stage:
        agents = {name: stage.agent(name) for name in ("agent-1", "agent-2")}
        for agent in agents.values():
            await agent.up()
        await stage.create_topics(agents["agent-1"], {"orders": 4})
        await stage.all_led_by(agents.values())
        key, paused, other = await partition_of_one(stage, agents)

        assert await stage.write(paused, key, "committed before") == 0
        assert await stage.write(paused, key, "provisional", acks=1) == 1
        assert await stage.high_watermark(key) == 1, "it is in the WAL alone"
        await paused.arm("commit.before", count=1, signal_name="SIGSTOP")
        connection = await Connection.open(paused.settings["agent.address"])
        stage.push_async_callback(connection.close)
        doomed = send(connection, key, "doomed", acks=-1)
        await paused.paused()
        late = [send(connection, key, "late, all", acks=-1), send(connection, key, "late, one", acks=1)]

        await stage.all_led_by([other])
        assert await stage.write(other, key, "the new leader's") == 1
        paused.send(signal.SIGCONT)
        for future in (doomed, *late):
            with pytest.raises(Refused, match="NotLeader"):
                await answer(future)

        await eventually("the ring gives it back", lambda: leads(stage, key, paused))
        assert await stage.write(paused, key, "after all that") == 3
        await stop_in_order(agents.values())
        log = (await stage.logs())[key]
        assert log.values == ("committed before", "the new leader's", "provisional", "after all that")
        first, second, third, fourth = log.epochs
        assert first < second < third == fourth


async def test_r4_a_write_that_was_refused_does_not_come_back(
    tmp_path: Path, postgres_database: str, s3_service: S3Service
) -> None:
    """With acks=1 only what was acknowledged may be submitted again; this one was not: the disk is slow, the lease ends
    before the record is on it, and its producer hears NotLeader and goes elsewhere."""
    async with fleet_stage(tmp_path, postgres_database, s3_service, SHORT_LEASES) as stage:
        agents = {name: stage.agent(name) for name in ("agent-1", "agent-2")}
        for agent in agents.values():
            await agent.up(slow_disk_ms=10_000)
        await stage.create_topics(agents["agent-1"], {"orders": 4})
        await stage.all_led_by(agents.values())
        key, paused, other = await partition_of_one(stage, agents)

        await paused.arm("append.after", count=1, signal_name="SIGSTOP")
        connection = await Connection.open(paused.settings["agent.address"])
        stage.push_async_callback(connection.close)
        refused = send(connection, key, "refused", acks=1)
        await paused.paused()
        await stage.all_led_by([other])
        assert await stage.write(other, key, "the new leader's") == 0
        paused.send(signal.SIGCONT)
        with pytest.raises(Refused, match="NotLeader"):
            await answer(refused)
        await eventually("the ring gives it back", lambda: leads(stage, key, paused))
        await stage.write(paused, key, "after all that")
        assert (await stage.logs())[key].values == ("the new leader's", "after all that")


@pytest.mark.timeout(400)
async def test_r1_agents_paused_anywhere_on_the_write_path_lose_and_double_nothing(
    tmp_path: Path, postgres_database: str, s3_service: S3Service, tell: Callable[[str], None]
) -> None:
    rng = random.Random(SEED)
    async with fleet_stage(tmp_path, postgres_database, s3_service, {**SHORT_LEASES, **SMALL_FILES}) as stage:
        agents = [stage.agent(f"agent-{number}") for number in (1, 2)]
        for agent in agents:
            await agent.up()
        await stage.create_topics(agents[0], {"orders": 3})
        await stage.all_led_by(agents)
        clients = await stage.busy_clients()
        points = rng.sample(WRITE_POINTS, PAUSES)
        for point in points:
            await stage.acknowledged_since(5)
            paused = rng.choice(agents)
            await eventually(f"{paused.name} leads something", paused.leads_some)
            await paused.arm(point, count=some_count(point, rng), signal_name="SIGSTOP")
            await paused.paused()
            await stage.all_led_by(agent for agent in agents if agent is not paused)
            paused.send(signal.SIGCONT)
        await stage.acknowledged_since(5)
        await stage.finish(clients)
        await stage.lead_alone_one_after_the_other(agents)
        tell(f"paused at {', '.join(points)}, SEED={SEED}; {len(stage.ledger.acknowledged())} writes acknowledged")
        assert judge(await stage.logs(), stage.ledger, wal_is_durable=False, every_agent_led_last=True) == []


async def partition_of_one(stage: Stage, agents: dict[str, Agent]) -> tuple[PartitionKey, Agent, Agent]:
    """A partition, its leader, and the other agent."""
    key, name = next(iter((await stage.leaders()).items()))
    (other,) = set(agents) - {name}
    return key, agents[name], agents[other]


def send(connection: Connection, key: PartitionKey, value: str, *, acks: int) -> asyncio.Future[dict[str, Any]]:
    write = Write(producer="by hand", key=key, values=(value,), acks=acks, sequence=None)
    return connection.send("produce", **produce_request(write))


async def leads(stage: Stage, key: PartitionKey, agent: Agent) -> bool:
    """Whether the agent leads, by both accounts."""
    (topic,) = {lease.topic for lease in (await stage.leases()).values()}
    return (await stage.leaders()).get(key) == agent.name and (topic, key.partition) in await agent.leads()
