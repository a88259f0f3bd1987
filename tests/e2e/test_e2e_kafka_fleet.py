"""S3.22's story through the Kafka port: agents join, die, are paused, leave; librdkafka's clients go on all the while.

An idempotent producer, a classic group and one of KIP-848's run from the first minute to the last, with the timings
people get from `--profile fast`. How long they had to wait is told at the end of the run and not judged.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_fleet import fleet_stage
from e2e_kafka_judge import judge_kafka
from e2e_kafka_raw import NOT_LEADER, RawClient
from e2e_kafka_stage import KafkaProcess, KafkaStage
from e2e_processes import eventually

from streamhouse.testing.services import S3Service

FAST = {"profile": "fast"}
PARTITIONS = 6
CLASSIC, NEW = "classic-group", "new-group"


@pytest.mark.timeout(600)
async def test_s3_22_librdkafka_clients_lose_and_double_nothing_while_agents_die_pause_join_and_leave(
    tmp_path: Path, postgres_database: str, s3_service: S3Service, tell: Callable[[str], None]
) -> None:
    async with fleet_stage(tmp_path, postgres_database, s3_service, FAST) as stage:
        kafka = KafkaStage(stage)
        team = {name: kafka.command(name, "agent") for name in ("agent-1", "agent-2", "agent-3")}
        await up(*team.values())
        await kafka.create_topic(PARTITIONS)
        await kafka.led_by(*team)
        assert len(await kafka.spread()) >= 2, "one agent leads everything: the story proves nothing"
        kafka.producer("idempotent", enable_idempotence=True, acks="all")
        kafka.group(CLASSIC, 2, session_timeout_ms=20_000)
        kafka.group(NEW, 2, group_protocol="consumer")
        await kafka.progress()
        kafka.act_begins()
        await kafka.act_ends("steady")

        victim = await a_leader(kafka, but_not=await kafka.coordinator(CLASSIC))
        await team.pop(victim).kill()
        await kafka.led_by(*team)
        await kafka.act_ends(f"kill -9 of {victim}")

        team["agent-4"] = kafka.command("agent-4", "agent")
        await up(team["agent-4"])
        await eventually("the fourth has its share", lambda: leads(kafka, "agent-4"))
        await kafka.act_ends("a fourth joins")

        paused = await a_leader(kafka)
        await is_paused_past_its_lease(kafka, team[paused], [name for name in team if name != paused])
        await eventually("the ring gives it back", lambda: leads(kafka, paused))
        await kafka.act_ends(f"SIGSTOP and SIGCONT of {paused}")

        leaver = await a_leader(kafka)
        assert await team.pop(leaver).stopped_by(signal.SIGTERM) == 0
        await kafka.led_by(*team)
        await kafka.act_ends(f"SIGTERM to {leaver}")

        coordinator = await kafka.coordinator(CLASSIC)
        await team.pop(coordinator).kill()
        await kafka.led_by(*team)
        await kafka.act_ends(f"kill -9 of {coordinator}, which coordinates")

        await kafka.finish_producers()
        await kafka.finish_groups()
        read_back = await kafka.read_back()
        for agent in team.values():
            assert await agent.stopped_by(signal.SIGTERM) == 0
        logs = await kafka.logs()
        tell(f"longest silence, produce/consume: {'; '.join(kafka.acts)}; {len(kafka.ledger.acks)} acknowledged")
        assert judge_kafka(logs, kafka.ledger, groups=kafka.groups) == []
        assert read_back == logs


async def up(*agents: KafkaProcess) -> None:
    for agent in agents:
        agent.start()
    for agent in agents:
        await agent.ready()


async def leads(kafka: KafkaStage, name: str) -> bool:
    return name in await kafka.spread()


async def a_leader(kafka: KafkaStage, *, but_not: str = "") -> str:
    """Return the agent that leads most partitions."""
    spread = await kafka.spread()
    return max((name for name in spread if name != but_not), key=lambda name: spread[name])


async def is_paused_past_its_lease(kafka: KafkaStage, agent: KafkaProcess, others: list[str]) -> None:
    """Meanwhile a client that does not know writes to it; when it goes on, it refuses, and nothing is written."""
    key = next(key for key, name in (await kafka.stage.leaders()).items() if name == agent.name)
    client = await RawClient.open(agent.address)
    try:
        agent.send(signal.SIGSTOP)
        await agent.paused()
        client.produce(key, "from a client that does not know")
        await kafka.led_by(*others)
        agent.send(signal.SIGCONT)
        assert await client.answer() == NOT_LEADER
    finally:
        await client.close()
