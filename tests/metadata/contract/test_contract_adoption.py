"""Adopting a sink intent: each partition takes its share once, under its own fence (R13)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from builders import TTL_MS, assert_dense, batch, intent, intent_slice, leased_slice
from harness import Backend
from stories import Sink, sink

from streamhouse.core.errors import (
    NotFound,
)
from streamhouse.metadata.contract import (
    EntryKind,
    IntentVerdict,
    LogState,
    Verdict,
)


async def test_r13_adoption_puts_every_slice_into_the_log_in_order(backend: Backend) -> None:
    query = await sink(backend)
    one, two = query.topic.partition_keys()
    first, second, other = (backend.object() for _ in range(3))
    manifest = intent(
        query.key(),
        intent_slice(0, first, 3, byte_offset=100, at_ms=50),
        intent_slice(1, other, 4),
        intent_slice(0, second, 2, byte_offset=700, at_ms=40),
    )
    await query.register(manifest)
    outcome = await backend.store.adopt_intent(query.key(), 0, epoch=1, base_offset=0)
    assert (outcome.key, outcome.verdict, outcome.repeated) == (one, Verdict.COMMITTED, False)
    assert (outcome.base_offset, outcome.end_offset, outcome.high_watermark) == (0, 4, 5)
    entries = await backend.entries(one)
    assert [(entry.base_offset, entry.end_offset, entry.kind) for entry in entries] == [
        (0, 2, EntryKind.WAL),
        (3, 4, EntryKind.WAL),
    ]
    assert [(entry.object_key, entry.byte_offset, entry.byte_length) for entry in entries] == [
        (first.key, 100, 300),
        (second.key, 700, 200),
    ]
    assert [(entry.min_timestamp_ms, entry.max_timestamp_ms, entry.epoch) for entry in entries] == [
        (50, 50, 1),
        (40, 40, 1),
    ]
    halfway = await backend.store.get_intent(query.key())
    assert halfway is not None
    assert (halfway.adopted, halfway.complete) == (frozenset({0}), False)
    assert await backend.watermark(two) == 0
    await backend.store.adopt_intent(query.key(), 1, epoch=1, base_offset=0)
    done = await backend.store.get_intent(query.key())
    assert done is not None
    assert (done.adopted, done.complete) == (frozenset({0, 1}), True)


async def test_r8_the_winner_is_never_told_to_discard_what_is_in_the_log(backend: Backend) -> None:
    query = await sink(backend)
    manifest = query.manifest()
    await query.register(manifest)
    await query.adopt_all()
    outcome = await backend.store.register_intent(manifest)
    assert outcome.verdict is IntentVerdict.REGISTERED
    assert outcome.intent is not None
    assert outcome.intent.complete
    assert await query.register(query.manifest()) is IntentVerdict.COMPLETE


async def test_r13_adoption_is_judged_like_a_leased_commit(backend: Backend) -> None:
    query = await sink(backend)
    (key, _) = query.topic.partition_keys()
    await query.register(query.manifest())
    await backend.store.commit_leased(
        backend.append_id(), [leased_slice(key, backend.object(), batch(5), epoch=1, base=0)]
    )
    for epoch, base, verdict in (
        (2, 5, Verdict.FENCED),
        (1, 6, Verdict.NOT_YET),
        (1, 0, Verdict.TAKEN),
        (1, 4, Verdict.TAKEN),
    ):
        outcome = await backend.store.adopt_intent(query.key(), 0, epoch=epoch, base_offset=base)
        assert (outcome.verdict, outcome.high_watermark, outcome.leader_epoch) == (verdict, 5, 1)
    await backend.store.set_log_state(key, LogState.FENCED)
    outcome = await backend.store.adopt_intent(query.key(), 0, epoch=1, base_offset=5)
    assert outcome.verdict is Verdict.FENCED
    await backend.store.set_log_state(key, LogState.OPEN)
    assert await backend.watermark(key) == 5
    outcome = await backend.store.adopt_intent(query.key(), 0, epoch=1, base_offset=5)
    assert (outcome.verdict, outcome.base_offset, outcome.end_offset) == (Verdict.COMMITTED, 5, 6)


async def test_r13_an_adopted_share_answers_at_its_first_offsets_for_ever(backend: Backend) -> None:
    query = await sink(backend)
    (key, _) = query.topic.partition_keys()
    await query.register(query.manifest())
    first = await backend.store.adopt_intent(query.key(), 0, epoch=1, base_offset=0)
    await backend.store.commit_leased(
        backend.append_id(), [leased_slice(key, backend.object(), batch(5), epoch=1, base=2)]
    )
    await backend.advance(TTL_MS)
    await backend.lead(key, backend.holder("agent-2"))
    await backend.store.raise_gc_horizon(backend.now_ms)
    for epoch, base in ((1, 0), (2, 7), (1, 99)):
        again = await backend.store.adopt_intent(query.key(), 0, epoch=epoch, base_offset=base)
        assert (again.verdict, again.repeated) == (Verdict.COMMITTED, True)
        assert (again.base_offset, again.end_offset) == (first.base_offset, first.end_offset)
    assert await backend.watermark(key) == 7


async def test_r13_a_new_leader_finishes_what_the_old_one_left(backend: Backend) -> None:
    query = await sink(backend, partitions=3)
    await query.register(query.manifest(0, 0, 1, 2))
    await backend.store.adopt_intent(query.key(), 1, epoch=1, base_offset=0)
    await backend.advance(TTL_MS)
    other = await backend.open_another()
    leader = backend.holder("agent-2")
    await other.acquire_leases(leader, query.topic.partition_keys(), ttl_ms=TTL_MS)
    left = await other.list_unadopted(query.topic.partition_keys())
    assert left == [(query.key(), 0), (query.key(), 2)]
    stale = await backend.store.adopt_intent(query.key(), 0, epoch=1, base_offset=0)
    assert stale.verdict is Verdict.FENCED
    for key, partition in left:
        outcome = await other.adopt_intent(key, partition, epoch=2, base_offset=0)
        assert outcome.verdict is Verdict.COMMITTED
    assert await other.list_unadopted(query.topic.partition_keys()) == []
    states = await backend.store.get_partitions(query.topic.partition_keys())
    assert [state.high_watermark for state in states] == [2, 2, 2]


async def test_r13_two_leaders_racing_to_adopt_add_the_rows_once(backend: Backend) -> None:
    other = await backend.open_another()
    query = await sink(backend, partitions=1)
    (key,) = query.topic.partition_keys()
    epoch, watermark = 1, 0
    for number in range(8):
        await query.register(query.manifest(number, 0))
        await backend.advance(TTL_MS)

        async def take_over_and_adopt(batch_id: int = number) -> int:
            lease = await other.acquire_partition_lease(key, backend.holder(f"taker-{batch_id}"), ttl_ms=TTL_MS)
            await other.adopt_intent(query.key(batch_id), 0, epoch=lease.epoch, base_offset=lease.high_watermark)
            return lease.epoch

        epoch, outcome = await asyncio.gather(
            take_over_and_adopt(),
            backend.store.adopt_intent(query.key(number), 0, epoch=epoch, base_offset=watermark),
        )
        assert outcome.verdict in (Verdict.COMMITTED, Verdict.FENCED)
        watermark += 2
        assert await backend.watermark(key) == watermark
        found = await backend.store.get_intent(query.key(number))
        assert found is not None
        assert found.complete
    assert_dense(await backend.entries(key), log_start=0, watermark=watermark)


async def test_r13_concurrent_adoptions_by_one_leader_add_the_rows_once(backend: Backend) -> None:
    other = await backend.open_another()
    query = await sink(backend)
    await query.register(query.manifest())
    outcomes = await asyncio.gather(
        *(
            store.adopt_intent(query.key(), 0, epoch=1, base_offset=0)
            for store in (backend.store, other, backend.store, other)
        )
    )
    assert {(one.verdict, one.base_offset, one.end_offset) for one in outcomes} == {(Verdict.COMMITTED, 0, 1)}
    assert [one.repeated for one in outcomes].count(False) == 1
    assert len(await backend.entries(query.topic.partition_keys()[0])) == 1


async def test_r13_a_commit_and_an_adoption_at_one_offset_one_wins(backend: Backend) -> None:
    other = await backend.open_another()
    query = await sink(backend, partitions=1)
    (key,) = query.topic.partition_keys()
    watermark = 0
    for number in range(8):
        await query.register(query.manifest(number, 0))
        piece = leased_slice(key, backend.object(), batch(3), epoch=1, base=watermark)
        committing, adopted = await asyncio.gather(
            other.commit_leased(backend.append_id(), [piece]),
            backend.store.adopt_intent(query.key(number), 0, epoch=1, base_offset=watermark),
        )
        (committed,) = committing
        assert {committed.verdict, adopted.verdict} == {Verdict.COMMITTED, Verdict.TAKEN}
        watermark = await backend.watermark(key)
        if adopted.verdict is Verdict.TAKEN:
            await query.adopt_all(number)
            watermark += 2
    assert_dense(await backend.entries(key), log_start=0, watermark=watermark)


async def test_r13_a_leaderless_topic_adopts_at_its_watermark(backend: Backend) -> None:
    topic = await backend.topic(partitions=1, leaderless=True)
    query = Sink(backend=backend, topic=topic)
    for number in range(3):
        await query.register(query.manifest(number, 0))
        for repeated in (False, True):
            outcome = await backend.store.adopt_intent(query.key(number), 0, epoch=0, base_offset=None)
            assert (outcome.verdict, outcome.base_offset, outcome.repeated) == (
                Verdict.COMMITTED,
                number * 2,
                repeated,
            )
    entries = await backend.entries(topic.partition_keys()[0])
    assert {entry.epoch for entry in entries} == {0}
    assert_dense(entries, log_start=0, watermark=6)


async def test_r19_an_adoption_by_the_rules_of_the_other_write_mode_is_fenced(backend: Backend) -> None:
    query = await sink(backend)
    await query.register(query.manifest(0, 0))
    outcome = await backend.store.adopt_intent(query.key(), 0, epoch=0, base_offset=None)
    assert outcome.verdict is Verdict.FENCED
    other = Sink(backend=backend, topic=await backend.topic("blobs", leaderless=True))
    await other.register(other.manifest(0, 0))
    outcome = await backend.store.adopt_intent(other.key(), 0, epoch=1, base_offset=0)
    assert outcome.verdict is Verdict.FENCED
    assert await backend.entries(other.topic.partition_keys()[0]) == ()


async def test_r1_nobody_adopts_on_a_leased_partition_before_its_first_lease(backend: Backend) -> None:
    query = Sink(backend=backend, topic=await backend.topic(partitions=1))
    (key,) = query.topic.partition_keys()
    await query.register(query.manifest(0, 0))
    for epoch, base in ((0, 0), (0, None), (-1, 0), (1, 0)):
        outcome = await backend.store.adopt_intent(query.key(), 0, epoch=epoch, base_offset=base)
        assert (outcome.verdict, outcome.high_watermark, outcome.leader_epoch) == (Verdict.FENCED, 0, 0)
    assert await backend.entries(key) == ()
    await backend.lead(key)
    outcome = await backend.store.adopt_intent(query.key(), 0, epoch=1, base_offset=0)
    assert outcome.verdict is Verdict.COMMITTED


async def test_r13_a_leaderless_adoption_names_neither_an_epoch_nor_a_base_offset(backend: Backend) -> None:
    query = Sink(backend=backend, topic=await backend.topic(partitions=1, leaderless=True))
    await query.register(query.manifest(0, 0))
    for epoch, base in ((0, 0), (0, 1), (1, None), (1, 0)):
        outcome = await backend.store.adopt_intent(query.key(), 0, epoch=epoch, base_offset=base)
        assert (outcome.verdict, outcome.high_watermark) == (Verdict.FENCED, 0)
    outcome = await backend.store.adopt_intent(query.key(), 0, epoch=0, base_offset=None)
    assert outcome.verdict is Verdict.COMMITTED


async def test_r6_a_registered_intent_is_adopted_whatever_the_horizon(backend: Backend) -> None:
    """Its objects are referenced; refusing them would hold the query up for ever."""
    query = await sink(backend)
    manifest = query.manifest(0, 0)
    await query.register(manifest)
    await backend.advance(1)
    await backend.store.raise_gc_horizon(backend.now_ms)
    assert await backend.unreferenced(manifest.slices[0].object.key) == set()
    outcome = await backend.store.adopt_intent(query.key(), 0, epoch=1, base_offset=0)
    assert outcome.verdict is Verdict.COMMITTED


async def test_what_is_not_there_cannot_be_adopted(backend: Backend) -> None:
    query = await sink(backend)
    with pytest.raises(NotFound):
        await backend.store.adopt_intent(query.key(), 0, epoch=1, base_offset=0)
    await query.register(query.manifest(0, 0))
    with pytest.raises(NotFound):
        await backend.store.adopt_intent(query.key(), 1, epoch=1, base_offset=0)


async def test_unadopted_shares_are_listed_oldest_first_for_the_asked_partitions(backend: Backend) -> None:
    one, two = await sink(backend, "one"), await sink(backend, "two")
    second = dataclasses.replace(one, query_id="second")
    for query in (two, one, second):
        await query.register(query.manifest())
        await backend.advance(1)
    everything = [*one.topic.partition_keys(), *two.topic.partition_keys()]
    listed = await backend.store.list_unadopted(everything)
    assert [(key.query_id, key.topic_id) for key, _ in listed[::2]] == [
        ("query", two.topic.topic_id),
        ("query", one.topic.topic_id),
        ("second", one.topic.topic_id),
    ]
    assert len(listed) == 6
    asked = await backend.store.list_unadopted([one.topic.partition_keys()[1]])
    assert asked == [(one.key(), 1), (second.key(), 1)]
    await backend.store.adopt_intent(one.key(), 1, epoch=1, base_offset=0)
    assert await backend.store.list_unadopted([one.topic.partition_keys()[1]]) == [(second.key(), 1)]
    assert await backend.store.list_unadopted([]) == []


async def test_r7_an_adopted_object_lives_as_long_as_its_entries(backend: Backend) -> None:
    query = await sink(backend, partitions=1)
    (key,) = query.topic.partition_keys()
    manifest = query.manifest(0, 0)
    object_key = manifest.slices[0].object.key
    await query.register(manifest)
    await query.adopt_all(0)
    await query.register(query.manifest(1, 0))
    assert await backend.unreferenced(object_key) == set()
    await backend.advance(10)
    assert await backend.garbage() == []
    await backend.store.advance_log_start(key, 2)
    await backend.advance(10)
    assert await backend.garbage() == [object_key]


async def test_r7_one_blob_of_many_shares_lives_until_its_last_entry_goes(backend: Backend) -> None:
    query = await sink(backend)
    one, two = query.topic.partition_keys()
    blob = backend.object()
    shares = [intent_slice(partition, blob, byte_offset=turn * 100) for turn, partition in enumerate((0, 1, 0))]
    await query.register(intent(query.key(0), *shares))
    await query.adopt_all(0)
    for key, end in ((one, 1), (two, 1), (one, 2)):
        await backend.advance(10)
        assert await backend.garbage() == []
        await backend.store.advance_log_start(key, end)
    await backend.advance(10)
    assert await backend.garbage() == [blob.key]


async def test_r7_what_is_adopted_is_held_by_its_entries_alone(backend: Backend) -> None:
    """A batch write's manifest has no next batch that would replace it; it must not hold objects for ever."""
    query = await sink(backend)
    one, two = query.topic.partition_keys()
    shared, own = backend.object(), backend.object()
    await query.register(
        intent(query.key(), intent_slice(0, shared, 3), intent_slice(1, shared, 4), intent_slice(1, own, 2))
    )
    await backend.store.adopt_intent(query.key(), 0, epoch=1, base_offset=0)
    await backend.store.advance_log_start(one, 3)
    await backend.advance(1)
    assert await backend.garbage() == []
    await backend.store.adopt_intent(query.key(), 1, epoch=1, base_offset=0)
    await backend.store.adopt_intent(query.key(), 1, epoch=1, base_offset=0)
    assert await backend.garbage() == []
    await backend.store.advance_log_start(two, 6)
    await backend.advance(1)
    assert set(await backend.garbage()) == {shared.key, own.key}
    assert await backend.store.forget_objects([shared.key, own.key]) == {shared.key, own.key}


async def test_r7_entries_keep_their_objects_when_the_next_batch_replaces_the_manifest(backend: Backend) -> None:
    query = await sink(backend)
    for number in range(3):
        await query.register(query.manifest(number))
        await query.adopt_all(number)
        await backend.advance(1)
        assert await backend.garbage() == []
    entries = [entry for key in query.topic.partition_keys() for entry in await backend.entries(key)]
    assert await backend.store.forget_objects([entry.object_key for entry in entries]) == set()
    assert await backend.unreferenced(*[entry.object_key for entry in entries]) == set()
