"""kill -9 again and again under librdkafka's clients, which go on with the agent that is there next.

How often: the variable KILLS for each of the two stories, else a few (`make test-kill` takes a hundred).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_fleet import SEED, SHORT_LEASES, SMALL_FILES, fleet_stage, single_stage
from e2e_kafka_judge import judge_kafka
from e2e_kafka_stage import KafkaStage

from streamhouse.testing.services import S3Service

SINGLE_KILLS = int(os.environ.get("KILLS") or 10)
FLEET_KILLS = int(os.environ.get("KILLS") or 1)
QUICK_RECONNECT = {"reconnect_backoff_max_ms": 500}
"""The library's ten seconds between attempts would be most of the story."""


@pytest.mark.timeout(120 + 15 * SINGLE_KILLS)
async def test_r3_dev_killed_under_kafka_clients_loses_nothing_and_reuses_no_offset(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """Restarted on the same directory and port. What acks=1 promised is on this disk, and so is kept, too."""
    rng = random.Random(SEED)
    async with single_stage(tmp_path, SMALL_FILES) as stage:
        kafka = KafkaStage(stage)
        node = kafka.command("node", "dev")
        node.start()
        await node.ready()
        await kafka.create_topic(3)
        kafka.producer("all", enable_idempotence=True, acks="all", **QUICK_RECONNECT)
        kafka.producer("one", acks=1, **QUICK_RECONNECT)
        kafka.group("group", 1, **QUICK_RECONNECT)
        for _ in range(SINGLE_KILLS):
            await kafka.progress(3)
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            await node.kill()
            node.start()
            await node.ready()
        await kafka.progress()
        await kafka.finish_producers()
        await kafka.finish_groups()
        read_back = await kafka.read_back()
        assert await node.stopped_by(signal.SIGTERM) == 0
        logs = await kafka.logs()
        tell(f"{SINGLE_KILLS} kills, SEED={SEED}; {len(kafka.ledger.acks)} records acknowledged")
        assert judge_kafka(logs, kafka.ledger, groups=kafka.groups) == []
        assert read_back == logs


@pytest.mark.timeout(180 + 30 * FLEET_KILLS)
async def test_r9_agents_killed_under_kafka_clients_lose_and_double_nothing(
    tmp_path: Path, postgres_database: str, s3_service: S3Service, tell: Callable[[str], None]
) -> None:
    """Sometimes the victim is back before its leases have run out, sometimes others have led meanwhile."""
    rng = random.Random(SEED)
    async with fleet_stage(tmp_path, postgres_database, s3_service, {**SHORT_LEASES, **SMALL_FILES}) as stage:
        kafka = KafkaStage(stage)
        team = {name: kafka.command(name, "agent") for name in ("agent-1", "agent-2", "agent-3")}
        for agent in team.values():
            agent.start()
        for agent in team.values():
            await agent.ready()
        await kafka.create_topic(4)
        await kafka.led_by(*team)
        kafka.producer("idempotent", enable_idempotence=True, acks="all", **QUICK_RECONNECT)
        kafka.group("classic", 2, **QUICK_RECONNECT)
        kafka.group("new", 2, group_protocol="consumer", **QUICK_RECONNECT)
        for number in range(FLEET_KILLS):
            await kafka.progress(3)
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            leaders = sorted(await kafka.spread())
            victim = team[rng.choice([*leaders, await kafka.coordinator("classic")])]
            await victim.kill()
            if (number + 1) % 3:
                await kafka.led_by(*(name for name in team if name != victim.name))
            victim.start()
            await victim.ready()
        await kafka.progress()
        await kafka.finish_producers()
        await kafka.finish_groups()
        read_back = await kafka.read_back()
        for agent in team.values():
            assert await agent.stopped_by(signal.SIGTERM) == 0
        logs = await kafka.logs()
        tell(f"{FLEET_KILLS} kills, SEED={SEED}; {len(kafka.ledger.acks)} records acknowledged")
        assert judge_kafka(logs, kafka.ledger, groups=kafka.groups) == []
        assert read_back == logs
