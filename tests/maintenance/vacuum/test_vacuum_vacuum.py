"""One vacuum: the order of its calls, its bounds, its plan, what it does when a store fails, and what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders import leased_slice
from harness import Backend
from vacuum_stage import HOUR_MS, OPTIONS, READER_GRACE_MS, SIZE_BYTES, Bucket, RefusingStore, StoreShell

from streamhouse.core.errors import MetadataUnavailable, StoreDenied, StoreUnavailable
from streamhouse.maintenance.vacuum import deletion, vacuum
from streamhouse.maintenance.vacuum.candidates import Garbage
from streamhouse.maintenance.vacuum.summary import Tally, VacuumPhase
from streamhouse.metadata.contract import DereferencedObject, Verdict
from streamhouse.objectstore import local_files, memory
from streamhouse.objectstore.objects import ListPage


class Calls:
    """A metadata store that notes the calls of a vacuum."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.names: list[str] = []
        self.asked: list[int] = []
        self.forgotten: list[int] = []
        self.limits: list[int] = []

    def __getattr__(self, name: str) -> Any:
        self.names.append(name)
        return getattr(self._inner, name)

    async def find_unreferenced(self, stamps: Mapping[str, int]) -> set[str]:
        self.names.append("find_unreferenced")
        self.asked.append(len(stamps))
        found: set[str] = await self._inner.find_unreferenced(stamps)
        return found

    async def list_dereferenced(self, *, grace_ms: int, limit: int) -> list[DereferencedObject]:
        self.names.append("list_dereferenced")
        self.limits.append(limit)
        found: list[DereferencedObject] = await self._inner.list_dereferenced(grace_ms=grace_ms, limit=limit)
        return found

    async def forget_objects(self, keys: Sequence[str]) -> set[str]:
        self.names.append("forget_objects")
        self.forgotten.append(len(keys))
        found: set[str] = await self._inner.forget_objects(keys)
        return found


async def trimmed(bucket: Bucket, count: int) -> set[str]:
    """Dereferenced objects whose grace is over."""
    led = await bucket.backend.led("trimmed")
    keys = {(await bucket.append(led)).key for _ in range(count)}
    await bucket.backend.store.advance_log_start(led.key, led.next_offset)
    await bucket.backend.advance(HOUR_MS + 1)
    return keys


# The order of its calls, and its bounds.


async def test_r24_the_horizon_is_raised_once_and_before_every_question(memory_bucket: Bucket) -> None:
    await trimmed(memory_bucket, 1)
    await memory_bucket.blob(created_ms=0)
    calls = Calls(memory_bucket.backend.store)
    await memory_bucket.vacuum(metadata=calls).run()
    assert calls.names == [
        "purge_deleted_topics",
        "now_ms",
        "list_pins",
        "raise_gc_horizon",
        "list_dereferenced",
        "forget_objects",
        "list_dereferenced",
        "find_unreferenced",
    ]


async def test_r6_the_horizon_is_the_writers_grace_behind_the_store_s_clock(memory_bucket: Bucket) -> None:
    store, led = memory_bucket.backend.store, await memory_bucket.backend.led()
    summary = await memory_bucket.run()
    assert summary.horizon_ms == memory_bucket.backend.now_ms - HOUR_MS
    assert (await store.cluster_info()).gc_horizon_ms == summary.horizon_ms
    assert (await memory_bucket.backend.state(led.key)).gc_horizon_ms == summary.horizon_ms


