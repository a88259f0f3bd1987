"""``threads=False``: the simulator's mode. The same calls give the same file, byte for byte of its contents."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from builders import batch, intent, intent_slice, leaderless_slice, leased_slice

from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import AppendId, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import (
    AgentInfo,
    ChangeKind,
    Holder,
    IntentKey,
    MetadataStore,
    NewTopic,
    ObjectRef,
    OffsetCommit,
    SlotKey,
    WriteMode,
)
from streamhouse.metadata.sqlite.store import SqliteMetadata


def new_store(path: Path | str, clock: ManualClock, seed: int = 1) -> SqliteMetadata:
    return SqliteMetadata(path, clock=clock, randomness=SeededRandomness(seed), threads=False)


async def story(store: MetadataStore, clock: ManualClock) -> list[object]:
    """A little of everything that writes."""
    ids = SeededRandomness(2)
    seen: list[object] = []
    leased = await store.create_topic(
        NewTopic(topic_id=TopicId(ids.uuid()), name="orders", partition_count=3, configs={})
    )
    shared = await store.create_topic(
        NewTopic(
            topic_id=TopicId(ids.uuid()),
            name="clicks",
            partition_count=2,
            configs={},
            write_mode=WriteMode.LEADERLESS,
        )
    )
    holder = Holder(agent_id="a", incarnation=ids.uuid(), wal_id=ids.uuid())
    seen.append(
        await store.register_agent(
            AgentInfo(agent_id="a", incarnation=holder.incarnation, listeners={"kafka": "a:1"}, metadata={})
        )
    )
    seen.append(await store.acquire_leases(holder, [*leased.partition_keys(), SlotKey(4)], ttl_ms=1000))
    for turn in range(5):
        clock.advance(7)
        ref = ObjectRef(key=f"o{turn}", size_bytes=1, created_at_ms=clock.wall_ms())
        pieces = [leased_slice(key, ref, batch(2), epoch=1, base=2 * turn) for key in leased.partition_keys()]
        seen.append(await store.commit_leased(AppendId(ids.uuid()), pieces))
        wanted = [leaderless_slice(key, batch(producer=9, sequence=turn)) for key in shared.partition_keys()]
        seen.append(await store.commit_leaderless(AppendId(ids.uuid()), ref, wanted))
    key = IntentKey(query_id="q", topic_id=shared.topic_id, batch_id=0)
    ref = ObjectRef(key="sink", size_bytes=1, created_at_ms=clock.wall_ms())
    seen.append(await store.register_intent(intent(key, intent_slice(0, ref, 3), intent_slice(1, ref, 4))))
    seen.append(await store.adopt_intent(key, 0, epoch=0, base_offset=None))
    seen.append(
        await store.commit_offsets_simple("g", [OffsetCommit(key=key, offset=1) for key in leased.partition_keys()])
    )
    seen.append(await store.advance_log_start(leased.partition_keys()[0], 5))
    seen.append(await store.cluster_info())
    return seen


def dump(path: Path) -> list[str]:
    with sqlite3.connect(path) as raw:
        lines = list(raw.iterdump())
    raw.close()
    return lines


async def test_the_same_calls_give_the_same_answers_and_the_same_file(tmp_path: Path) -> None:
    runs = []
    for name in ("one.db", "two.db"):
        clock = ManualClock()
        async with new_store(tmp_path / name, clock) as store:
            answers = await story(store, clock)
        runs.append((answers, dump(tmp_path / name)))
    assert runs[0] == runs[1]


async def test_in_memory_and_threaded_give_the_same_answers(tmp_path: Path) -> None:
    answers = []
    for path, threads in ((":memory:", False), (":memory:", True), (tmp_path / "metadata.db", True)):
        clock = ManualClock()
        store = SqliteMetadata(path, clock=clock, randomness=SeededRandomness(1), threads=threads)
        async with store:
            answers.append(await story(store, clock))
    assert answers[0] == answers[1] == answers[2]


def test_every_call_ends_without_the_event_loop_s_help() -> None:
    """No thread, no timer, no suspension: driven by hand, a call returns at its first step."""

    def drive(call: Coroutine[Any, Any, object]) -> object:
        with pytest.raises(StopIteration) as stop:
            call.send(None)
        return stop.value.value

    async def everything() -> list[object]:
        clock = ManualClock()
        store = new_store(":memory:", clock)
        before = threading.active_count()
        drive(store.open())
        task = story(store, clock)
        answers = drive(task)
        drive(store.close())
        assert threading.active_count() == before
        assert isinstance(answers, list)
        return answers

    assert len(asyncio.run(everything())) > 10


async def test_subscribers_hear_of_own_commits_inline_too() -> None:
    clock = ManualClock()
    async with new_store(":memory:", clock) as store, store.subscribe() as changes:
        await story(store, clock)
        kinds = [(await anext(changes)).kind for _ in range(3)]
        assert kinds == [ChangeKind.TOPICS, ChangeKind.TOPICS, ChangeKind.LEASES]
