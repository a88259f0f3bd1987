"""A KIP-848 group whose coordinators are killed one after the other, faster than a session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from e2e_fleet import SHORT_LEASES, SMALL_FILES, fleet_stage
from e2e_kafka_raw import RawClient
from e2e_kafka_stage import TOPIC, KafkaStage
from e2e_processes import eventually

from streamhouse.broker.groups.payload import decode
from streamhouse.broker.groups.snapshot import ConsumerSnapshot
from streamhouse.metadata.contract import Lease, slot_of
from streamhouse.testing.services import S3Service

GROUP = "new"
DEAD = "a-member-that-died"
MOST_KILLS = 10
LIFE_S = 8.0
GROUPS = {"group.consumer_session_timeout": "20s", "group.consumer_heartbeat": "1s"}
QUICK_RECONNECT = {"reconnect_backoff_max_ms": 500}


async def row(kafka: KafkaStage) -> tuple[int, ConsumerSnapshot]:
    """The group's epoch and members, as the next coordinator would find them."""
    group = await kafka.stage.stores.metadata.get_group(GROUP)
    saved = decode(group.payload)
    assert isinstance(saved, ConsumerSnapshot)
    return group.generation, saved


@pytest.mark.timeout(400)
async def test_a_dead_member_gives_its_partitions_up_and_the_living_read_on_while_coordinators_are_killed(
    tmp_path: Path, postgres_database: str, s3_service: S3Service, tell: Callable[[str], None]
) -> None:
    settings = {**SHORT_LEASES, **SMALL_FILES, **GROUPS}
    async with fleet_stage(tmp_path, postgres_database, s3_service, settings) as stage:
        kafka = KafkaStage(stage)
        team = {name: kafka.command(name, "agent") for name in ("agent-1", "agent-2", "agent-3")}
        for agent in team.values():
            agent.start()
        for agent in team.values():
            await agent.ready()
        await kafka.create_topic(6)
        await kafka.led_by(*team)
        kafka.producer("idempotent", enable_idempotence=True, acks="all", **QUICK_RECONNECT)
        kafka.group(GROUP, 2, group_protocol="consumer", **QUICK_RECONNECT)
        await kafka.progress(3)
        await a_member_joins_and_dies(kafka)
        epoch, _ = await row(kafka)
        kills = 0
        silent_ms: int | None = 0
        while silent_ms is not None and kills < MOST_KILLS:
            lease = await lease_of(kafka)
            coordinator = team[lease.agent_id]
            await coordinator.kill()
            kills += 1
            silent_ms = await one_life(kafka, lease, silent_ms)
            now, saved = await row(kafka)
            assert silent_ms is None or now == epoch, "nothing has happened to the members that live"
            coordinator.start()
            await coordinator.ready()
        assert silent_ms is None, f"after {kills} kills the dead member still holds its partitions"
        assert len(saved.members) == 2
        await kafka.progress(3)
        tell(f"the dead member was out after {kills} kills of coordinators")
        assert kafka.ledger.contradictions == []
        await kafka.finish_producers()
        await kafka.finish_groups()


async def a_member_joins_and_dies(kafka: KafkaStage) -> None:
    """The living have let go of the partitions that it was to get, and no member reads them."""
    client = await RawClient.open(kafka.address(await kafka.coordinator(GROUP)))
    try:
        assert await client.join_consumer_group(GROUP, DEAD, TOPIC) == 0
    finally:
        await client.close()

    async def reconciled() -> bool:
        _, saved = await row(kafka)
        living = [member for member in saved.members if member.member_id != DEAD]
        (dead,) = (member for member in saved.members if member.member_id == DEAD)
        return bool(dead.target) and all(not member.assigned & dead.target for member in living)

    await eventually("the living have let go of what the dead member was to get", reconciled)


async def one_life(kafka: KafkaStage, killed: Lease, before_ms: int) -> int | None:
    """Let a coordinator live until it has noted that the dead member was silent for longer, or for part of a session.

    Returns for how long the dead member is noted to be silent; None once it is out.
    """

    async def taken_over() -> bool:
        return (await lease_of(kafka)).epoch > killed.epoch

    await eventually("another agent coordinates", taken_over)
    silent_ms: int | None = before_ms
    with suppress(TimeoutError):
        async with asyncio.timeout(LIFE_S):
            while silent_ms is not None and silent_ms <= before_ms:
                await asyncio.sleep(0.05)
                silent_ms = await noted(kafka)
    return silent_ms


async def noted(kafka: KafkaStage) -> int | None:
    _, saved = await row(kafka)
    if all(member.member_id != DEAD for member in saved.members):
        return None
    return dict(saved.silent).get(DEAD, 0)


async def lease_of(kafka: KafkaStage) -> Lease:
    (lease,) = await kafka.stage.stores.metadata.list_leases(keys=[slot_of(GROUP)])
    return lease
