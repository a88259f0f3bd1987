"""Sink intents: one manifest per (query, topic, batch) is registered (R8)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from builders import START_MS, intent, intent_slice
from harness import Backend
from stories import sink

from streamhouse.core.errors import (
    BatchRegressed,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PartitionNotFound,
    TopicNotFound,
)
from streamhouse.core.ids import TopicId
from streamhouse.core.limits import MAX_INTENT_SLICES, MAX_NAME_BYTES
from streamhouse.metadata.contract import (
    IntentKey,
    IntentVerdict,
)


async def test_r8_the_first_manifest_wins(backend: Backend) -> None:
    query = await sink(backend)
    mine, other = query.manifest(), query.manifest()
    outcome = await backend.store.register_intent(mine)
    assert (outcome.verdict, outcome.intent) == (IntentVerdict.REGISTERED, mine)
    lost = await (await backend.open_another()).register_intent(other)
    assert (lost.verdict, lost.intent) == (IntentVerdict.PENDING, mine)
    assert await backend.store.get_intent(query.key()) == mine
    assert await backend.store.last_batch("query", query.topic.topic_id) == 0


async def test_r8_sending_the_winner_again_is_a_repeat(backend: Backend) -> None:
    query = await sink(backend)
    manifest = query.manifest()
    for _ in range(3):
        outcome = await backend.store.register_intent(manifest)
        assert (outcome.verdict, outcome.intent) == (IntentVerdict.REGISTERED, manifest)


async def test_r8_a_retry_that_routes_rows_differently_discards_its_own(backend: Backend) -> None:
    query = await sink(backend, partitions=3)
    first = query.manifest(0, 0, 1)
    await query.register(first)
    retry = query.manifest(0, 1, 2, count=5)
    assert await query.register(retry) is IntentVerdict.PENDING
    await query.adopt_all()
    assert await query.register(retry) is IntentVerdict.COMPLETE
    states = await backend.store.get_partitions(query.topic.partition_keys())
    assert [state.high_watermark for state in states] == [2, 2, 0]
    losers = [piece.object.key for piece in retry.slices]
    assert await backend.unreferenced(*losers) == set(losers)


async def test_r8_of_concurrent_manifests_one_wins(backend: Backend) -> None:
    query = await sink(backend)
    other = await backend.open_another()
    manifests = [query.manifest() for _ in range(6)]
    outcomes = await asyncio.gather(
        *((backend.store, other)[turn % 2].register_intent(one) for turn, one in enumerate(manifests))
    )
    assert sorted(outcome.verdict for outcome in outcomes) == [IntentVerdict.PENDING] * 5 + [IntentVerdict.REGISTERED]
    counts = {outcome.intent.slices for outcome in outcomes if outcome.intent}
    assert len(counts) == 1


async def test_r8_the_next_batch_waits_for_the_one_before(backend: Backend) -> None:
    query = await sink(backend)
    first, second = query.manifest(0), query.manifest(1)
    await query.register(first)
    early = await backend.store.register_intent(second)
    assert early.verdict is IntentVerdict.PREVIOUS_INCOMPLETE
    assert early.intent is not None
    assert early.intent.key == first.key
    assert await backend.store.get_intent(second.key) is None
    await query.adopt_all(0)
    assert await query.register(second) is IntentVerdict.REGISTERED


async def test_r8_a_batch_older_than_the_last_is_refused(backend: Backend) -> None:
    query = await sink(backend)
    await query.register(query.manifest(5))
    await query.adopt_all(5)
    with pytest.raises(BatchRegressed):
        await query.register(query.manifest(4))
    assert await query.register(query.manifest(9)) is IntentVerdict.REGISTERED
    with pytest.raises(BatchRegressed):
        await query.register(query.manifest(5))
    assert await backend.store.last_batch("query", query.topic.topic_id) == 9


async def test_r8_the_last_batch_never_expires(backend: Backend) -> None:
    query = await sink(backend)
    assert await backend.store.last_batch("query", query.topic.topic_id) is None
    manifest = query.manifest(3)
    await query.register(manifest)
    await query.adopt_all(3)
    await backend.advance(10 * 365 * 86_400_000)
    store = await backend.reopen()
    assert await store.last_batch("query", query.topic.topic_id) == 3
    assert (await store.register_intent(query.manifest(3))).verdict is IntentVerdict.COMPLETE
    again = await store.register_intent(manifest)
    assert again.verdict is IntentVerdict.REGISTERED
    assert again.intent is not None
    assert again.intent.complete


async def test_r8_queries_and_topics_are_told_apart(backend: Backend) -> None:
    """Two writes in one foreachBatch share (query, batch) and differ in the topic."""
    one, two = await sink(backend, "one"), await sink(backend, "two")
    third = dataclasses.replace(one, query_id="other")
    for query in (one, two, third):
        assert await query.register(query.manifest(0)) is IntentVerdict.REGISTERED
    assert await backend.store.last_batch("other", two.topic.topic_id) is None


async def test_a_batch_without_rows_is_complete_at_once(backend: Backend) -> None:
    query = await sink(backend)
    empty = intent(query.key(0))
    for _ in range(2):
        assert await query.register(empty) is IntentVerdict.COMPLETE
    assert await backend.store.last_batch("query", query.topic.topic_id) == 0
    assert await query.register(query.manifest(1)) is IntentVerdict.REGISTERED


async def test_r6_an_intent_over_an_object_older_than_the_horizon_is_refused(backend: Backend) -> None:
    query = await sink(backend)
    stale = query.manifest(0)
    await backend.advance(1)
    await backend.store.raise_gc_horizon(START_MS + 1)
    assert await query.register(stale) is IntentVerdict.STALE_OBJECT
    assert await backend.store.get_intent(query.key(0)) is None
    assert await query.register(query.manifest(0)) is IntentVerdict.REGISTERED


async def test_a_winner_is_told_its_verdict_again_though_the_horizon_rose(backend: Backend) -> None:
    query = await sink(backend)
    manifest = query.manifest(0)
    await query.register(manifest)
    await backend.advance(1)
    await backend.store.raise_gc_horizon(START_MS + 1)
    assert await query.register(manifest) is IntentVerdict.REGISTERED
    assert await query.register(query.manifest(0)) is IntentVerdict.PENDING


async def test_an_intent_needs_its_topic_and_partitions(backend: Backend) -> None:
    query = await sink(backend)
    with pytest.raises(PartitionNotFound):
        await query.register(query.manifest(0, 0, 2))
    foreign = IntentKey(query_id="query", topic_id=TopicId(backend.uuid()), batch_id=0)
    with pytest.raises(TopicNotFound):
        await query.register(intent(foreign, intent_slice(0, backend.object())))
    assert await backend.store.last_batch("query", query.topic.topic_id) is None


async def test_a_malformed_intent_is_refused(backend: Backend) -> None:
    query = await sink(backend)
    good = query.manifest(0, 0)
    (piece,) = good.slices
    for changed in (
        intent(dataclasses.replace(good.key, query_id=""), piece),
        intent(dataclasses.replace(good.key, query_id="a\0b"), piece),
        intent(dataclasses.replace(good.key, batch_id=-1), piece),
        intent(good.key, dataclasses.replace(piece, record_count=0)),
        intent(good.key, dataclasses.replace(piece, byte_length=0)),
        intent(good.key, dataclasses.replace(piece, byte_offset=-1)),
        intent(good.key, dataclasses.replace(piece, partition=-1)),
        intent(good.key, dataclasses.replace(piece, object=dataclasses.replace(piece.object, key=""))),
    ):
        with pytest.raises(InvalidRequest):
            await query.register(changed)
    with pytest.raises(LimitExceeded):
        await query.register(intent(dataclasses.replace(good.key, query_id="x" * (MAX_NAME_BYTES + 1)), piece))
    with pytest.raises(LimitExceeded):
        await query.register(intent(good.key, *[piece] * (MAX_INTENT_SLICES + 1)))


async def test_a_later_batch_replaces_the_manifest(backend: Backend) -> None:
    query = await sink(backend)
    await query.register(query.manifest(0))
    await query.adopt_all(0)
    done = await backend.store.get_intent(query.key(0))
    assert done is not None
    assert done.complete
    await query.register(query.manifest(1))
    assert await backend.store.get_intent(query.key(0)) is None
    assert await backend.store.get_intent(query.key(7)) is None
    with pytest.raises(NotFound):
        await backend.store.adopt_intent(query.key(0), 0, epoch=1, base_offset=0)
