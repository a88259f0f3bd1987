"""P.4, R18: tasks that share a partition leave byte for byte what one process leaves, and lose nothing on the way."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import Backend, SqlitePlace
from hypothesis import given, settings
from hypothesis import strategies as st
from keyed_logs import KeyGround, compact, compacted, keyed_log, pairs_of, random_batch
from shuffled_ground import SharedGround, connected
from test_key_compaction_model import STEPS, story

from streamhouse.core.errors import DamagedObject, PassIncomplete
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.metadata.contract import EntryKind
from streamhouse.spark.maintenance import key_pairs
from streamhouse.spark.maintenance.key_pairs import MessageKind

CONFIG = compacted(delete_retention_ms=1_000)


@asynccontextmanager
async def opened(kind: type[KeyGround], folder: Path) -> AsyncIterator[Any]:
    place = SqlitePlace(folder / "metadata.db")
    store = place.new_store(seed=1)
    await store.open()
    backend = Backend(place, store)
    ground = kind(backend)
    try:
        with connected(ground):
            if isinstance(ground, SharedGround):
                await ground.prepare()
            yield ground
    finally:
        await backend.close()


@pytest.fixture
async def shared(ground: KeyGround) -> AsyncIterator[SharedGround]:
    """On SQLite, then on PostgreSQL."""
    made = SharedGround(ground.backend)
    with connected(made):
        await made.prepare()
        yield made


async def passes(ground: KeyGround, rng: random.Random) -> list[Any]:
    """Write and compact in turns: what each pass leaves in the store and in the metadata, and what it counts."""
    log, left = await ground.log(), list[Any]()
    for number in range(4):
        for _ in range(rng.randrange(2, 6)):
            made = [random_batch(rng, keys=9, keyless=0.1) for _ in range(rng.randrange(1, 4))]
            await log.write(*made, kind=rng.choice([EntryKind.WAL, EntryKind.SEGMENT]))
        rules = KeyRules(max_sources=1 + number, target_object_bytes=rng.choice([500, 1_000_000]))
        done = await compact(ground, log, config=CONFIG, rules=rules)
        for entry in await log.entries():
            data = bytes(await ground.memory.get_range(entry.object_key, entry.byte_offset, entry.byte_length))
            left.append((replace(entry, object_key=""), data))
        left.append((done.more, replace(done.stats, keys=0, bytes_in=0)))
        await ground.advance(rng.randrange(1_500))
    return left


@pytest.mark.parametrize("seed", range(6))
async def test_p_4_r18_shared_partitions_become_what_one_process_makes_of_them(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    other = tmp_path_factory.mktemp("shared")
    async with opened(KeyGround, tmp_path) as one, opened(SharedGround, other) as shared:
        expected = await passes(one, random.Random(seed))
        assert await passes(shared, random.Random(seed)) == expected
        assert any(stats.superseded for _, stats in expected if hasattr(stats, "superseded"))
        assert shared.tasks.messages, "the partitions were shuffled"


@settings(max_examples=25)
@given(STEPS, st.integers(0, 10_000))
def test_p4_r18_consumers_of_shared_partitions_see_what_kafkas_cleaner_leaves(
    steps: list[tuple[str, int]], seed: int
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with opened(SharedGround, Path(folder)) as shared:
                await story(shared, steps, seed)

    asyncio.run(run())


LOG = ([(b"a", b"1"), (b"b", b"1")], [(b"a", b"2"), (b"c", b"1")], [(b"b", b"2"), (b"d", b"1")], [(b"e", b"1")])
LEFT = [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2"), (5, b"d", b"1"), (6, b"e", b"1")]
APART = KeyRules(max_sources=1)


async def test_p_4_tasks_that_run_twice_do_no_harm(shared: SharedGround) -> None:
    log = await keyed_log(shared, *LOG)
    shared.tasks.attempts = 2
    done = await compact(shared, log, rules=APART)
    assert (done.stats.runs, done.stats.superseded, done.stats.keys) == (3, 2, 4)
    assert pairs_of(await shared.seen_from(log.key, 0)) == LEFT
    assert await shared.metadata.list_claims() == []
    assert await shared.metadata.list_pins() == []


async def test_p_4_what_is_shuffled_can_be_unpickled_where_there_is_no_streamhouse(shared: SharedGround) -> None:
    log = await keyed_log(shared, *LOG)
    await compact(shared, log, rules=APART)
    reports = [each for each in shared.tasks.messages if b"MapReport" in each]
    assert len(shared.tasks.messages) > 20
    assert [each for each in shared.tasks.messages if each not in reports and b"streamhouse" in each] == []
    assert [each for each in shared.tasks.messages if b"numpy" in each] == []


@pytest.mark.parametrize("stage", ["map_range", "reduce_bucket"])
@pytest.mark.parametrize("kind", [MessageKind.BLOCK, MessageKind.END])
async def test_p_4_what_a_shuffle_loses_is_not_taken_for_superseded(
    shared: SharedGround, stage: str, kind: int
) -> None:
    log = await keyed_log(shared, *LOG)
    before, lost = await shared.seen_from(log.key, 0), list[Any]()

    def lose(at: str, pair: Any) -> bool:
        if at == stage and pair[1][0] == kind and not lost:
            lost.append(pair)
            return True
        return False

    shared.tasks.lose = lose
    done = await shared.key_compactor(rules=APART).compact_once({log.key: compacted()})
    assert lost
    (failure,) = done.failures
    assert isinstance(failure.error, PassIncomplete)
    assert "the shuffle brought" in str(failure.error)
    dropped = len(before) - len(await shared.seen_from(log.key, 0))
    assert dropped == done.stats.dropped
    shared.tasks.lose = lambda at, pair: False
    await compact(shared, log)
    assert pairs_of(await shared.seen_from(log.key, 0)) == LEFT


async def test_p_4_an_offset_of_no_item_ends_the_compaction(
    shared: SharedGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await keyed_log(shared, *LOG)
    real = key_pairs.KeyPairs.put_all

    def put_later(self: Any, records: Any) -> None:
        real(self, records)
        self._offsets[-1] = self._offsets[-1] + 100

    monkeypatch.setattr(key_pairs.KeyPairs, "put_all", put_later)
    (failure,) = (await shared.key_compactor(rules=APART).compact_once({log.key: compacted()})).failures
    assert isinstance(failure.error, PassIncomplete)
    assert len(await shared.seen_from(log.key, 0)) == 7


async def test_p_4_damage_that_a_task_meets_is_that_of_its_partition(shared: SharedGround) -> None:
    log = await keyed_log(shared, *LOG)
    (_, damaged, *_) = await log.entries()
    await shared.memory.delete([damaged.object_key])
    (failure,) = (await shared.key_compactor(rules=APART).compact_once({log.key: compacted()})).failures
    assert isinstance(failure.error, DamagedObject)
    assert failure.error.base_offset == damaged.base_offset
    assert len(await log.entries()) == 4


async def test_r17_entries_that_change_while_tasks_work_are_left_to_the_next_pass(shared: SharedGround) -> None:
    log = await keyed_log(shared, *LOG)
    run_shuffled, moved = shared.tasks.run_shuffled, list[int]()

    async def run_and_move(*given: Any) -> Any:
        written = await run_shuffled(*given)
        if not moved:
            moved.append(1)
            await shared.metadata.advance_log_start(log.key, 2)
        return written

    shared.tasks.run_shuffled = run_and_move  # type: ignore[method-assign]
    done = await shared.key_compactor(rules=KeyRules(max_sources=2)).compact_once({log.key: compacted()})
    assert (done.failures, done.stats.conflicts, done.stats.runs) == ((), 1, 0)
    await compact(shared, log)
    assert pairs_of(await shared.seen_from(log.key, 2)) == LEFT
