"""Any sequence of writes, passes, restarts, log starts and time against a plain model of Kafka's cleaner."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from harness import Backend, SqlitePlace
from hypothesis import given, settings
from hypothesis import strategies as st
from keyed_logs import CleanerModel, KeyGround, compacted, random_batch

from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.metadata.contract import EntryKind

RETENTION_MS = 1_000
CONFIG = compacted(delete_retention_ms=RETENTION_MS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4)),
        st.tuples(st.just("pass"), st.integers(1, 4)),
        st.tuples(st.just("wait"), st.integers(1, 1_500)),
        st.tuples(st.just("start"), st.integers(0, 30)),
    ),
    min_size=2,
    max_size=14,
)


async def story(ground: KeyGround, steps: list[tuple[str, int]], seed: int) -> None:
    rng, model, log = random.Random(seed), CleanerModel(), await ground.log()
    compactor, start = ground.key_compactor(), 0
    for what, number in [("write", 2), *steps, ("write", 1), ("pass", 2)]:
        if what == "write":
            for _ in range(number):
                made = [random_batch(rng, keys=9, keyless=0.1) for _ in range(rng.randrange(1, 4))]
                await log.write(*made, kind=rng.choice([EntryKind.WAL, EntryKind.SEGMENT]))
            model.written(log.bytes)
        elif what == "wait":
            await ground.advance(number)
        elif what == "start":
            start = max(start, min(number, log.next_offset))
            await ground.metadata.advance_log_start(log.key, start)
            model.records = {at: kept for at, kept in model.records.items() if at >= start}
        else:
            entries = await log.entries()
            compactor = ground.key_compactor(rules=KeyRules(max_sources=number)) if number % 2 else compactor
            done = await compactor.compact_once({log.key: CONFIG})
            assert done.failures == ()
            if done.stats.partitions:
                below = entries[-1].base_offset
                model.clean(below=below, now_ms=ground.backend.now_ms, delete_retention_ms=RETENTION_MS)
        assert await ground.seen_from(log.key, start) == model.from_offset(start), what
    for offset in range(start, log.next_offset):
        assert await ground.seen_from(log.key, offset) == model.from_offset(offset), offset


@settings(max_examples=60)
@given(STEPS, st.integers(0, 10_000))
def test_p4_consumers_see_what_kafkas_cleaner_leaves(steps: list[tuple[str, int]], seed: int) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = SqlitePlace(Path(folder) / "metadata.db")
            store = place.new_store(seed=1)
            await store.open()
            backend = Backend(place, store)
            try:
                await story(KeyGround(backend), steps, seed)
            finally:
                await backend.close()

    asyncio.run(run())
