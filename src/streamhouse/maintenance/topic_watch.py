"""Topics as this process knows them: one copy, kept fresh, told to the log when configs change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streamhouse.core.ids import TopicId
from streamhouse.maintenance.background import Background, Report, unheard
from streamhouse.metadata.contract import ChangeKind, MetadataStore, Topic

_REFRESH_S: Final = 30.0
"""A config change takes effect at once by notification, and after this long if that was lost."""

_PAUSE_S: Final = 1.0
_LISTENING: Final = "topic notifications"


class TopicWatch:
    def __init__(
        self, *, metadata: MetadataStore, on_changed: Callable[[Topic], None], report: Report = unheard
    ) -> None:
        self._metadata = metadata
        self._on_changed = on_changed
        self._topics: dict[TopicId, Topic] = {}
        self._stale = asyncio.Event()
        self._loops = Background(report)

    def start(self) -> None:
        self._loops.start(_LISTENING, self._listen)
        self._loops.start("topics", self._refresh)

    async def close(self) -> None:
        await self._loops.close()

    async def get(self, topic_id: TopicId) -> Topic:
        """The topic with this id. Reads the store if this agent does not know it. Raises TopicNotFound."""
        if topic_id not in self._topics:
            self._take(await self._metadata.list_topics())
        if topic_id not in self._topics:
            found = await self._metadata.get_topic_by_id(topic_id)
            self._topics.setdefault(topic_id, found)  # known from here on: its next change is one
        return self._topics[topic_id]

    def name_of(self, topic_id: TopicId) -> str | None:
        """None for a topic that this agent does not know. It knows each one of which it opens a partition."""
        topic = self._topics.get(topic_id)
        return None if topic is None else topic.name

    async def _listen(self) -> None:
        async with self._metadata.subscribe() as changes:
            self._loops.works(_LISTENING)
            self._stale.set()  # whatever happened before the subscription began
            async for change in changes:
                if change.kind in (ChangeKind.TOPICS, ChangeKind.ANY):
                    self._stale.set()
        await asyncio.sleep(_PAUSE_S)  # it has ended by itself; not again at once

    async def _refresh(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_REFRESH_S):
                await self._stale.wait()
        self._stale.clear()
        self._take(await self._metadata.list_topics())

    def _take(self, topics: list[Topic]) -> None:
        """Two looks may come back in the wrong order: what is known already to be newer stays."""
        known, self._topics = self._topics, {topic.topic_id: topic for topic in topics}
        for topic in topics:
            before = known.get(topic.topic_id)
            if before is None or before.version == topic.version:
                continue
            if before.version > topic.version:
                self._topics[topic.topic_id] = before
            else:
                self._on_changed(topic)
