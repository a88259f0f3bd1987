"""librdkafka's producers, by confluent-kafka: one thread for each, one short life after another."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from streamhouse.chaos.history import History
from streamhouse.chaos.load.process import Orders
from streamhouse.chaos.load.shape import (
    ACKS_ONE,
    IDEMPOTENT,
    MAX_OUTSTANDING,
    MAX_OUTSTANDING_BYTES,
    PLAIN,
    PLAIN_FIVE,
    Life,
    ProducerKind,
)
from streamhouse.chaos.load.spec import NO_BROKER, LoadSpec
from streamhouse.chaos.records import Written, encode
from streamhouse.core.randomness import SeededRandomness

CLIENT: Final = "librdkafka"
QUICK_RECONNECT: Final = {"reconnect.backoff.max.ms": 500, "log_level": 0, "socket.connection.setup.timeout.ms": 3000}
"""Ten seconds between two attempts to connect would be most of a short run; agents that are gone are no news."""
_SLOTS: Final = (IDEMPOTENT, IDEMPOTENT, IDEMPOTENT, PLAIN, PLAIN_FIVE, ACKS_ONE)
_FLUSH_STEP_S: Final = 0.5


def create_topics(spec: LoadSpec, orders: Orders) -> int:
    """Returns 0 when every partition has a leader; 1, or NO_BROKER, when ``settle_s`` was not enough."""
    admin = AdminClient({"bootstrap.servers": spec.bootstrap, **QUICK_RECONNECT})
    deadline_s = time.monotonic() + spec.settle_s
    problem: object = "nothing was asked"
    answered = False
    while time.monotonic() < deadline_s and not orders.stop.is_set():
        try:
            admin.list_topics(timeout=min(5.0, max(0.1, deadline_s - time.monotonic())))
            answered = True
            wanted = [NewTopic(name, count) for name, count in spec.topics.items()]
            for future in admin.create_topics(wanted, request_timeout=10).values():
                try:
                    future.result(15)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
            known = admin.list_topics(timeout=10).topics
            if all(
                name in known
                and len(known[name].partitions) == count
                and all(partition.leader >= 0 for partition in known[name].partitions.values())
                for name, count in spec.topics.items()
            ):
                return 0
            problem = "some partitions have no leader"
        except KafkaException as error:
            problem = error
        time.sleep(0.3)
    sys.stderr.write(f"the topics could not be created: {problem}\n")
    return 1 if answered else NO_BROKER


def run_producers(spec: LoadSpec, history: History, orders: Orders) -> int:
    slots = [ProducerSlot(number, kind, spec, history, orders) for number, kind in enumerate(_SLOTS)]
    for slot in slots:
        slot.start()
    for slot in slots:
        slot.join()
    return 0 if all(slot.failure is None for slot in slots) else 1


class ProducerSlot(threading.Thread):
    """Producers of one kind, one after the other."""

    def __init__(self, number: int, kind: ProducerKind, spec: LoadSpec, history: History, orders: Orders) -> None:
        super().__init__(name=f"{CLIENT}-{number}", daemon=True)
        self.failure: Exception | None = None
        self._number = number
        self._kind = kind
        self._spec = spec
        self._history = history
        self._orders = orders
        self._randomness = SeededRandomness(spec.seed * 1000 + number)
        self._rate = spec.rate / len(_SLOTS)

    def run(self) -> None:
        life = 0
        try:
            while not self._orders.stop.is_set():
                self._live(f"{self._spec.process}-{self._number}-{life}")
                life += 1
        except Exception as error:  # of the harness: the run must hear of it
            self.failure = error
            sys.stderr.write(f"{self.name} broke: {type(error).__name__}: {error}\n")

    def _live(self, name: str) -> None:
        life = Life(self._randomness, self._spec.places)
        kind = self._kind
        # Only idempotence promises an order here: when a leader changes, librdkafka sends the next batch to the new one
        # while the last is still with the old one, even with one request in flight to each.
        self._history.producer(name, CLIENT, once=kind.idempotent, ordered=kind.idempotent, acks=kind.acks)
        one = LibrdkafkaProducer(name, kind, life, self._spec, self._history)
        for number in range(life.bursts):
            burst = life.burst(number)
            for topic, partition in burst.places:
                one.send(topic, partition, burst.count, burst.padding_bytes)
            one.wait(burst.weight / self._rate, self._orders)
            if self._orders.stop.is_set() or one.broken:
                break
        one.close(self._orders, self._spec.settle_s)


class LibrdkafkaProducer:
    """A producer with an id of its own."""

    def __init__(self, name: str, kind: ProducerKind, life: Life, spec: LoadSpec, history: History) -> None:
        self._name = name
        self._run = spec.run
        self._history = history
        self._next: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._open: dict[tuple[str, int, int], int] = {}
        """Records without an answer: topic, partition, number; and their sizes."""
        self._open_bytes = 0
        self.broken = False
        config = {"bootstrap.servers": spec.bootstrap, "client.id": name, "error_cb": self._heard}
        self._client = Producer({**_config(kind, life), **config})

    def send(self, topic: str, partition: int, count: int, padding_bytes: int) -> None:
        first = self._next[topic, partition]
        self._next[topic, partition] += count
        self._history.sent(topic, partition, self._name, first, count)
        for number in range(first, first + count):
            written = Written(run=self._run, producer=self._name, number=number, topic=topic, partition=partition)
            value = encode(written, padding_bytes)
            self._open[topic, partition, number] = len(value)
            self._open_bytes += len(value)
            try:
                self._client.produce(
                    topic,
                    value,
                    key=f"k{number % 50}".encode(),
                    partition=partition,
                    on_delivery=partial(self._answered, number),
                )
            except (BufferError, KafkaException) as error:
                self._close(topic, partition, number, f"not taken: {error}")

    def wait(self, rest_s: float, orders: Orders) -> None:
        """Rest for a moment, and longer while too many records wait for an answer."""
        until_s = time.monotonic() + rest_s
        while not orders.stop.is_set() and not self.broken:
            left_s = until_s - time.monotonic()
            crowded = len(self._open) > MAX_OUTSTANDING or self._open_bytes > MAX_OUTSTANDING_BYTES
            if left_s <= 0 and not crowded:
                return
            self._client.poll(min(max(left_s, 0.02), 0.1))

    def close(self, orders: Orders, settle_s: float) -> None:
        """Wait for every answer. What has none when the run ends is given up, and said so."""
        deadline_s = None
        while self._open and not self.broken:
            if orders.stop.is_set():
                deadline_s = deadline_s or time.monotonic() + settle_s
                if time.monotonic() > deadline_s:
                    break
            self._client.flush(_FLUSH_STEP_S)
        if self._open:
            self._client.purge()
            self._client.flush(_FLUSH_STEP_S)
        for topic, partition, number in list(self._open):
            self._close(topic, partition, number, "no answer")

    def _answered(self, number: int, error: KafkaError | None, message: Message) -> None:
        topic, partition = str(message.topic()), int(message.partition() or 0)
        if (topic, partition, number) not in self._open:
            return
        if error is None:
            offset = message.offset()
            self._open_bytes -= self._open.pop((topic, partition, number))
            self._history.acknowledged(topic, partition, self._name, number, -1 if offset is None else offset)
        else:
            self._close(topic, partition, number, error.name())

    def _close(self, topic: str, partition: int, number: int, reason: str) -> None:
        self._open_bytes -= self._open.pop((topic, partition, number))
        self._history.failed(topic, partition, self._name, number, reason)

    def _heard(self, error: KafkaError) -> None:
        self.broken = self.broken or error.fatal()


def _config(kind: ProducerKind, life: Life) -> dict[str, Any]:
    return {
        "acks": kind.acks,
        "enable.idempotence": kind.idempotent,
        "max.in.flight.requests.per.connection": kind.in_flight,
        "linger.ms": 0,
        "batch.num.messages": life.batch_records,
        "compression.type": life.compression,
        "message.timeout.ms": 0,
        "request.timeout.ms": 10_000,
        "socket.timeout.ms": 12_000,
        "retry.backoff.ms": 100,
        "message.max.bytes": 2_000_000,
        **QUICK_RECONNECT,
    }
