"""LISTEN/NOTIFY: what one process commits, another hears; and after a lost connection, that it may have missed some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import Opener, append_id, blob_slices, holder, topic, uploaded

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import Change, ChangeKind
from streamhouse.metadata.postgres.listener import parse_notice
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.testing.services import PostgresService

WAIT_S = 20.0


async def until(changes: AsyncIterator[Change], kind: ChangeKind) -> Change:
    """The next change of this kind; fails after a generous wait."""
    async with asyncio.timeout(WAIT_S):
        async for change in changes:
            if change.kind is kind:
                return change
    raise AssertionError("the subscription ended")


async def test_a_commit_wakes_a_subscriber_in_another_process(open_store: Opener) -> None:
    writer, reader = await open_store(), await open_store()
    keys = await topic(writer, partitions=3, leaderless=True)
    async with reader.subscribe() as changes, writer.subscribe() as own:
        await writer.commit_leaderless(append_id(), uploaded(), blob_slices(keys[:2]))
        for heard in (changes, own):
            change = await until(heard, ChangeKind.COMMIT)
            assert set(change.keys) == set(keys[:2])


async def test_nothing_is_heard_twice(store: PostgresMetadata) -> None:
    (key,) = await topic(store, leaderless=True)
    async with store.subscribe() as changes:
        await store.commit_leaderless(append_id(), uploaded(), blob_slices([key]))
        await store.commit_offsets_simple("last", [])
        heard = []
        async with asyncio.timeout(WAIT_S):
            async for change in changes:
                heard.append(change.kind)
                if change.kind is ChangeKind.GROUPS:
                    break
    assert heard == [ChangeKind.COMMIT, ChangeKind.GROUPS]


async def test_a_commit_of_more_partitions_than_fit_says_anything(open_store: Opener) -> None:
    writer, reader = await open_store(), await open_store()
    keys = await topic(writer, partitions=3000, leaderless=True)
    async with reader.subscribe() as changes:
        await writer.commit_leaderless(append_id(), uploaded(), blob_slices(keys))
        await until(changes, ChangeKind.ANY)


async def test_leases_written_by_hand_are_heard_too(store: PostgresMetadata, operator: asyncpg.Connection) -> None:
    (key,) = await topic(store)
    async with store.subscribe() as changes:
        await operator.execute(
            """INSERT INTO partition_leases (topic, partition_id, leader_agent_id, lease_expires_at, acquired_at, epoch)
               VALUES ('orders', 0, 'somebody', 0, 0, 1)"""
        )
        assert (await until(changes, ChangeKind.LEASES)).keys == (key,)


async def test_a_lost_listener_comes_back_and_says_anything(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    (key,) = await topic(store, leaderless=True)
    async with store.subscribe() as changes:
        await operator.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
            " AND datname = current_database()"
        )
        await until(changes, ChangeKind.ANY)
        await store.commit_leaderless(append_id(), uploaded(), blob_slices([key]))
        assert (await until(changes, ChangeKind.COMMIT)).keys == (key,)


async def test_a_listener_outlives_the_server(store: PostgresMetadata, postgres_service: PostgresService) -> None:
    keys = await topic(store)
    async with store.subscribe() as changes:
        await asyncio.to_thread(postgres_service.restart)
        await until(changes, ChangeKind.ANY)
        await store.acquire_leases(holder(), keys, ttl_ms=30_000)
        assert (await until(changes, ChangeKind.LEASES)).keys == tuple(keys)


async def test_subscriptions_end_when_the_store_closes(open_store: Opener) -> None:
    store = await open_store()
    async with store.subscribe() as changes:
        await store.close()
        async with asyncio.timeout(WAIT_S):
            assert [change async for change in changes] == []


@given(st.text())
def test_a_notice_that_cannot_be_read_may_be_anything(payload: str) -> None:
    assert parse_notice(f"commit {payload}:x").kind is ChangeKind.ANY
    assert isinstance(parse_notice(payload), Change)


@pytest.mark.parametrize(
    ("payload", "change"),
    [
        ("any", Change(kind=ChangeKind.ANY)),
        ("rumours x", Change(kind=ChangeKind.ANY)),
        ("topics two words", Change(kind=ChangeKind.TOPICS, name="two words")),
        ("leases ", Change(kind=ChangeKind.LEASES)),
    ],
)
def test_notices(payload: str, change: Change) -> None:
    assert parse_notice(payload) == change


@given(st.dictionaries(st.uuids(), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), max_size=4))
def test_notices_of_partitions(partitions: dict[object, list[int]]) -> None:
    line = ";".join(f"{topic_id.hex}:{','.join(map(str, ids))}" for topic_id, ids in partitions.items())  # type: ignore[attr-defined]
    expected = tuple(PartitionKey(TopicId(topic_id), n) for topic_id, ids in partitions.items() for n in ids)  # type: ignore[arg-type]
    assert parse_notice(f"flush {line}") == Change(kind=ChangeKind.FLUSH, keys=expected)
