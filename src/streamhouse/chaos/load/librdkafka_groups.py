"""librdkafka's consumers, by confluent-kafka: groups of both protocols, and the last read of the whole log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from streamhouse.chaos.history import History
from streamhouse.chaos.load.librdkafka import CLIENT, QUICK_RECONNECT
from streamhouse.chaos.load.process import Orders
from streamhouse.chaos.load.spec import GroupSpec, LoadSpec
from streamhouse.core.randomness import SeededRandomness

_POLL_S: Final = 0.1
_COMMIT_EVERY_S: Final = 0.5
_WATCH_EVERY_S: Final = 1.0
_MEMBER_LIVES_S: Final = (20.0, 90.0)
_CALL_S: Final = 10.0
_LIMIT_S: Final = 30.0
"""How long a member may be without a sign of life. librdkafka has no time-out for a synchronous commit or a close
(docs/chaos.md)."""
_LOOK_S: Final = 0.5
_POLL_LIMIT_MS: Final = 45_000
"""An abandoned member leaves its group after this long without a poll; librdkafka takes no less than a session."""
_SMALL_QUEUES: Final = {"queued.max.messages.kbytes": 8192, "fetch.message.max.bytes": 1048576}


def run_groups(spec: LoadSpec, history: History, orders: Orders) -> int:
    members: list[Seat] = []
    for group in spec.groups:
        history.group(group.name, CLIENT, group.protocol)
        for number in range(group.members):
            seed = SeededRandomness(spec.seed * 1000 + 100 + len(members))
            members.append(Seat(f"{group.name}-{number}", group, spec, history, orders, seed))
    for member in members:
        member.start()
    watches = [Watch(group, spec, history) for group in spec.groups]
    try:
        _until_drained(spec, orders, watches)
    finally:
        orders.stop.set()
        for member in members:
            member.join()
        for watch in watches:
            watch.look(compare=False)
            watch.close()
    return 0 if all(member.failure is None for member in members) else 1


def _until_drained(spec: LoadSpec, orders: Orders, watches: Sequence[Watch]) -> None:
    deadline_s: float | None = None
    while not orders.stop.wait(_WATCH_EVERY_S):
        draining = orders.drain.is_set()
        at_end = [watch.look(compare=draining) for watch in watches]
        if not draining:
            continue
        deadline_s = deadline_s or time.monotonic() + spec.settle_s
        if all(at_end) or time.monotonic() > deadline_s:
            return


class Watch:
    """Fetches the committed offsets of one group from outside."""

    def __init__(self, group: GroupSpec, spec: LoadSpec, history: History) -> None:
        self._group = group
        self._history = history
        self._places = [TopicPartition(topic, partition) for topic, partition in spec.places]
        self._client = Consumer(
            {
                "bootstrap.servers": spec.bootstrap,
                "group.id": group.name,
                "enable.auto.commit": False,
                **QUICK_RECONNECT,
            }
        )

    def look(self, *, compare: bool) -> bool:
        """Whether the group has committed the end of every partition; never without ``compare``, which costs calls."""
        begun_ms = self._history.now_ms()
        at_end = compare
        try:
            for found in self._client.committed(self._places, timeout=_CALL_S):
                if found.error is not None:
                    return False
                offset = max(found.offset, 0)  # nothing is committed yet: a negative number
                self._history.observed(found.topic, found.partition, self._group.name, offset, begun_ms=begun_ms)
                if compare:
                    end = self._end(found)
                    self._history.end_seen(found.topic, found.partition, self._group.name, end)
                    at_end = at_end and offset >= end
        except KafkaException:
            return False
        return at_end

    def _end(self, place: TopicPartition) -> int:
        where = TopicPartition(place.topic, place.partition)
        return int(self._client.get_watermark_offsets(where, timeout=_CALL_S, cached=False)[1])

    def close(self) -> None:
        self._client.close()


class Seat(threading.Thread):
    """A place in a group: one member after another has it, so that the group rebalances all the time."""

    def __init__(
        self,
        name: str,
        group: GroupSpec,
        spec: LoadSpec,
        history: History,
        orders: Orders,
        randomness: SeededRandomness,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: Exception | None = None
        self._group = group
        self._spec = spec
        self._history = history
        self._orders = orders
        self._randomness = randomness

    def run(self) -> None:
        life = 0
        try:
            while not self._orders.stop.is_set():
                member = LibrdkafkaMember(f"{self.name}-{life}", self._group, self._spec, self._history)
                seconds = self._randomness.uniform(*_MEMBER_LIVES_S)
                outlive(member.name, partial(member.live, seconds, self._orders), member.silent_s, member.abandoned)
                life += 1
        except Exception as error:  # of the harness: the run must hear of it
            self.failure = error
            sys.stderr.write(f"{self.name} broke: {type(error).__name__}: {error}\n")


def outlive(
    name: str,
    live: Callable[[], None],
    silent_s: Callable[[], float],
    abandoned: threading.Event,
    *,
    limit_s: float = _LIMIT_S,
) -> None:
    """Returns when the life has ended, or sets ``abandoned`` when it was silent for longer than the limit.

    A life has one thread of its own for all its calls: confluent-kafka lets one thread at a time use a consumer. The
    thread of an abandoned life stays in its call. Raises what the life raises.
    """
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            live()
            outcome.set_result(None)
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    while not wait([outcome], timeout=min(_LOOK_S, limit_s)).done:
        if silent_s() > limit_s:
            abandoned.set()
            sys.stderr.write(f"{name} is abandoned: librdkafka has not returned from a call for {limit_s:g} s\n")
            return
    outcome.result()


class LibrdkafkaMember:
    """Reads, and commits what it has read, twice a second."""

    def __init__(self, name: str, group: GroupSpec, spec: LoadSpec, history: History) -> None:
        self.name = name
        self.abandoned = threading.Event()
        self._seen_s = time.monotonic()
        self._group = group.name
        self._history = history
        self._topics = list(spec.topics)
        self._generation = 0
        """Assignments that this member was given: librdkafka does not tell the group's own number."""
        self._next: dict[tuple[str, int], int] = {}
        self._dirty: set[tuple[str, int]] = set()
        config: dict[str, object] = {
            "bootstrap.servers": spec.bootstrap,
            "group.id": group.name,
            "client.id": name,
            "group.protocol": group.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "max.poll.interval.ms": _POLL_LIMIT_MS,
            **_SMALL_QUEUES,
            **QUICK_RECONNECT,
        }
        if group.protocol == "classic":
            config |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 2_000}
        self._client = Consumer(config)

    def silent_s(self) -> float:
        """How long librdkafka has not returned from a call."""
        return time.monotonic() - self._seen_s

    def live(self, seconds: float, orders: Orders) -> None:
        self._client.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        end_s = time.monotonic() + seconds
        commit_at_s = 0.0
        try:
            while not self._is_over(end_s, orders):
                self._seen_s = time.monotonic()
                for message in self._client.consume(500, _POLL_S):
                    self._read(message)
                if time.monotonic() >= commit_at_s:
                    self._commit()
                    commit_at_s = time.monotonic() + _COMMIT_EVERY_S
            self._commit()
        finally:
            self._seen_s = time.monotonic()
            self._client.close()

    def _is_over(self, end_s: float, orders: Orders) -> bool:
        if orders.stop.is_set() or self.abandoned.is_set():
            return True
        return time.monotonic() >= end_s and not orders.drain.is_set()

    def _read(self, message: Message) -> None:
        if message.error() is not None:
            return
        topic, partition, offset = str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)
        value = message.value()
        self._history.delivered(topic, partition, self._group, self.name, self._generation, offset, _bytes(value))
        self._next[topic, partition] = offset + 1
        self._dirty.add((topic, partition))

    def _commit(self) -> None:
        wanted = [TopicPartition(topic, partition, self._next[topic, partition]) for topic, partition in self._dirty]
        if not wanted:
            return
        begun_ms = self._history.now_ms()
        try:
            done = self._client.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return
        for each in done or ():
            if each.error is None:
                self._history.committed(
                    each.topic, each.partition, self._group, self.name, each.offset, begun_ms=begun_ms
                )
                if self._next.get((each.topic, each.partition)) == each.offset:
                    self._dirty.discard((each.topic, each.partition))

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._generation += 1
        self._forget(partitions)
        for each in partitions:
            self._history.taken(each.topic, each.partition, self._group, self.name, self._generation)

    def _revoked(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._commit()
        self._forget(partitions)

    def _lost(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self._next.pop((each.topic, each.partition), None)
            self._dirty.discard((each.topic, each.partition))


def read_finally(spec: LoadSpec, history: History, orders: Orders) -> int:
    """Every partition from offset 0 to its end, by a consumer without a group."""
    client = Consumer(
        {
            "bootstrap.servers": spec.bootstrap,
            "group.id": f"{spec.run}-final",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            **_SMALL_QUEUES,
            **QUICK_RECONNECT,
        }
    )
    deadline_s = time.monotonic() + spec.settle_s
    try:
        ends = _ends(client, spec, deadline_s, orders)
        following = dict.fromkeys(ends, 0)
        client.assign([TopicPartition(topic, partition, 0) for topic, partition in ends])
        left = {place for place, end in ends.items() if end > 0}
        for topic, partition in ends.keys() - left:
            history.read_to_the_end(topic, partition, 0)
        while left and time.monotonic() < deadline_s and not orders.stop.is_set():
            for message in client.consume(1000, 0.5):
                if message.error() is not None:
                    continue
                place = str(message.topic()), int(message.partition() or 0)
                offset = int(message.offset() or 0)
                history.read_finally(spec.run, *place, offset, _bytes(message.value()))
                deadline_s = time.monotonic() + spec.settle_s  # it moves on
                following[place] = offset + 1
                if following[place] >= ends[place] and place in left:
                    left.discard(place)
                    history.read_to_the_end(*place, ends[place])
        unread = left | (set(spec.places) - ends.keys())
        if unread and not orders.stop.is_set():
            names = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(unread))
            sys.stderr.write(f"no progress for {spec.settle_s:.0f} s; not read to the end: {names}\n")
        return 1 if unread else 0
    finally:
        client.close()


def _ends(client: Consumer, spec: LoadSpec, deadline_s: float, orders: Orders) -> dict[tuple[str, int], int]:
    ends: dict[tuple[str, int], int] = {}
    while len(ends) < len(spec.places) and time.monotonic() < deadline_s and not orders.stop.is_set():
        for place in spec.places:
            if place in ends:
                continue
            try:
                ends[place] = client.get_watermark_offsets(TopicPartition(*place), timeout=_CALL_S, cached=False)[1]
            except KafkaException:
                time.sleep(0.2)
    return ends


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None
