"""Compaction records, cursor and replacement of entries (S2.8-S2.10), and retention beside them (R17)."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from builders import assert_dense, batch, compaction_of
from harness import Backend, LedPartition

from streamhouse.core.errors import CompactionConflict, InvalidRequest, PartitionNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import Compaction, CompactionVerdict, EntryKind


async def log_of(backend: Backend, *counts: int, name: str = "orders") -> LedPartition:
    led = await backend.led(name)
    for count in counts:
        await led.append(batch(count))
    return led


async def plan(backend: Backend, led: LedPartition, first: int = 0, last: int | None = None) -> Compaction:
    """Replace the entries at positions ``first`` … ``last``, all of them by default."""
    entries = await backend.entries(led.key)
    stop = len(entries) if last is None else last + 1
    return compaction_of(led.key, entries[first:stop], backend.object(), backend.ids)


async def dereferenced(backend: Backend) -> set[str]:
    await backend.advance(1)
    return set(await backend.garbage())


async def test_s2_8_compaction_replaces_its_sources_by_one_entry(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5)
    before = await backend.entries(led.key)
    compaction = await plan(backend, led, 0, 1)
    assert await backend.store.begin_compaction(compaction) == compaction
    assert await backend.entries(led.key) == before
    assert await backend.store.apply_compaction(led.key, compaction.compaction_id) is CompactionVerdict.APPLIED
    after = await backend.entries(led.key)
    assert after == (compaction.target, before[2])
    assert after[0].kind is EntryKind.COMPACTED
    state = await backend.state(led.key)
    assert (state.compaction_cursor, state.high_watermark, state.log_start_offset) == (10, 15, 0)
    assert_dense(after, log_start=0, watermark=15)


async def test_s2_9_a_pending_compaction_is_seen_by_every_process(backend: Backend) -> None:
    one = await log_of(backend, 2, 2, name="one")
    two = await log_of(backend, 2, 2, name="two")
    other = await backend.open_another()
    assert await other.get_compaction(one.key) is None
    assert await other.list_compactions() == []
    plans = {led.key: await plan(backend, led) for led in (one, two)}
    for compaction in plans.values():
        await backend.store.begin_compaction(compaction)
    assert await other.get_compaction(one.key) == plans[one.key]
    assert await other.list_compactions() == [plans[key] for key in sorted(plans)]
    assert await other.apply_compaction(one.key, plans[one.key].compaction_id) is CompactionVerdict.APPLIED
    assert await backend.store.list_compactions() == [plans[two.key]]


async def test_s2_9_every_step_may_be_sent_again(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    compaction = await plan(backend, led)
    for _ in range(2):
        assert await backend.store.begin_compaction(compaction) == compaction
    verdicts = [await backend.store.apply_compaction(led.key, compaction.compaction_id) for _ in range(3)]
    assert verdicts == [CompactionVerdict.APPLIED, CompactionVerdict.ALREADY, CompactionVerdict.ALREADY]
    assert await backend.entries(led.key) == (compaction.target,)
    store = await backend.reopen()
    assert await store.apply_compaction(led.key, compaction.compaction_id) is CompactionVerdict.ALREADY


async def test_s2_9_a_beginning_sent_again_after_it_was_applied_changes_nothing(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    compaction = await plan(backend, led)
    await backend.store.begin_compaction(compaction)
    await backend.store.apply_compaction(led.key, compaction.compaction_id)
    assert await backend.store.begin_compaction(compaction) == compaction
    assert await backend.store.get_compaction(led.key) is None
    await backend.store.advance_log_start(led.key, 10)
    assert compaction.object.key in await dereferenced(backend)


async def test_of_concurrent_applies_one_applies(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    compaction = await plan(backend, led)
    await backend.store.begin_compaction(compaction)
    other = await backend.open_another()
    verdicts = await asyncio.gather(
        *(store.apply_compaction(led.key, compaction.compaction_id) for store in (backend.store, other) * 3)
    )
    assert sorted(verdicts) == [CompactionVerdict.ALREADY] * 5 + [CompactionVerdict.APPLIED]


async def test_one_compaction_per_partition_is_pending(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5, 5)
    first, second = await plan(backend, led, 0, 1), await plan(backend, led, 2, 3)
    await backend.store.begin_compaction(first)
    with pytest.raises(CompactionConflict):
        await backend.store.begin_compaction(second)
    await backend.store.apply_compaction(led.key, first.compaction_id)
    await backend.store.begin_compaction(second)
    await backend.store.apply_compaction(led.key, second.compaction_id)
    assert (await backend.state(led.key)).compaction_cursor == 20


async def test_of_concurrent_beginners_one_is_pending(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    other = await backend.open_another()
    plans = [await plan(backend, led) for _ in range(6)]
    answers = await asyncio.gather(
        *((backend.store, other)[turn % 2].begin_compaction(one) for turn, one in enumerate(plans)),
        return_exceptions=True,
    )
    won = [one for one in answers if isinstance(one, Compaction)]
    assert len(won) == 1
    assert len([one for one in answers if isinstance(one, CompactionConflict)]) == 5
    assert await backend.store.list_compactions() == won


async def test_s2_10_the_sources_must_be_exactly_the_present_entries(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5)
    good = await plan(backend, led, 0, 1)
    first, second = good.sources
    merged = dataclasses.replace(first, end_offset=second.end_offset)
    for sources in (
        (first, dataclasses.replace(second, object_key="objects/other")),
        (merged,),
        (dataclasses.replace(first, end_offset=3), dataclasses.replace(second, base_offset=4)),
    ):
        with pytest.raises(CompactionConflict):
            await backend.store.begin_compaction(dataclasses.replace(good, sources=sources))
    assert await backend.store.list_compactions() == []


async def test_a_compacted_range_cannot_be_compacted_by_an_old_plan(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    first, second = await plan(backend, led), await plan(backend, led)
    await backend.store.begin_compaction(first)
    await backend.store.apply_compaction(led.key, first.compaction_id)
    with pytest.raises(CompactionConflict):
        await backend.store.begin_compaction(second)


async def test_r6_a_target_older_than_the_horizon_is_refused(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    compaction = await plan(backend, led)
    await backend.advance(1)
    await backend.store.raise_gc_horizon(compaction.object.created_at_ms + 1)
    with pytest.raises(CompactionConflict):
        await backend.store.begin_compaction(compaction)


async def test_r6_a_begun_compaction_is_applied_whatever_the_horizon(backend: Backend) -> None:
    """From its beginning the target is referenced, so vacuum has not touched it."""
    led = await log_of(backend, 5, 5)
    compaction = await plan(backend, led)
    await backend.store.begin_compaction(compaction)
    await backend.advance(1000)
    await backend.store.raise_gc_horizon(backend.now_ms)
    assert await backend.unreferenced(compaction.object.key) == set()
    assert await backend.store.apply_compaction(led.key, compaction.compaction_id) is CompactionVerdict.APPLIED


async def test_a_malformed_compaction_is_refused(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5)
    good = await plan(backend, led, 0, 1)
    for changed in (
        dataclasses.replace(good, sources=()),
        dataclasses.replace(good, sources=good.sources[:1]),
        dataclasses.replace(good, sources=tuple(reversed(good.sources))),
        dataclasses.replace(good, target=dataclasses.replace(good.target, end_offset=8)),
        dataclasses.replace(good, target=dataclasses.replace(good.target, base_offset=1)),
        dataclasses.replace(good, target=dataclasses.replace(good.target, object_key="objects/other")),
        dataclasses.replace(good, object=dataclasses.replace(good.object, key="a\0b")),
    ):
        with pytest.raises(InvalidRequest):
            await backend.store.begin_compaction(changed)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": EntryKind.SEGMENT},
        {"record_count": -1},
        {"record_count": 11},
        {"byte_offset": -1},
        {"byte_length": 0},
        {"byte_offset": 1},
        {"byte_length": 1001},
        {"epoch": -1},
        {"epoch": 2**63},
        {"encoding": ""},
        {"encoding": "a\0b"},
        {"created_at_ms": -1},
        {"created_at_ms": 2**63},
        {"max_timestamp_ms": 0},
        {"max_timestamp_ms": 2**63},
        {"min_timestamp_ms": -(2**63) - 1},
    ],
    ids=str,
)
async def test_r18_an_impossible_target_is_refused(backend: Backend, change: dict[str, Any]) -> None:
    led = await log_of(backend, 5, 5, 5)
    good = await plan(backend, led, 0, 1)
    bad = dataclasses.replace(good, target=dataclasses.replace(good.target, **change))
    with pytest.raises(InvalidRequest):
        await backend.store.begin_compaction(bad)
    assert await backend.store.list_compactions() == []


async def test_r18_the_newest_entry_is_never_key_compacted(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    whole = await plan(backend, led)
    thinned = dataclasses.replace(whole, target=dataclasses.replace(whole.target, record_count=9))
    with pytest.raises(CompactionConflict, match="newest"):
        await backend.store.begin_compaction(thinned)
    assert await backend.store.list_compactions() == []
    await led.append(batch(1))
    assert await backend.store.begin_compaction(thinned) == thinned
    assert await backend.store.apply_compaction(led.key, thinned.compaction_id) is CompactionVerdict.APPLIED
    assert await backend.store.begin_compaction(thinned) == thinned


async def test_r18_a_target_may_have_lost_every_record(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5)
    good = await plan(backend, led, 0, 1)
    emptied = dataclasses.replace(good.target, record_count=0, max_timestamp_ms=-1)
    compaction = dataclasses.replace(good, target=emptied)
    await backend.store.begin_compaction(compaction)
    assert await backend.store.apply_compaction(led.key, compaction.compaction_id) is CompactionVerdict.APPLIED
    assert (await backend.entries(led.key))[0] == emptied


async def test_an_unknown_partition_has_no_compactions(backend: Backend) -> None:
    led = await log_of(backend, 5)
    missing = PartitionKey(led.key.topic_id, 9)
    compaction = await plan(backend, led)
    with pytest.raises(PartitionNotFound):
        await backend.store.begin_compaction(dataclasses.replace(compaction, key=missing))
    with pytest.raises(PartitionNotFound):
        await backend.store.apply_compaction(missing, compaction.compaction_id)
    with pytest.raises(PartitionNotFound):
        await backend.store.advance_log_start(missing, 0)
    assert await backend.store.get_compaction(missing) is None
    assert await backend.store.abort_compaction(missing, compaction.compaction_id) is False


async def test_what_was_never_begun_aborted_or_overtaken_is_not_applied(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5, 5)
    with pytest.raises(CompactionConflict):
        await backend.store.apply_compaction(led.key, backend.uuid())
    aborted = await plan(backend, led, 0, 1)
    await backend.store.begin_compaction(aborted)
    await backend.store.abort_compaction(led.key, aborted.compaction_id)
    with pytest.raises(CompactionConflict):
        await backend.store.apply_compaction(led.key, aborted.compaction_id)
    first, second = await plan(backend, led, 0, 1), await plan(backend, led, 2, 3)
    await backend.store.begin_compaction(first)
    with pytest.raises(CompactionConflict):
        await backend.store.apply_compaction(led.key, second.compaction_id)
    for compaction in (first, second):
        await backend.store.begin_compaction(compaction)
        await backend.store.apply_compaction(led.key, compaction.compaction_id)
    with pytest.raises(CompactionConflict):
        await backend.store.apply_compaction(led.key, first.compaction_id)


async def test_an_aborted_compaction_leaves_the_log_as_it_was(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    before = await backend.entries(led.key)
    compaction = await plan(backend, led)
    await backend.store.begin_compaction(compaction)
    assert await backend.store.abort_compaction(led.key, backend.uuid()) is False
    assert await backend.store.get_compaction(led.key) == compaction
    assert await backend.store.abort_compaction(led.key, compaction.compaction_id) is True
    assert await backend.store.abort_compaction(led.key, compaction.compaction_id) is False
    assert await backend.entries(led.key) == before
    assert await backend.store.get_compaction(led.key) is None
    assert await dereferenced(backend) == {compaction.object.key}


async def test_the_cursor_moves_only_when_the_range_began_at_or_below_it_and_never_back(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5, 5, 5, 5)

    async def compact(first: int, last: int) -> int:
        compaction = await plan(backend, led, first, last)
        await backend.store.begin_compaction(compaction)
        await backend.store.apply_compaction(led.key, compaction.compaction_id)
        return (await backend.state(led.key)).compaction_cursor

    assert await compact(2, 3) == 0
    assert await compact(0, 1) == 10
    assert await compact(1, 2) == 25
    assert await compact(0, 0) == 25
    assert_dense(await backend.entries(led.key), log_start=0, watermark=30)


async def test_commits_go_on_beside_a_compaction(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    compaction = await plan(backend, led)
    await backend.store.begin_compaction(compaction)
    await led.append(batch(3))
    await backend.store.apply_compaction(led.key, compaction.compaction_id)
    await led.append(batch(3))
    entries = await backend.entries(led.key)
    assert [entry.end_offset for entry in entries] == [9, 12, 15]
    assert_dense(entries, log_start=0, watermark=16)


async def test_r7_applying_lets_go_of_the_sources_and_keeps_the_target(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5)
    before = await backend.entries(led.key)
    compaction = await plan(backend, led, 0, 1)
    await backend.store.begin_compaction(compaction)
    assert await dereferenced(backend) == set()
    await backend.store.apply_compaction(led.key, compaction.compaction_id)
    assert await dereferenced(backend) == {before[0].object_key, before[1].object_key}
    keys = [compaction.object.key, before[2].object_key]
    assert await backend.unreferenced(*keys) == set()


# Retention.


async def test_the_log_start_is_raised_and_whole_entries_go(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5)
    before = await backend.entries(led.key)
    state = await backend.store.advance_log_start(led.key, 7)
    assert (state.log_start_offset, state.high_watermark) == (7, 15)
    assert await backend.entries(led.key) == before[1:]
    assert await dereferenced(backend) == {before[0].object_key}
    state = await backend.store.advance_log_start(led.key, 10)
    assert await backend.entries(led.key) == before[2:]
    assert state == await backend.state(led.key)


async def test_the_log_start_never_goes_back_nor_past_the_watermark(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    assert (await backend.store.advance_log_start(led.key, 6)).log_start_offset == 6
    for _ in range(2):
        assert (await backend.store.advance_log_start(led.key, 3)).log_start_offset == 6
    assert (await backend.store.advance_log_start(led.key, 1000)).log_start_offset == 10
    assert await backend.entries(led.key) == ()
    await led.append(batch(2))
    (entry,) = await backend.entries(led.key)
    assert (entry.base_offset, entry.end_offset) == (10, 11)


async def test_a_cursor_among_dropped_entries_follows_to_the_first_one_left(backend: Backend) -> None:
    """Compaction begins exactly at the cursor; below the first entry it would wait for ever."""
    led = await log_of(backend, 5, 5, 5, 5)
    assert (await backend.store.advance_log_start(led.key, 7)).compaction_cursor == 5
    compaction = await plan(backend, led, 0, 1)
    await backend.store.begin_compaction(compaction)
    await backend.store.apply_compaction(led.key, compaction.compaction_id)
    assert (await backend.state(led.key)).compaction_cursor == 15
    assert (await backend.store.advance_log_start(led.key, 12)).compaction_cursor == 15
    assert (await backend.store.advance_log_start(led.key, 20)).compaction_cursor == 20


async def test_r17_retention_aborts_a_compaction_that_reaches_below_the_log_start(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5, 5)
    before = await backend.entries(led.key)
    compaction = await plan(backend, led, 0, 1)
    await backend.store.begin_compaction(compaction)
    await backend.store.advance_log_start(led.key, 6)
    assert await backend.store.get_compaction(led.key) is None
    with pytest.raises(CompactionConflict):
        await backend.store.apply_compaction(led.key, compaction.compaction_id)
    assert await backend.entries(led.key) == before[1:]
    assert await dereferenced(backend) == {before[0].object_key, compaction.object.key}


async def test_r17_retention_leaves_a_compaction_above_the_log_start(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5, 5)
    compaction = await plan(backend, led, 2, 3)
    await backend.store.begin_compaction(compaction)
    await backend.store.advance_log_start(led.key, 10)
    assert await backend.store.get_compaction(led.key) == compaction
    assert await backend.store.apply_compaction(led.key, compaction.compaction_id) is CompactionVerdict.APPLIED
    assert await backend.entries(led.key) == (compaction.target,)


async def test_retention_cuts_into_a_compacted_entry_without_dropping_it(backend: Backend) -> None:
    led = await log_of(backend, 5, 5)
    compaction = await plan(backend, led)
    await backend.store.begin_compaction(compaction)
    await backend.store.apply_compaction(led.key, compaction.compaction_id)
    await backend.store.advance_log_start(led.key, 9)
    assert await backend.entries(led.key) == (compaction.target,)
    await backend.store.advance_log_start(led.key, 10)
    assert await backend.entries(led.key) == ()
    assert compaction.object.key in await dereferenced(backend)


async def test_racing_retention_compaction_and_commits_keep_the_log_dense(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5, 5)
    other = await backend.open_another()
    for _ in range(8):
        compaction = await plan(backend, led, 0, 1)
        await backend.store.begin_compaction(compaction)
        cut = compaction.sources[1].base_offset
        applied, *rest = await asyncio.gather(
            other.apply_compaction(led.key, compaction.compaction_id),
            backend.store.advance_log_start(led.key, cut),
            led.append(batch(5)),
            return_exceptions=True,
        )
        assert applied is CompactionVerdict.APPLIED or isinstance(applied, CompactionConflict)
        assert not any(isinstance(one, BaseException) for one in rest)
        state = await backend.state(led.key)
        assert state.log_start_offset == cut
        assert_dense(await backend.entries(led.key), log_start=cut, watermark=state.high_watermark)
        while len(await backend.entries(led.key)) < 4:
            await led.append(batch(5))
