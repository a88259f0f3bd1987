"""The writer's shared transactions, the readers beside it, and what a failure may not spread to."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import MetadataError, TopicExists
from streamhouse.core.ids import TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import ChangeKind, NewTopic, Topic
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.metadata.sqlite.transactions import Tx


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteMetadata]:
    opened = SqliteMetadata(tmp_path / "metadata.db", clock=ManualClock(), randomness=SeededRandomness(1))
    async with opened:
        yield opened


def statements_of(store: SqliteMetadata) -> list[str]:
    """Everything the writer's connection runs from here on."""
    ran: list[str] = []
    connection = store._engine._connection
    assert connection is not None
    connection.set_trace_callback(ran.append)
    return ran


async def create(store: SqliteMetadata, name: str, seed: int) -> Topic:
    topic_id = TopicId(SeededRandomness(seed).uuid())
    return await store.create_topic(NewTopic(topic_id=topic_id, name=name, partition_count=1, configs={}))


async def test_calls_that_wait_together_share_one_commit(store: SqliteMetadata) -> None:
    ran = statements_of(store)
    await asyncio.gather(*(create(store, f"t{n}", n) for n in range(50)))
    assert ran.count("COMMIT") == ran.count("BEGIN IMMEDIATE") == 1
    assert len(await store.list_topics()) == 50


async def test_a_refused_call_undoes_itself_and_nothing_else(store: SqliteMetadata) -> None:
    ran = statements_of(store)
    outcomes = await asyncio.gather(
        create(store, "a", 1), create(store, "a", 2), create(store, "b", 3), return_exceptions=True
    )
    assert ran.count("COMMIT") == 1
    assert [type(outcome) for outcome in outcomes] == [Topic, TopicExists, Topic]
    assert [topic.name for topic in await store.list_topics()] == ["a", "b"]


async def test_a_step_that_is_refused_half_way_leaves_nothing(store: SqliteMetadata) -> None:
    def half(tx: Tx) -> None:
        tx.run("INSERT INTO claims (name, owner, claimed_at, expires_at) VALUES ('half', 'done', 0, 0)")
        raise TopicExists("on second thoughts")

    ran = statements_of(store)
    outcomes = await asyncio.gather(
        create(store, "a", 1), store._write(half), create(store, "b", 2), return_exceptions=True
    )
    assert ran.count("COMMIT") == 1
    assert [type(outcome) for outcome in outcomes] == [Topic, TopicExists, Topic]
    assert await store._read(lambda tx: tx.value("SELECT count(*) FROM claims")) == 0


async def test_a_step_that_breaks_a_constraint_does_not_hurt_its_neighbours(store: SqliteMetadata) -> None:
    """A fault of ours in one step: the others are run again without it."""

    def broken(tx: Tx) -> None:
        tx.run("INSERT INTO claims (name, owner, claimed_at, expires_at) VALUES ('half', 'done', 0, 0)")
        tx.run("UPDATE store_info SET cluster_id = NULL")

    outcomes = await asyncio.gather(
        create(store, "a", 1), store._write(broken), create(store, "b", 2), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [Topic, MetadataError, Topic]
    assert [topic.name for topic in await store.list_topics()] == ["a", "b"]
    assert await store.list_claims() == []
    assert await store._read(lambda tx: tx.value("SELECT count(*) FROM claims")) == 0


async def test_nobody_learns_a_result_before_commit(store: SqliteMetadata) -> None:
    """COMMIT itself fails: every call of the transaction fails, and no change is announced."""
    connection = store._engine._connection
    assert connection is not None

    def deny_commit(action: int, operation: str | None, *_: object) -> int:
        denied = action == sqlite3.SQLITE_TRANSACTION and operation == "COMMIT"
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    async with store.subscribe() as changes:
        connection.set_authorizer(deny_commit)
        outcomes = await asyncio.gather(create(store, "a", 1), create(store, "b", 2), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [MetadataError, MetadataError]
        connection.set_authorizer(None)
        assert await store.list_topics() == []
        await create(store, "c", 3)
        assert (await anext(changes)).name == "c"


async def test_a_read_does_not_wait_for_a_write_in_progress(store: SqliteMetadata) -> None:
    await create(store, "a", 1)
    started, may_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(tx: Tx) -> None:
        tx.run("DELETE FROM topics")
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()

    writing = asyncio.create_task(store._write(slow))
    await started.wait()
    assert [topic.name for topic in await store.list_topics()] == ["a"]
    assert not writing.done()
    may_end.set()
    await writing
    assert await store.list_topics() == []


async def test_a_read_sees_every_write_that_was_answered_before(store: SqliteMetadata) -> None:
    for number in range(100):
        await create(store, f"t{number}", number)
        assert len(await store.list_topics()) == number + 1


async def test_a_cancelled_call_harms_no_other(store: SqliteMetadata) -> None:
    calls = [asyncio.create_task(create(store, f"t{n}", n)) for n in range(10)]
    await asyncio.sleep(0)
    calls[3].cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [index for index, outcome in enumerate(outcomes) if isinstance(outcome, asyncio.CancelledError)] == [3]
    assert {f"t{n}" for n in range(10)} - {topic.name for topic in await store.list_topics()} <= {"t3"}


async def test_closing_waits_for_what_was_handed_over(tmp_path: Path) -> None:
    opened = SqliteMetadata(tmp_path / "metadata.db", clock=ManualClock(), randomness=SeededRandomness(1))
    await opened.open()
    calls = [asyncio.create_task(create(opened, f"t{n}", n)) for n in range(5)]
    await asyncio.sleep(0)
    await opened.close()
    assert [topic.name for topic in await asyncio.gather(*calls)] == [f"t{n}" for n in range(5)]
    async with opened:
        assert len(await opened.list_topics()) == 5


async def test_own_commits_are_told_once_and_not_as_another_s(store: SqliteMetadata) -> None:
    async with store.subscribe() as changes:
        for number in range(5):
            await create(store, f"t{number}", number)
            await asyncio.sleep(0.06)  # longer than the watcher's interval: it has looked
        heard = [await anext(changes) for _ in range(5)]
        assert [change.kind for change in heard] == [ChangeKind.TOPICS] * 5
        await create(store, "last", 9)
        assert (await anext(changes)).name == "last"


async def test_another_instance_s_commit_is_told_as_anything(store: SqliteMetadata, tmp_path: Path) -> None:
    other = SqliteMetadata(tmp_path / "metadata.db", clock=ManualClock(), randomness=SeededRandomness(2))
    async with other, store.subscribe() as changes:
        await create(other, "theirs", 1)
        async with asyncio.timeout(60):
            assert (await anext(changes)).kind is ChangeKind.ANY


async def test_the_watcher_lives_no_longer_than_its_subscribers(store: SqliteMetadata) -> None:
    async with store.subscribe():
        async with store.subscribe():
            assert store._watch is not None
        assert store._watch is not None
    assert store._watch is None
