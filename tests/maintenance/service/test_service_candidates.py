"""The search for partitions that have something to compact, on each metadata store."""

from __future__ import annotations

import asyncio
from typing import Any

from compaction_ground import damage, small_log
from keyed_logs import keyed
from service_ground import ServiceGround, WatchedMetadata, reached

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.service.candidates import CandidateSearch
from streamhouse.maintenance.service.targets import CompactionTarget, Targets, TaskKind


async def targets_on(ground: ServiceGround) -> list[CompactionTarget]:
    targets = Targets(None)
    targets.discover(await ground.metadata.list_topics())
    return targets.shuffled(ground.backend.ids)


def search_on(ground: ServiceGround, metadata: Any = None, **options: Any) -> CandidateSearch:
    used = metadata or ground.metadata
    return CandidateSearch(
        metadata=used,
        compactor=ground.compactor(metadata=used, **options),
        key_compactor=ground.key_compactor(metadata=used),
    )


async def test_s2_12_candidates_are_the_partitions_with_work_and_the_lag_says_how_much(ground: ServiceGround) -> None:
    log = await small_log(ground, 6)
    table = await ground.keyed_topic()
    await ground.backend.topic("empty")
    found = await search_on(ground).run(await targets_on(ground))
    assert set(found.candidates) == {log.key, table.key}
    small, keys = found.lag[TaskKind.SMALL_OBJECTS], found.lag[TaskKind.KEYS]
    assert (small.candidates, small.entries) == (1, 6)
    assert small.bytes == sum(entry.byte_length for entry in await log.entries())
    assert (keys.candidates, keys.entries) == (1, 2), "the newest entry stays as it is (R18)"
    assert found.pending_compactions == 0


async def test_a_partition_without_news_is_not_read_again(ground: ServiceGround) -> None:
    log = await small_log(ground, 6)
    table = await ground.keyed_topic()
    watched = WatchedMetadata(ground.metadata)
    search = search_on(ground, watched)
    assert len((await search.run(await targets_on(ground))).candidates) == 2
    await ground.compactor().compact_once([log.key])
    config = {target.key: target.config for target in await targets_on(ground)}
    await ground.key_compactor().compact_once({table.key: config[table.key]})
    for _ in range(2):  # the first one settles what was compacted, except the last entry of the table
        await search.run(await targets_on(ground))
    before = watched.calls["now_ms"]  # each plan begins with it
    assert (await search.run([t for t in await targets_on(ground) if t.key == log.key])).candidates == ()
    assert watched.calls["now_ms"] == before
    for _ in range(2):
        await log.write(keyed((b"k", b"v")))
    assert (await search.run(await targets_on(ground))).candidates == (log.key,)


async def test_entries_that_are_not_worth_a_task_yet_are_counted_and_looked_at_again(ground: ServiceGround) -> None:
    log = await small_log(ground, 6)
    rules = CompactionRules(min_entries=100, max_age_ms=3_600_000)
    search = search_on(ground, rules=rules)
    found = await search.run(await targets_on(ground))
    assert (found.candidates, found.lag[TaskKind.SMALL_OBJECTS].waiting_entries) == ((), 6)
    await ground.advance(3_700_000)
    assert (await search.run(await targets_on(ground))).candidates == (log.key,)


async def test_s2_8_a_partition_with_a_pending_compaction_is_a_candidate(ground: ServiceGround) -> None:
    log = await small_log(ground, 6)
    search = search_on(ground, rules=CompactionRules(min_entries=100, max_age_ms=3_600_000))
    assert (await search.run(await targets_on(ground))).candidates == (), "nothing else makes it one"
    await begin_and_leave(ground, log.key)
    found = await search.run(await targets_on(ground))
    assert found.candidates == (log.key,)
    assert found.pending_compactions == 1


async def begin_and_leave(ground: ServiceGround, key: PartitionKey) -> None:
    """A process that ends between the two steps of a compaction."""
    watched = WatchedMetadata(ground.metadata)
    watched.held["apply_compaction"] = asyncio.Event()
    running = asyncio.create_task(ground.compactor(metadata=watched).compact_once([key]))
    await reached(lambda: watched.calls["apply_compaction"] == 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [each.key for each in await ground.metadata.list_compactions()] == [key]


async def test_a_table_whose_plan_fails_is_a_candidate_so_that_its_task_tells(ground: ServiceGround) -> None:
    table = await ground.keyed_topic()
    config = {target.key: target.config for target in await targets_on(ground)}
    assert (await ground.key_compactor().compact_once({table.key: config[table.key]})).failures == ()
    await table.write(keyed((b"k", b"again")))
    first = (await table.entries())[0]
    assert first.kind.value == "COMPACTED"
    await damage(ground, first, at=first.byte_length - 20)
    assert (await search_on(ground).run(await targets_on(ground))).candidates == (table.key,)
