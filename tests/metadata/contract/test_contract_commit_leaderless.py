"""The leaderless commit: offsets assigned by the store, duplicates told batch by batch (R5, R9, R14)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from builders import START_MS, assert_dense, batch, leaderless_slice
from harness import Backend

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_COMMIT_BATCHES, PRODUCER_WINDOW
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    BatchRun,
    BatchVerdict,
    EntryKind,
    SliceOutcome,
    Verdict,
)
from streamhouse.metadata.dedup import SEQUENCE_MODULUS

APPENDED = BatchVerdict.APPENDED
DUPLICATE = BatchVerdict.DUPLICATE


async def commit(backend: Backend, key: PartitionKey, *batches: BatchRun) -> SliceOutcome:
    (outcome,) = await backend.store.commit_leaderless(
        backend.append_id(), backend.object(), [leaderless_slice(key, *batches)]
    )
    return outcome


def told(outcome: SliceOutcome) -> list[tuple[BatchVerdict, int]]:
    return [(one.verdict, one.base_offset) for one in outcome.batches]


async def test_s2_5_one_blob_commits_every_partition_from_its_watermark_on(backend: Backend) -> None:
    one = await backend.topic("one", partitions=2, leaderless=True)
    two = await backend.topic("two", partitions=1, leaderless=True)
    await commit(backend, one.partition_keys()[1], batch(4))
    blob = backend.object(size=1200)
    slices = [
        leaderless_slice(two.partition_keys()[0], batch(3), byte_offset=0),
        leaderless_slice(one.partition_keys()[1], batch(2, at_ms=50), batch(1, at_ms=20, until_ms=90), byte_offset=300),
        leaderless_slice(one.partition_keys()[0], batch(6), byte_offset=600),
    ]
    outcomes = await backend.store.commit_leaderless(backend.append_id(), blob, slices)
    assert [(one.key, one.base_offset, one.end_offset, one.high_watermark) for one in outcomes] == [
        (two.partition_keys()[0], 0, 2, 3),
        (one.partition_keys()[1], 4, 6, 7),
        (one.partition_keys()[0], 0, 5, 6),
    ]
    assert {(one.verdict, one.leader_epoch, one.repeated) for one in outcomes} == {(Verdict.COMMITTED, 0, False)}
    assert told(outcomes[1]) == [(APPENDED, 4), (APPENDED, 6)]
    entry = (await backend.entries(one.partition_keys()[1]))[-1]
    assert (entry.base_offset, entry.end_offset, entry.record_count, entry.epoch) == (4, 6, 3, 0)
    assert (entry.kind, entry.encoding, entry.object_key) == (EntryKind.WAL, KAFKA_BATCHES, blob.key)
    assert (entry.byte_offset, entry.byte_length) == (300, 300)
    assert (entry.min_timestamp_ms, entry.max_timestamp_ms) == (20, 90)


async def test_r19_a_leaderless_commit_to_a_leased_topic_is_fenced(backend: Backend) -> None:
    led = await backend.led()
    outcome = await commit(backend, led.key, batch(1))
    assert outcome.verdict is Verdict.FENCED
    assert await backend.watermark(led.key) == 0


async def test_r10_partitions_are_answered_one_by_one(backend: Backend) -> None:
    topic = await backend.topic("blobs", partitions=2, leaderless=True)
    led = await backend.led("leased")
    gone = PartitionKey(topic.topic_id, 9)
    keys = [gone, topic.partition_keys()[1], led.key, topic.partition_keys()[0]]
    outcomes = await backend.store.commit_leaderless(
        backend.append_id(), backend.object(), [leaderless_slice(key, batch(2)) for key in keys]
    )
    assert [outcome.key for outcome in outcomes] == keys
    assert [outcome.verdict for outcome in outcomes] == [
        Verdict.GONE,
        Verdict.COMMITTED,
        Verdict.FENCED,
        Verdict.COMMITTED,
    ]
    assert outcomes[0].batches == ()


async def test_r6_a_blob_older_than_the_horizon_is_stale(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    await backend.store.raise_gc_horizon(START_MS)
    for stamp, verdict in ((START_MS - 1, Verdict.STALE_OBJECT), (START_MS, Verdict.COMMITTED)):
        (outcome,) = await backend.store.commit_leaderless(
            backend.append_id(), backend.object(created_at_ms=stamp), [leaderless_slice(key)]
        )
        assert outcome.verdict is verdict
    assert await backend.watermark(key) == 1


# Deduplication.


async def test_r9_a_retried_batch_gets_its_first_offset(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    await commit(backend, key, batch(3))
    first = await commit(backend, key, batch(2, producer=7, sequence=0))
    again = await commit(backend, key, batch(2, producer=7, sequence=0))
    assert (told(first), told(again)) == ([(APPENDED, 3)], [(DUPLICATE, 3)])
    assert (again.verdict, again.base_offset, again.end_offset) == (Verdict.COMMITTED, -1, -1)
    assert (again.high_watermark, again.repeated) == (5, False)
    assert len(await backend.entries(key)) == 2


async def test_r14_a_mixed_slice_gives_one_entry_per_surviving_run(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    await commit(backend, key, batch(2, producer=1, sequence=0), batch(3, producer=2, sequence=0))
    blob = backend.object()
    batches = (
        batch(1, size=10, at_ms=100),
        batch(4, size=20, at_ms=200, producer=1, sequence=2),
        batch(2, size=40, at_ms=9999, producer=1, sequence=0),
        batch(3, size=80, at_ms=9999, producer=2, sequence=0),
        batch(5, size=160, at_ms=300, producer=2, sequence=3),
        batch(2, size=320, at_ms=9999, producer=1, sequence=0),
        batch(1, size=640, at_ms=50),
        batch(1, size=1280, at_ms=60),
    )
    (outcome,) = await backend.store.commit_leaderless(
        backend.append_id(), blob, [leaderless_slice(key, *batches, byte_offset=1000)]
    )
    assert told(outcome) == [
        (APPENDED, 5),
        (APPENDED, 6),
        (DUPLICATE, 0),
        (DUPLICATE, 2),
        (APPENDED, 10),
        (DUPLICATE, 0),
        (APPENDED, 15),
        (APPENDED, 16),
    ]
    assert (outcome.base_offset, outcome.end_offset, outcome.high_watermark) == (5, 16, 17)
    runs = (await backend.entries(key))[1:]
    assert [(run.base_offset, run.end_offset, run.record_count) for run in runs] == [
        (5, 9, 5),
        (10, 14, 5),
        (15, 16, 2),
    ]
    assert [(run.byte_offset, run.byte_length) for run in runs] == [(1000, 30), (1150, 160), (1630, 1920)]
    assert [(run.min_timestamp_ms, run.max_timestamp_ms) for run in runs] == [(100, 200), (300, 300), (50, 60)]
    assert {run.object_key for run in runs} == {blob.key}
    assert_dense(await backend.entries(key), log_start=0, watermark=17)


async def test_r14_a_duplicate_within_one_slice_is_told_too(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    one = batch(2, producer=1, sequence=0)
    outcome = await commit(backend, key, one, one, batch(1, producer=1, sequence=2))
    assert told(outcome) == [(APPENDED, 0), (DUPLICATE, 0), (APPENDED, 2)]
    assert [(entry.byte_offset, entry.byte_length) for entry in await backend.entries(key)] == [(0, 200), (400, 100)]


async def test_r14_a_slice_of_nothing_new_is_committed_without_an_entry(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    one = batch(2, producer=1, sequence=0)
    await commit(backend, key, one)
    blob, append = backend.object(), backend.append_id()
    (outcome,) = await backend.store.commit_leaderless(append, blob, [leaderless_slice(key, one, one)])
    assert (outcome.verdict, outcome.base_offset, outcome.end_offset) == (Verdict.COMMITTED, -1, -1)
    assert (outcome.high_watermark, told(outcome)) == (2, [(DUPLICATE, 0), (DUPLICATE, 0)])
    assert len(await backend.entries(key)) == 1
    assert await backend.unreferenced(blob.key) == {blob.key}
    await commit(backend, key, batch(3))
    (again,) = await backend.store.commit_leaderless(append, blob, [leaderless_slice(key, one, one)])
    assert again == dataclasses.replace(outcome, repeated=True)


async def test_r9_a_gap_a_stale_epoch_and_an_old_batch_are_told_apart(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    for sequence in range(PRODUCER_WINDOW + 1):
        await commit(backend, key, batch(1, producer=1, epoch=3, sequence=sequence))
    outcome = await commit(
        backend,
        key,
        batch(1, producer=1, epoch=3, sequence=9),
        batch(1, producer=1, epoch=2, sequence=0),
        batch(1, producer=1, epoch=3, sequence=0),
        batch(1, producer=1, epoch=3, sequence=1),
        batch(1, producer=1, epoch=4, sequence=1),
        batch(1, producer=1, epoch=3, sequence=6),
        batch(1, producer=1, epoch=4, sequence=0),
        batch(1, producer=1, epoch=3, sequence=7),
    )
    assert told(outcome) == [
        (BatchVerdict.OUT_OF_ORDER, -1),
        (BatchVerdict.STALE_PRODUCER, -1),
        (BatchVerdict.DUPLICATE_TOO_OLD, -1),
        (DUPLICATE, 1),
        (BatchVerdict.OUT_OF_ORDER, -1),
        (APPENDED, 6),
        (APPENDED, 7),
        (BatchVerdict.STALE_PRODUCER, -1),
    ]
    assert [entry.end_offset for entry in await backend.entries(key)][-2:] == [5, 7]


async def test_r9_sequences_wrap_at_2_31_less_1(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    last = SEQUENCE_MODULUS - 1
    outcome = await commit(
        backend,
        key,
        batch(last, producer=1, sequence=0),
        batch(3, producer=1, sequence=last),
        batch(1, producer=1, sequence=3),
        batch(1, producer=1, sequence=2),
        batch(3, producer=1, sequence=last),
        batch(1, producer=1, sequence=last - 1),
    )
    assert told(outcome) == [
        (APPENDED, 0),
        (APPENDED, last),
        (BatchVerdict.OUT_OF_ORDER, -1),
        (APPENDED, last + 3),
        (DUPLICATE, last),
        (BatchVerdict.OUT_OF_ORDER, -1),
    ]


async def test_r21_an_unknown_producer_starts_at_sequence_0(backend: Backend) -> None:
    """Batches of one producer come through different agents: the second may be committed first."""
    key = await backend.partition(leaderless=True)
    unknown = (BatchVerdict.UNKNOWN_PRODUCER, -1)
    assert told(await commit(backend, key, batch(2, producer=1, sequence=2))) == [unknown]
    assert told(await commit(backend, key, batch(2, producer=1, sequence=0))) == [(APPENDED, 0)]
    assert told(await commit(backend, key, batch(2, producer=1, sequence=2))) == [(APPENDED, 2)]
    mixed = await commit(backend, key, batch(1, producer=2, sequence=1), batch(1, producer=2, sequence=0))
    assert told(mixed) == [unknown, (APPENDED, 4)]


async def test_r21_only_what_is_known_to_be_written_is_called_too_old(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    for first in range(0, 2 * PRODUCER_WINDOW + 2, 2):
        await commit(backend, key, batch(2, producer=1, sequence=first))
    outcome = await commit(
        backend,
        key,
        batch(2, producer=1, sequence=0),
        batch(3, producer=1, sequence=0),
        batch(1, producer=1, sequence=2),
        batch(3, producer=1, sequence=2 * PRODUCER_WINDOW),
        batch(1, producer=1, sequence=SEQUENCE_MODULUS - 1),
    )
    assert [verdict for verdict, _ in told(outcome)] == [
        BatchVerdict.DUPLICATE_TOO_OLD,
        *[BatchVerdict.OUT_OF_ORDER] * 4,
    ]


async def test_r9_producers_and_partitions_are_told_apart(backend: Backend) -> None:
    topic = await backend.topic(partitions=2, leaderless=True)
    one, two = topic.partition_keys()
    await commit(backend, one, batch(1, producer=1, sequence=0))
    assert told(await commit(backend, two, batch(1, producer=1, sequence=0))) == [(APPENDED, 0)]
    assert told(await commit(backend, one, batch(1, producer=2, sequence=0))) == [(APPENDED, 1)]
    assert told(await commit(backend, one, batch(1, producer=2**62, sequence=0))) == [(APPENDED, 2)]


async def test_batches_without_producer_are_never_duplicates(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    outcome = await commit(backend, key, batch(2), batch(2), batch(2))
    assert told(outcome) == [(APPENDED, 0), (APPENDED, 2), (APPENDED, 4)]
    assert len(await backend.entries(key)) == 1


# Repeats and races.


async def test_r5_the_same_append_again_returns_the_same_answer(backend: Backend) -> None:
    topic = await backend.topic(partitions=2, leaderless=True)
    one, two = topic.partition_keys()
    await commit(backend, one, batch(2, producer=1, sequence=0))
    blob, append = backend.object(), backend.append_id()
    slices = [
        leaderless_slice(two, batch(4)),
        leaderless_slice(one, batch(2, producer=1, sequence=0), batch(3, producer=1, sequence=2)),
    ]
    first = await backend.store.commit_leaderless(append, blob, slices)
    await commit(backend, one, batch(9))
    await backend.advance(1)
    await backend.store.raise_gc_horizon(backend.now_ms)
    for store in (await backend.open_another(), await backend.reopen()):
        again = await store.commit_leaderless(append, blob, slices)
        assert again == [dataclasses.replace(outcome, repeated=True) for outcome in first]
    assert (await backend.watermark(one), await backend.watermark(two)) == (14, 4)


async def test_r5_concurrent_sendings_of_one_append_commit_once(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    others = [await backend.open_another() for _ in range(2)]
    for turn in range(10):
        blob, append = backend.object(), backend.append_id()
        piece = leaderless_slice(key, batch(2), batch(1, producer=5, sequence=turn))
        answers = await asyncio.gather(
            *(store.commit_leaderless(append, blob, [piece]) for store in (backend.store, *others) * 2)
        )
        outcomes = [outcome for (outcome,) in answers]
        assert {(one.verdict, one.base_offset, one.end_offset) for one in outcomes} == {
            (Verdict.COMMITTED, turn * 3, turn * 3 + 2)
        }
        assert {tuple(told(one)) for one in outcomes} == {((APPENDED, turn * 3), (APPENDED, turn * 3 + 2))}
        assert [one.repeated for one in outcomes].count(False) == 1
    assert len(await backend.entries(key)) == 10


async def test_r9_one_batch_in_two_blobs_at_once_is_appended_once(backend: Backend) -> None:
    """A client retries through another agent while the first agent's commit is still under way."""
    key = await backend.partition(leaderless=True)
    other = await backend.open_another()
    for sequence in range(10):
        piece = leaderless_slice(key, batch(1, producer=1, sequence=sequence))
        answers = await asyncio.gather(
            *(
                store.commit_leaderless(backend.append_id(), backend.object(), [piece])
                for store in (backend.store, other) * 2
            )
        )
        verdicts = sorted(told(outcome) for (outcome,) in answers)
        assert verdicts == [[(APPENDED, sequence)]] + [[(DUPLICATE, sequence)]] * 3
    assert_dense(await backend.entries(key), log_start=0, watermark=10)


