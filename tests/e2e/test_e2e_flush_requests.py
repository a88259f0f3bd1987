"""A reader of objects (Spark) can ask for everything acknowledged to be brought into them."""

from __future__ import annotations

from pathlib import Path

from e2e_fleet import Stage, fleet_stage, single_stage, stop_in_order
from e2e_processes import eventually

from streamhouse.core.randomness import SystemRandomness
from streamhouse.testing.services import S3Service

NO_FLUSHES_BY_AGE = {"segment.max_age": "1h"}


async def ask_for_a_flush(stage: Stage) -> None:
    """Ask from this process, with nothing but a connection to the metadata."""
    metadata = stage.stores.metadata
    request_id = SystemRandomness().uuid()
    asked = await metadata.request_flush(request_id, stage.keys, ttl_ms=60_000)
    assert {request.key for request in asked} == set(stage.keys)

    async def answered() -> bool:
        return not await metadata.pending_flush(request_id)

    await eventually("the leaders have flushed", answered, timeout_s=30)


async def write_and_flush(stage: Stage) -> None:
    """Twice: the second request finds a leader that has answered one before."""
    agents = {agent.name: agent for agent in stage.agents}
    for number in range(2):
        leaders = await stage.leaders()
        for key in stage.keys:
            values = (f"{key.partition}-{number}-a", f"{key.partition}-{number}-b")
            assert await stage.write(agents[leaders[key]], key, *values, acks=1) == 2 * number
        assert all(len(log.values) == 2 * number for log in (await stage.logs()).values()), "not in objects yet"
        await ask_for_a_flush(stage)
        assert all(len(log.values) == 2 * (number + 1) for log in (await stage.logs()).values())
    for key, log in (await stage.logs()).items():
        assert log.values == tuple(f"{key.partition}-{number}-{letter}" for number in range(2) for letter in "ab")


async def test_a_single_node_answers_a_flush_request_of_another_process(tmp_path: Path) -> None:
    async with single_stage(tmp_path, NO_FLUSHES_BY_AGE) as stage:
        node = stage.agent("node")
        await node.up()
        await stage.create_topics(node, {"orders": 3})
        await write_and_flush(stage)
        await stop_in_order([node])


async def test_every_leader_of_a_fleet_answers_for_its_partitions(
    tmp_path: Path, postgres_database: str, s3_service: S3Service
) -> None:
    async with fleet_stage(tmp_path, postgres_database, s3_service, {"profile": "fast", **NO_FLUSHES_BY_AGE}) as stage:
        agents = [stage.agent(f"agent-{number}") for number in (1, 2)]
        for agent in agents:
            await agent.up()
        await stage.create_topics(agents[0], {"orders": 4})
        await stage.all_led_by(agents)
        await write_and_flush(stage)
        await stop_in_order(agents)
