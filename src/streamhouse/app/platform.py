"""The Python API: StreamHouse in your own process.

    async with StreamHouse.open(data_dir="./data") as sh:
        await sh.create_topic("orders", partition_count=3)

Composes the rooms below; holds no logic of its own about logs or leases. Producing and consuming join with the agent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from streamhouse.app.stores import Stores, open_stores
from streamhouse.core import topic_config
from streamhouse.core.clock import Clock, SystemClock
from streamhouse.core.ids import TopicId
from streamhouse.core.randomness import Randomness, SystemRandomness
from streamhouse.core.settings import SCHEMA, Settings, load_settings
from streamhouse.metadata.contract import NewTopic, Topic, WriteMode


class StreamHouse:
    """An open platform. Made by ``open``; not for direct construction."""

    def __init__(self, settings: Settings, stores: Stores, *, clock: Clock, randomness: Randomness) -> None:
        self.settings = settings
        self.stores = stores
        self.clock = clock
        self.randomness = randomness

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        **chosen: object,
    ) -> AsyncIterator[StreamHouse]:
        """Open on ``settings``, or on settings loaded as the command line does, with ``chosen`` as flags.

        A setting's keyword is its key with underscores: ``data_dir="./data"``, ``metadata_url="postgresql://…"``.
        """
        clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
        if settings is None:
            settings = load_settings(flags=_flags(chosen)).settings
        elif chosen:
            raise TypeError("give either settings or keywords, not both")
        async with open_stores(settings, clock=clock, randomness=randomness) as stores:
            yield cls(settings, stores, clock=clock, randomness=randomness)

    async def create_topic(self, name: str, partition_count: int, *, configs: Mapping[str, str] | None = None) -> Topic:
        """S1.3. Raises TopicExists, InvalidTopicName, InvalidPartitions, InvalidTopicConfig."""
        checked = topic_config.validate(configs or {})
        diskless = topic_config.effective(checked).diskless_enable
        return await self.stores.metadata.create_topic(
            NewTopic(
                topic_id=TopicId(self.randomness.uuid()),
                name=name,
                partition_count=partition_count,
                configs=checked,
                write_mode=WriteMode.LEADERLESS if diskless else WriteMode.LEASED,
            )
        )

    async def topics(self) -> list[Topic]:
        return await self.stores.metadata.list_topics()

    async def topic(self, name: str) -> Topic:
        """Raises TopicNotFound."""
        return await self.stores.metadata.get_topic(name)

    async def delete_topic(self, name: str) -> None:
        """Raises TopicNotFound. Its objects go later, when nothing can need them any more."""
        topic = await self.topic(name)
        await self.stores.metadata.delete_topic(topic.topic_id)


def _flags(chosen: Mapping[str, object]) -> dict[str, object]:
    """Keywords to setting keys. Unknown ones pass through, for the settings' own error with its suggestion."""
    keys = {setting.key.replace(".", "_"): setting.key for setting in SCHEMA}
    return {keys.get(name, name): value for name, value in chosen.items()}