async def test_r10_concurrent_blobs_over_the_same_partitions_are_dense(backend: Backend) -> None:
    stores = [backend.store, *[await backend.open_another() for _ in range(2)]]
    topic = await backend.topic(partitions=6, leaderless=True)
    keys = topic.partition_keys()

    async def writer(index: int) -> list[SliceOutcome]:
        done = []
        for turn in range(5):
            order = keys if (index + turn) % 2 else list(reversed(keys))
            done += await stores[index % 3].commit_leaderless(
                backend.append_id(), backend.object(), [leaderless_slice(key, batch(index + 1)) for key in order]
            )
        return done

    outcomes = [outcome for done in await asyncio.gather(*(writer(index) for index in range(6))) for outcome in done]
    assert {outcome.verdict for outcome in outcomes} == {Verdict.COMMITTED}
    expected = 5 * sum(range(1, 7))
    for key in keys:
        ranges = sorted((one.base_offset, one.end_offset) for one in outcomes if one.key == key)
        entries = await backend.entries(key)
        assert [(entry.base_offset, entry.end_offset) for entry in entries] == ranges
        assert_dense(entries, log_start=0, watermark=expected)


async def test_a_cancelled_commit_sent_again_has_one_outcome(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    for turn in range(12):
        blob, append = backend.object(), backend.append_id()
        cancelled = asyncio.ensure_future(backend.store.commit_leaderless(append, blob, [leaderless_slice(key)]))
        for _ in range(turn):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        (outcome,) = await backend.store.commit_leaderless(append, blob, [leaderless_slice(key)])
        assert (outcome.verdict, outcome.base_offset) == (Verdict.COMMITTED, turn)
    assert_dense(await backend.entries(key), log_start=0, watermark=12)


# Malformed.


async def test_a_malformed_commit_is_refused_whole(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    good = leaderless_slice(key, batch(2))
    for slices in (
        [],
        [good, good],
        [dataclasses.replace(good, batches=())],
        [dataclasses.replace(good, byte_length=good.byte_length + 1)],
        [dataclasses.replace(good, byte_offset=-1)],
        [leaderless_slice(key, batch(0, size=10))],
        [leaderless_slice(key, batch(1, producer=3, sequence=-1))],
        [dataclasses.replace(good, encoding="a\0b")],
    ):
        with pytest.raises(InvalidRequest):
            await backend.store.commit_leaderless(backend.append_id(), backend.object(), slices)
    for broken in ({"key": ""}, {"key": "a\0b"}, {"size_bytes": -1}, {"created_at_ms": -1}):
        blob = dataclasses.replace(backend.object(), **broken)
        with pytest.raises(InvalidRequest):
            await backend.store.commit_leaderless(backend.append_id(), blob, [good])
    many = leaderless_slice(key, *[batch(1)] * (MAX_COMMIT_BATCHES + 1))
    with pytest.raises(LimitExceeded):
        await backend.store.commit_leaderless(backend.append_id(), backend.object(), [many])
    assert await backend.watermark(key) == 0
