"""librdkafka's producers and consumers, each in a thread of its own, and a ledger of what they were told and saw.

They run with the library's own timings and retries, as people run them. e2e_kafka_judge.py compares the ledger with the
log.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

END_WAIT_S: Final = 180.0
_POLL_S: Final = 0.05
_QUIET: Final = {"log_level": 2}  # that agents are gone for a while is the story, not a line each
_COMMIT_EVERY_S: Final = 0.2
_RETRY_S: Final = 0.2
_RETRIABLE: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._UNKNOWN_PARTITION,  # librdkafka's word for: the partition has no leader at this moment
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
    }
)
"""Codes that every client library answers by asking again. For watermarks librdkafka leaves that to its caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An acknowledgement, a read, or a commit, when a client heard of it."""

    who: str
    partition: int
    offset: int
    value: str = ""
    at_s: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class KafkaLedger:
    """Written by many threads, each line by one append."""

    sent: defaultdict[tuple[str, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    """The values that were sent, by producer and partition, in the order of sending."""
    exactly_once: set[str] = field(default_factory=set)
    """Producers whose records may not be there twice."""
    acks: list[Event] = field(default_factory=list)
    reads: list[Event] = field(default_factory=list)
    commits: list[Event] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What clients bore with; for people."""

    def longest_gaps_s(self, events: Sequence[Event], *, since_s: float) -> dict[tuple[str, int], float]:
        """Return the longest silence from ``since_s`` on, by client or group and partition."""
        times: defaultdict[tuple[str, int], list[float]] = defaultdict(lambda: [since_s])
        for event in list(events):
            if event.at_s >= since_s:
                times[event.who, event.partition].append(event.at_s)
        return {which: max(b - a for a, b in pairwise(at)) for which, at in times.items() if len(at) > 1}


