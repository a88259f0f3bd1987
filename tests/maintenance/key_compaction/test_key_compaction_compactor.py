"""Passes over real logs: what consumers see afterwards, what is clean, what is told."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from compaction_faults import Life, LossyMetadata, MeddledMetadata, MortalMetadata, SteppedStore
from compaction_ground import AT_ONCE, WrittenLog, damage
from keyed_logs import (
    CleanerModel,
    KeyGround,
    Unclaimed,
    compact,
    compacted,
    keyed,
    keyed_log,
    pairs_of,
    random_batch,
    seen,
)

from streamhouse.core.errors import ConfigError, DamagedObject, StoreUnavailable
from streamhouse.core.ids import PartitionKey
from streamhouse.core.topic_config import effective
from streamhouse.formats.segment_v1_reader import verify_segment
from streamhouse.maintenance.compaction.claims import claim_name
from streamhouse.maintenance.compaction.stats import PassProgress
from streamhouse.maintenance.key_compaction.compactor import KeyCompactorOptions
from streamhouse.maintenance.key_compaction.key_map import BYTES_PER_KEY
from streamhouse.maintenance.key_compaction.plan import Due, KeyRules
from streamhouse.maintenance.verify import Finding, Verifier, VerifyDepth, VerifyOptions
from streamhouse.metadata.contract import EntryKind
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.codecs import Codec

A, B, C, D = b"a", b"b", b"c", b"d"


async def sound(log: WrittenLog) -> None:
    """Every object that the log refers to is what its entry says, and the entries cover all offsets."""
    next_offset = (await log.ground.backend.state(log.key)).log_start_offset
    for entry in await log.entries():
        assert entry.base_offset <= next_offset
        next_offset = entry.end_offset + 1
        if entry.kind is EntryKind.COMPACTED:
            segment = verify_segment(await log.ground.memory.get(entry.object_key))
            assert segment.footer.record_count == entry.record_count
            assert segment.footer.end_offset == entry.end_offset
    assert next_offset == log.next_offset


async def test_p4_the_newest_record_of_each_key_stays_at_its_offset(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1"), (B, b"1")], [(A, b"2"), (C, b"1")], [(B, b"2")], [(A, b"3")])
    done = await compact(ground, log)
    assert pairs_of(await ground.seen_from(log.key, 0)) == [
        (2, A, b"2"),
        (3, C, b"1"),
        (4, B, b"2"),
        (5, A, b"3"),
    ], "the newest entry is not compacted, and supersedes nothing yet"
    first, newest = await log.entries()
    assert (first.kind, first.base_offset, first.end_offset, first.record_count) == (EntryKind.COMPACTED, 0, 4, 3)
    assert newest.kind is not EntryKind.COMPACTED
    await sound(log)
    stats = done.stats
    assert (stats.partitions, stats.keys, stats.records, stats.superseded, stats.runs, stats.entries) == (
        1,
        3,
        5,
        2,
        1,
        3,
    )
    await log.write(keyed((D, b"1")))
    await ground.advance(1)
    await compact(ground, log)
    assert pairs_of(await ground.seen_from(log.key, 0)) == [(3, C, b"1"), (4, B, b"2"), (5, A, b"3"), (6, D, b"1")]
    await sound(log)


@pytest.mark.parametrize("leaderless", [False, True])
async def test_r18_consumers_see_what_the_cleaner_of_kafka_leaves_from_any_offset(
    ground: KeyGround, leaderless: bool
) -> None:
    rng, model = random.Random(5), CleanerModel()
    log = await ground.log(leaderless=leaderless)
    for _ in range(6):
        for _ in range(rng.randrange(2, 6)):
            kind = EntryKind.WAL if leaderless else rng.choice([EntryKind.WAL, EntryKind.SEGMENT])
            batches = [random_batch(rng, keys=12, keyless=0.1, producer=not leaderless) for _ in range(3)]
            entry = await log.write(*batches, kind=kind)
        await ground.advance(400)
        await compact(ground, log, config=compacted(delete_retention_ms=1_000))
        model.written(log.bytes)
        model.clean(below=entry.base_offset, now_ms=ground.backend.now_ms, delete_retention_ms=1_000)
        await sound(log)
        assert await ground.seen_from(log.key, 0) == model.from_offset(0)
    for offset in range(log.next_offset):
        assert await ground.seen_from(log.key, offset) == model.from_offset(offset), offset


@pytest.mark.parametrize("codec", list(Codec))
async def test_s2_8_batches_keep_their_codec_and_their_producer(sqlite_ground: KeyGround, codec: Codec) -> None:
    log = await sqlite_ground.log()
    who = {"codec": codec, "producer_id": 4, "producer_epoch": 2, "base_sequence": 6}
    await log.write(keyed((A, b"1"), (B, b"1" * 99), (C, b"1"), **who))
    await log.write(keyed((A, b"2"), codec=codec))
    await log.write(keyed((D, b"1"), codec=codec))
    await sqlite_ground.advance(1)
    await compact(sqlite_ground, log)
    headers = [header for _, header in iter_batches(await sqlite_ground.read(log.key), allow_compacted=True)]
    assert {header.codec for header in headers} == {codec}
    first = headers[0]
    assert (first.base_offset, first.last_offset_delta, first.record_count) == (0, 2, 2)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (4, 2, 6)
    assert first.partition_leader_epoch == log.epoch


async def test_p4_large_objects_are_read_by_their_index_clean_ones_too(sqlite_ground: KeyGround) -> None:
    rng, ground = random.Random(1), sqlite_ground
    log = await ground.log()

    async def write(*keys: int) -> None:
        made = [keyed((b"key-%d" % key, rng.randbytes(500_000))) for key in keys]
        assert (await log.write(*made, kind=rng.choice([EntryKind.WAL, EntryKind.SEGMENT]))).byte_length > 4 << 20

    for _ in range(3):
        await write(*range(10))
        await write(*range(5, 15))
        await log.write(keyed((A, b"1")))
        await ground.advance(1)
        await compact(ground, log)
        await sound(log)
        found = await ground.seen_from(log.key, 0)
        assert sorted(kept[1] for kept in found if kept[1] != A) == sorted(b"key-%d" % key for key in range(15))
        assert found == [kept for kept in seen(log.bytes) if kept in found]


async def test_r9_producers_are_known_though_their_batches_are_gone(ground: KeyGround) -> None:
    log = await ground.log()
    await log.write(keyed((A, b"1"), producer_id=4, producer_epoch=2, base_sequence=6))
    for _ in range(3):
        await log.write(keyed((A, b"2")))
    await ground.advance(1)
    await compact(ground, log)
    assert pairs_of(await ground.seen_from(log.key, 0))[0][0] == 2
    page = (await ground.metadata.load_producers([log.key]))[log.key]
    assert [(one.producer_id, one.batches[-1].base_sequence, one.batches[-1].base_offset) for one in page.states] == [
        (4, 6, 0)
    ]


async def test_invariant_5_a_verification_finds_nothing_wrong_afterwards(ground: KeyGround) -> None:
    rng, findings = random.Random(7), []
    log = await ground.log()
    for _ in range(3):
        for _ in range(4):
            await log.change_leader()
            await log.write(*[random_batch(rng, keys=5, keyless=0.2) for _ in range(2)])
        await ground.advance(1_000)
        await compact(ground, log, config=compacted(delete_retention_ms=500), rules=KeyRules(max_sources=2))
        verifier = Verifier(
            metadata=ground.metadata,
            store=ground.memory,
            randomness=ground.backend.ids,
            tell=lambda told: findings.append(told) if isinstance(told, Finding) else None,
            options=VerifyOptions(depth=VerifyDepth.DEEP),
        )
        summary = await verifier.run()
        assert summary.entries == len(await log.entries())
    assert findings == []


# Holes.


async def test_r18_a_range_without_any_record_keeps_one_empty_batch_and_readers_step_over_it(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1"), (B, b"1")], [(A, b"2")], [(A, b"3"), (B, b"3")], [(C, b"1")])
    rules = KeyRules(max_sources=2)
    await compact(ground, log, rules=rules)
    emptied, *_ = await log.entries()
    assert (emptied.base_offset, emptied.end_offset, emptied.record_count) == (0, 2, 0)
    (header,) = [header for _, header in iter_batches(await ground.read(log.key), allow_compacted=True)][:1]
    assert (header.base_offset, header.last_offset, header.record_count) == (2, 2, 0)
    reader = ground.reader()
    try:
        for offset in range(log.next_offset):
            found = await reader.read(log.key, offset, max_bytes=1)
            assert found.next_offset > offset, "a reader gets on"
        found = await reader.read(log.key, 0, max_bytes=1 << 20)
        assert (found.next_offset, found.log_start_offset) == (log.next_offset, 0)
    finally:
        await reader.close()
    await log.write(keyed((D, b"1")))
    await ground.advance(1)
    await compact(ground, log)
    headers = [header for _, header in iter_batches(await ground.read(log.key), allow_compacted=True)]
    assert [header.record_count for header in headers] == [2, 1, 1], "the hole was merged away"
    await sound(log)


async def test_r16_times_are_found_behind_emptied_ranges(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1")], [(A, b"2")], [(B, b"1")])
    await log.write(keyed((C, b"1"), at_ms=5_000))
    await ground.advance(1)
    await compact(ground, log, rules=KeyRules(max_sources=1))
    assert [entry.record_count for entry in await log.entries()] == [0, 1, 1, 1]
    reader = ground.reader()
    try:
        first = await reader.offset_for_timestamp(log.key, 0)
        newest = await reader.max_timestamp_offset(log.key)
        assert (first and first.offset, newest and newest.offset) == (1, 1)
    finally:
        await reader.close()


async def test_r18_a_consumer_in_the_middle_goes_on_without_an_error(ground: KeyGround) -> None:
    rng = random.Random(8)
    log = await ground.log()
    for _ in range(12):
        await log.write(*[random_batch(rng, keys=6) for _ in range(3)])
    await ground.advance(1)
    reader = ground.reader()
    try:
        before = await reader.read(log.key, 0, max_bytes=400)
        replaced = {entry.object_key for entry in await log.entries()}
        await compact(ground, log)
        replaced -= {entry.object_key for entry in await log.entries()}
        await ground.memory.delete(sorted(replaced))
        offset, found = before.next_offset, []
        while offset < log.next_offset:
            result = await reader.read(log.key, offset, max_bytes=400)
            found += [kept for batch in result.batches for kept in seen(bytes(batch)) if kept[0] >= offset]
            assert result.next_offset > offset
            offset = result.next_offset
        written = [kept for kept in seen(log.bytes) if kept[0] >= before.next_offset]
        assert found == [kept for kept in written if kept in found], "in order, and each once"
        after = await ground.seen_from(log.key, before.next_offset)
        assert len(after) < len(written)
        assert set(pairs_of(after)) <= set(pairs_of(found)), "some superseded records may come from memory still"
    finally:
        await reader.close()


# Tombstones.


async def test_tombstones_stay_for_their_retention_counted_from_when_they_were_first_clean(ground: KeyGround) -> None:
    config = compacted(delete_retention_ms=10_000)
    log = await keyed_log(ground, [(A, b"1"), (B, b"1")], [(A, None)], [(C, b"0")])

    async def pass_after(ms: int) -> list[bytes | None]:
        await log.write(keyed((C, b"more")))
        await ground.advance(ms)
        await compact(ground, log, config=config)
        return [key for _, key, _ in pairs_of(await ground.seen_from(log.key, 0)) if key != C]

    assert await pass_after(50_000) == [B, A], "whatever its age: it was never seen clean before"
    assert await pass_after(9_000) == [B, A]
    assert await pass_after(999) == [B, A]
    assert await pass_after(1) == [B]
    assert await pass_after(1) == [B]
    await sound(log)


async def test_a_tombstone_too_young_to_be_compacted_has_no_horizon(sqlite_ground: KeyGround) -> None:
    ground = sqlite_ground
    log = await keyed_log(ground, [(A, b"1")], [(B, b"1")])
    await log.write(keyed((A, None), at_ms=ground.backend.now_ms))
    await log.write(keyed((C, b"1")))
    await compact(ground, log, config=compacted(min_compaction_lag_ms=5_000, delete_retention_ms=0))
    assert [key for _, key, _ in pairs_of(await ground.seen_from(log.key, 0))] == [A, B, A, C]


# What is clean, and when it is due.


async def test_what_is_clean_survives_a_restart_and_is_not_compacted_again(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1")], [(B, b"1")], [(C, b"1")])
    await compact(ground, log)
    (clean, _) = await log.entries()
    assert clean.record_count == 2, "no hole says that it is clean"
    assert await ground.key_compactor().plan({log.key: compacted()}) == []
    assert (await compact(ground, log)).stats.runs == 0
    await log.write(keyed((D, b"1")))
    (plan,) = await ground.key_compactor().plan({log.key: compacted()})
    assert (plan.clean, len(plan.dirty), plan.due) == ((clean,), 1, Due.RATIO)


async def test_a_clean_object_that_loses_nothing_stays_as_it_is(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1")], [(B, b"1")], [(C, b"1")])
    rules = KeyRules(max_sources=1)
    await compact(ground, log, rules=rules)
    before = await log.entries()
    await log.write(keyed((B, b"2")))
    await log.write(keyed((D, b"1")))
    await ground.advance(1)
    done = await compact(ground, log, rules=rules)
    after = await log.entries()
    assert after[0] == before[0]
    assert after[1].record_count == 0
    assert done.stats.runs == 3
    assert pairs_of(await ground.seen_from(log.key, 0)) == [(0, A, b"1"), (2, C, b"1"), (3, B, b"2"), (4, D, b"1")]


async def test_a_log_that_was_compacted_without_looking_at_keys_is_dirty(ground: KeyGround) -> None:
    """The topic's policy was ``delete`` before: the cursor has passed records whose keys were never compared."""
    log = await keyed_log(ground, [(A, b"1")], [(A, b"2")], [(A, b"3")])
    assert (await ground.compactor(rules=AT_ONCE).compact_once([log.key])).stats.runs == 1
    await log.write(keyed((B, b"1")))
    assert (await ground.backend.state(log.key)).compaction_cursor == 3
    await ground.advance(1)
    (plan,) = await ground.key_compactor().plan({log.key: compacted()})
    assert (plan.clean, len(plan.dirty)) == ((), 1)
    await compact(ground, log)
    assert pairs_of(await ground.seen_from(log.key, 0)) == [(2, A, b"3"), (3, B, b"1")]
    await log.write(keyed((B, b"2")), keyed((C, b"1")))
    await log.write(keyed((C, b"2")))
    await log.write(keyed((D, b"1")))
    await ground.advance(1)
    assert (await ground.compactor(rules=AT_ONCE).compact_once([log.key])).stats.runs == 1, "policy delete again"
    await log.write(keyed((D, b"2")))
    await ground.advance(1)
    (plan,) = await ground.key_compactor().plan({log.key: compacted()})
    assert [entry.end_offset for entry in plan.clean] == [2]
    await compact(ground, log)
    assert pairs_of(await ground.seen_from(log.key, 0)) == [
        (2, A, b"3"),
        (4, B, b"2"),
        (6, C, b"2"),
        (7, D, b"1"),
        (8, D, b"2"),
    ]


