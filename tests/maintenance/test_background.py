"""Loops beside the membership: what they survive, and how it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.ids import TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.maintenance import background
from streamhouse.maintenance.background import Background
from streamhouse.maintenance.topic_watch import TopicWatch
from streamhouse.metadata.contract import MetadataStore, NewTopic, Topic
from streamhouse.metadata.sqlite.store import SqliteMetadata


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_PAUSE_S", 0)


@pytest.mark.parametrize(
    ("error", "is_defect"), [(MetadataUnavailable("away"), False), (KeyError("oops"), True)], ids=["store", "defect"]
)
async def test_a_loop_goes_on_after_a_failure_and_tells_of_it(error: Exception, is_defect: bool) -> None:
    heard: list[tuple[str, Exception | None]] = []
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
    works = asyncio.Event()
    failures = [error]

    async def step() -> None:
        if failures:
            raise failures.pop()
        works.set()
        await asyncio.sleep(0)

    loops = Background(lambda where, error: heard.append((where, error)))
    loops.start("a loop", step)
    async with asyncio.timeout(5):
        await works.wait()
        await asyncio.sleep(0.001)
    await loops.close()
    assert heard[:2] == [("a loop", error), ("a loop", None)]
    assert [context["exception"] for context in logged] == ([error] if is_defect else [])


class Watched:
    """Metadata whose listing can be made to lag, and whose subscription fails once."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.failures: list[Exception] = []
        self.listings: list[list[Topic]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[Any]:
        if self.failures:
            raise self.failures.pop()
        async with self._inner.subscribe() as changes:
            yield changes

    async def list_topics(self) -> list[Topic]:
        return self.listings.pop(0) if self.listings else await self._inner.list_topics()


@pytest.fixture
async def metadata() -> AsyncIterator[Watched]:
    randomness = SeededRandomness(1)
    async with SqliteMetadata(":memory:", clock=ManualClock(), randomness=randomness, threads=False) as store:
        await store.create_topic(NewTopic(topic_id=TopicId(randomness.uuid()), name="t", partition_count=1, configs={}))
        yield Watched(store)


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
    assert await watch.get(topic.topic_id) == topic
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