class KafkaClient:
    """A loop in a thread that ends when it is told to, and not silently when it breaks."""

    def __init__(self, name: str, ledger: KafkaLedger) -> None:
        self.name = name
        self._ledger = ledger
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell_to_end(self) -> None:
        self._ending.set()

    def join(self) -> None:
        self._ending.set()
        self._thread.join(END_WAIT_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _live(self) -> None:
        try:
            self._run()
        except Exception as error:
            self._ledger.contradictions.append(f"{self.name} broke: {type(error).__name__}: {error}")

    def _run(self) -> None:
        raise NotImplementedError

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._ledger.contradictions.append(f"{self.name}: {error}")
        else:
            self._ledger.problems.append(f"{self.name}: {error.name()}")


class KafkaProducer(KafkaClient):
    """Numbered records to every partition in turn. Every one is waited for: none may fail."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        ledger: KafkaLedger,
        *,
        pause_s: float = 0.01,
        **config: Any,
    ) -> None:
        super().__init__(name, ledger)
        self._topic = topic
        self._partitions = partitions
        self._pause_s = pause_s
        chosen = {key.replace("_", "."): value for key, value in config.items()}
        if chosen.get("enable.idempotence"):
            ledger.exactly_once.add(name)
        self._client = Producer(
            {"bootstrap.servers": bootstrap, "message.timeout.ms": 0, "error_cb": self._on_error, **_QUIET, **chosen}
        )

    def _run(self) -> None:
        number = 0
        while not self._ending.is_set():
            for partition in range(self._partitions):
                value = f"{self.name} {partition} {number}"
                self._ledger.sent[self.name, partition].append(value)
                self._client.produce(self._topic, value.encode(), partition=partition, on_delivery=self._delivered)
            number += 1
            self._client.poll(self._pause_s)
        left = self._client.flush(END_WAIT_S / 2)
        if left:
            self._ledger.contradictions.append(f"{self.name}: {left} records were never delivered")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = (message.value() or b"").decode()
        if error is not None:
            self._ledger.contradictions.append(f"{value!r} was not delivered: {error}")
            return
        self._ledger.acks.append(
            Event(who=self.name, partition=message.partition(), offset=message.offset(), value=value)
        )


class KafkaMember(KafkaClient):
    """One of a group: reads, and commits what it has read, several times a second."""

    def __init__(self, name: str, group: str, bootstrap: str, topic: str, ledger: KafkaLedger, **config: Any) -> None:
        super().__init__(name, ledger)
        self._group = group
        self._topic = topic
        self._floors: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._uncommitted = False
        chosen = {key.replace("_", "."): value for key, value in config.items()}
        self._client = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": name,
                "auto.offset.reset": "earliest",  # a reset in the middle is a contradiction: see _read
                "enable.auto.commit": False,
                "error_cb": self._on_error,
                **_QUIET,
                **chosen,
            }
        )

    def _run(self) -> None:
        self._client.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        commit_at_s = 0.0
        try:
            while not self._ending.is_set():
                for message in self._client.consume(500, _POLL_S):
                    self._read(message)
                if time.monotonic() >= commit_at_s:
                    self._commit()
                    commit_at_s = time.monotonic() + _COMMIT_EVERY_S
            self._commit()
        finally:
            self._client.close()

    def _read(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            self._ledger.problems.append(f"{self.name}: {error.name()}")
            return
        partition, offset = message.partition(), message.offset()
        expected = self._next.get(partition)
        if expected is not None and offset != expected:
            self._ledger.contradictions.append(f"{self.name}: {partition} went on at {offset}, not at {expected}")
        if offset < self._floors.get(partition, 0):
            self._ledger.contradictions.append(
                f"{self.name}: {partition} begins at {offset}; {self._floors[partition]} was committed before"
            )
        self._next[partition] = offset + 1
        self._uncommitted = True
        value = (message.value() or b"").decode()
        self._ledger.reads.append(Event(who=self._group, partition=partition, offset=offset, value=value))

    def _commit(self) -> None:
        if not self._uncommitted:
            return
        offsets = dict(self._next)
        try:
            done = self._client.commit(
                offsets=[TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()],
                asynchronous=False,
            )
        except KafkaException as error:
            self._ledger.problems.append(f"{self.name}: commit: {error.args[0].name()}")
            return
        self._uncommitted = False
        for each in done:
            if each.error is None:
                self._ledger.commits.append(Event(who=self._group, partition=each.partition, offset=each.offset))
            else:
                self._ledger.problems.append(f"{self.name}: commit: {each.error.name()}")

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._next.pop(each.partition, None)
            self._floors[each.partition] = max(
                (
                    commit.offset
                    for commit in self._ledger.commits
                    if commit.who == self._group and commit.partition == each.partition
                ),
                default=0,
            )

    def _revoked(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._commit()
        self._forget(partitions)

    def _lost(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self._next.pop(each.partition, None)


def read_back(bootstrap: str, topic: str, partitions: int) -> dict[int, list[str]]:
    """Everything there is now, by a consumer that has nothing to do with the others. Offsets must be dense."""
    client = _lone_consumer(bootstrap)
    deadline_s = time.monotonic() + END_WAIT_S
    try:
        ends = _ends(client, topic, partitions)
        found: dict[int, list[str]] = {partition: [] for partition in ends}
        client.assign([TopicPartition(topic, partition, 0) for partition in ends])
        while any(len(found[partition]) < end for partition, end in ends.items()):
            assert time.monotonic() < deadline_s, f"read { ({p: len(v) for p, v in found.items()}) } of {ends}"
            for message in client.consume(1000, 0.5):
                if message.error() is not None:
                    continue
                values = found[message.partition()]
                assert message.offset() == len(values), f"{message.partition()}: {message.offset()}, not {len(values)}"
                values.append((message.value() or b"").decode())
    finally:
        client.close()
    return found


def end_offsets(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    client = _lone_consumer(bootstrap)
    try:
        return _ends(client, topic, partitions)
    finally:
        client.close()


def _lone_consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-back",
            "enable.auto.commit": False,
            "check.crcs": True,
            **_QUIET,
        }
    )


def _ends(client: Consumer, topic: str, partitions: int) -> dict[int, int]:
    deadline_s = time.monotonic() + END_WAIT_S
    return {partition: _end(client, TopicPartition(topic, partition), deadline_s) for partition in range(partitions)}


def _end(client: Consumer, partition: TopicPartition, deadline_s: float) -> int:
    while True:
        try:
            end: int = client.get_watermark_offsets(partition, timeout=max(deadline_s - time.monotonic(), 1.0))[1]
            return end
        except KafkaException as error:
            if error.args[0].code() not in _RETRIABLE or time.monotonic() >= deadline_s:
                raise
            time.sleep(_RETRY_S)
