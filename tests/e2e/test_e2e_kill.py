"""kill -9 at random points of the write path, and a start on the same disk, again and again.

How often: the variable KILLS for each of the two stories, else a few (`make test-kill` takes a hundred). Where: a third
of the kills come from outside at any instant, the others are trapdoors at the points where it hurts (e2e_traps.py).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_fleet import SEED, SHORT_LEASES, SMALL_FILES, Agent, fleet_stage, single_stage, stop_in_order
from e2e_judge import judge
from e2e_processes import NotInTime
from e2e_traps import RECOVERY_POINTS, TRAP_VARIABLE, WRITE_POINTS, some_count

from streamhouse.testing.services import S3Service

SINGLE_KILLS = int(os.environ.get("KILLS") or 25)
FLEET_KILLS = int(os.environ.get("KILLS") or 6)


ANY_INSTANT = "any instant"
WAYS = (*WRITE_POINTS, *[ANY_INSTANT] * (len(WRITE_POINTS) // 2))
SLOW_DISKS_MS = (0, 0, 15)


class Executioner:
    """Kills an agent in one of many ways, and counts them. Every way comes once before any comes again."""

    def __init__(self) -> None:
        self.rng = random.Random(SEED)
        self.ways: Counter[str] = Counter()
        self.replayed = self.resubmitted = self.dropped = 0
        self._deck: list[str] = []

    async def kill_starting(self, agent: Agent) -> None:
        """While it recovers, by a trap; or it may get through, and dies then."""
        point = self.rng.choice(RECOVERY_POINTS)
        agent.start(**{TRAP_VARIABLE: f"{point}:{self.rng.randint(1, 3)}:SIGKILL"})
        await self._dead(agent, f"start, {point}", wait_s=3.0)

    async def kill_running(self, agent: Agent) -> None:
        await self.note(agent)
        if not self._deck:
            self._deck = self.rng.sample(WAYS, len(WAYS))
        way = self._deck.pop()
        if way == ANY_INSTANT:
            await asyncio.sleep(self.rng.uniform(0.0, 0.5))
            await agent.kill()
            self.ways[way] += 1
            return
        await agent.arm(way, count=some_count(way, self.rng), signal_name="SIGKILL")
        await self._dead(agent, way, wait_s=3.0)

    async def raise_up(self, agent: Agent) -> None:
        """Start it on a disk that may be slow, by either way of writing."""
        await agent.up(slow_disk_ms=self.rng.choice(SLOW_DISKS_MS), compiled=self.rng.random() < 0.6)

    async def _dead(self, agent: Agent, way: str, *, wait_s: float) -> None:
        try:
            assert await agent.exited(timeout_s=wait_s) == -9
            self.ways[way] += 1
        except NotInTime:
            await agent.kill()
            self.ways[ANY_INSTANT] += 1

    async def note(self, agent: Agent) -> None:
        """What this life has brought back, before it ends."""
        log = (await agent.ask("describe"))["log"]
        self.replayed += log["replayed_batches"]
        self.resubmitted += log["resubmitted_batches"]
        self.dropped += log["dropped_batches"]

    def __str__(self) -> str:
        ways = ", ".join(f"{way} {count}" for way, count in sorted(self.ways.items()))
        return f"{self.ways.total()} kills ({ways}), SEED={SEED}"


@pytest.mark.timeout(120 + 8 * SINGLE_KILLS)
async def test_r3_kill_9_of_a_single_node_loses_no_acknowledged_record_and_reuses_no_offset(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """Design "Single node", R2, R3, R12: both acks=all and acks=1 are promises of this disk."""
    executioner = Executioner()
    async with single_stage(tmp_path, {**SMALL_FILES, "segment.max_age": "300ms"}) as stage:
        node = stage.agent("node")
        await node.up()
        await stage.create_topics(node, {"orders": 2})
        clients = await stage.busy_clients()
        for _ in range(SINGLE_KILLS):
            await executioner.kill_running(node)
            if executioner.rng.random() < 0.2:
                await executioner.kill_starting(node)
            await executioner.raise_up(node)
        await stage.acknowledged_since(10)
        await stage.finish(clients)
        await stop_in_order([node])
        problems = judge(await stage.logs(), stage.ledger, wal_is_durable=True)
        tell(f"{executioner}; {len(stage.ledger.acknowledged())} writes acknowledged, {executioner.replayed} replayed")
        assert problems == []
        assert executioner.ways.total() >= SINGLE_KILLS
        assert executioner.replayed, "no restart had anything to replay: the story proves nothing"


@pytest.mark.timeout(180 + 15 * FLEET_KILLS)
async def test_r4_kill_9_in_a_fleet_loses_nothing_that_acks_all_acknowledged(
    tmp_path: Path, postgres_database: str, s3_service: S3Service, tell: Callable[[str], None]
) -> None:
    """R1, R3, R4, R9: killed agents come back on their WAL, sometimes before and sometimes after others have led."""
    executioner = Executioner()
    settings = {**SHORT_LEASES, **SMALL_FILES, "segment.max_age": "2s"}
    async with fleet_stage(tmp_path, postgres_database, s3_service, settings) as stage:
        agents = [stage.agent(f"agent-{number}") for number in range(3)]
        for agent in agents:
            await agent.up()
        await stage.create_topics(agents[0], {"orders": 4})
        await stage.all_led_by(agents)
        clients = await stage.busy_clients()
        await stage.acknowledged_since(5)
        for number in range(FLEET_KILLS):
            victim = executioner.rng.choice([agent for agent in agents if await agent.leads_some()])
            await executioner.kill_running(victim)
            if number % 3:
                await stage.all_led_by(agent for agent in agents if agent is not victim)
            await executioner.raise_up(victim)
            await stage.acknowledged_since(3)
        await stage.finish(clients)
        await stage.lead_alone_one_after_the_other(agents, before_stop=executioner.note)
        problems = judge(await stage.logs(), stage.ledger, wal_is_durable=False, every_agent_led_last=True)
        tell(
            f"{executioner}; {len(stage.ledger.acknowledged())} writes acknowledged, {executioner.replayed} batches"
            f" replayed, {executioner.resubmitted} submitted again, {executioner.dropped} dropped"
        )
        assert problems == []
        brought_back = executioner.replayed + executioner.resubmitted
        assert brought_back, "no restart had anything to bring back: the story proves nothing"
