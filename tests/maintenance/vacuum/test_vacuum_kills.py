"""A vacuum that is killed before, in or after each of its calls: the next one leaves exactly what is referenced."""

from __future__ import annotations

import pytest
from builders import compaction_of, intent, intent_slice
from vacuum_stage import HOUR_MS, Bucket, Killed, Life, Moment, MortalMetadata, MortalStore, StoreClock

from streamhouse.core.ids import TopicId
from streamhouse.maintenance.vacuum import deletion, vacuum
from streamhouse.metadata.contract import Entry, IntentKey
from streamhouse.objectstore.keys import CLUSTER_ID_KEY
from streamhouse.objectstore.memory import MemoryStore

MOST_CALLS = 200
"""More than a vacuum of this bucket makes; the test ends at the first one that is not killed."""


async def filled(bucket: Bucket, turn: int) -> tuple[set[str], set[str], list[TopicId]]:
    """Some of everything. Returns what must stay, what an entry must name, and the topics."""
    backend = bucket.backend
    kept, dropped = await backend.led(f"kept-{turn}"), await backend.led(f"dropped-{turn}")
    for led in (kept, dropped):
        for _ in range(3):
            await bucket.append(led)
    for _ in range(2):
        await bucket.blob()
    await bucket.staging()
    await bucket.probe()
    await bucket.put(CLUSTER_ID_KEY)
    await backend.store.advance_log_start(kept.key, 1)
    entries: tuple[Entry, ...] = await backend.entries(kept.key)
    target, upload = await bucket.compacted(kept.key, base=1, end=2), await bucket.blob()
    await backend.store.begin_compaction(compaction_of(kept.key, entries, target, backend.ids))
    query = IntentKey(query_id=f"query-{turn}", topic_id=kept.key.topic_id, batch_id=0)
    await backend.store.register_intent(intent(query, intent_slice(0, upload)))
    await backend.store.delete_topic(dropped.key.topic_id)
    await backend.advance(HOUR_MS + 1)
    named = {entry.object_key for entry in entries}
    return {*named, target.key, upload.key, CLUSTER_ID_KEY}, named, [kept.key.topic_id]


@pytest.mark.parametrize("moment", Moment)
async def test_s2_45_after_a_kill_at_any_call_the_next_vacuum_leaves_what_is_referenced(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, moment: Moment
) -> None:
    monkeypatch.setattr(vacuum, "OBJECTS_PER_PAGE", 4)
    monkeypatch.setattr(deletion, "KEYS_PER_REQUEST", 2)
    backend = memory_bucket.backend
    for calls in range(1, MOST_CALLS):
        bucket = Bucket(backend=backend, objects=MemoryStore(clock=StoreClock(backend)))
        kept, named, topics = await filled(bucket, calls)
        life = Life(calls, moment)
        mortal = bucket.vacuum(metadata=MortalMetadata(backend.store, life), objects=MortalStore(bucket.objects, life))
        try:
            await mortal.run()
        except (Killed, BaseExceptionGroup):
            assert life.over
        assert await bucket.keys() >= kept
        for _ in range(2):  # what a deleted topic had goes after a grace that begins with the purge
            await backend.advance(HOUR_MS)
            await bucket.run()
        assert await bucket.keys() == kept
        assert await bucket.referenced() == named
        for topic_id in topics:
            await backend.store.delete_topic(topic_id)
        for _ in range(2):
            await bucket.run()
            await backend.advance(HOUR_MS)
        await bucket.run()
        assert await bucket.keys() == {CLUSTER_ID_KEY}
        assert await backend.garbage() == []
        if not life.over:
            assert calls > 15, "it was killed at each of its calls"
            return
    raise AssertionError("it was killed every time")
