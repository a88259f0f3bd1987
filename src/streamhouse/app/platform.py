"""The Python API: StreamHouse in your own process.

    async with StreamHouse.open(data_dir="./data") as sh:
        await sh.create_topic("orders", partition_count=3)
        await sh.produce("orders", b"hello", key=b"k")
        for record in await sh.read("orders", partition=0, offset=0):
            ...

By default an agent runs inside: on a local directory it leads everything, in a fleet its share. This is a front end of
the broker, beside the Kafka port: it turns arguments into broker calls, and answers into records and errors. It decides
nothing, so that the same call gets the same answer through every front end.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, NoReturn, TypeVar
from weakref import WeakValueDictionary

from streamhouse.app import arguments
from streamhouse.app.agent import Agent
from streamhouse.app.api_only import open_api_only
from streamhouse.app.identity import agent_identity
from streamhouse.app.maintenance_passes import KeyPassResult, compact_once
from streamhouse.app.observation import Observation
from streamhouse.app.stores import Stores, open_stores
from streamhouse.broker.broker import Broker
from streamhouse.broker.caller import Caller
from streamhouse.broker.fetch import Diverging, PlainWanted, Refused
from streamhouse.broker.log_offsets import At, OffsetQuestion
from streamhouse.broker.produce import WriteOrder
from streamhouse.broker.simple_offsets import CommittedOffset
from streamhouse.broker.topics import Topic, WantedTopic
from streamhouse.core.clock import Clock, SystemClock
from streamhouse.core.errors import (
    ConfigError,
    InvalidRequest,
    NotFound,
    NotLeader,
    StreamHouseError,
    UnknownSetting,
)
from streamhouse.core.randomness import Randomness, SystemRandomness
from streamhouse.core.settings import SCHEMA, Settings, load_settings
from streamhouse.core.suggest import did_you_mean
from streamhouse.gateway.front_end import FrontEnd
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.codecs import Codec
from streamhouse.wire.murmur2 import partition_for_key
from streamhouse.wire.records import Record, build_batch, decode_records

_READ_BYTES: Final = 8 * 1024 * 1024
_TIMEOUT_MS: Final = 120_000  # delivery.timeout.ms of Kafka's producers

Acks = Literal["all", 1, 0]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """Says where records went: ``count`` records from ``offset`` on."""

    topic: str
    partition: int
    offset: int
    count: int


class StreamHouse:
    """An open platform. Made by ``async with StreamHouse.open(…)``; not for direct construction."""

    def __init__(
        self, settings: Settings, stores: Stores, observed: Observation, *, clock: Clock, randomness: Randomness
    ) -> None:
        self.settings = settings
        self.observed = observed
        """The health and the metrics of this platform, whether or not the admin port serves them."""
        self.stores = stores
        self.clock = clock
        self.randomness = randomness
        self.fatal: Exception | None = None
        """Why the agent can do nothing more, else None. If it is set, close the platform and open a new one."""
        self.left_behind = ""
        """What was not in the log at the end, and where it is; empty when everything was."""
        self._ended = asyncio.Event()
        self._agent: Agent | None = None
        self._broker: Broker | None = None
        """None before the platform is open, and after it is closed."""
        self._kafka: FrontEnd | None = None
        self._caller = Caller(protocol="python", client_id=settings.agent.id or "")
        self._orders: WeakValueDictionary[tuple[str, int], WriteOrder] = WeakValueDictionary()
        """Writes to one partition keep their order while one of them waits; others do not wait for them."""
        self._round_robin = itertools.count()

    @classmethod
    def open(
        cls,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        **chosen: object,
    ) -> Opening:
        """Open on ``settings``, or on settings loaded as the command line does, with ``chosen`` as flags.

        A setting's keyword is its key with underscores: ``data_dir="./data"``, ``metadata_url="postgresql://…"``.
        ``kafka_enabled=True`` also lets Kafka clients in, at ``kafka_addresses``.
        """
        return Opening(cls, settings, chosen, clock or SystemClock(), randomness or SystemRandomness())

    @property
    def broker(self) -> Broker:
        """The broker that every front end of this process calls. Raises InvalidRequest after the platform is closed."""
        if self._broker is None:
            raise InvalidRequest(
                "this StreamHouse is closed", hint="use it within its `async with StreamHouse.open(…)` block"
            )
        return self._broker

    @property
    def agent(self) -> Agent:
        """Raises ConfigError when none runs in this process."""
        if self._agent is None:
            raise ConfigError("no agent runs in this process", hint="open it with embedded_agent=True")
        return self._agent

    @property
    def kafka_addresses(self) -> list[str]:
        """host:port of every listener for Kafka clients; none unless ``kafka_enabled``."""
        return [] if self._kafka is None else list(self._kafka.addresses)

    @property
    def admin_addresses(self) -> list[str]:
        """host:port where health and metrics are served over HTTP; none unless ``admin_enabled``."""
        return [] if self.observed.admin is None else self.observed.admin.addresses

    async def wait_fatal(self) -> Exception:
        """Returns when the agent cannot go on, and why."""
        await self._ended.wait()
        assert self.fatal is not None
        return self.fatal

    # Topics.

    async def create_topic(self, name: str, partition_count: int, *, configs: Mapping[str, str] | None = None) -> Topic:
        """Returns when every partition has a leader, or after ten seconds; the topic exists either way.

        Raises TopicExists, InvalidTopicName, InvalidPartitions, InvalidTopicConfig.
        """
        arguments.check_text("topic", name)
        arguments.check_number("partition_count", partition_count)
        arguments.check_configs({} if configs is None else configs)
        wanted = WantedTopic(name=name, partition_count=partition_count, configs=configs or {})
        return await self.broker.topics.create(wanted, caller=self._caller)

    async def topics(self) -> list[Topic]:
        return await self.broker.topics.all(caller=self._caller)

    async def topic(self, name: str) -> Topic:
        """Raises TopicNotFound."""
        arguments.check_text("topic", name)
        return await self.broker.topics.fresh(name, caller=self._caller)

    async def delete_topic(self, name: str) -> None:
        """Raises TopicNotFound. Vacuum deletes its objects after the grace period."""
        topic = await self.topic(name)
        await self.broker.topics.delete(topic, caller=self._caller)

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
        timeout_ms: int = _TIMEOUT_MS,
    ) -> Produced:
        """Write one record and wait until it is as safe as ``acks`` says. Raises as ``produce_batch`` does.

        The partition is that of the key, as every Kafka client computes it; without one, the next in turn.
        """
        record = arguments.record_of(
            value, key, headers, self.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        )
        arguments.check_text("topic", topic)
        if partition is None:
            known = self.broker.view.topic(topic) or await self.broker.topics.fresh(topic, caller=self._caller)
            count = known.partition_count
            partition = partition_for_key(record.key, count) if record.key is not None else self._next() % count
        return await self.produce_batch(topic, partition, [record], acks=acks, timeout_ms=timeout_ms)

    async def produce_batch(
        self,
        topic: str,
        partition: int,
        records: Iterable[Record],
        *,
        acks: Acks = "all",
        codec: Codec = Codec.NONE,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> Produced:
        """Write records together, in order, as one batch.

        Waits, for at most five seconds, while there is no room for them or the partition's leadership changes. Raises
        BackPressureRejected or NotLeader after that, NotLeader at once if another agent leads the partition,
        NotAcknowledged after ``timeout_ms``, TopicNotFound, PartitionNotFound, LimitExceeded, InvalidTimestamp,
        InvalidRecord, InvalidAcks.
        """
        wanted_acks = arguments.acks_of(acks)
        arguments.check_text("topic", topic)
        for what, number in {"partition": partition, "timeout_ms": timeout_ms}.items():
            arguments.check_number(what, number)
        batch = build_batch(arguments.checked(records), codec=codec)
        self._check_agent()

        async def write() -> Produced:
            # Two writes to one partition share an order as long as one of them waits.
            order = self._orders.setdefault((topic, partition), WriteOrder())
            (outcome,) = await self.broker.produce.run(
                [((topic, partition), batch)],
                acks=wanted_acks,
                timeout_ms=timeout_ms,
                order=order,
                caller=self._caller,
            )
            append = outcome.append
            if outcome.error is not None or append is None:
                assert outcome.error is not None
                raise outcome.error
            count = append.last_offset - append.base_offset + 1
            return Produced(topic=topic, partition=partition, offset=append.base_offset, count=count)

        return await self._on_the_topic_of_now(topic, write)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = _READ_BYTES, wait_ms: int = 0
    ) -> list[Record]:
        """Records from ``offset`` on: whole batches, so often a few more than fit, and none at the end of the log.

        ``wait_ms``: at the end, wait that long for the next one. Raises OffsetOutOfRange, TopicNotFound,
        PartitionNotFound, and DamagedObject where an object of the log is missing or damaged.
        """
        arguments.check_text("topic", topic)
        numbers = {"partition": partition, "offset": offset, "max_bytes": max_bytes, "wait_ms": wait_ms}
        for what, number in numbers.items():
            arguments.check_number(what, number)
        self._check_agent()

        async def fetch() -> list[memoryview]:
            (found,) = await self.broker.fetch.run(
                [(topic, PlainWanted(partition, offset, max_bytes))],
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=max_bytes,
                caller=self._caller,
                leader_only=False,
            )
            if isinstance(found, Refused):
                raise found.error
            assert not isinstance(found, Diverging), "only for a caller that names an epoch"
            return found.batches

        return [
            record
            for batch in await self._on_the_topic_of_now(topic, fetch)
            for position, header in iter_batches(batch, check_crc=False, allow_compacted=True)
            if not header.is_control
            for record in decode_records(batch, position)
            if record.offset >= offset
        ]

    async def list_offset(self, topic: str, partition: int, at: int = At.LATEST) -> int:
        """The offset at the end of the log; at its beginning with ``at=-2``; or of the first record at a time in
        milliseconds or later, -1 if there is none.

        Raises NotLeader, TopicNotFound, PartitionNotFound.
        """
        arguments.check_text("topic", topic)
        for what, number in {"partition": partition, "at": at}.items():
            arguments.check_number(what, number)
        self._check_agent()

        async def look_up() -> int:
            question = OffsetQuestion(topic, partition, at)
            (found,) = await self.broker.offsets.list_offsets([question], caller=self._caller)
            if isinstance(found, StreamHouseError):
                raise found
            return found.offset

        return await self._on_the_topic_of_now(topic, look_up)

    async def flush(self) -> None:
        """Everything written here so far is in the object store and the metadata when this returns."""
        self._check_agent()
        await self.agent.log.flush()

    # Progress of consumer groups.

    async def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Remember, for ``group``, the next offset to read of each (topic, partition).

        Raises GroupNotEmpty while the group has live members, TopicNotFound, PartitionNotFound.
        """
        arguments.check_text("group", group)
        arguments.check_offsets(offsets)
        await self.broker.simple_offsets.commit(group, offsets, caller=self._caller)

    async def committed_offsets(self, group: str, topic: str) -> dict[int, CommittedOffset]:
        """Return the committed offset of each partition; those without one are left out."""
        arguments.check_text("group", group)
        arguments.check_text("topic", topic)
        return await self.broker.simple_offsets.fetch(group, topic, caller=self._caller)

    # Maintenance.

    async def compact_once(self, topics: Iterable[str] | None = None) -> KeyPassResult:
        """One pass over these topics, or over all: many small objects of a partition become one (docs/maintenance.md).

        Partitions that other agents lead are compacted too. Records that are not flushed yet are not, and neither are
        topics with `compact` in cleanup.policy. The result has what failed. Raises TopicNotFound.
        """
        if isinstance(topics, str):
            raise InvalidRequest("topics must be a list of names, not one name", hint=f"write [{topics[:100]!r}]")
        names = None if topics is None else list(topics)
        for name in names or ():
            arguments.check_text("topic", name)
        _ = self.broker  # raises after the platform is closed
        return await compact_once(self.settings, self.stores, names, clock=self.clock, randomness=self.randomness)

    # Inside.

    async def _on_the_topic_of_now(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """``call``, and once more if the topic has been created, created anew or grown since this process heard of it.

        A Kafka client asks for metadata and repeats by itself; a caller in this process does not.
        """
        known = self.broker.view.topic(name)
        try:
            return await call()
        except (NotLeader, NotFound):
            fresh = await self.broker.topics.fresh(name, caller=self._caller)
            if known is not None and (known.topic_id, known.partition_count) == (fresh.topic_id, fresh.partition_count):
                raise
        return await call()

    def _check_agent(self) -> None:
        """Raises ConfigError when no agent runs in this process: only an agent reads and writes records."""
        _ = self.broker, self.agent

    def _next(self) -> int:
        return next(self._round_robin)

    def _failed(self, error: Exception) -> None:
        self.fatal = error
        self._ended.set()


class Opening:
    """What ``StreamHouse.open`` returns: the platform is open within ``async with``."""

    def __init__(
        self,
        made: type[StreamHouse],
        settings: Settings | None,
        chosen: Mapping[str, object],
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._made = made
        self._settings = settings
        self._chosen = chosen
        self._clock = clock
        self._randomness = randomness
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> StreamHouse:
        settings, clock, randomness = self._settings, self._clock, self._randomness
        if settings is None:
            settings = load_settings(flags=_flags(self._chosen)).settings
        elif self._chosen:
            raise InvalidRequest("settings and keywords were given", hint="give either settings or keywords, not both")
        async with AsyncExitStack() as stack:
            observed = Observation(settings, clock=clock)
            await observed.begin(stack)
            stores = await stack.enter_async_context(open_stores(settings, clock=clock, randomness=randomness))
            observed.opened(stores)
            sh = self._made(settings, stores, observed, clock=clock, randomness=randomness)
            if settings.embedded_agent:
                sh._agent = agent = await Agent.start(
                    settings,
                    stores,
                    identity=agent_identity(settings, randomness),
                    clock=clock,
                    randomness=randomness,
                    on_fatal=sh._failed,
                    kafka=settings.kafka.enabled is True,
                    http_address=observed.http_address,
                )
                stack.push_async_callback(_stop, sh, agent)
                sh._broker, sh._kafka = agent.broker, agent.kafka
            else:
                opened = open_api_only(settings, stores, clock=clock, randomness=randomness)
                sh._broker, sh._kafka = await stack.enter_async_context(opened)
            observed.serves(sh.broker, sh._kafka, sh._agent, stack)
            stack.callback(_close, sh)
            self._stack = stack.pop_all()
        return sh

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    def __enter__(self) -> NoReturn:
        raise InvalidRequest("`with` cannot open a StreamHouse", hint="write `async with StreamHouse.open(…) as sh:`")

    def __exit__(self, *of: object) -> None: ...

    def __await__(self) -> NoReturn:
        raise InvalidRequest("`await` cannot open a StreamHouse", hint="write `async with StreamHouse.open(…) as sh:`")


async def _stop(sh: StreamHouse, agent: Agent) -> None:
    await agent.stop()
    sh.left_behind = agent.left_behind


def _close(sh: StreamHouse) -> None:
    sh._broker = None


def _flags(chosen: Mapping[str, object]) -> dict[str, object]:
    """Turn keywords of ``open`` into keys of settings."""
    keys = {setting.key.replace(".", "_"): setting.key for setting in SCHEMA}
    for name in chosen:
        if name not in keys:
            hint = did_you_mean(name, keys, otherwise="`streamhouse config show` lists them")
            raise UnknownSetting(f"there is no setting {name!r}", hint=hint)
    return {keys[name]: value for name, value in chosen.items()}
