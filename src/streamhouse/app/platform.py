"""The Python API: StreamHouse in your own process.

    async with StreamHouse.open(data_dir="./data") as sh:
        await sh.create_topic("orders", partition_count=3)
        await sh.produce("orders", b"hello", key=b"k")
        for record in await sh.read("orders", partition=0, offset=0):
            ...

By default an agent runs inside: on a local directory it leads everything, in a fleet its share. Composes the rooms
below; holds no logic of its own about logs or leases.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

from streamhouse.app.agent import Agent
from streamhouse.app.identity import agent_identity
from streamhouse.app.stores import Stores, open_stores
from streamhouse.core import topic_config
from streamhouse.core.clock import Clock, SystemClock
from streamhouse.core.errors import ConfigError, NotLeader, PartitionNotFound, UnknownSetting
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import Randomness, SystemRandomness
from streamhouse.core.settings import SCHEMA, Settings, load_settings
from streamhouse.core.suggest import did_you_mean
from streamhouse.metadata.contract import CommittedOffset, NewTopic, OffsetCommit, Topic, WriteMode
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.codecs import Codec
from streamhouse.wire.murmur2 import partition_for_key
from streamhouse.wire.records import Header, Record, build_batch, decode_records

_LEAD_TIMEOUT_S: Final = 10.0
"""How long create_topic waits until the new partitions are led here; afterwards they are led soon."""
_ROOM_WAIT_S: Final = 5.0  # as long as a Kafka client is kept waiting
_READ_BYTES: Final = 8 * 1024 * 1024

Acks = Literal["all", 1, 0]
_ACKS: Final[Mapping[Acks, int]] = {"all": -1, 1: 1, 0: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """Where records went: ``count`` of them from ``offset`` on."""

    topic: str
    partition: int
    offset: int
    count: int


class StreamHouse:
    """An open platform. Made by ``open``; not for direct construction."""

    def __init__(
        self, settings: Settings, stores: Stores, agent: Agent | None, *, clock: Clock, randomness: Randomness
    ) -> None:
        self.settings = settings
        self.stores = stores
        self.clock = clock
        self.randomness = randomness
        self.fatal: Exception | None = None
        """Why the agent can do nothing more, if so: close, and start anew."""
        self.left_behind = ""
        """After the end: what is not in the log yet, and where it is; empty when everything is."""
        self._ended = asyncio.Event()
        self._agent = agent
        self._topics: dict[str, Topic] = {}
        self._round_robin = itertools.count()

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
        ``kafka_enabled=True`` also lets Kafka clients in, at ``kafka_addresses``.
        """
        clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
        if settings is None:
            settings = load_settings(flags=_flags(chosen)).settings
        elif chosen:
            raise TypeError("give either settings or keywords, not both")
        async with open_stores(settings, clock=clock, randomness=randomness) as stores:
            sh = cls(settings, stores, None, clock=clock, randomness=randomness)
            if settings.embedded_agent:
                sh._agent = await Agent.start(
                    settings,
                    stores,
                    identity=agent_identity(settings, randomness),
                    clock=clock,
                    randomness=randomness,
                    on_fatal=sh._failed,
                    kafka=settings.kafka.enabled is True,
                )
            try:
                yield sh
            finally:
                if sh._agent is not None:
                    await sh._agent.stop()
                    sh.left_behind = sh._agent.left_behind

    @property
    def agent(self) -> Agent:
        """Raises ConfigError when none runs in this process."""
        if self._agent is None:
            raise ConfigError("no agent runs in this process", hint="open it with embedded_agent=True")
        return self._agent

    @property
    def kafka_addresses(self) -> list[str]:
        """host:port of every listener for Kafka clients; none unless ``kafka_enabled``."""
        kafka = None if self._agent is None else self._agent.kafka
        return [] if kafka is None else list(kafka.addresses)

    async def wait_fatal(self) -> Exception:
        """Returns when the agent cannot go on, and why."""
        await self._ended.wait()
        assert self.fatal is not None
        return self.fatal

    # Topics.

    async def create_topic(self, name: str, partition_count: int, *, configs: Mapping[str, str] | None = None) -> Topic:
        """S1.3. Returns when the new partitions can be written here, if they will be led here.

        Raises TopicExists, InvalidTopicName, InvalidPartitions, InvalidTopicConfig.
        """
        checked = topic_config.validate(configs or {})
        diskless = topic_config.effective(checked).diskless_enable
        topic = await self.stores.metadata.create_topic(
            NewTopic(
                topic_id=TopicId(self.randomness.uuid()),
                name=name,
                partition_count=partition_count,
                configs=checked,
                write_mode=WriteMode.LEADERLESS if diskless else WriteMode.LEASED,
            )
        )
        if self._agent is not None and not diskless and self.settings.single_node:
            await self._agent.wait_leading(topic.partition_keys(), timeout_s=_LEAD_TIMEOUT_S)
        return topic

    async def topics(self) -> list[Topic]:
        return await self.stores.metadata.list_topics()

    async def topic(self, name: str) -> Topic:
        """Raises TopicNotFound."""
        return await self.stores.metadata.get_topic(name)

    async def delete_topic(self, name: str) -> None:
        """Raises TopicNotFound. Its objects go later, when nothing can need them any more."""
        topic = await self.topic(name)
        self._topics.pop(name, None)
        await self.stores.metadata.delete_topic(topic.topic_id)

    # Records.

    async def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        acks: Acks = "all",
    ) -> Produced:
        """Write one record and wait until it is as safe as ``acks`` says.

        The partition is that of the key, as every Kafka client computes it; without one, the next in turn.
        """
        record = Record(
            key=key,
            value=value,
            timestamp_ms=self.clock.wall_ms() if timestamp_ms is None else timestamp_ms,
            headers=tuple(Header(name, content) for name, content in headers),
        )
        found = await self._known(topic)
        if partition is None:
            count = found.partition_count
            partition = partition_for_key(key, count) if key is not None else next(self._round_robin) % count
        return await self.produce_batch(topic, partition, [record], acks=acks)

    async def produce_batch(
        self, topic: str, partition: int, records: Iterable[Record], *, acks: Acks = "all", codec: Codec = Codec.NONE
    ) -> Produced:
        """Write records together, in order, as one batch.

        Waits while there is no room for them, because the object store takes less than is written. Raises
        BackPressureRejected after five seconds of that, NotLeader when another agent leads the partition,
        PartitionNotFound, LimitExceeded.
        """
        key = await self._key(topic, partition)
        batch = build_batch(list(records), codec=codec)
        await self.agent.log.wait_writable(key, len(batch), _ROOM_WAIT_S)
        try:
            append = self.agent.log.append(key, batch, acks=_ACKS[acks])
        except NotLeader:
            self._topics.pop(topic, None)  # it may have been created anew under this name
            raise
        if acks != 0:
            await asyncio.shield(append.done)  # a caller that gives up must not end the wait of its own retry
        return Produced(
            topic=topic,
            partition=partition,
            offset=append.base_offset,
            count=append.last_offset - append.base_offset + 1,
        )

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = _READ_BYTES, wait_ms: int = 0
    ) -> list[Record]:
        """Records from ``offset`` on: whole batches, so often a few more than fit, and none at the end of the log.

        ``wait_ms``: at the end, wait that long for the next one. Raises OffsetOutOfRange, PartitionNotFound, and
        DamagedObject where an object of the log is missing or damaged.
        """
        reader = self.agent.reader
        key = await self._key(topic, partition)
        try:
            found = await reader.read(key, offset, max_bytes=max_bytes, max_wait_ms=wait_ms)
        except PartitionNotFound:
            fresh = await self._key(topic, partition, fresh=True)
            if fresh == key:
                raise
            found = await reader.read(fresh, offset, max_bytes=max_bytes, max_wait_ms=wait_ms)
        return [
            record
            for batch in found.batches
            for position, header in iter_batches(batch, check_crc=False, allow_compacted=True)
            if not header.is_control
            for record in decode_records(batch, position)
            if record.offset >= offset
        ]

    async def flush(self) -> None:
        """Everything written here so far is in the object store and the metadata when this returns."""
        await self.agent.log.flush()

    # Progress of consumer groups.

    async def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Remember, for ``group``, the next offset to read of each (topic, partition).

        Raises GroupNotEmpty while the group has live members, PartitionNotFound.
        """
        missing = await self._commit_offsets(group, offsets)
        if missing:  # perhaps only under the ids that are remembered here
            missing = await self._commit_offsets(group, {each: offsets[each] for each in missing}, fresh=True)
        if missing:
            topic, partition = missing[0]
            raise PartitionNotFound(f"{topic}/{partition} does not exist; offsets of the others were committed")

    async def committed_offsets(self, group: str, topic: str) -> dict[int, CommittedOffset]:
        """By partition; those without a committed offset are left out."""
        # Of a topic's former id there may be offsets, or none: neither would be an error. So it is looked up each time.
        found = await self._known(topic, fresh=True)
        offsets = await self.stores.metadata.fetch_offsets(group, found.partition_keys())
        return {key.partition: committed for key, committed in offsets.items()}

    async def _commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, fresh: bool = False
    ) -> list[tuple[str, int]]:
        """Returns those whose partition does not exist."""
        named = {await self._key(*each, fresh=fresh): each for each in offsets}
        commits = [OffsetCommit(key=key, offset=offsets[each]) for key, each in named.items()]
        return [named[key] for key in await self.stores.metadata.commit_offsets_simple(group, commits)]

    # Inside.

    async def _known(self, name: str, *, fresh: bool = False) -> Topic:
        """``fresh``: another process may have created it anew, or let it grow."""
        found = self._topics.get(name)
        if found is None or fresh:
            self._topics.pop(name, None)
            found = self._topics[name] = await self.topic(name)
        return found

    async def _key(self, topic: str, partition: int, *, fresh: bool = False) -> PartitionKey:
        found = await self._known(topic, fresh=fresh)
        if not 0 <= partition < found.partition_count:
            found = await self._known(topic, fresh=True)
            if not 0 <= partition < found.partition_count:
                raise PartitionNotFound(f"{topic} has partitions 0 to {found.partition_count - 1}, not {partition}")
        return PartitionKey(found.topic_id, partition)

    def _failed(self, error: Exception) -> None:
        self.fatal = error
        self._ended.set()


def _flags(chosen: Mapping[str, object]) -> dict[str, object]:
    """Keywords to setting keys."""
    keys = {setting.key.replace(".", "_"): setting.key for setting in SCHEMA}
    for name in chosen:
        if name not in keys:
            hint = did_you_mean(name, keys, otherwise="`streamhouse config show` lists them")
            raise UnknownSetting(f"there is no setting {name!r}", hint=hint)
    return {keys[name]: value for name, value in chosen.items()}