async def test_an_object_within_my_grace_stays_where_another_vacuum_waits_for_less(memory_bucket: Bucket) -> None:
    await memory_bucket.blob()
    await memory_bucket.backend.advance(2 * HOUR_MS)
    await memory_bucket.backend.raise_horizon()
    patient = replace(OPTIONS, writer_grace_ms=3 * HOUR_MS)
    assert (await memory_bucket.vacuum(options=patient).run()).total.objects == 0
    assert (await memory_bucket.run()).total.objects == 1


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
async def test_every_object_is_seen_once_whatever_the_pages(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """The store lists in pages, vacuum asks in parts, requests delete in others; and it deletes while it lists."""
    monkeypatch.setattr(memory, "MAX_LIST_PAGE", page)
    monkeypatch.setattr(local_files, "MAX_LOCAL_LIST_PAGE", page)
    monkeypatch.setattr(vacuum, "OBJECTS_PER_PAGE", 4)
    monkeypatch.setattr(vacuum, "RECORDS_PER_BATCH", 2)
    monkeypatch.setattr(deletion, "KEYS_PER_REQUEST", 3)
    garbage = await trimmed(bucket, 5)
    led = await bucket.backend.led("kept", holder=bucket.backend.holder("agent-2"))
    kept = set()
    for _ in range(4):
        old_ms = bucket.backend.now_ms - HOUR_MS - 1
        garbage |= {(await bucket.blob(created_ms=old_ms)).key, (await bucket.segment(led.key, created_ms=old_ms)).key}
        if bucket.root is not None:  # in memory it would show the present time, and stay
            garbage.add(await bucket.staging(created_ms=old_ms, modified_ms=old_ms))
        kept.add((await bucket.append(led)).key)
    calls = Calls(bucket.backend.store)
    await bucket.backend.advance(HOUR_MS)  # the last ones are not yet old enough
    summary = await bucket.vacuum(metadata=calls).run()
    assert await bucket.keys() == kept
    assert summary.total == Tally(objects=len(garbage), size_bytes=len(garbage) * SIZE_BYTES)
    assert 0 < max(calls.asked) <= 4
    assert calls.forgotten == [2, 2, 1]
    assert max(calls.limits) == 2


async def test_s2_45_a_big_bucket_is_asked_about_in_bounded_parts(memory_bucket: Bucket) -> None:
    for _ in range(3_500):
        await memory_bucket.blob(created_ms=0, size=0)
    calls, watched = (
        Calls(memory_bucket.backend.store),
        RefusingStore(memory_bucket.objects, StoreDenied(""), refused=[]),
    )
    summary = await memory_bucket.vacuum(metadata=calls, objects=watched).run()
    assert summary.total.objects == 3_500
    assert calls.asked == [1_000] * 3 + [500]
    assert max(watched.requests) <= deletion.KEYS_PER_REQUEST
    assert watched.most_at_once <= deletion.PARALLEL_REQUESTS


async def test_s2_45_dereferenced_objects_are_judged_in_parts_with_other_work_of_the_event_loop_in_between(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes of the same process wait for each step of the loop."""
    monkeypatch.setattr(vacuum, "JUDGED_AT_ONCE", 2)
    judged: list[int] = []
    dereferenced = vacuum.dereferenced

    def noted(records: Sequence[DereferencedObject], **options: Any) -> list[Garbage]:
        judged.append(len(records))
        asyncio.get_running_loop().call_soon(judged.append, 0)
        return dereferenced(records, **options)

    monkeypatch.setattr(vacuum, "dereferenced", noted)
    garbage = await trimmed(memory_bucket, 5)
    await memory_bucket.backend.advance(HOUR_MS + 1)
    summary = await memory_bucket.run()
    assert summary.total.objects == len(garbage) == 5
    assert judged[:6] == [2, 0, 2, 0, 1, 0]


async def test_entries_of_deleted_topics_are_purged_in_steps_and_first(memory_bucket: Bucket) -> None:
    led = await memory_bucket.backend.led()
    for _ in range(5):
        await memory_bucket.append(led)
    await memory_bucket.backend.store.delete_topic(led.key.topic_id)
    told: list[tuple[VacuumPhase, int]] = []
    summary = await memory_bucket.vacuum(on_progress=lambda now: told.append((now.phase, now.entries_purged))).run()
    assert summary.entries_purged == 5
    assert [entries for phase, entries in told if phase is VacuumPhase.PURGING] == [0, 2, 4, 5]


async def test_what_is_dereferenced_while_it_runs_is_left_to_the_next_one(memory_bucket: Bucket) -> None:
    """So that a vacuum beside writers and retention comes to an end."""
    backend = memory_bucket.backend
    await trimmed(memory_bucket, 1)
    busy = await backend.led("busy", holder=backend.holder("agent-2"))

    class Trimming(Calls):
        async def forget_objects(self, keys: Sequence[str]) -> set[str]:
            found = await super().forget_objects(keys)
            await memory_bucket.append(busy)
            await backend.store.advance_log_start(busy.key, busy.next_offset)
            await backend.advance(HOUR_MS)
            return found

    calls = Trimming(backend.store)
    summary = await memory_bucket.vacuum(metadata=calls).run()
    assert calls.forgotten == [1]
    assert summary.total.objects == 1


# The plan.


async def test_the_plan_changes_nothing_and_says_what_it_cannot_know(bucket: Bucket) -> None:
    backend = bucket.backend
    dereferenced = await trimmed(bucket, 2)
    led = await backend.led("kept", holder=backend.holder("agent-2"))
    await bucket.append(led)
    await bucket.blob()
    deleted = await backend.led("deleted", holder=backend.holder("agent-3"))
    await bucket.append(deleted)
    await backend.store.delete_topic(deleted.key.topic_id)
    await backend.advance(HOUR_MS + 1)
    before = await bucket.keys()
    for _ in range(2):
        plan = await bucket.vacuum().plan()
        assert (plan.plan_only, plan.total.objects, plan.undecided.objects) == (True, 0, 5), "no vacuum has run yet"
    assert await bucket.keys() == before
    assert (await backend.store.cluster_info()).gc_horizon_ms == 0
    await backend.store.raise_gc_horizon(backend.now_ms - HOUR_MS)  # as the last vacuum would have left it
    plan = await bucket.vacuum().plan()
    assert (plan.total.objects, plan.undecided.objects, plan.entries_purged) == (3, 0, 0)
    assert await bucket.keys() == before
    assert len(await backend.store.list_dereferenced(grace_ms=0, limit=10)) == len(dereferenced)
    ran = await bucket.run()
    assert ran.garbage == plan.garbage, "what the plan was certain of"


async def test_a_plan_counts_what_dead_processes_left_and_asks_only_below_the_standing_horizon(
    memory_bucket: Bucket,
) -> None:
    await memory_bucket.staging()
    await memory_bucket.blob()
    await memory_bucket.backend.advance(HOUR_MS + 1)
    await memory_bucket.backend.raise_horizon()
    await memory_bucket.blob()
    await memory_bucket.backend.advance(HOUR_MS + 1)
    plan = await memory_bucket.vacuum().plan()
    assert (plan.total.objects, plan.undecided) == (2, Tally(objects=1, size_bytes=SIZE_BYTES))


# What goes wrong.


async def test_a_delete_that_is_refused_is_told_and_left_to_the_next_vacuum(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "RECORDS_PER_BATCH", 2)
    dereferenced = sorted(await trimmed(bucket, 7))
    orphans = sorted([(await bucket.blob(created_ms=0)).key for _ in range(3)])
    held = [dereferenced[0], dereferenced[1], dereferenced[5], orphans[1]]
    refusing = RefusingStore(bucket.objects, StoreDenied("a legal hold"), refused=held)
    summary = await bucket.vacuum(objects=refusing).run()
    assert await bucket.keys() == set(held)
    assert (summary.failed, summary.records_left, summary.total.objects) == (4, 3, 6)
    assert sorted(problem.split()[0] for problem in summary.problems) == sorted(held)
    refusing.refused = []
    again = await bucket.vacuum(objects=refusing).run()
    assert await bucket.keys() == set()
    assert (again.failed, again.records_left, again.total.objects) == (0, 0, 4)
    assert await bucket.backend.garbage() == []


async def test_a_store_that_refuses_every_delete_ends_the_vacuum(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "MAX_FAILURES", 10)
    monkeypatch.setattr(vacuum, "OBJECTS_PER_PAGE", 10)
    for _ in range(100):
        await memory_bucket.blob(created_ms=0, size=0)
    refusing = RefusingStore(memory_bucket.objects, StoreDenied("no permission to delete"))
    summary = await memory_bucket.vacuum(objects=refusing).run()
    assert summary.gave_up
    assert (summary.failed, summary.total.objects, len(await memory_bucket.keys())) == (10, 0, 100)
    assert not (await memory_bucket.run()).gave_up
    assert await memory_bucket.keys() == set()


async def test_a_vacuum_that_gave_up_on_records_does_not_list(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "MAX_FAILURES", 2)
    kept = await trimmed(memory_bucket, 2)
    kept.add((await memory_bucket.blob(created_ms=0)).key)
    refusing = RefusingStore(memory_bucket.objects, StoreDenied("no permission to delete"))
    summary = await memory_bucket.vacuum(objects=refusing).run()
    assert (summary.gave_up, summary.listed, summary.records_left) == (True, 0, 2)
    assert await memory_bucket.keys() == kept


async def test_more_records_than_it_can_leave_aside_end_the_step_and_not_the_vacuum(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "RECORDS_PER_BATCH", 2)
    monkeypatch.setattr(vacuum, "MAX_LEFT", 3)
    await trimmed(memory_bucket, 9)
    orphan = await memory_bucket.blob(created_ms=0)

    class Keeping(Calls):
        async def forget_objects(self, keys: Sequence[str]) -> set[str]:
            return set()

    summary = await memory_bucket.vacuum(metadata=Keeping(memory_bucket.backend.store)).run()
    assert summary.records_left == 4
    assert summary.problems == ["more than 3 records of dereferenced objects could not be dropped"]
    assert orphan.key not in await memory_bucket.keys()


async def test_a_listing_that_breaks_off_raises_and_keeps_what_was_done(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MAX_LIST_PAGE", 2)
    monkeypatch.setattr(vacuum, "OBJECTS_PER_PAGE", 2)
    for _ in range(6):
        await memory_bucket.blob(created_ms=0)

    class Breaking(StoreShell):
        pages = 0

        async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
            self.pages += 1
            if self.pages == 5:
                raise StoreUnavailable("away")
            return await super()._list_page(prefix, start_after)

    broken = memory_bucket.vacuum(objects=Breaking(memory_bucket.objects))
    with pytest.raises(StoreUnavailable):
        await broken.run()
    done = 6 - len(await memory_bucket.keys())
    assert (broken.summary.total.objects, broken.summary.phase) == (done, VacuumPhase.LISTING)
    assert 0 < done < 6
    await memory_bucket.run()
    assert await memory_bucket.keys() == set()


async def test_r6_when_the_horizon_cannot_be_raised_nothing_is_deleted(memory_bucket: Bucket) -> None:
    kept = await trimmed(memory_bucket, 1)
    kept.add((await memory_bucket.blob(created_ms=0)).key)
    kept.add(await memory_bucket.probe())
    await memory_bucket.backend.advance(HOUR_MS + 1)

    class Away(Calls):
        async def raise_gc_horizon(self, horizon_ms: int) -> int:
            raise MetadataUnavailable("away")

    with pytest.raises(MetadataUnavailable):
        await memory_bucket.vacuum(metadata=Away(memory_bucket.backend.store)).run()
    assert await memory_bucket.keys() == kept


async def test_r7_a_record_is_dropped_after_its_object_and_never_before(memory_bucket: Bucket) -> None:
    backend: Backend = memory_bucket.backend
    (key,) = await trimmed(memory_bucket, 1)
    refusing = RefusingStore(memory_bucket.objects, StoreUnavailable("away"))
    await memory_bucket.vacuum(objects=refusing).run()
    assert [each.key for each in await backend.store.list_dereferenced(grace_ms=0, limit=10)] == [key]
    assert await memory_bucket.keys() == {key}


async def test_r6_a_commit_between_listing_and_question_is_too_late(memory_bucket: Bucket) -> None:
    """The writer wakes up at the worst moment: its object has been listed and is about to be judged."""
    backend = memory_bucket.backend
    led = await backend.led()
    stalled = await memory_bucket.segment(led.key)
    await backend.advance(READER_GRACE_MS + HOUR_MS)
    verdicts: list[Verdict] = []

    class Waking(Calls):
        async def find_unreferenced(self, stamps: Mapping[str, int]) -> set[str]:
            piece = leased_slice(led.key, stalled, epoch=led.epoch, base=0)
            (outcome,) = await backend.store.commit_leased(backend.append_id(), [piece])
            verdicts.append(outcome.verdict)
            return await super().find_unreferenced(stamps)

    await memory_bucket.vacuum(metadata=Waking(backend.store)).run()
    assert verdicts == [Verdict.STALE_OBJECT]
    assert await memory_bucket.keys() == await memory_bucket.referenced() == set()
