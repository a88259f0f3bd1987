"""Topics as an agent knows them: every change is told once, whether the notification arrives or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import MetadataUnavailable, TopicNotFound
from streamhouse.core.ids import TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.maintenance import background
from streamhouse.maintenance.topic_watch import TopicWatch
from streamhouse.metadata.contract import MetadataStore, NewTopic, Topic
from streamhouse.metadata.sqlite.store import SqliteMetadata
from virtual_time import run_virtually


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_PAUSE_S", 0)


class Watched:
    """Metadata whose listing can be made to lag, and whose subscription fails once."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.failures: list[Exception] = []
        self.listings: list[list[Topic]] = []
        self.deaf = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[Any]:
        if self.failures:
            raise self.failures.pop()
        async with self._inner.subscribe() as changes:
            yield _nothing() if self.deaf else changes

    async def list_topics(self) -> list[Topic]:
        return self.listings.pop(0) if self.listings else await self._inner.list_topics()


@asynccontextmanager
async def open_store() -> AsyncIterator[Watched]:
    randomness = SeededRandomness(1)
    async with SqliteMetadata(":memory:", clock=ManualClock(), randomness=randomness, threads=False) as store:
        await store.create_topic(NewTopic(topic_id=TopicId(randomness.uuid()), name="t", partition_count=1, configs={}))
        yield Watched(store)


@pytest.fixture
async def metadata() -> AsyncIterator[Watched]:
    async with open_store() as store:
        yield store


@pytest.mark.usefixtures("no_pauses")
async def test_topics_are_heard_of_again_after_the_subscription_broke(metadata: Watched) -> None:
    topic = await metadata.get_topic("t")
    changed, broken = asyncio.Event(), asyncio.Event()
    problems: list[str] = []

    def report(where: str, error: Exception | None) -> None:
        if error is not None:
            problems.append(where)
            broken.set()

    metadata.failures.append(MetadataUnavailable("the connection is gone"))
    watch = TopicWatch(
        metadata=metadata,  # type: ignore[arg-type]
        on_changed=lambda topic: changed.set(),
        report=report,
    )
    await watch.get(topic.topic_id)
    watch.start()
    async with asyncio.timeout(5):
        await broken.wait()
        await metadata.alter_topic_configs(topic.topic_id, set_configs={"max.message.bytes": "500"})
        await changed.wait()
    await watch.close()
    assert problems == ["topic notifications"]


async def test_a_topic_found_by_its_id_is_known_and_its_next_change_told(metadata: Watched) -> None:
    topic = await metadata.get_topic("t")
    told: list[int] = []
    watch = TopicWatch(metadata=metadata, on_changed=lambda topic: told.append(topic.version))  # type: ignore[arg-type]
    metadata.listings.append([])  # it was created after this look
    assert watch.name_of(topic.topic_id) is None
    assert await watch.get(topic.topic_id) == topic
    assert watch.name_of(topic.topic_id) == "t"
    changed = await metadata.alter_topic_configs(topic.topic_id, set_configs={"max.message.bytes": "500"})
    watch._take(await metadata.list_topics())
    assert told == [changed.version]


async def test_an_older_look_that_comes_late_takes_nothing_back(metadata: Watched) -> None:
    topic = await metadata.get_topic("t")
    told: list[int] = []
    watch = TopicWatch(metadata=metadata, on_changed=lambda topic: told.append(topic.version))  # type: ignore[arg-type]
    old = await metadata.list_topics()
    await watch.get(topic.topic_id)
    changed = await metadata.alter_topic_configs(topic.topic_id, set_configs={"max.message.bytes": "500"})
    watch._take(await metadata.list_topics())
    watch._take(old)
    assert told == [changed.version]
    assert await watch.get(topic.topic_id) == changed


async def _nothing() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield None


def watched(story: Callable[[Watched, TopicWatch, list[int]], Awaitable[None]], *, deaf: bool = False) -> None:
    """Play a story in virtual time, with a watch that runs and the versions that it told of."""

    async def play() -> None:
        told: list[int] = []
        async with open_store() as metadata:
            metadata.deaf = deaf
            watch = TopicWatch(metadata=metadata, on_changed=lambda topic: told.append(topic.version))  # type: ignore[arg-type]
            watch.start()
            await asyncio.sleep(1)
            try:
                await story(metadata, watch, told)
            finally:
                await watch.close()

    run_virtually(play())


def test_a_change_is_told_once_when_the_notification_comes() -> None:
    async def story(metadata: Watched, watch: TopicWatch, told: list[int]) -> None:
        topic = await metadata.get_topic("t")
        await metadata.alter_topic_configs(topic.topic_id, set_configs={"max.message.bytes": "500"})
        await asyncio.sleep(1)
        assert told == [topic.version + 1]
        await asyncio.sleep(120)
        assert told == [topic.version + 1], "the looks that follow find nothing new"

    watched(story)


def test_a_change_is_told_within_half_a_minute_when_its_notification_was_lost() -> None:
    async def story(metadata: Watched, watch: TopicWatch, told: list[int]) -> None:
        topic = await metadata.get_topic("t")
        await metadata.alter_topic_configs(topic.topic_id, set_configs={"max.message.bytes": "500"})
        await asyncio.sleep(20)
        assert told == []
        await asyncio.sleep(11)
        assert told == [topic.version + 1]

    watched(story, deaf=True)


def test_a_topic_that_was_deleted_is_not_known_any_more() -> None:
    async def story(metadata: Watched, watch: TopicWatch, told: list[int]) -> None:
        topic = await watch.get((await metadata.get_topic("t")).topic_id)
        await metadata.delete_topic(topic.topic_id)
        await asyncio.sleep(1)
        with pytest.raises(TopicNotFound):
            await watch.get(topic.topic_id)
        assert told == []

    watched(story)


def test_a_topic_that_is_known_costs_no_call() -> None:
    async def story(metadata: Watched, watch: TopicWatch, told: list[int]) -> None:
        topic = await metadata.get_topic("t")
        metadata.listings.append([])
        assert await watch.get(topic.topic_id) == topic
        assert metadata.listings == [[]], "the store was not asked"

    watched(story)