async def test_retention_moves_the_log_start_and_compaction_goes_on(ground: KeyGround) -> None:
    log = await keyed_log(ground, *[[(A, b"%d" % n), (b"k%d" % n, b"1")] for n in range(6)])
    await compact(ground, log, rules=KeyRules(max_sources=2))
    await ground.metadata.advance_log_start(log.key, 5)
    await log.write(keyed((D, b"1")))
    await ground.advance(1)
    await compact(ground, log)
    found = [(offset, key) for offset, key, _ in pairs_of(await ground.seen_from(log.key, 5))]
    assert found == [(5, b"k2"), (7, b"k3"), (9, b"k4"), (10, A), (11, b"k5"), (12, D)]
    await ground.metadata.advance_log_start(log.key, log.next_offset)
    assert (await compact(ground, log)).stats.runs == 0


async def test_only_compacted_topics_are_compacted(sqlite_ground: KeyGround) -> None:
    log = await keyed_log(sqlite_ground, [(A, b"1")], [(A, b"2")], [(B, b"1")])
    done = await sqlite_ground.key_compactor().compact_once({log.key: effective({})})
    assert (done.stats.runs, len(await log.entries())) == (0, 3)
    both = effective({"cleanup.policy": "compact,delete"})
    assert (await compact(sqlite_ground, log, config=both)).stats.superseded == 1


