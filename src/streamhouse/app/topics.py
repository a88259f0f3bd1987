"""Topics as this process knows them: one copy, kept fresh, told to the log when configs change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import TopicId
from streamhouse.metadata.contract import ChangeKind, MetadataStore, Topic

_REFRESH_S: Final = 30.0
"""A config change takes effect at once by notification, and after this long if that was lost."""


class TopicWatch:
    def __init__(self, *, metadata: MetadataStore, on_changed: Callable[[Topic], None]) -> None:
        self._metadata = metadata
        self._on_changed = on_changed
        self._topics: dict[TopicId, Topic] = {}
        self._stale = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for loop, name in ((self._listen, "listen"), (self._refresh, "refresh")):
            self._tasks.append(asyncio.create_task(loop(), name=f"topics-{name}"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def get(self, topic_id: TopicId) -> Topic:
        """From memory if it is known, else from the store. Raises TopicNotFound."""
        if topic_id not in self._topics:
            self._take(await self._metadata.list_topics())
        return self._topics.get(topic_id) or await self._metadata.get_topic_by_id(topic_id)

    async def _listen(self) -> None:
        async with self._metadata.subscribe() as changes:
            async for change in changes:
                if change.kind in (ChangeKind.TOPICS, ChangeKind.ANY):
                    self._stale.set()

    async def _refresh(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_REFRESH_S):
                    await self._stale.wait()
            self._stale.clear()
            with suppress(StreamHouseError):  # the next round asks again
                self._take(await self._metadata.list_topics())

    def _take(self, topics: list[Topic]) -> None:
        known, self._topics = self._topics, {topic.topic_id: topic for topic in topics}
        for topic in topics:
            before = known.get(topic.topic_id)
            if before is not None and before.version != topic.version:
                self._on_changed(topic)
