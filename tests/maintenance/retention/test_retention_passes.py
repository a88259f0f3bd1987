"""Passes on real metadata stores with real commits: what goes, what is told, and how much is read for it (S3.2)."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from builders import assert_dense, batch, compaction_of, leaderless_slice
from harness import Backend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from retention_logs import kafka_deletes
from retention_stores import DAY_MS, HOUR_MS, led, starts, steps_of, total, watched, write

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.retention import passes
from streamhouse.maintenance.retention.holds import ReaderPlace
from streamhouse.maintenance.retention.passes import Retention, RetentionKept, RetentionOutcome, RetentionSummary
from streamhouse.maintenance.retention.plan import EntrySum

O = RetentionOutcome  # noqa: E741


async def test_s3_2_records_go_after_24_hours_and_their_objects_lose_their_reference(backend: Backend) -> None:
    log = await led(backend)
    await write(log, 100, 200, records=3)
    gone = [entry.object_key for entry in await backend.entries(log.key)]
    await backend.advance(DAY_MS)
    await write(log, 50)
    retention = Retention(metadata=backend.store)
    assert (await retention.run()).moved == 0, "24 hours are not over"
    await backend.advance(1)
    summary = await retention.run()
    assert summary == RetentionSummary(partitions=1, moved=1, freed=EntrySum(entries=2, records=6, size_bytes=300))
    assert await starts(backend, log.key) == (6, 7)
    await backend.advance(1)
    assert sorted(await backend.garbage()) == sorted(gone)
    assert (await retention.run()).moved == 0


async def test_s3_2_a_log_keeps_retention_bytes_and_at_most_one_entry_more(backend: Backend) -> None:
    log = await led(backend, retention_bytes="250")
    retention = Retention(metadata=backend.store)
    await write(log, 100, 100, 100)
    assert (await retention.run()).freed.entries == 0
    await write(log, 100)
    (step,) = await steps_of(retention)
    assert (step.outcome, step.item and step.item.reasons) == (O.APPLIED, ("size",))
    assert total(await backend.entries(log.key)) == 300
    await write(log, 300)
    assert (await retention.run()).freed.entries == 3
    assert await starts(backend, log.key) == (4, 5)


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({"cleanup_policy": "compact"}, 0),
        ({"cleanup_policy": ""}, 0),
        ({"cleanup_policy": "compact,delete"}, 2),
        ({"retention_ms": "-1"}, 0),
        ({"retention_ms": "-1", "retention_bytes": "0"}, 2),
        ({"retention_ms": "0"}, 2),
    ],
)
async def test_s3_2_a_topic_is_cut_by_its_own_policy_and_limits(
    backend: Backend, configs: dict[str, str], expected: int
) -> None:
    log = await led(backend, **{"retention_bytes": "1"} | configs if "retention_ms" not in configs else configs)
    await write(log, 100, 100, age_ms=2 * DAY_MS)
    assert (await Retention(metadata=backend.store).run()).freed.entries == expected
    assert await starts(backend, log.key) == (expected, 2)


async def test_s3_2_a_pass_says_why_each_partition_keeps_its_records(backend: Backend) -> None:
    limited, empty, unlimited = [
        await led(backend, name=name, cleanup_policy=policy)
        for name, policy in [("limited", "delete"), ("empty", "compact,delete"), ("unlimited", "compact")]
    ]
    await write(limited, 100)
    await write(unlimited, 100)
    kept = {step.topic: step.kept for step in await steps_of(Retention(metadata=backend.store))}
    assert kept == {
        "limited": RetentionKept.WITHIN,
        "empty": RetentionKept.EMPTY,
        "unlimited": RetentionKept.UNLIMITED,
    }
    await backend.advance(DAY_MS + 1)
    summary = await Retention(metadata=backend.store).run()
    assert summary.kept == {RetentionKept.EMPTY: 1, RetentionKept.UNLIMITED: 1}, "what goes has no reason to stay"
    assert await starts(backend, empty.key) == (0, 0)


async def test_s3_2_records_without_timestamps_go_by_the_time_of_their_commit(backend: Backend) -> None:
    log = await led(backend)
    await log.append(batch(2, at_ms=-1))
    retention = Retention(metadata=backend.store)
    await backend.advance(DAY_MS)
    assert (await retention.run()).moved == 0
    await backend.advance(1)
    assert (await retention.run()).freed.records == 2


async def test_s3_2_a_record_dated_in_the_future_keeps_what_comes_after_it(backend: Backend) -> None:
    log = await led(backend)
    await write(log, 100)
    await write(log, 100, age_ms=-1000 * DAY_MS)
    await write(log, 100)
    await backend.advance(2 * DAY_MS)
    assert (await Retention(metadata=backend.store).run()).freed.entries == 1
    assert await starts(backend, log.key) == (1, 3)


async def test_s3_2_leaderless_logs_are_cut_too(backend: Backend) -> None:
    topic = await backend.topic("free", partitions=2, leaderless=True)
    slices = [leaderless_slice(key, batch(4)) for key in topic.partition_keys()]
    await backend.store.commit_leaderless(backend.append_id(), backend.object(), slices)
    await backend.advance(2 * DAY_MS)
    summary = await Retention(metadata=backend.store).run()
    assert (summary.moved, summary.freed.records) == (2, 8)


async def test_a_plan_changes_nothing_and_may_be_applied_later(backend: Backend) -> None:
    log = await led(backend)
    await write(log, 100, 100)
    await backend.advance(2 * DAY_MS)
    store = watched(backend.store)
    retention = Retention(metadata=store)
    (step,) = await steps_of(retention, plan_only=True)
    assert (step.outcome, str(step), step.done, step.total) == (O.PLANNED, "partition 0 of orders", 1, 1)
    assert await starts(backend, log.key) == (0, 2)
    assert store.calls["advance_log_start"] == 0
    summary = RetentionSummary()
    summary.add(step)
    assert (summary.moved, summary.freed.size_bytes) == (1, 200)
    await write(log, 100)
    await backend.advance(2 * DAY_MS)
    assert step.item is not None
    assert await retention.apply(step.item)
    assert await starts(backend, log.key) == (2, 3), "what was committed after the plan stays"
    assert await retention.apply(step.item), "it may be repeated"
    assert await starts(backend, log.key) == (2, 3)


async def test_a_plan_is_void_when_the_topic_was_altered(backend: Backend) -> None:
    log = await led(backend)
    await write(log, 100)
    await backend.advance(2 * DAY_MS)
    retention = Retention(metadata=backend.store)
    (step,) = await steps_of(retention, plan_only=True)
    assert step.item is not None
    await backend.store.alter_topic_configs(log.key.topic_id, set_configs={"retention.ms": str(7 * DAY_MS)})
    assert not await retention.apply(step.item)
    assert await starts(backend, log.key) == (0, 1)


async def test_a_config_that_changes_during_a_pass_saves_the_records(backend: Backend) -> None:
    log = await led(backend)
    await write(log, 100)
    await backend.advance(2 * DAY_MS)

    async def alter(_: object) -> None:
        await backend.store.alter_topic_configs(log.key.topic_id, set_configs={"retention.ms": "-1"})

    store = watched(backend.store)
    store.before_scan = alter
    summary = await Retention(metadata=store).run()
    assert (summary.left, summary.moved) == (1, 0)
    assert await starts(backend, log.key) == (0, 1)


async def test_an_error_is_reported_by_name_and_ends_only_its_own_partition(backend: Backend) -> None:
    logs = [await led(backend, name) for name in ("one", "three", "two")]
    for log in logs:
        await write(log, 100)
    await backend.advance(2 * DAY_MS)
    store = watched(backend.store)
    store.failing = {logs[1].key}
    retention = Retention(metadata=store)
    summary = await retention.run()
    assert (summary.partitions, summary.moved, summary.failed) == (3, 2, 1)
    (failure,) = summary.failures
    assert failure.startswith("partition 0 of three: ")
    assert "cannot be reached" in failure
    store.failing = set()
    assert (await retention.run()).moved == 1


async def test_an_error_of_the_look_fails_the_partitions_it_was_for(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "_LOOK_PARTITIONS", 2)
    topic = await backend.topic("orders", partitions=5)
    store = watched(backend.store)

    async def fail_once(ranges: object) -> None:
        store.before_scan = None
        raise MetadataUnavailable("away")

    store.before_scan = fail_once
    steps = await steps_of(Retention(metadata=store))
    assert [step.partition for step in steps if step.outcome is O.FAILED] == [0, 1]
    assert sorted(step.partition for step in steps) == list(range(topic.partition_count))
    assert [step.done for step in steps] == [1, 2, 3, 4, 5]


async def test_configs_that_cannot_be_read_fail_their_topic_alone(backend: Backend) -> None:
    await backend.topic("broken", configs={"retention.ms": "soon"})
    log = await led(backend)
    await write(log, 100)
    await backend.advance(2 * DAY_MS)
    summary = await Retention(metadata=backend.store).run()
    assert (summary.moved, summary.failed) == (1, 1)
    assert summary.failures[0].startswith("partition 0 of broken: ")


async def test_a_topic_deleted_during_a_pass_is_no_error(backend: Backend) -> None:
    log = await led(backend)
    await write(log, 100)
    await backend.advance(2 * DAY_MS)
    store = watched(backend.store)

    async def delete(_: object) -> None:
        store.before_move = store.before_scan = None
        await backend.store.delete_topic(log.key.topic_id)

    store.before_scan = delete
    (step,) = await steps_of(Retention(metadata=store))
    assert step.outcome is O.GONE
    other = await led(backend, "other")
    await write(other, 100, age_ms=2 * DAY_MS)
    log, store.before_move = other, delete
    (step,) = await steps_of(Retention(metadata=store))
    assert (step.outcome, step.error) == (O.GONE, None)


async def test_a_pass_looks_only_where_it_is_told_to(backend: Backend) -> None:
    logs = [await led(backend, name) for name in ("one", "two")]
    for log in logs:
        await write(log, 100, age_ms=2 * DAY_MS)
    steps = await steps_of(Retention(metadata=backend.store), wanted=lambda topic, _: topic.name == "two")
    assert [(step.topic, step.done, step.total) for step in steps] == [("two", 1, 1)]
    assert await starts(backend, logs[0].key) == (0, 1)


async def test_only_so_many_partitions_are_worked_on_at_a_time(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "PARTITIONS_AT_A_TIME", 3)
    for number in range(9):
        await write(await led(backend, f"topic-{number}"), 100, age_ms=2 * DAY_MS)
    store = watched(backend.store)
    assert (await Retention(metadata=store).run()).moved == 9
    assert 2 <= store.most_at_once <= 3


async def test_a_reader_holds_records_until_the_limit(backend: Backend) -> None:
    log = await led(backend, retention_hold_ms=str(HOUR_MS))
    await write(log, 100, 100, 100)
    asked: list[PartitionKey] = []

    async def hold(key: PartitionKey) -> ReaderPlace | None:
        asked.append(key)
        return ReaderPlace(offset=1, reader="slow")

    retention = Retention(metadata=backend.store, hold=hold)
    nothing = RetentionSummary(partitions=1, kept={RetentionKept.WITHIN: 1})
    assert (await retention.run(), asked) == (nothing, []), "nothing is due yet"
    await backend.advance(DAY_MS + HOUR_MS)
    (step,) = await steps_of(retention)
    assert (step.outcome, asked) == (O.APPLIED, [log.key])
    assert step.item is not None
    assert step.item.held is not None
    assert (step.item.held.slowest.offset, step.item.held.amount.entries) == (1, 2)
    (step,) = await steps_of(retention)
    assert (step.outcome, step.item is not None) == (O.NOTHING, True), "all that is due is held"
    assert step.kept is RetentionKept.HELD
    assert await starts(backend, log.key) == (1, 3)
    await backend.advance(1)
    assert (await retention.run()).freed.entries == 2


async def test_a_hold_that_fails_deletes_nothing(backend: Backend) -> None:
    log = await led(backend, retention_hold_ms="1")
    await write(log, 100, age_ms=2 * DAY_MS)

    async def hold(key: PartitionKey) -> ReaderPlace | None:
        raise MetadataUnavailable("the groups cannot be read")

    assert (await Retention(metadata=backend.store, hold=hold).run()).failed == 1
    assert await starts(backend, log.key) == (0, 1)


async def test_a_log_below_its_size_limit_is_read_once_and_then_only_its_new_entries(backend: Backend) -> None:
    log = await led(backend, retention_bytes="100000", retention_ms="-1")
    await write(log, *[100] * 40)
    store = watched(backend.store)
    retention = Retention(metadata=store)
    await retention.run()
    assert store.entries_read == 1 + 40
    await write(log, 100, 100)
    store.entries_read = 0
    await retention.run()
    assert store.entries_read == 1 + 2
    store.entries_read = 0
    await retention.run()
    assert store.entries_read == 1


async def test_a_log_at_its_size_limit_is_not_counted_while_nothing_comes(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "_PAGE_ENTRIES", 5)
    log = await led(backend, retention_bytes="1000", retention_ms="-1")
    await write(log, *[100] * 40)
    store = watched(backend.store)
    retention = Retention(metadata=store)
    assert (await retention.run()).freed.entries == 30
    store.entries_read = 0
    await retention.run()
    assert store.entries_read == 1
    await write(log, 100)
    assert (await retention.run()).freed.entries == 1


async def test_the_total_is_right_again_when_compaction_has_replaced_entries(backend: Backend) -> None:
    """The log had 1000 bytes and may have 1000. Compaction makes 800 of them 80; then 500 new ones come."""
    log = await led(backend, retention_bytes="1000", retention_ms="-1")
    await write(log, *[100] * 10)
    retention = Retention(metadata=backend.store)
    assert (await retention.run()).moved == 0
    entries = await backend.entries(log.key)
    compaction = compaction_of(log.key, entries[1:9], backend.object(size=80), backend.ids)
    await backend.store.begin_compaction(compaction)
    await backend.store.apply_compaction(log.key, compaction.compaction_id)
    await write(log, *[100] * 5)
    assert (await retention.run()).moved == 0, "the log has 780 bytes"
    await write(log, 100, 100, 100)
    assert (await retention.run()).freed.entries == 0, "it has 1080, and 980 would stay"
    await write(log, 100)
    assert (await retention.run()).freed.entries == 2, "it has 1180: 100 and 80 may go"
    assert total(await backend.entries(log.key)) == 1000


async def test_r17_a_pending_compaction_below_the_new_log_start_is_aborted(backend: Backend) -> None:
    log = await led(backend)
    await write(log, 100, 100, age_ms=2 * DAY_MS)
    await write(log, 100, 100)
    entries = await backend.entries(log.key)
    compaction = compaction_of(log.key, entries[1:3], backend.object(), backend.ids)
    await backend.store.begin_compaction(compaction)
    assert (await Retention(metadata=backend.store).run()).freed.entries == 2
    assert await backend.store.get_compaction(log.key) is None
    assert_dense(await backend.entries(log.key), log_start=2, watermark=4)


async def test_a_pass_that_is_left_early_ends_its_work(backend: Backend) -> None:
    logs = [await led(backend, f"topic-{number}") for number in range(4)]
    for log in logs:
        await write(log, 100, age_ms=2 * DAY_MS)
    store = watched(backend.store)
    retention = Retention(metadata=store)
    async with aclosing(retention.steps()) as steps:
        async for _ in steps:
            break
    assert store.at_once == 0
    await retention.run()
    assert [await starts(backend, log.key) for log in logs] == [(1, 1)] * 4


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    rounds=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 9), st.integers(-2, 12)), max_size=6),
            st.integers(0, 5),
            st.tuples(st.integers(0, 8), st.integers(2, 4), st.integers(1, 20)),
        ),
        max_size=4,
    ),
    ms=st.integers(-1, 12),
    size=st.integers(-1, 40),
)
async def test_s3_2_pass_after_pass_a_real_log_begins_where_kafkas_would(
    backend: Backend,
    rounds: list[tuple[list[tuple[int, int]], int, tuple[int, int, int]]],
    ms: int,
    size: int,
) -> None:
    """Between passes the log grows, time passes, another process trims the log, and entries are compacted."""
    log = await led(backend, f"t-{backend.uuid().hex}", retention_ms=str(ms), retention_bytes=str(size))
    retention = Retention(metadata=backend.store)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(passes, "_FIRST_PAGE_ENTRIES", 2)
        patched.setattr(passes, "_PAGE_ENTRIES", 3)
        for writes, trimmed, (first, length, merged_bytes) in rounds:
            for entry_bytes, age_ms in writes:
                await write(log, entry_bytes, age_ms=age_ms)
            await backend.advance(1)
            await backend.store.advance_log_start(log.key, (await starts(backend, log.key))[0] + trimmed // 4)
            sources = (await backend.entries(log.key))[first : first + length]
            if len(sources) > 1:
                merged = backend.object(size=min(merged_bytes, total(sources)))
                compaction = compaction_of(log.key, sources, merged, backend.ids)
                await backend.store.begin_compaction(compaction)
                await backend.store.apply_compaction(log.key, compaction.compaction_id)
            before = await backend.entries(log.key)
            kept = before[kafka_deletes(before, ms=ms, size=size, now_ms=backend.now_ms) :]
            summary = await retention.run(wanted=lambda topic, _: topic.topic_id == log.key.topic_id)
            assert summary.failures == []
            assert await backend.entries(log.key) == kept
            log_start, watermark = await starts(backend, log.key)
            assert_dense(kept, log_start=log_start, watermark=watermark)
