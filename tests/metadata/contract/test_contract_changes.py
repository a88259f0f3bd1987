"""Change notifications: what this process and every other commits wakes a subscriber."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from builders import TTL_MS, batch, intent, intent_slice, leaderless_slice, leased_slice
from harness import Backend, LedPartition

from streamhouse.core.ids import TopicId
from streamhouse.metadata.contract import (
    Change,
    ChangeKind,
    HeldLease,
    IntentKey,
    MetadataStore,
    NewTopic,
    OffsetCommit,
    SlotKey,
    WriteMode,
)

WAIT_S = 30
"""How long a notification may take before the test gives up; it is not what is tested."""


async def wait_for(changes: AsyncIterator[Change], wanted: Callable[[Change], bool]) -> list[Change]:
    """Everything that came up to and including the wanted change, or an ANY, which stands for all."""
    seen: list[Change] = []
    async with asyncio.timeout(WAIT_S):
        async for change in changes:
            seen.append(change)
            if change.kind is ChangeKind.ANY or wanted(change):
                return seen
    raise AssertionError("the subscription ended")


Act = Callable[[Backend, MetadataStore, LedPartition], Awaitable[object]]


async def commit_leased(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    await store.commit_leased(backend.append_id(), [leased_slice(led.key, backend.object(), epoch=led.epoch, base=0)])


async def create_topic(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    new = NewTopic(
        topic_id=TopicId(backend.uuid()), name="new", partition_count=1, configs={}, write_mode=WriteMode.LEADERLESS
    )
    await store.create_topic(new)


async def alter_topic(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    await store.alter_topic_configs(led.key.topic_id, set_configs={"a": "1"})


async def grow_topic(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    await store.grow_topic(led.key.topic_id, 3)


async def delete_topic(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    await store.delete_topic(led.key.topic_id)


async def take_over(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    await store.acquire_leases(backend.holder("agent-1"), [led.key], ttl_ms=TTL_MS)


async def take_slot(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    await store.acquire_leases(backend.holder("agent-1"), [SlotKey(3)], ttl_ms=TTL_MS)


async def release(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    await store.release_leases(led.holder, [HeldLease(key=led.key, epoch=led.epoch)])


async def transfer(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    await backend.register(backend.holder("target"))
    await store.initiate_transfer(
        backend.uuid(),
        HeldLease(key=led.key, epoch=led.epoch),
        holder=led.holder,
        to_agent="target",
        timeout_ms=1000,
    )


async def simple_commit(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    await store.commit_offsets_simple("group", [OffsetCommit(key=led.key, offset=1)])


async def ask_flush(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    await store.request_flush(backend.uuid(), [led.key], ttl_ms=1000)


async def register_intent(backend: Backend, store: MetadataStore, led: LedPartition) -> None:
    key = IntentKey(query_id="query", topic_id=led.key.topic_id, batch_id=0)
    await store.register_intent(intent(key, intent_slice(0, backend.object())))


CASES: list[tuple[Act, Callable[[LedPartition, Change], bool]]] = [
    (commit_leased, lambda led, change: change.kind is ChangeKind.COMMIT and led.key in change.keys),
    (create_topic, lambda led, change: change.kind is ChangeKind.TOPICS and change.name == "new"),
    (alter_topic, lambda led, change: change.kind is ChangeKind.TOPICS and change.name == "orders"),
    (grow_topic, lambda led, change: change.kind is ChangeKind.TOPICS and change.name == "orders"),
    (delete_topic, lambda led, change: change.kind is ChangeKind.TOPICS and change.name == "orders"),
    (take_over, lambda led, change: change.kind is ChangeKind.LEASES and led.key in change.keys),
    (take_slot, lambda led, change: change.kind is ChangeKind.LEASES and change.keys == ()),
    (release, lambda led, change: change.kind is ChangeKind.LEASES and led.key in change.keys),
    (transfer, lambda led, change: change.kind is ChangeKind.TRANSFERS and change.name == "target"),
    (simple_commit, lambda led, change: change.kind is ChangeKind.GROUPS and change.name == "group"),
    (ask_flush, lambda led, change: change.kind is ChangeKind.FLUSH and led.key in change.keys),
    (register_intent, lambda led, change: change.kind is ChangeKind.INTENTS and led.key in change.keys),
]


@pytest.mark.parametrize("other_process", [False, True], ids=["same-process", "other-process"])
@pytest.mark.parametrize(("act", "wanted"), CASES, ids=[act.__name__ for act, _ in CASES])
async def test_a_change_wakes_a_subscriber(
    backend: Backend, act: Act, wanted: Callable[[LedPartition, Change], bool], other_process: bool
) -> None:
    led = await backend.led("orders")
    listener = await backend.open_another() if other_process else backend.store
    async with listener.subscribe() as changes:
        await act(backend, backend.store, led)
        seen = await wait_for(changes, lambda change: wanted(led, change))
    if not other_process:
        assert seen[-1].kind is not ChangeKind.ANY


async def test_a_leaderless_commit_names_the_partitions_that_moved(backend: Backend) -> None:
    topic = await backend.topic(partitions=3, leaderless=True)
    one, _, three = topic.partition_keys()
    async with backend.store.subscribe() as changes:
        await backend.store.commit_leaderless(
            backend.append_id(), backend.object(), [leaderless_slice(key) for key in (one, three)]
        )
        seen = await wait_for(changes, lambda change: change.kind is ChangeKind.COMMIT)
    assert set(seen[-1].keys) == {one, three}


async def test_an_adoption_is_a_commit_and_an_answered_flush_is_told(backend: Backend) -> None:
    led = await backend.led()
    key = IntentKey(query_id="query", topic_id=led.key.topic_id, batch_id=0)
    await backend.store.register_intent(intent(key, intent_slice(0, backend.object())))
    request = backend.uuid()
    await backend.store.request_flush(request, [led.key], ttl_ms=1000)
    async with backend.store.subscribe() as changes:
        await backend.store.adopt_intent(key, 0, epoch=led.epoch, base_offset=0)
        seen = await wait_for(changes, lambda change: change.kind is ChangeKind.COMMIT)
        assert seen[-1].keys == (led.key,)
        await backend.store.complete_flushes([(request, led.key)])
        seen = await wait_for(changes, lambda change: change.kind is ChangeKind.FLUSH)
        assert seen[-1].keys == (led.key,)


async def test_a_renewal_is_no_change_of_leaders(backend: Backend) -> None:
    led = await backend.led()
    async with backend.store.subscribe() as changes:
        await backend.store.renew_leases(led.holder, [HeldLease(key=led.key, epoch=led.epoch)], ttl_ms=TTL_MS)
        await backend.topic("marker")
        seen = await wait_for(changes, lambda change: change.name == "marker")
    assert ChangeKind.LEASES not in {change.kind for change in seen}


async def test_every_subscriber_hears_and_one_that_left_does_not_matter(backend: Backend) -> None:
    async with backend.store.subscribe() as one:
        async with backend.store.subscribe() as two:
            await backend.topic("first")
            for changes in (one, two):
                await wait_for(changes, lambda change: change.name == "first")
        await backend.topic("second")
        await wait_for(one, lambda change: change.name == "second")


async def test_a_waiter_at_the_tail_finds_what_another_process_appended(backend: Backend) -> None:
    """Subscribe, look, wait, look again: nothing is missed, however the notification comes."""
    reader = await backend.open_another()
    led = await backend.led()

    async def read_at_the_tail() -> int:
        async with reader.subscribe() as changes:
            while True:
                (state,) = await reader.get_partitions([led.key])
                if state.high_watermark == 10:
                    return state.high_watermark
                async with asyncio.timeout(WAIT_S):
                    await anext(changes)

    waiting = asyncio.ensure_future(read_at_the_tail())
    for _ in range(10):
        await led.append(batch(1))
        await asyncio.sleep(0)
    assert await waiting == 10


async def test_closing_the_store_ends_its_subscriptions(backend: Backend) -> None:
    other = await backend.open_another()
    async with other.subscribe() as changes:
        collecting = asyncio.ensure_future(_drain(changes))
        await asyncio.sleep(0)
        await other.close()
        async with asyncio.timeout(WAIT_S):
            await collecting


async def _drain(changes: AsyncIterator[Change]) -> list[Change]:
    return [change async for change in changes]
