"""Retention that waits for consumer groups which have not read the records yet."""

from __future__ import annotations

from harness import Backend
from retention_stores import DAY_MS, HOUR_MS, led, starts, steps_of, write

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.retention.holds import GroupHolds, ReaderPlace
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.retention.passes import RetentionOutcome as O
from streamhouse.metadata.contract import OffsetCommit


async def commit(backend: Backend, group: str, key: PartitionKey, offset: int) -> None:
    assert await backend.store.commit_offsets_simple(group, [OffsetCommit(key=key, offset=offset)]) == []


async def test_the_slowest_group_of_a_partition_is_known_by_name(backend: Backend) -> None:
    log, other = await led(backend), await led(backend, "other")
    await commit(backend, "fast", log.key, 3)
    await commit(backend, "slow", log.key, 1)
    await commit(backend, "resets", log.key, -1)
    holds = GroupHolds(backend.store)
    assert await holds.slowest(log.key) == ReaderPlace(offset=1, reader="slow")
    assert await holds.slowest(other.key) is None


async def test_offsets_are_read_once_a_pass(backend: Backend) -> None:
    log = await led(backend)
    await commit(backend, "query", log.key, 1)
    holds = GroupHolds(backend.store)
    assert await holds.slowest(log.key) == ReaderPlace(offset=1, reader="query")
    await commit(backend, "query", log.key, 2)
    assert await holds.slowest(log.key) == ReaderPlace(offset=1, reader="query")
    await holds.new_pass()
    assert await holds.slowest(log.key) == ReaderPlace(offset=2, reader="query")


async def test_retention_waits_for_a_group_up_to_the_limit_of_the_topic(backend: Backend) -> None:
    log = await led(backend, retention_hold_ms=str(HOUR_MS))
    await write(log, 100, 100, 100)
    await commit(backend, "query", log.key, 1)
    await backend.advance(DAY_MS + HOUR_MS // 2)
    retention = Retention(metadata=backend.store)
    (step,) = await steps_of(retention)
    assert step.item is not None
    assert step.item.held is not None
    assert (step.outcome, step.item.held.slowest.reader) == (O.APPLIED, "query")
    assert await starts(backend, log.key) == (1, 3)
    await commit(backend, "query", log.key, 2)
    assert (await retention.run()).freed.entries == 1, "it has read one more"
    await backend.advance(HOUR_MS)
    assert (await retention.run()).freed.entries == 1, "its time is over"
    assert await starts(backend, log.key) == (3, 3)


async def test_a_topic_without_a_hold_waits_for_nobody(backend: Backend) -> None:
    log = await led(backend)
    await write(log, 100, 100)
    await commit(backend, "query", log.key, 0)
    await backend.advance(2 * DAY_MS)
    assert (await Retention(metadata=backend.store).run()).freed.entries == 2