async def test_a_partition_without_work_is_not_claimed_and_costs_two_calls(sqlite_ground: KeyGround) -> None:
    log = await keyed_log(sqlite_ground, [(A, b"1")])
    asked = MortalMetadata(sqlite_ground.metadata, life := Life())
    compactor = sqlite_ground.key_compactor(metadata=asked)
    await compactor.compact_once({log.key: compacted()})
    assert life.steps == ["now_ms", "get_partitions", "list_compactions", "scan_entries"]
    life.steps.clear()
    await compactor.compact_once({log.key: compacted()})
    assert life.steps == ["now_ms", "get_partitions", "list_compactions"], "nothing has changed since"


# Memory.


async def test_p4_a_full_map_compacts_what_it_could_map_and_the_next_pass_goes_on(ground: KeyGround) -> None:
    log = await keyed_log(ground, *[[(b"k%d" % (n % 5), b"%d" % n)] for n in range(12)])
    rules = KeyRules(map_bytes=3 * BYTES_PER_KEY)
    compactor = ground.key_compactor(rules=rules)
    passes = 0
    while True:
        done = await compactor.compact_once({log.key: compacted()})
        assert done.failures == ()
        passes += 1
        await sound(log)
        if not done.more:
            break
        assert (await log.entries())[0].end_offset < 10
    assert passes > 2
    found = [(offset, value) for offset, _, value in pairs_of(await ground.seen_from(log.key, 0))]
    assert found == [(offset, b"%d" % offset) for offset in range(6, 12)], "each key once, and the newest entry"


