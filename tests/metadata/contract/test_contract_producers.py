"""Producer windows, producer ids and the memory of append ids (R5, R9)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from builders import START_MS, TTL_MS, batch, leaderless_slice, leased_slice
from harness import Backend

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_PRODUCER_ID_BLOCK, PRODUCER_WINDOW
from streamhouse.metadata.contract import BatchVerdict, ProducerBatch, ProducerState, Verdict


async def windows(backend: Backend, key: PartitionKey) -> dict[int, ProducerState]:
    loaded = await backend.store.load_producers([key])
    assert set(loaded) == {key}
    return {state.producer_id: state for state in loaded[key]}


async def test_r9_the_windows_are_committed_with_the_entry(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(3, producer=1, epoch=2, sequence=10), batch(1), batch(2, producer=9, sequence=0))
    found = await windows(backend, led.key)
    assert found[1] == ProducerState(
        producer_id=1,
        producer_epoch=2,
        batches=(ProducerBatch(base_sequence=10, record_count=3, base_offset=0),),
        updated_at_ms=backend.now_ms,
    )
    assert found[9].batches == (ProducerBatch(base_sequence=0, record_count=2, base_offset=4),)
    assert set(found) == {1, 9}


async def test_r9_the_last_five_batches_survive_reopening_in_order(backend: Backend) -> None:
    led = await backend.led()
    for sequence in range(PRODUCER_WINDOW + 2):
        await led.append(batch(1, producer=1, sequence=sequence))
        await backend.advance(1)
    await backend.reopen()
    state = (await windows(backend, led.key))[1]
    assert [one.base_sequence for one in state.batches] == [2, 3, 4, 5, 6]
    assert [one.base_offset for one in state.batches] == [2, 3, 4, 5, 6]
    assert state.updated_at_ms == backend.now_ms - 1


async def test_r9_a_leader_s_batches_are_recorded_as_told(backend: Backend) -> None:
    """It has deduplicated already; a second judgement could only refuse what it has acknowledged."""
    led = await backend.led()
    outcome = await led.append(
        batch(1, producer=1, sequence=0), batch(1, producer=1, sequence=50), batch(1, producer=1, sequence=0)
    )
    assert outcome.batches == ()
    state = (await windows(backend, led.key))[1]
    assert [one.base_sequence for one in state.batches] == [0, 50, 0]
    assert await backend.watermark(led.key) == 3


async def test_r9_a_new_epoch_replaces_the_window(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(1, producer=1, epoch=0, sequence=0), batch(1, producer=1, epoch=1, sequence=0))
    state = (await windows(backend, led.key))[1]
    assert (state.producer_epoch, [one.base_offset for one in state.batches]) == (1, [1])


async def test_r9_a_refused_commit_leaves_the_windows_alone(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(1, producer=1, sequence=0))
    before = await windows(backend, led.key)
    for epoch, base in ((led.epoch, 5), (led.epoch, 0), (led.epoch + 1, 1)):
        piece = leased_slice(led.key, backend.object(), batch(1, producer=1, sequence=1), epoch=epoch, base=base)
        (outcome,) = await backend.store.commit_leased(backend.append_id(), [piece])
        assert outcome.verdict is not Verdict.COMMITTED
    assert await windows(backend, led.key) == before


async def test_r5_a_repeated_commit_records_its_batches_once(backend: Backend) -> None:
    led = await backend.led()
    piece = leased_slice(led.key, backend.object(), batch(1, producer=1, sequence=0), epoch=led.epoch, base=0)
    append = backend.append_id()
    for _ in range(3):
        await backend.store.commit_leased(append, [piece])
    assert len((await windows(backend, led.key))[1].batches) == 1


async def test_every_key_asked_for_is_in_the_answer(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(1, producer=1))
    missing = PartitionKey(TopicId(backend.uuid()), 0)
    loaded = await backend.store.load_producers([missing, led.key])
    assert set(loaded) == {missing, led.key}
    assert (len(loaded[missing]), len(loaded[led.key])) == (0, 1)
    assert await backend.store.load_producers([]) == {}


async def test_a_take_over_finds_the_former_leader_s_windows(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(2, producer=1, sequence=0))
    await backend.advance(TTL_MS)
    other = await backend.open_another()
    await other.acquire_partition_lease(led.key, backend.holder("agent-2"), ttl_ms=TTL_MS)
    loaded = await other.load_producers([led.key])
    assert [one.producer_id for one in loaded[led.key]] == [1]


async def test_r21_a_forgotten_producer_is_unknown_until_it_starts_again_at_0(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)

    async def commit(producer: int, sequence: int) -> BatchVerdict:
        piece = leaderless_slice(key, batch(1, producer=producer, sequence=sequence))
        (outcome,) = await backend.store.commit_leaderless(backend.append_id(), backend.object(), [piece])
        return outcome.batches[0].verdict

    await commit(1, 0)
    await backend.advance(999)
    await commit(2, 0)
    assert await backend.store.expire_producers(idle_ms=1000, limit=10) == 0
    await backend.advance(2)
    assert await backend.store.expire_producers(idle_ms=1000, limit=10) == 1
    assert await backend.store.expire_producers(idle_ms=1000, limit=10) == 0
    assert set(await windows(backend, key)) == {2}
    assert await commit(1, 1) is BatchVerdict.UNKNOWN_PRODUCER
    assert await commit(1, 0) is BatchVerdict.APPENDED
    assert await commit(2, 77) is BatchVerdict.OUT_OF_ORDER


async def test_expiring_producers_stops_at_its_limit(backend: Backend) -> None:
    led = await backend.led()
    await led.append(*(batch(1, producer=producer) for producer in range(5)))
    await backend.advance(10)
    assert [await backend.store.expire_producers(idle_ms=5, limit=2) for _ in range(4)] == [2, 2, 1, 0]


# Producer ids.


async def test_blocks_of_producer_ids_never_overlap(backend: Backend) -> None:
    other = await backend.open_another()
    blocks = await asyncio.gather(
        *((backend.store, other)[turn % 2].allocate_producer_ids(turn + 1) for turn in range(12))
    )
    assert [len(block) for block in blocks] == list(range(1, 13))
    given = [producer for block in blocks for producer in block]
    assert len(set(given)) == len(given)
    assert min(given) >= 0
    store = await backend.reopen()
    assert (await store.allocate_producer_ids(1))[0] > max(given)


async def test_a_block_of_no_or_too_many_producer_ids_is_refused(backend: Backend) -> None:
    for count in (0, -1):
        with pytest.raises(InvalidRequest):
            await backend.store.allocate_producer_ids(count)
    with pytest.raises(LimitExceeded):
        await backend.store.allocate_producer_ids(MAX_PRODUCER_ID_BLOCK + 1)


# Append ids.


async def test_r5_append_ids_outlive_the_horizon(backend: Backend) -> None:
    led = await backend.led()
    append = backend.append_id()
    piece = leased_slice(led.key, backend.object(), batch(2), epoch=led.epoch, base=0)
    (first,) = await backend.store.commit_leased(append, [piece])
    await backend.advance(1_000_000)
    assert await backend.store.expire_commits(keep_ms=1000, limit=10) == 0
    await backend.store.raise_gc_horizon(START_MS)
    assert await backend.store.expire_commits(keep_ms=1000, limit=10) == 0
    (again,) = await backend.store.commit_leased(append, [piece])
    assert again == dataclasses.replace(first, repeated=True)
    await backend.store.raise_gc_horizon(START_MS + 1)
    assert await backend.store.expire_commits(keep_ms=2_000_000, limit=10) == 0
    assert await backend.store.expire_commits(keep_ms=1000, limit=10) == 1
    assert await backend.store.expire_commits(keep_ms=1000, limit=10) == 0
    (late,) = await backend.store.commit_leased(append, [piece])
    assert (late.verdict, late.repeated) == (Verdict.STALE_OBJECT, False)
    assert await backend.watermark(led.key) == 2


async def test_r5_an_append_is_kept_while_any_of_its_objects_could_be_committed(backend: Backend) -> None:
    topic = await backend.topic(partitions=2)
    await backend.store.acquire_leases(backend.holder(), topic.partition_keys(), ttl_ms=TTL_MS)
    old, new = backend.object(created_at_ms=START_MS), backend.object(created_at_ms=START_MS + 500)
    slices = [
        leased_slice(topic.partition_keys()[0], new, epoch=1, base=0),
        leased_slice(topic.partition_keys()[1], old, epoch=1, base=0),
    ]
    await backend.store.commit_leased(backend.append_id(), slices)
    await backend.advance(10_000)
    await backend.store.raise_gc_horizon(START_MS + 500)
    assert await backend.store.expire_commits(keep_ms=1, limit=10) == 0
    await backend.store.raise_gc_horizon(START_MS + 501)
    assert await backend.store.expire_commits(keep_ms=1, limit=10) == 1


async def test_expiring_appends_stops_at_its_limit(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    for _ in range(5):
        await backend.store.commit_leaderless(backend.append_id(), backend.object(), [leaderless_slice(key)])
    await backend.advance(1000)
    await backend.store.raise_gc_horizon(backend.now_ms)
    assert [await backend.store.expire_commits(keep_ms=10, limit=2) for _ in range(4)] == [2, 2, 1, 0]
