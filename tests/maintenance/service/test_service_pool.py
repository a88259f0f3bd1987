"""The pool: how many tasks at a time, who works on a partition, and what becomes of errors and of a stop."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from compaction_ground import small_log
from service_ground import ServiceGround, WatchedMetadata, idle, keys, kinds, reached

from streamhouse.core.errors import MetadataUnavailable, PassIncomplete, StoreUnavailable
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.maintenance.compaction.claims import claim_name
from streamhouse.maintenance.compaction.stats import CompactionStats, PartitionFailure, PassResult
from streamhouse.maintenance.service.counters import ServiceStage, TaskOutcome
from streamhouse.maintenance.service.pool import outcome_of
from streamhouse.maintenance.service.targets import TaskKind


async def test_s2_12_a_partition_has_one_task_at_a_time_and_the_pool_is_bounded(sqlite_ground: ServiceGround) -> None:
    ground = sqlite_ground
    logs = [await small_log(ground, 4, name=name) for name in ("a", "b", "c")]
    watched = WatchedMetadata(ground.metadata)
    watched.held["begin_compaction"] = asyncio.Event()
    service = ground.service(metadata=watched, parallel=2)
    await service.discover()
    service.pool.start()
    await service.search()
    await reached(lambda: watched.calls["begin_compaction"] == 2)
    for _ in range(3):
        await service.search()
    queue = service.pool.queue
    assert (len(queue.running), queue.waiting) == (2, 1)
    assert queue.running < keys(*logs)
    assert watched.calls["begin_compaction"] == 2
    watched.held["begin_compaction"].set()
    await idle(service)
    assert [await kinds(log) for log in logs] == [["COMPACTED"]] * 3
    assert service.counters.tasks == {(TaskKind.SMALL_OBJECTS, TaskOutcome.DONE): 3}
    assert service.counters.stages[ServiceStage.SMALL_OBJECTS].count == 3


async def test_s2_13_a_partition_that_another_process_has_claimed_is_left_to_it(ground: ServiceGround) -> None:
    log = await small_log(ground, 4)
    await ground.metadata.acquire_claim(claim_name(log.key), owner="another", ttl_ms=60_000)
    service = ground.service()
    await service.discover()
    service.pool.start()
    await service.search()
    await idle(service)
    assert service.counters.tasks == {(TaskKind.SMALL_OBJECTS, TaskOutcome.BUSY): 1}
    assert len(await kinds(log)) == 4
    await ground.advance(61_000)  # it has died: its claim runs out
    await service.search()
    await idle(service)
    assert await kinds(log) == ["COMPACTED"]


async def test_s2_9_what_a_service_has_begun_is_finished_when_it_stops_and_claims_and_pins_are_given_back(
    ground: ServiceGround,
) -> None:
    log = await small_log(ground, 4)
    watched = WatchedMetadata(ground.metadata)
    watched.held["apply_compaction"] = asyncio.Event()
    service = ground.service(metadata=watched)
    await service.discover()
    service.pool.start()
    await service.search()
    await reached(lambda: watched.calls["apply_compaction"] == 1)
    assert len(await ground.metadata.list_compactions()) == 1
    assert len(await ground.metadata.list_claims()) == 1
    del watched.held["apply_compaction"]
    assert await service.close()
    assert await ground.metadata.list_compactions() == []
    assert await ground.metadata.list_claims() == []
    assert await ground.metadata.list_pins() == []
    assert await kinds(log) == ["COMPACTED"]
    assert await ground.read(log.key) == log.bytes


async def test_s2_9_a_service_that_is_cut_off_in_a_rewrite_leaves_nothing_behind(ground: ServiceGround) -> None:
    logs = [await small_log(ground, 4), await ground.keyed_topic()]
    before = [await log.entries() for log in logs]
    watched = WatchedMetadata(ground.metadata)
    watched.held["begin_compaction"] = asyncio.Event()
    service = ground.service(metadata=watched)
    await service.discover()
    service.pool.start()
    await service.search()
    await reached(lambda: watched.calls["begin_compaction"] == 2)
    assert len(await ground.metadata.list_claims()) == 2
    assert len(await ground.metadata.list_pins()) == 2
    assert await service.close()
    assert await ground.metadata.list_claims() == []
    assert await ground.metadata.list_pins() == []
    assert [await log.entries() for log in logs] == before


async def test_while_a_store_is_away_the_pool_pauses_tells_and_goes_on_by_itself(sqlite_ground: ServiceGround) -> None:
    ground = sqlite_ground
    log = await small_log(ground, 4)
    watched = WatchedMetadata(ground.metadata)
    service = ground.service(metadata=watched, parallel=1)
    await service.discover()
    await service.search()
    watched.errors["get_topic_by_id"] = MetadataUnavailable("gone")
    service.pool.start()
    await reached(lambda: "compaction worker 1" in ground.problems)
    assert len(await kinds(log)) == 4
    watched.errors.clear()
    await service.search()
    await idle(service)
    assert await kinds(log) == ["COMPACTED"]
    await reached(lambda: not ground.problems)


async def test_a_damaged_object_is_a_problem_until_a_search_finds_nothing_to_do_there(ground: ServiceGround) -> None:
    log, sound = await small_log(ground, 2), await small_log(ground, 4, name="sound")
    first = (await log.entries())[0]
    await ground.memory.delete([first.object_key])
    service = ground.service()
    await service.discover()
    service.pool.start()
    await service.search()
    await idle(service)
    assert await kinds(sound) == ["COMPACTED"], "the others go on"
    (problem,) = ground.problems.values()
    assert isinstance(problem, PassIncomplete)
    assert "orders/0" in str(problem)
    assert service.counters.tasks[TaskKind.SMALL_OBJECTS, TaskOutcome.FAILED] == 1
    await service.search()  # the missing entry is left out for a while, and the other one alone is not worth a task
    assert service.pool.queue.waiting == 0
    assert ground.problems == {}


async def test_while_the_object_store_is_away_a_task_is_no_problem_of_its_partition(
    sqlite_ground: ServiceGround,
) -> None:
    ground = sqlite_ground
    log = await small_log(ground, 4)
    objects = WatchedMetadata(ground.memory)  # type: ignore[arg-type]  # it watches any store
    objects.errors["get_ranges"] = StoreUnavailable("gone")
    service = ground.service(objects=objects, parallel=1)
    await service.discover()
    service.pool.start()
    await service.search()
    await reached(lambda: ground.problems)
    assert {where: type(error) for where, error in ground.problems.items()} == {"compaction worker 1": StoreUnavailable}
    objects.errors.clear()
    await service.search()
    await idle(service)
    assert await kinds(log) == ["COMPACTED"]
    await reached(lambda: not ground.problems)


@pytest.mark.parametrize(
    ("counted", "outcome"),
    [
        ({"runs": 1}, TaskOutcome.DONE),
        ({"recovered": 1}, TaskOutcome.DONE),
        ({"aborted": 1}, TaskOutcome.DONE),
        ({"runs": 1, "conflicts": 1}, TaskOutcome.DONE),
        ({"busy": 1}, TaskOutcome.BUSY),
        ({"conflicts": 1}, TaskOutcome.CONFLICT),
        ({}, TaskOutcome.NOTHING),
    ],
)
def test_the_outcome_of_a_task_follows_its_counters(counted: dict[str, int], outcome: TaskOutcome) -> None:
    result = PassResult(stats=CompactionStats(**counted), failures=(), partitions_left=0, more=False)
    assert outcome_of(result) is outcome


def test_a_task_with_a_failure_has_failed_whatever_else_it_did() -> None:
    failure = PartitionFailure(key=PartitionKey(TopicId(UUID(int=1)), 0), error=PassIncomplete("x"))
    result = PassResult(stats=CompactionStats(runs=3), failures=(failure,), partitions_left=0, more=True)
    assert outcome_of(result) is TaskOutcome.FAILED