async def test_p4_an_entry_with_more_keys_than_the_map_is_compacted_by_shards(ground: KeyGround) -> None:
    rng, model = random.Random(2), CleanerModel()
    log = await ground.log()
    for _ in range(3):
        await log.write(random_batch(rng, keys=20))
    await compact(ground, log)
    model.written(log.bytes)
    clean_end = (await log.entries())[-1].base_offset
    model.clean(below=clean_end, now_ms=ground.backend.now_ms, delete_retention_ms=86_400_000)
    assert await ground.seen_from(log.key, 0) == model.from_offset(0)
    pairs = [(b"key-%d" % rng.randrange(60), rng.choice([None, b"v"])) for _ in range(200)]
    await log.write(*[keyed(*pairs[at : at + 20], (None, b"no key")) for at in range(0, 200, 20)])
    newest = await log.write(keyed((A, b"1")))
    await ground.advance(1)
    done = await compact(ground, log, rules=KeyRules(map_bytes=16 * BYTES_PER_KEY))
    if done.more:
        done = await compact(ground, log, rules=KeyRules(map_bytes=16 * BYTES_PER_KEY))
    model.written(log.bytes)
    model.clean(below=newest.base_offset, now_ms=ground.backend.now_ms, delete_retention_ms=86_400_000)
    assert await ground.seen_from(log.key, 0) == model.from_offset(0)
    await sound(log)


