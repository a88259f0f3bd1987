"""The leased commit: fenced (R1), repeatable (R5), answered partition by partition (R10)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from builders import START_MS, TTL_MS, assert_dense, batch, leased_slice
from harness import Backend

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_COMMIT_PARTITIONS, MAX_OBJECT_KEY_BYTES
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    SEGMENT_V1,
    EntryKind,
    HeldLease,
    LeasedSlice,
    SliceOutcome,
    Verdict,
)


async def commit_one(backend: Backend, piece: LeasedSlice) -> SliceOutcome:
    (outcome,) = await backend.store.commit_leased(backend.append_id(), [piece])
    return outcome


async def test_s3_13_a_commit_makes_an_entry_and_moves_the_watermark(backend: Backend) -> None:
    led = await backend.led()
    ref = backend.object(size=700)
    piece = leased_slice(
        led.key,
        ref,
        batch(3, at_ms=500, until_ms=900, size=400),
        batch(2, at_ms=100, until_ms=800, size=300),
        epoch=led.epoch,
        base=0,
    )
    outcome = await commit_one(backend, piece)
    assert outcome == SliceOutcome(
        key=led.key,
        verdict=Verdict.COMMITTED,
        base_offset=0,
        end_offset=4,
        high_watermark=5,
        leader_epoch=led.epoch,
    )
    (entry,) = await backend.entries(led.key)
    assert (entry.base_offset, entry.end_offset, entry.record_count) == (0, 4, 5)
    assert (entry.kind, entry.encoding, entry.object_key) == (EntryKind.SEGMENT, SEGMENT_V1, ref.key)
    assert (entry.byte_offset, entry.byte_length) == (0, 700)
    assert (entry.min_timestamp_ms, entry.max_timestamp_ms, entry.epoch) == (100, 900, led.epoch)
    state = await backend.state(led.key)
    assert (state.high_watermark, state.last_stable_offset, state.log_start_offset) == (5, 5, 0)


async def test_one_flush_commits_many_partitions_of_one_blob(backend: Backend) -> None:
    topic = await backend.topic(partitions=40)
    holder = backend.holder()
    await backend.store.acquire_leases(holder, topic.partition_keys(), ttl_ms=TTL_MS)
    blob = backend.object(size=4000)
    slices = [
        leased_slice(key, blob, batch(turn + 1), epoch=1, base=0, kind=EntryKind.WAL, byte_offset=turn * 100)
        for turn, key in enumerate(reversed(topic.partition_keys()))
    ]
    outcomes = await backend.store.commit_leased(backend.append_id(), slices)
    assert [outcome.key for outcome in outcomes] == [piece.key for piece in slices]
    assert [outcome.end_offset for outcome in outcomes] == list(range(40))
    for turn, piece in enumerate(slices):
        (entry,) = await backend.entries(piece.key)
        assert (entry.kind, entry.encoding, entry.object_key) == (EntryKind.WAL, KAFKA_BATCHES, blob.key)
        assert (entry.byte_offset, entry.byte_length) == (turn * 100, (turn + 1) * 100)


async def test_consecutive_commits_are_dense(backend: Backend) -> None:
    led = await backend.led()
    for count in (1, 5, 2, 100, 1):
        await led.append(batch(count))
    entries = await backend.entries(led.key)
    assert [entry.end_offset for entry in entries] == [0, 5, 7, 107, 108]
    assert_dense(entries, log_start=0, watermark=109)


# Verdicts.


async def test_a_base_above_the_watermark_is_not_yet(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(5))
    outcome = await commit_one(backend, leased_slice(led.key, backend.object(), epoch=led.epoch, base=6))
    assert (outcome.verdict, outcome.high_watermark, outcome.leader_epoch) == (Verdict.NOT_YET, 5, led.epoch)
    assert (outcome.base_offset, outcome.end_offset) == (-1, -1)
    assert await backend.watermark(led.key) == 5


async def test_a_base_below_the_watermark_is_taken(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(5))
    for base in (0, 4):
        outcome = await commit_one(backend, leased_slice(led.key, backend.object(), epoch=led.epoch, base=base))
        assert (outcome.verdict, outcome.high_watermark) == (Verdict.TAKEN, 5)
    assert len(await backend.entries(led.key)) == 1


@pytest.mark.parametrize("epoch", [1, 3, 99])
async def test_r1_every_epoch_but_the_row_s_own_is_fenced(backend: Backend, epoch: int) -> None:
    led = await backend.led()
    await backend.advance(TTL_MS)
    await backend.lead(led.key, backend.holder("agent-2"))
    outcome = await commit_one(backend, leased_slice(led.key, backend.object(), epoch=epoch, base=0))
    assert (outcome.verdict, outcome.leader_epoch, outcome.high_watermark) == (Verdict.FENCED, 2, 0)
    assert await backend.entries(led.key) == ()


async def test_r19_a_leased_commit_to_a_leaderless_topic_is_fenced(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    outcome = await commit_one(backend, leased_slice(key, backend.object(), epoch=1, base=0))
    assert outcome.verdict is Verdict.FENCED
    assert await backend.watermark(key) == 0


async def test_a_missing_partition_is_gone(backend: Backend) -> None:
    led = await backend.led()
    for key in (PartitionKey(led.key.topic_id, 7), PartitionKey(TopicId(backend.uuid()), 0)):
        outcome = await commit_one(backend, leased_slice(key, backend.object(), epoch=1, base=0))
        assert (outcome.verdict, outcome.high_watermark, outcome.leader_epoch) == (Verdict.GONE, -1, -1)


async def test_r6_an_object_older_than_the_horizon_is_stale(backend: Backend) -> None:
    led = await backend.led()
    horizon = await backend.store.raise_gc_horizon(START_MS)
    old = leased_slice(led.key, backend.object(created_at_ms=horizon - 1), epoch=led.epoch, base=0)
    outcome = await commit_one(backend, old)
    assert (outcome.verdict, outcome.high_watermark) == (Verdict.STALE_OBJECT, 0)
    fresh = dataclasses.replace(old, object=backend.object(created_at_ms=horizon))
    assert (await commit_one(backend, fresh)).verdict is Verdict.COMMITTED


async def test_the_judgement_order_is_gone_fenced_stale_then_position(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(5))
    await backend.store.raise_gc_horizon(START_MS)
    old = backend.object(created_at_ms=START_MS - 1)
    gone = PartitionKey(led.key.topic_id, 7)
    for piece, verdict in (
        (leased_slice(gone, old, epoch=9, base=9), Verdict.GONE),
        (leased_slice(led.key, old, epoch=9, base=9), Verdict.FENCED),
        (leased_slice(led.key, old, epoch=led.epoch, base=9), Verdict.STALE_OBJECT),
        (leased_slice(led.key, old, epoch=led.epoch, base=0), Verdict.STALE_OBJECT),
        (leased_slice(led.key, backend.object(), epoch=led.epoch, base=9), Verdict.NOT_YET),
    ):
        assert (await commit_one(backend, piece)).verdict is verdict


async def test_r10_one_lost_partition_does_not_fail_the_others(backend: Backend) -> None:
    topic = await backend.topic(partitions=5)
    mine = backend.holder("agent-1")
    await backend.store.acquire_leases(mine, topic.partition_keys(), ttl_ms=TTL_MS)
    await backend.store.release_leases(mine, [HeldLease(key=topic.partition_keys()[1], epoch=1)])
    await backend.lead(topic.partition_keys()[1], backend.holder("agent-2"))
    blob = backend.object()
    bases = (0, 0, 3, 0)
    slices = [
        leased_slice(key, blob, batch(2), epoch=1, base=base)
        for key, base in zip(topic.partition_keys(), bases, strict=False)
    ]
    slices.insert(0, leased_slice(PartitionKey(topic.topic_id, 9), blob, epoch=1, base=0))
    outcomes = await backend.store.commit_leased(backend.append_id(), slices)
    assert [outcome.verdict for outcome in outcomes] == [
        Verdict.GONE,
        Verdict.COMMITTED,
        Verdict.FENCED,
        Verdict.NOT_YET,
        Verdict.COMMITTED,
    ]
    states = await backend.store.get_partitions(topic.partition_keys())
    assert [state.high_watermark for state in states] == [2, 0, 0, 2, 0]
    for key, count in zip(topic.partition_keys(), (1, 0, 0, 1, 0), strict=True):
        assert len(await backend.entries(key)) == count


# Repeats.


async def test_r5_the_same_append_again_returns_the_same_offsets(backend: Backend) -> None:
    led = await backend.led()
    piece = leased_slice(led.key, backend.object(), batch(3), epoch=led.epoch, base=0)
    append = backend.append_id()
    (first,) = await backend.store.commit_leased(append, [piece])
    other = await backend.open_another()
    for store in (backend.store, other):
        (again,) = await store.commit_leased(append, [piece])
        assert again == dataclasses.replace(first, repeated=True)
    assert len(await backend.entries(led.key)) == 1


async def test_r5_a_repeat_is_answered_after_later_commits_and_a_take_over(backend: Backend) -> None:
    led = await backend.led()
    piece = leased_slice(led.key, backend.object(), batch(3), epoch=led.epoch, base=0)
    append = backend.append_id()
    (first,) = await backend.store.commit_leased(append, [piece])
    led.next_offset = 3
    await led.append(batch(4))
    await backend.advance(TTL_MS)
    await backend.lead(led.key, backend.holder("agent-2"))
    await backend.store.raise_gc_horizon(backend.now_ms)
    store = await backend.reopen()
    (again,) = await store.commit_leased(append, [piece])
    assert again == dataclasses.replace(first, repeated=True)
    assert again.high_watermark == 3


async def test_r5_a_repeat_judges_only_what_was_not_committed(backend: Backend) -> None:
    topic = await backend.topic(partitions=2)
    holder = backend.holder()
    await backend.store.acquire_leases(holder, topic.partition_keys(), ttl_ms=TTL_MS)
    blob = backend.object()
    ready, early = topic.partition_keys()
    slices = [
        leased_slice(early, blob, batch(2), epoch=1, base=5),
        leased_slice(ready, blob, batch(2), epoch=1, base=0),
    ]
    append = backend.append_id()
    first = await backend.store.commit_leased(append, slices)
    assert [outcome.verdict for outcome in first] == [Verdict.NOT_YET, Verdict.COMMITTED]
    await commit_one(backend, leased_slice(early, backend.object(), batch(5), epoch=1, base=0))
    second = await backend.store.commit_leased(append, slices)
    assert [(outcome.verdict, outcome.repeated) for outcome in second] == [
        (Verdict.COMMITTED, False),
        (Verdict.COMMITTED, True),
    ]
    assert (second[0].base_offset, second[0].end_offset) == (5, 6)
    third = await backend.store.commit_leased(append, slices)
    assert [(outcome.verdict, outcome.repeated) for outcome in third] == [(Verdict.COMMITTED, True)] * 2
    assert [(one.base_offset, one.end_offset, one.high_watermark) for one in third] == [(5, 6, 7), (0, 1, 2)]
    assert [len(await backend.entries(key)) for key in (ready, early)] == [1, 2]


async def test_r5_a_refusal_is_no_verdict_for_ever(backend: Backend) -> None:
    led = await backend.led()
    append = backend.append_id()
    piece = leased_slice(led.key, backend.object(), epoch=led.epoch, base=3)
    (early,) = await backend.store.commit_leased(append, [piece])
    assert early.verdict is Verdict.NOT_YET
    await backend.advance(TTL_MS)
    await backend.lead(led.key, backend.holder("agent-2"))
    (late,) = await backend.store.commit_leased(append, [piece])
    assert (late.verdict, late.repeated) == (Verdict.FENCED, False)


async def test_r5_concurrent_sendings_of_one_append_commit_once(backend: Backend) -> None:
    led = await backend.led()
    others = [await backend.open_another() for _ in range(2)]
    for turn in range(10):
        piece = leased_slice(led.key, backend.object(), batch(2), epoch=led.epoch, base=turn * 2)
        append = backend.append_id()
        answers = await asyncio.gather(
            *(store.commit_leased(append, [piece]) for store in (backend.store, *others) * 2)
        )
        outcomes = [outcome for (outcome,) in answers]
        assert {outcome.verdict for outcome in outcomes} == {Verdict.COMMITTED}
        assert {(one.base_offset, one.end_offset) for one in outcomes} == {(turn * 2, turn * 2 + 1)}
        assert [outcome.repeated for outcome in outcomes].count(False) == 1
    entries = await backend.entries(led.key)
    assert len(entries) == 10
    assert_dense(entries, log_start=0, watermark=20)


# Races.


async def test_two_commits_at_one_base_offset_one_wins(backend: Backend) -> None:
    led = await backend.led()
    other = await backend.open_another()
    for turn in range(15):
        pieces = [leased_slice(led.key, backend.object(), epoch=led.epoch, base=turn) for _ in range(4)]
        answers = await asyncio.gather(
            *(
                (backend.store, other)[index % 2].commit_leased(backend.append_id(), [piece])
                for index, piece in enumerate(pieces)
            )
        )
        verdicts = sorted(outcome.verdict for (outcome,) in answers)
        assert verdicts == [Verdict.COMMITTED, Verdict.TAKEN, Verdict.TAKEN, Verdict.TAKEN]
        won = [index for index, (outcome,) in enumerate(answers) if outcome.verdict is Verdict.COMMITTED]
        assert (await backend.entries(led.key))[-1].object_key == pieces[won[0]].object.key
    assert_dense(await backend.entries(led.key), log_start=0, watermark=15)


async def test_r1_a_stale_commit_is_refused_though_it_raced_past_a_check(backend: Backend) -> None:
    """The former leader looks, finds itself leading, and commits while another takes over: one order or the other."""
    other = await backend.open_another()
    led = await backend.led()
    watermark, epoch = 0, led.epoch
    for turn in range(15):
        await backend.advance(TTL_MS)
        assert (await backend.state(led.key)).leader_epoch == epoch
        piece = leased_slice(led.key, backend.object(), batch(3), epoch=epoch, base=watermark)
        taking, committing = await asyncio.gather(
            other.acquire_partition_lease(led.key, backend.holder(f"taker-{turn}"), ttl_ms=TTL_MS),
            backend.store.commit_leased(backend.append_id(), [piece]),
        )
        (outcome,) = committing
        if outcome.verdict is Verdict.COMMITTED:
            assert taking.high_watermark == watermark + 3
            watermark += 3
        else:
            assert outcome.verdict is Verdict.FENCED
            assert taking.high_watermark == watermark
        epoch = taking.epoch
        assert (await backend.store.epoch_history(led.key))[-1].start_offset == watermark
        assert await backend.watermark(led.key) == watermark
    assert_dense(await backend.entries(led.key), log_start=0, watermark=watermark)


async def test_r10_overlapping_commits_in_opposite_orders_all_end(backend: Backend) -> None:
    other = await backend.open_another()
    topic = await backend.topic(partitions=12)
    await backend.store.acquire_leases(backend.holder(), topic.partition_keys(), ttl_ms=TTL_MS)
    for turn in range(6):
        blobs = [backend.object(), backend.object()]
        forward = [leased_slice(key, blobs[0], epoch=1, base=turn) for key in topic.partition_keys()]
        backward = [leased_slice(key, blobs[1], epoch=1, base=turn) for key in reversed(topic.partition_keys())]
        first, second = await asyncio.gather(
            backend.store.commit_leased(backend.append_id(), forward),
            other.commit_leased(backend.append_id(), backward),
        )
        for one, two in zip(first, reversed(second), strict=True):
            assert {one.verdict, two.verdict} == {Verdict.COMMITTED, Verdict.TAKEN}
    for key in topic.partition_keys():
        assert_dense(await backend.entries(key), log_start=0, watermark=6)


async def test_a_cancelled_commit_sent_again_has_one_outcome(backend: Backend) -> None:
    led = await backend.led()
    for turn in range(12):
        piece = leased_slice(led.key, backend.object(), epoch=led.epoch, base=turn)
        append = backend.append_id()
        cancelled = asyncio.ensure_future(backend.store.commit_leased(append, [piece]))
        for _ in range(turn):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        (outcome,) = await backend.store.commit_leased(append, [piece])
        assert (outcome.verdict, outcome.base_offset) == (Verdict.COMMITTED, turn)
    entries = await backend.entries(led.key)
    assert len(entries) == 12
    assert_dense(entries, log_start=0, watermark=12)


# Malformed.


async def test_a_malformed_commit_is_refused_whole(backend: Backend) -> None:
    led = await backend.led()
    good = leased_slice(led.key, backend.object(), batch(2), epoch=led.epoch, base=0)
    for slices in (
        [],
        [good, good],
        [dataclasses.replace(good, batches=())],
        [dataclasses.replace(good, byte_length=0)],
        [dataclasses.replace(good, byte_offset=-1)],
        [dataclasses.replace(good, base_offset=-1)],
        [dataclasses.replace(good, base_offset=2**63 - 2)],
        [dataclasses.replace(good, epoch=0)],
        [dataclasses.replace(good, batches=(batch(0),))],
        [dataclasses.replace(good, batches=(batch(1, size=0),))],
        [dataclasses.replace(good, batches=(batch(1, producer=-2),))],
        [dataclasses.replace(good, batches=(batch(1, producer=1, epoch=-1),))],
        [dataclasses.replace(good, batches=(batch(1, producer=1, sequence=2**31),))],
        [dataclasses.replace(good, object=dataclasses.replace(good.object, key=""))],
        [dataclasses.replace(good, object=dataclasses.replace(good.object, key="a\0b"))],
        [dataclasses.replace(good, encoding="")],
    ):
        with pytest.raises(InvalidRequest):
            await backend.store.commit_leased(backend.append_id(), slices)
    long_key = dataclasses.replace(good.object, key="x" * (MAX_OBJECT_KEY_BYTES + 1))
    with pytest.raises(LimitExceeded):
        await backend.store.commit_leased(backend.append_id(), [dataclasses.replace(good, object=long_key)])
    many = [
        dataclasses.replace(good, key=PartitionKey(led.key.topic_id, partition))
        for partition in range(MAX_COMMIT_PARTITIONS + 1)
    ]
    with pytest.raises(LimitExceeded):
        await backend.store.commit_leased(backend.append_id(), many)
    assert await backend.watermark(led.key) == 0
    assert await backend.entries(led.key) == ()
