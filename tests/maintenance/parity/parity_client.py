"""Writes to a broker, reads it from the beginning and alters it, through librdkafka. Every call is the client's own.

Times go in and come out relative to the beginning of a story, so that two brokers can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
_POLL_RECORDS: Final = 1_000
# A broker that stops and starts is no news, and is found again soon.
_CALM: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
_NO_LEADER_YET: Final = (
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
)
Headers = tuple[tuple[str, bytes | None], ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record to write."""

    key: bytes | None
    value: bytes | None
    at_ms: int
    """Its time, since the beginning of the story."""
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """All that a consumer sees of a record."""

    offset: int
    key: bytes | None
    value: bytes | None
    at_ms: int
    headers: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSeen:
    """What a client sees of a log: its ends, and its records from the beginning on."""

    start_offset: int
    end_offset: int
    records: tuple[Read, ...]

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]


class ParityClient:
    """One partition each of many topics, on one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **_CALM})
        self._producers: dict[str, Producer] = {}
        self._consumer = self._new_consumer()

    def close(self) -> None:
        self._consumer.close()

    def begin_to_read_anew(self) -> None:
        """librdkafka may not ask again for minutes for a topic that it could not find, as right after a restart."""
        self._consumer.close()
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                **_CALM,
                "group.id": "parity-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",  # retention may be faster than a fetch
                "fetch.wait.max.ms": 20,
            }
        )

    def create(self, topic: str, configs: Mapping[str, str]) -> None:
        made = self._admin.create_topics([NewTopic(topic, 1, 1, config=dict(configs))])
        made[topic].result(_TIMEOUT_S)

    def alter(self, topic: str, configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(_TIMEOUT_S)

    def delete_records(self, topic: str, before: int) -> int | str:
        """The new log start offset, or the name of the error."""
        partition = TopicPartition(topic, 0, before)
        return outcome(self._admin.delete_records([partition])[partition], lambda deleted: int(deleted.low_watermark))

    def commit(self, topic: str, group: str, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        finally:
            consumer.close()

    def write(self, topic: str, records: Sequence[Sent], *, base_ms: int, codec: str, idempotent: bool) -> list[str]:
        """One batch. The errors of the records that were refused, by name."""
        producer = self._producer(codec, idempotent=idempotent)
        refused: list[str] = []

        def delivered(error: KafkaError | None, _message: Any) -> None:
            if error is not None:
                refused.append(str(error.name()))

        for record in records:
            producer.produce(
                topic,
                partition=0,
                key=record.key,
                value=record.value,
                timestamp=base_ms + record.at_ms,
                headers=list(record.headers),
                on_delivery=delivered,
            )
        if producer.flush(_TIMEOUT_S):
            raise TimeoutError(f"{topic}: records are not delivered after {_TIMEOUT_S} s")
        return refused

    def ends(self, topic: str) -> tuple[int, int]:
        start, end = self._patiently(
            lambda: self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_TIMEOUT_S)
        )
        return start, end

    def offset_for_time(self, topic: str, time_ms: int) -> int:
        def ask() -> int:
            (found,) = self._consumer.offsets_for_times([TopicPartition(topic, 0, time_ms)], timeout=_TIMEOUT_S)
            if found.error is not None:
                raise KafkaException(found.error)
            return int(found.offset)

        return self._patiently(ask)

    def look(self, topic: str, *, base_ms: int) -> LogSeen:
        start, end = self.ends(topic)
        records = tuple(_read(message, base_ms) for message in self._from_beginning(topic))
        return LogSeen(start_offset=start, end_offset=end, records=records)

    def _from_beginning(self, topic: str) -> Iterable[Any]:
        """All records up to the end of the log."""
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        deadline = time.monotonic() + _TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                for message in self._consumer.consume(_POLL_RECORDS, _POLL_S):
                    if message.topic() != topic:
                        continue  # an event of the topic that was read before
                    if message.error() is None:
                        yield message
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        return
                    elif not message.error().retriable() and message.error().code() not in _NO_LEADER_YET:
                        raise KafkaException(message.error())
            raise TimeoutError(f"the end of {topic} did not come in {_TIMEOUT_S} s")
        finally:
            self._consumer.unassign()

    def _patiently(self, ask: Callable[[], T]) -> T:
        """The client's answer, asked for again while the client does not know the leader or knows an older one."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
                self.begin_to_read_anew()

    def _producer(self, codec: str, *, idempotent: bool) -> Producer:
        """One for each codec, so that an idempotent one goes on with its sequences."""
        name = f"{codec} {idempotent}"
        if name not in self._producers:
            self._producers[name] = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    **_CALM,
                    "compression.type": codec,
                    "enable.idempotence": idempotent,
                    "acks": "all",
                    "linger.ms": 5_000,  # until flush, which is when a batch is complete
                    "sticky.partitioning.linger.ms": 0,
                }
            )
        return self._producers[name]


def outcome(call: Future[T], value: Callable[[T], int]) -> int | str:
    try:
        return value(call.result(_TIMEOUT_S))
    except KafkaException as error:
        return str(error.args[0].name())


def _read(message: Any, base_ms: int) -> Read:
    return Read(
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        at_ms=message.timestamp()[1] - base_ms,
        headers=tuple(message.headers() or ()),
    )
