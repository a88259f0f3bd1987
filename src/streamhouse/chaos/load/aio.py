"""aiokafka's producers, groups and last read, in one event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError

from streamhouse.chaos.history import History
from streamhouse.chaos.load.process import Orders
from streamhouse.chaos.load.shape import ACKS_ONE, IDEMPOTENT, MAX_OUTSTANDING, PLAIN, Life, ProducerKind
from streamhouse.chaos.load.spec import NO_BROKER, GroupSpec, LoadSpec, Role
from streamhouse.chaos.records import Written, encode
from streamhouse.core.randomness import SeededRandomness

CLIENT: Final = "aiokafka"
_SLOTS: Final = (IDEMPOTENT, IDEMPOTENT, PLAIN, ACKS_ONE)
_REQUEST_MS: Final = 20_000
_COMMIT_EVERY_S: Final = 0.5
_WATCH_EVERY_S: Final = 3.0
_MEMBER_LIVES_S: Final = (20.0, 90.0)
_CALL_S: Final = 30.0
_CLIENT_ERRORS: Final = (KafkaError, TimeoutError, OSError)


def run(spec: LoadSpec, history: History, orders: Orders) -> int:
    logging.disable(logging.CRITICAL)  # agents that are gone for a while are no news
    match spec.role:
        case Role.PRODUCERS:
            return asyncio.run(_produce(spec, history, orders))
        case Role.GROUPS:
            return asyncio.run(_consume(spec, history, orders))
        case Role.TOPICS:
            return asyncio.run(_create_topics(spec, orders))
        case Role.FINAL:
            return asyncio.run(_read_finally(spec, history, orders))


async def _create_topics(spec: LoadSpec, orders: Orders) -> int:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + spec.settle_s
    problem: object = "nothing was asked"
    answered = False
    while loop.time() < deadline_s and not orders.stop.is_set():
        admin = AIOKafkaAdminClient(bootstrap_servers=spec.bootstrap)
        try:
            await admin.start()
            answered = True
            for name, count in spec.topics.items():
                try:
                    await admin.create_topics([NewTopic(name, count, 1)])
                except TopicAlreadyExistsError:
                    continue
            described = await admin.describe_topics(list(spec.topics))
            led = [
                len(topic["partitions"]) == spec.topics[topic["topic"]]
                and all(partition["leader"] >= 0 for partition in topic["partitions"])
                for topic in described
                if topic["topic"] in spec.topics
            ]
            if len(led) == len(spec.topics) and all(led):
                return 0
            problem = "some partitions have no leader"
        except _CLIENT_ERRORS as error:
            problem = error
        finally:
            await admin.close()
        await asyncio.sleep(0.5)
    sys.stderr.write(f"the topics could not be created: {problem}\n")
    return 1 if answered else NO_BROKER


async def _produce(spec: LoadSpec, history: History, orders: Orders) -> int:
    slots = [_slot(number, kind, spec, history, orders) for number, kind in enumerate(_SLOTS)]
    return _outcome(await asyncio.gather(*slots, return_exceptions=True))


def _outcome(results: Iterable[object]) -> int:
    broken = [result for result in results if isinstance(result, BaseException)]
    for error in broken:
        sys.stderr.write(f"{CLIENT} broke: {type(error).__name__}: {error}\n")
    return 1 if broken else 0


async def _slot(number: int, kind: ProducerKind, spec: LoadSpec, history: History, orders: Orders) -> None:
    randomness = SeededRandomness(spec.seed * 1000 + 200 + number)
    rate = spec.rate / len(_SLOTS)
    life_number = 0
    while not orders.stop.is_set():
        life = Life(randomness, spec.places)
        one = AioProducer(f"{spec.process}-{number}-{life_number}", kind, life, spec, history)
        life_number += 1
        if not await one.start():
            await asyncio.sleep(0.5)
            continue
        try:
            for burst_number in range(life.bursts):
                burst = life.burst(burst_number)
                for topic, partition in burst.places:
                    await one.send(topic, partition, burst.count, burst.padding_bytes)
                await one.rest(burst.weight / rate, orders)
                if orders.stop.is_set() or one.broken:
                    break
        finally:
            await one.close(spec.settle_s)


class AioProducer:
    """A producer with an id of its own. It ends at the first record that fails: then its order is no longer known."""

    def __init__(self, name: str, kind: ProducerKind, life: Life, spec: LoadSpec, history: History) -> None:
        self._name = name
        self._kind = kind
        self._run = spec.run
        self._history = history
        self._next: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._open: set[asyncio.Task[None]] = set()
        self.broken = False
        compression = None if life.compression == "none" else life.compression
        self._client = AIOKafkaProducer(
            bootstrap_servers=spec.bootstrap,
            client_id=name,
            acks="all" if kind.acks == "all" else 1,
            enable_idempotence=kind.idempotent,
            compression_type=compression,
            max_batch_size=min(65536, 400 * life.batch_records),
            max_request_size=2_000_000,
            request_timeout_ms=_REQUEST_MS,
            retry_backoff_ms=100,
        )

    async def start(self) -> bool:
        try:
            await asyncio.wait_for(self._client.start(), _CALL_S)
        except _CLIENT_ERRORS:
            await _stop(self._client)
            return False
        kind = self._kind
        # aiokafka has one request for a partition under way, so that a plain producer's records stay in order too. What
        # acks=1 promised may come back later, after a take-over.
        ordered = kind.acks == "all"
        self._history.producer(self._name, CLIENT, once=kind.idempotent, ordered=ordered, acks=kind.acks)
        return True

    async def send(self, topic: str, partition: int, count: int, padding_bytes: int) -> None:
        for _ in range(count):
            if self.broken:
                return
            number = self._next[topic, partition]
            self._next[topic, partition] += 1
            written = Written(run=self._run, producer=self._name, number=number, topic=topic, partition=partition)
            self._history.sent(topic, partition, self._name, number, 1)
            try:
                answer = await asyncio.wait_for(
                    self._client.send(
                        topic, encode(written, padding_bytes), key=f"k{number % 50}".encode(), partition=partition
                    ),
                    _REQUEST_MS / 1000 * 2,
                )
            except _CLIENT_ERRORS as error:
                self._fail(topic, partition, number, error)
                return
            task = asyncio.create_task(self._await(topic, partition, number, answer))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _await(self, topic: str, partition: int, number: int, answer: Any) -> None:
        try:
            told = await answer
            self._history.acknowledged(topic, partition, self._name, number, int(told.offset))
        except asyncio.CancelledError:
            self._history.failed(topic, partition, self._name, number, "no answer")
            raise
        except _CLIENT_ERRORS as error:
            self._fail(topic, partition, number, error)

    def _fail(self, topic: str, partition: int, number: int, error: BaseException) -> None:
        self.broken = True
        self._history.failed(topic, partition, self._name, number, type(error).__name__)

    async def rest(self, rest_s: float, orders: Orders) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + rest_s
        while not orders.stop.is_set() and not self.broken:
            left_s = until_s - loop.time()
            if left_s <= 0 and len(self._open) <= MAX_OUTSTANDING // 2:
                return
            await asyncio.sleep(min(max(left_s, 0.02), 0.1))

    async def close(self, settle_s: float) -> None:
        if self._open:
            await asyncio.wait(set(self._open), timeout=min(settle_s, 3 * _REQUEST_MS / 1000))
        left = set(self._open)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await _stop(self._client)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: AioMember) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._member.commit()
        self._member.forget()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._member.take(assigned)


class AioMember:
    """Reads, and commits what it has read, twice a second."""

    def __init__(self, name: str, group: GroupSpec, spec: LoadSpec, history: History) -> None:
        self._name = name
        self._group = group.name
        self._history = history
        self._topics = list(spec.topics)
        self._generation = 0
        self._next: dict[TopicPartition, int] = {}
        self._dirty: set[TopicPartition] = set()
        self._client = AIOKafkaConsumer(
            bootstrap_servers=spec.bootstrap,
            client_id=name,
            group_id=group.name,
            enable_auto_commit=False,
            auto_offset_reset="none",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=2_000,
            request_timeout_ms=_REQUEST_MS,
            max_partition_fetch_bytes=1048576,
        )

    async def live(self, seconds: float, orders: Orders) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._client.subscribe(self._topics, listener=_Listener(self))
            await asyncio.wait_for(self._client.start(), _CALL_S)
            end_s, commit_at_s = loop.time() + seconds, 0.0
            while not orders.stop.is_set() and (loop.time() < end_s or orders.drain.is_set()):
                for place, messages in (await self._client.getmany(timeout_ms=200, max_records=500)).items():
                    for message in messages:
                        self._read(place, message)
                if loop.time() >= commit_at_s:
                    await self.commit()
                    commit_at_s = loop.time() + _COMMIT_EVERY_S
            await self.commit()
        except (*_CLIENT_ERRORS, asyncio.CancelledError):  # aiokafka lets its own cancelled tasks through
            await asyncio.sleep(0.5)
        finally:
            await _stop(self._client)

    def take(self, assigned: Iterable[TopicPartition]) -> None:
        self._generation += 1
        self.forget()
        for place in assigned:
            self._history.taken(place.topic, place.partition, self._group, self._name, self._generation)

    def forget(self) -> None:
        self._next.clear()
        self._dirty.clear()

    def _read(self, place: TopicPartition, message: Any) -> None:
        self._history.delivered(
            place.topic, place.partition, self._group, self._name, self._generation, message.offset, message.value
        )
        self._next[place] = message.offset + 1
        self._dirty.add(place)

    async def commit(self) -> None:
        wanted = {place: self._next[place] for place in self._dirty}
        if not wanted:
            return
        begun_ms = self._history.now_ms()
        try:
            await asyncio.wait_for(self._client.commit(wanted), _CALL_S)
        except _CLIENT_ERRORS:
            return
        for place, offset in wanted.items():
            self._history.committed(place.topic, place.partition, self._group, self._name, offset, begun_ms=begun_ms)
            if self._next.get(place) == offset:
                self._dirty.discard(place)


async def _consume(spec: LoadSpec, history: History, orders: Orders) -> int:
    """aiokafka speaks the classic protocol only."""
    seats = []
    for group in spec.groups:
        history.group(group.name, CLIENT, group.protocol)
        await _commit_beginnings(group, spec, orders)
        seats += [
            asyncio.create_task(_seat(f"{group.name}-{number}", group, spec, history, orders, number))
            for number in range(group.members)
        ]
    watch = asyncio.create_task(_watch(spec, history, orders))
    await asyncio.wait([watch, *seats], return_when=asyncio.FIRST_COMPLETED)
    orders.stop.set()
    return _outcome(await asyncio.gather(watch, *seats, return_exceptions=True))


async def _seat(name: str, group: GroupSpec, spec: LoadSpec, history: History, orders: Orders, number: int) -> None:
    randomness = SeededRandomness(spec.seed * 1000 + 300 + number)
    life = 0
    while not orders.stop.is_set():
        await AioMember(f"{name}-{life}", group, spec, history).live(randomness.uniform(*_MEMBER_LIVES_S), orders)
        life += 1


async def _watch(spec: LoadSpec, history: History, orders: Orders) -> None:
    """Fetches committed offsets from outside each group; returns when all are at the end after "drain"."""
    loop = asyncio.get_running_loop()
    deadline_s: float | None = None
    while not orders.stop.is_set():
        await asyncio.sleep(_WATCH_EVERY_S)
        at_end = [await _look(group, spec, history, compare=orders.drain.is_set()) for group in spec.groups]
        if orders.drain.is_set():
            deadline_s = deadline_s or loop.time() + spec.settle_s
            if all(at_end) or loop.time() > deadline_s:
                return


async def _look(group: GroupSpec, spec: LoadSpec, history: History, *, compare: bool) -> bool:
    client = AIOKafkaConsumer(bootstrap_servers=spec.bootstrap, group_id=group.name, enable_auto_commit=False)
    places = [TopicPartition(topic, partition) for topic, partition in spec.places]
    at_end = True
    try:
        client.assign(places)
        await asyncio.wait_for(client.start(), _CALL_S)
        ends = await asyncio.wait_for(client.end_offsets(places), _CALL_S)
        for place in places:
            begun_ms = history.now_ms()
            offset = await asyncio.wait_for(client.committed(place), _CALL_S)
            if offset is None:
                return False
            history.observed(place.topic, place.partition, group.name, offset, begun_ms=begun_ms)
            if compare:
                history.end_seen(place.topic, place.partition, group.name, ends[place])
            at_end = at_end and offset >= ends[place]
    except (*_CLIENT_ERRORS, asyncio.CancelledError):
        return False
    finally:
        await _stop(client)
    return at_end


async def _commit_beginnings(group: GroupSpec, spec: LoadSpec, orders: Orders) -> None:
    """Commit offset 0 everywhere, before any member joins.

    aiokafka 0.14 overlooks the error of a whole OffsetFetch answer (a coordinator that has moved, say) and takes it for
    "nothing is committed". So something always is, members have no reset policy, and one that finds nothing ends.
    """
    while not orders.stop.is_set():
        client = AIOKafkaConsumer(bootstrap_servers=spec.bootstrap, group_id=group.name, enable_auto_commit=False)
        try:
            places = [TopicPartition(topic, partition) for topic, partition in spec.places]
            client.assign(places)
            await asyncio.wait_for(client.start(), _CALL_S)
            await asyncio.wait_for(client.commit(dict.fromkeys(places, 0)), _CALL_S)
            return
        except (*_CLIENT_ERRORS, asyncio.CancelledError):
            await asyncio.sleep(0.5)
        finally:
            await _stop(client)


async def _stop(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    try:
        await asyncio.wait_for(client.stop(), _CALL_S)
    except (*_CLIENT_ERRORS, asyncio.CancelledError):
        return


async def _read_finally(spec: LoadSpec, history: History, orders: Orders) -> int:
    loop = asyncio.get_running_loop()
    places = [TopicPartition(topic, partition) for topic, partition in spec.places]
    client = AIOKafkaConsumer(
        bootstrap_servers=spec.bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    try:
        client.assign(places)
        await asyncio.wait_for(client.start(), spec.settle_s)
        ends: dict[TopicPartition, int] = await asyncio.wait_for(client.end_offsets(places), spec.settle_s)
        left = {place for place in places if ends[place] > 0}
        for place in set(places) - left:
            history.read_to_the_end(place.topic, place.partition, 0)
        await client.seek_to_beginning(*places)
        deadline_s = loop.time() + spec.settle_s
        while left and loop.time() < deadline_s and not orders.stop.is_set():
            for place, messages in (await client.getmany(timeout_ms=500, max_records=1000)).items():
                for message in messages:
                    history.read_finally(spec.run, place.topic, place.partition, message.offset, message.value)
                    deadline_s = loop.time() + spec.settle_s
                    if message.offset + 1 >= ends[place] and place in left:
                        left.discard(place)
                        history.read_to_the_end(place.topic, place.partition, ends[place])
        return 1 if left else 0
    finally:
        await asyncio.wait_for(client.stop(), _CALL_S)
