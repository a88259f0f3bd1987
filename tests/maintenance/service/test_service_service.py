"""The service with all its parts, on each metadata store: what it compacts, deletes and tells, and how it stops."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from compaction_ground import AT_ONCE, rules_with, small_log
from keyed_logs import keyed, pairs_of
from service_ground import ServiceGround, WatchedMetadata, idle, kinds, reached

from streamhouse.core.errors import ConfigError
from streamhouse.core.limits import MIB
from streamhouse.maintenance.service import ServiceOptions
from streamhouse.maintenance.service.counters import ServiceStage, TaskOutcome
from streamhouse.maintenance.service.service import VACUUM_CLAIM, claim_ttl_ms
from streamhouse.maintenance.service.targets import TaskKind
from streamhouse.objectstore.keys import SharedBlobKey

HOUR_MS = 3_600_000


async def test_s2_12_small_objects_and_keys_are_compacted_and_readers_see_the_same(ground: ServiceGround) -> None:
    log = await small_log(ground, 8)
    table = await ground.keyed_topic()
    service = ground.service()
    await service.discover()
    service.pool.start()
    await service.search()
    await idle(service)
    assert await kinds(log) == ["COMPACTED"]
    assert await ground.read(log.key) == log.bytes
    assert await kinds(table) == ["COMPACTED", "WAL"], "the newest entry stays as it is (R18)"
    assert pairs_of(await ground.seen_from(table.key, 0)) == [(1, b"k", b"new"), (2, b"k", b"newest")]
    assert service.counters.tasks == {
        (TaskKind.SMALL_OBJECTS, TaskOutcome.DONE): 1,
        (TaskKind.KEYS, TaskOutcome.DONE): 1,
    }
    assert service.key_compactor.stats.superseded == 1
    await service.search()
    await idle(service)
    assert service.counters.lag[TaskKind.SMALL_OBJECTS].candidates == 0
    assert await ground.metadata.list_claims() == []
    assert await ground.metadata.list_pins() == []


async def test_s2_12_a_topic_that_is_created_later_is_discovered(ground: ServiceGround) -> None:
    service = ground.service()
    await service.discover()
    service.pool.start()
    log = await small_log(ground, 4, name="later")
    await service.search()
    assert service.pool.queue.waiting == 0
    await service.discover()
    await service.search()
    await idle(service)
    assert await kinds(log) == ["COMPACTED"]
    assert service.counters.discovered == 1


async def test_s2_12_chosen_topics_alone_are_looked_after(ground: ServiceGround) -> None:
    orders, other = await small_log(ground, 4, name="orders"), await small_log(ground, 4, name="other")
    service = ground.service(names=frozenset({"orders"}))
    await service.discover()
    service.pool.start()
    await service.search()
    await idle(service)
    assert (await kinds(orders), len(await kinds(other))) == (["COMPACTED"], 4)


async def test_s3_2_retention_moves_the_log_start_of_chosen_topics_alone(ground: ServiceGround) -> None:
    logs = [await small_log(ground, 4, name=name) for name in ("orders", "other")]
    await ground.advance(48 * HOUR_MS)  # twice the default of retention.ms
    service = ground.service(names=frozenset({"orders"}))
    await service.discover()
    await service.retain()
    assert [await log.entries() == () for log in logs] == [True, False]
    assert service.counters.retention_records == logs[0].next_offset


async def test_s2_13_two_services_share_the_partitions_and_no_log_changes(ground: ServiceGround) -> None:
    logs = [await small_log(ground, 5, name=f"topic-{number}", seed=number) for number in range(6)]
    services = [ground.service(owner=owner) for owner in ("c-1", "c-2")]
    for service in services:
        await service.discover()
        service.pool.start()
    await asyncio.gather(*(service.search() for service in services))
    for service in services:
        await idle(service)
    assert [await kinds(log) for log in logs] == [["COMPACTED"]] * 6
    assert sum(service.compactor.stats.runs for service in services) == 6
    for log in logs:
        assert await ground.read(log.key) == log.bytes


async def test_a_stop_while_the_metadata_store_is_away_ends_in_time_and_says_so(sqlite_ground: ServiceGround) -> None:
    ground = sqlite_ground
    watched = WatchedMetadata(ground.metadata)
    watched.held["release_claim"] = asyncio.Event()
    service = ground.service(metadata=watched, stop_timeout_ms=50)
    await service.discover()
    assert not await service.close()


async def test_s2_45_vacuum_deletes_garbage_and_counts_what_is_stored_if_it_has_the_claim(
    ground: ServiceGround,
) -> None:
    log = await small_log(ground, 4)
    garbage = str(SharedBlobKey(created_ms=1, object_id=UUID(int=1)))
    await ground.memory.put(garbage, b"left by a writer that died")
    service = ground.service()
    await ground.metadata.acquire_claim(VACUUM_CLAIM, owner="an agent", ttl_ms=60_000)
    await service.vacuum()
    assert (await ground.memory.head(garbage)).size_bytes > 0, "the process with the claim vacuums"
    assert ground.usage == {}
    await ground.metadata.release_claim(VACUUM_CLAIM, owner="an agent")
    await service.vacuum()
    stored = {info.key: info.size_bytes async for info in ground.memory.list()}
    assert stored.keys() == {entry.object_key for entry in await log.entries()}
    assert service.counters.vacuum_objects == 1
    assert sum(each.bytes for each in ground.usage.values()) == sum(stored.values())
    assert [claim.name for claim in await ground.metadata.list_claims()] == [VACUUM_CLAIM]
    assert await service.close()
    assert await ground.metadata.list_claims() == []


async def test_s2_12_once_started_everything_runs_by_itself(ground: ServiceGround) -> None:
    log = await small_log(ground, 4)
    service = ground.service(
        compaction_interval_ms=1_000, discovery_interval_ms=1_000, retention_interval_ms=1_000, vacuum_interval_ms=1_000
    )
    await service.start()
    assert len(service.targets) == 1
    later = await small_log(ground, 4, name="later", seed=2)
    await reached(lambda: service.compactor.stats.runs == 2)
    assert [await kinds(each) for each in (log, later)] == [["COMPACTED"]] * 2
    wanted = {ServiceStage.DISCOVERY, ServiceStage.SEARCH, ServiceStage.RETENTION, ServiceStage.VACUUM}
    await reached(lambda: wanted <= service.counters.passes.keys())
    assert ground.problems == {}
    assert service.counters.failed_passes == 0


async def test_with_chosen_topics_there_is_no_vacuum(sqlite_ground: ServiceGround) -> None:
    service = sqlite_ground.service(names=frozenset({"orders"}), vacuum_interval_ms=1, retention_interval_ms=1)
    await service.start()
    await reached(lambda: service.counters.passes[ServiceStage.RETENTION] > 20)
    assert service.counters.passes[ServiceStage.VACUUM] == 0


async def test_an_altered_policy_gives_a_partition_the_other_kind_of_task(ground: ServiceGround) -> None:
    log = await ground.log("table")
    for value in (b"old", b"new", b"newest"):
        await log.write(keyed((b"k", value)))
    await ground.advance(1)
    service = ground.service(rules=rules_with(AT_ONCE, large_entry_bytes=1))
    await service.discover()
    service.pool.start()
    await service.search()
    await idle(service)
    assert len(await kinds(log)) == 3, "no entry is small"
    await ground.metadata.alter_topic_configs(
        log.topic.topic_id, set_configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    )
    await service.discover()
    await service.search()
    await idle(service)
    assert pairs_of(await ground.seen_from(log.key, 0)) == [(1, b"k", b"new"), (2, b"k", b"newest")]


@pytest.mark.parametrize(
    "wrong", [{"parallel": 0}, {"parallel": 17}, {"bytes_per_second": 1_000}, {"discovery_interval_ms": 10}]
)
def test_options_that_make_no_sense_name_their_flag(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServiceOptions(**wrong)  # type: ignore[arg-type]
    assert "--" in str(caught.value)


def test_a_claim_lasts_for_longer_than_a_slow_read_takes() -> None:
    assert claim_ttl_ms(32 * MIB, 2) == 60_000
    assert claim_ttl_ms(64 * 1024, 4) == 4 * 4 * 128_000
    assert claim_ttl_ms(1, 16) == 24 * HOUR_MS