# Faults.


async def test_a_damaged_source_is_a_clear_error_and_nothing_is_lost(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1")], [(A, b"2")], [(A, b"3")], [(B, b"1")])
    before = await log.entries()
    await damage(ground, before[1])
    compactor = ground.key_compactor()
    done = await compactor.compact_once({log.key: compacted()})
    (failure,) = done.failures
    assert isinstance(failure.error, DamagedObject)
    assert failure.error.base_offset == 1
    assert done.stats.damaged == 1
    assert await log.entries() == before
    assert (await compactor.compact_once({log.key: compacted()})).failures == (), "left alone for a while"
    await ground.advance(60_001)
    assert len((await compactor.compact_once({log.key: compacted()})).failures) == 1


async def test_damage_in_the_clean_part_keeps_the_dirty_part_dirty(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1"), (D, b"1")], [(B, b"1")], [(C, b"1")])
    await compact(ground, log)
    (clean, _) = await log.entries()
    await log.write(keyed((A, b"2")))
    await log.write(keyed((B, b"2")))
    await damage(ground, clean, at=40)
    done = await ground.key_compactor(rules=KeyRules(max_sources=1)).compact_once({log.key: compacted()})
    assert isinstance(done.failures[0].error, DamagedObject)
    (plan,) = await ground.key_compactor().plan({log.key: compacted()})
    assert (plan.clean, len(plan.dirty)) == ((clean,), 2)


async def test_r7_entries_that_are_replaced_while_they_are_mapped_are_no_damage(sqlite_ground: KeyGround) -> None:
    ground = sqlite_ground
    log = await keyed_log(ground, [(A, b"1")], [(A, b"2")], [(B, b"1")])

    async def meanwhile() -> None:
        old = {entry.object_key for entry in await log.entries()}
        await compact(ground, log, metadata=Unclaimed(ground.metadata, "another"))
        await ground.memory.delete(sorted(old - {entry.object_key for entry in await log.entries()}))

    class Late(SteppedStore):
        done = False

        async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            if not self.done:
                self.done = True
                await meanwhile()
            return await call()

    late = await ground.key_compactor(store=Late(ground.memory)).compact_once({log.key: compacted()})
    assert (late.failures, late.stats.conflicts) == ((), 1)
    assert pairs_of(await ground.seen_from(log.key, 0)) == [(1, A, b"2"), (2, B, b"1")]


async def test_a_store_that_is_away_ends_the_pass(sqlite_ground: KeyGround) -> None:
    logs = [await keyed_log(sqlite_ground, [(A, b"1")], [(A, b"2")], [(B, b"1")], name=name) for name in ("x", "y")]

    class Away(SteppedStore):
        async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            raise StoreUnavailable("away")

    done = await sqlite_ground.key_compactor(store=Away(sqlite_ground.memory)).compact_once(
        {log.key: compacted() for log in logs}
    )
    assert (done.stats.failures, done.partitions_left) == (1, 1)


async def test_r5_lost_answers_are_asked_for_again(ground: KeyGround, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(seconds: float) -> None:
        pass

    monkeypatch.setattr("streamhouse.maintenance.compaction.commit.asyncio.sleep", at_once)
    log = await keyed_log(ground, [(A, b"1")], [(A, b"2")], [(B, b"1")])
    lossy = LossyMetadata(ground.metadata, {"begin_compaction": 2, "apply_compaction": 2})
    assert (await compact(ground, log, metadata=lossy)).stats.superseded == 1
    assert pairs_of(await ground.seen_from(log.key, 0)) == [(1, A, b"2"), (2, B, b"1")]


async def test_r6_an_object_older_than_the_horizon_is_written_again(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1")], [(A, b"2")], [(B, b"1")])

    async def vacuum() -> None:
        await ground.advance(1_000)
        await ground.backend.raise_horizon()

    meddled = MeddledMetadata(ground.metadata, "begin_compaction", vacuum)
    done = await compact(ground, log, metadata=meddled)
    assert (done.stats.stale, done.stats.runs, done.stats.superseded) == (1, 1, 1)
    assert pairs_of(await ground.seen_from(log.key, 0)) == [(1, A, b"2"), (2, B, b"1")]


async def test_s2_13_a_claimed_partition_is_passed_over(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1")], [(A, b"2")], [(B, b"1")])
    await ground.metadata.acquire_claim(claim_name(log.key), owner="another", ttl_ms=60_000)
    assert (await compact(ground, log)).stats.busy == 1
    await ground.advance(60_001)
    assert (await compact(ground, log)).stats.superseded == 1
    assert await ground.metadata.list_claims() == []


async def test_s2_16_a_pass_tells_how_far_it_is_and_a_plan_changes_nothing(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1")], [(A, b"2")], [(B, b"1")])
    before = await log.entries()
    compactor = ground.key_compactor()
    (plan,) = await compactor.plan({log.key: compacted(), PartitionKey(log.key.topic_id, 9): compacted()})
    assert await log.entries() == before
    assert await ground.metadata.list_claims() == []
    told: list[PassProgress] = []
    done = await compactor.compact_once({log.key: compacted()}, on_progress=told.append)
    assert (told[-1].partitions_done, told[-1].items_done, told[-1].bytes_read) == (1, 1, plan.expected_bytes)
    assert told[-1].bytes_expected == plan.expected_bytes
    assert compactor.stats == done.stats


async def test_partitions_that_do_not_exist_are_nothing_to_do(ground: KeyGround) -> None:
    log = await keyed_log(ground, [(A, b"1")], [(A, b"2")], [(B, b"1")])
    await ground.metadata.delete_topic(log.topic.topic_id)
    assert (await compact(ground, log)).stats.runs == 0


@pytest.mark.parametrize(
    "wrong", [{"max_parallel_partitions": 0}, {"max_parallel_partitions": 17}, {"claim_ttl_ms": 9}]
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        KeyCompactorOptions(**wrong)


async def test_p4_shards_that_are_divided_again_go_on_from_what_the_pass_has_rewritten(
    sqlite_ground: KeyGround,
) -> None:
    """Some secrets divide the keys so unevenly that a shard does not fit after earlier ones were compacted."""
    ground, rules, divided_again = sqlite_ground, KeyRules(map_bytes=3 * BYTES_PER_KEY), 0
    keys = [b"key-%d" % number for number in range(24)]
    for n in range(20):
        log = await keyed_log(ground, [(key, b"old") for key in keys[:3]], [(A, b"1")], name=f"table-{n}")
        await compact(ground, log, rules=rules)
        await log.write(keyed(*((key, b"new") for key in keys)))
        await log.write(keyed((B, b"1")))
        await ground.advance(1)
        while (done := await compact(ground, log, rules=rules)).more:
            pass
        assert done.stats.conflicts == 0
        divided_again += done.stats.keys > len(keys)
        found = pairs_of(await ground.seen_from(log.key, 0))
        assert [pair[1:] for pair in found] == [(A, b"1"), *((key, b"new") for key in keys), (B, b"1")]
    assert divided_again
