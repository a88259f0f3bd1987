"""Producer windows, producer ids and the memory of append ids (R5, R9)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from builders import START_MS, TTL_MS, batch, leaderless_slice, leased_slice
from harness import Backend, LedPartition

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_PRODUCER_ID_BLOCK, MAX_PRODUCERS_PER_PARTITION, PRODUCER_WINDOW
from streamhouse.metadata.contract import BatchVerdict, ProducerBatch, ProducerState, Verdict


async def windows(backend: Backend, key: PartitionKey) -> dict[int, ProducerState]:
    loaded = await backend.store.load_producers([key])
    assert set(loaded) == {key}
    return {state.producer_id: state for state in loaded[key].states}


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
    assert (len(loaded[missing].states), len(loaded[led.key].states)) == (0, 1)
    assert await backend.store.load_producers([]) == {}


async def test_a_take_over_finds_the_former_leader_s_windows(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(2, producer=1, sequence=0))
    await backend.advance(TTL_MS)
    other = await backend.open_another()
    await other.acquire_partition_lease(led.key, backend.holder("agent-2"), ttl_ms=TTL_MS)
    loaded = await other.load_producers([led.key])
    assert [one.producer_id for one in loaded[led.key].states] == [1]


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


# Pages (R22).

MINUTE_MS = 60_000


async def write_in_turn(backend: Backend, led: LedPartition, *producers: int) -> None:
    """One batch of each producer, a minute apart; the last one just now."""
    for producer in producers:
        await backend.advance(MINUTE_MS)
        await led.append(batch(1, producer=producer))


async def pages_of(
    backend: Backend, keys: list[PartitionKey], *, limit: int, idle_ms: int | None = None
) -> dict[PartitionKey, list[list[int]]]:
    """Producer ids by page, for each partition until it has no more."""
    found: dict[PartitionKey, list[list[int]]] = {key: [] for key in keys}
    after: dict[PartitionKey, ProducerState] = {}
    wanted = list(keys)
    while wanted:
        loaded = await backend.store.load_producers(wanted, limit=limit, after=after, idle_ms=idle_ms)
        assert set(loaded) == set(wanted)
        for key, page in loaded.items():
            found[key].append([state.producer_id for state in page.states])
            if page.states:
                after[key] = page.states[-1]
        wanted = [key for key in wanted if loaded[key].more]
    return found


async def test_r22_windows_are_loaded_in_pages_newest_first(backend: Backend) -> None:
    led = await backend.led()
    await write_in_turn(backend, led, 3, 1, 5, 4, 2)
    assert await pages_of(backend, [led.key], limit=2) == {led.key: [[2, 4], [5, 1], [3]]}
    assert await pages_of(backend, [led.key], limit=5) == {led.key: [[2, 4, 5, 1, 3]]}
    await led.append(batch(1, producer=1, sequence=1))
    assert await pages_of(backend, [led.key], limit=2) == {led.key: [[2, 1], [4, 5], [3]]}, "1 and 2 share a minute"


async def test_r22_windows_of_one_minute_are_on_one_page_each(backend: Backend) -> None:
    led = await backend.led()
    for producer in (2, 4, 1, 3, 5):
        await led.append(batch(1, producer=producer))
        await backend.advance(1)
    (pages,) = (await pages_of(backend, [led.key], limit=2)).values()
    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(producer for page in pages for producer in page) == [1, 2, 3, 4, 5]


async def test_r22_each_partition_has_pages_of_its_own(backend: Backend) -> None:
    many, few, none = [await backend.led(name) for name in ("many", "few", "none")]
    await write_in_turn(backend, many, *range(5))
    await write_in_turn(backend, few, 7)
    assert await pages_of(backend, [many.key, few.key, none.key], limit=2) == {
        many.key: [[4, 3], [2, 1], [0]],
        few.key: [[7]],
        none.key: [[]],
    }


async def test_r22_idle_producers_are_left_out_and_the_page_tells(backend: Backend) -> None:
    led = await backend.led()
    await write_in_turn(backend, led, 1, 2, 3)
    for idle_ms, expected in ((None, [3, 2, 1]), (2 * MINUTE_MS, [3, 2, 1]), (2 * MINUTE_MS - 1, [3, 2]), (0, [3])):
        page = (await backend.store.load_producers([led.key], idle_ms=idle_ms))[led.key]
        assert [state.producer_id for state in page.states] == expected
        assert (page.forgotten_up_to, page.highest_id) == (3 - len(expected) or -1, 3)
        assert not page.more


async def test_r22_a_page_has_a_size(backend: Backend) -> None:
    led = await backend.led()
    for limit in (0, -1):
        with pytest.raises(InvalidRequest):
            await backend.store.load_producers([led.key], limit=limit)
    with pytest.raises(LimitExceeded):
        await backend.store.load_producers([led.key], limit=MAX_PRODUCERS_PER_PARTITION + 1)
    with pytest.raises(InvalidRequest):
        await backend.store.load_producers([led.key], idle_ms=-1)


async def test_r22_a_partition_that_lost_windows_to_expiry_says_so_for_ever(backend: Backend) -> None:
    led, other = await backend.led("expired"), await backend.led("fresh")
    await led.append(batch(1, producer=5), batch(1, producer=1))
    await backend.advance(1000)
    await other.append(batch(1, producer=1))
    assert await backend.store.expire_producers(idle_ms=999, limit=1) == 1
    assert await backend.store.expire_producers(idle_ms=999, limit=10) == 1
    for reopened in (False, True):
        store = await backend.reopen() if reopened else backend.store
        loaded = await store.load_producers([led.key, other.key])
        expired, fresh = loaded[led.key], loaded[other.key]
        assert (expired.states, expired.forgotten_up_to, expired.highest_id) == ((), 5, -1)
        assert (len(fresh.states), fresh.forgotten_up_to, fresh.highest_id) == (1, -1, 1)


async def test_r21_producers_of_an_earlier_topic_of_the_same_name_may_be_forgotten(backend: Backend) -> None:
    """librdkafka gives up for good when a living producer is told that it must start at 0 in a topic made again."""
    ids = await backend.store.allocate_producer_ids(10)
    led = await backend.led("again")
    page = (await backend.store.load_producers([led.key]))[led.key]
    assert (page.forgotten_up_to, page.highest_id) == (-1, -1), "a name that was never there before"
    await backend.store.delete_topic(led.key.topic_id)
    topic = await backend.topic("again", partitions=2)
    other = await backend.topic("other")
    pages = await backend.store.load_producers([*topic.partition_keys(), *other.partition_keys()])
    newest = ids.stop - 1
    assert [page.forgotten_up_to for page in pages.values()] == [newest, newest, -1]


async def test_r22_a_producer_that_wrote_again_is_not_expired(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(1, producer=1), batch(1, producer=2))
    await backend.advance(1000)
    await led.append(batch(1, producer=1, sequence=1))
    assert await backend.store.expire_producers(idle_ms=500, limit=10) == 1
    found = await windows(backend, led.key)
    assert [one.base_sequence for one in found[1].batches] == [0, 1]
    assert set(found) == {1}


async def test_r22_expiry_and_commits_at_the_same_time_lose_no_window(backend: Backend) -> None:
    """Each producer writes while its window is due. Whatever the order, its last batch is in a window afterwards."""
    led, other = await backend.led(), await backend.open_another()
    for sequence in range(5):
        await led.append(*(batch(1, producer=producer, sequence=sequence) for producer in range(20)))
        await backend.advance(10_000)
        await asyncio.gather(
            other.expire_producers(idle_ms=5_000, limit=7),
            led.append(*(batch(1, producer=producer, sequence=100 + sequence) for producer in range(20))),
            backend.store.expire_producers(idle_ms=5_000, limit=7),
        )
        found = await windows(backend, led.key)
        assert {found[producer].batches[-1].base_sequence for producer in range(20)} == {100 + sequence}


async def test_r22_sweeps_at_the_same_time_share_the_work(backend: Backend) -> None:
    topics = [await backend.led(f"t{number}") for number in range(4)]
    for led in topics:
        await led.append(*(batch(1, producer=producer) for producer in range(10)))
    await backend.advance(10_000)
    stores = [backend.store, *[await backend.open_another() for _ in range(3)]]
    gone = 0
    while counts := await asyncio.gather(*(store.expire_producers(idle_ms=1, limit=4) for store in stores)):
        gone += sum(counts)
        if not any(counts):
            break
    assert gone == 40


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


async def test_r5_an_append_id_is_kept_for_its_time_though_its_objects_are_below_the_horizon(backend: Backend) -> None:
    """A resubmitted record has a new object each time: only the time keeps its first commit known (R4)."""
    led = await backend.led()
    append = backend.append_id()
    piece = leased_slice(led.key, backend.object(), batch(2), epoch=led.epoch, base=0)
    await backend.store.commit_leased(append, [piece])
    await backend.advance(1000)
    await backend.store.raise_gc_horizon(backend.now_ms)
    assert await backend.store.expire_commits(keep_ms=1000, limit=10) == 0
    later = leased_slice(led.key, backend.object(created_at_ms=backend.now_ms), batch(2), epoch=led.epoch, base=0)
    (again,) = await backend.store.commit_leased(append, [later])
    assert (again.verdict, again.repeated) == (Verdict.COMMITTED, True)
    await backend.advance(1)
    assert await backend.store.expire_commits(keep_ms=1000, limit=10) == 1


async def test_expiring_appends_stops_at_its_limit(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    for _ in range(5):
        await backend.store.commit_leaderless(backend.append_id(), backend.object(), [leaderless_slice(key)])
    await backend.advance(1000)
    await backend.store.raise_gc_horizon(backend.now_ms)
    assert [await backend.store.expire_commits(keep_ms=10, limit=2) for _ in range(4)] == [2, 2, 1, 0]
