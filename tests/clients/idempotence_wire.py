"""Raw requests of an idempotent producer to any broker, one connection, and a run of a case over it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from idempotence_cases import (
    MAX_MESSAGE_BYTES,
    Answer,
    Batch,
    Case,
    CreateTopicAgain,
    DeleteAllRecords,
    Forget,
    Together,
)

from streamhouse.gateway.kafka.wire.headers import has_flexible_response, request_frame
from streamhouse.gateway.kafka.wire.schema import read_response, write_request
from streamhouse.testing.services.ports import LOOPBACK
from streamhouse.wire.records import Record, build_batch

_PRODUCE, _LIST_OFFSETS, _CREATE_TOPICS, _DELETE_TOPICS, _DELETE_RECORDS, _INIT_PRODUCER_ID = 0, 2, 19, 20, 21, 22
_ALTER_CONFIGS, _DESCRIBE_PRODUCERS = 44, 61
_VERSIONS: Final = {
    _PRODUCE: 9,
    _LIST_OFFSETS: 7,
    _CREATE_TOPICS: 7,
    _DELETE_TOPICS: 5,
    _DELETE_RECORDS: 2,
    _INIT_PRODUCER_ID: 4,
    _ALTER_CONFIGS: 1,
    _DESCRIBE_PRODUCERS: 0,
}
_WAIT_S: Final = 60.0
_PAUSE_S: Final = 0.05
_LATEST: Final = -1
_BROKER_CONFIGS: Final = 4
_EXPIRATION: Final = "producer.id.expiration.ms"
_DAY_MS: Final = 24 * 60 * 60 * 1000


class RawProducer:
    """One connection. ``send`` does not wait, so that several requests can be in flight."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), timeout=_WAIT_S)
        self._stream = self._socket.makefile("rb")
        self._number = 0

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, api_key: int, fields: Mapping[str, Any]) -> None:
        self._number += 1
        version = _VERSIONS[api_key]
        body = write_request(api_key, version, fields)
        self._socket.sendall(request_frame(api_key, version, self._number, "raw-producer", body))

    def receive(self, api_key: int) -> Any:
        version = _VERSIONS[api_key]
        size = int.from_bytes(self._exactly(4), "big")
        header_bytes = 5 if has_flexible_response(api_key, version) else 4
        return read_response(api_key, version, memoryview(self._exactly(size)[header_bytes:]))

    def ask(self, api_key: int, fields: Mapping[str, Any]) -> Any:
        self.send(api_key, fields)
        return self.receive(api_key)

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        assert len(data) == size, "the broker closed the connection"
        return data

    def new_producer_id(self) -> int:
        return _until(
            lambda: self.ask(_INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout": 60_000}),
            lambda answer: answer.error_code == 0,
        ).producer_id  # type: ignore[no-any-return]

    def create_topic(self, topic: str) -> None:
        """One partition; it is served when this returns."""
        configs = [{"name": "max.message.bytes", "value": str(MAX_MESSAGE_BYTES)}]
        wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": configs}
        _until(
            lambda: self.ask(_CREATE_TOPICS, {"topics": [wanted], "timeout": 30_000}).topics[0],
            lambda created: created.error_code == 0,
        )
        end = {"name": topic, "partitions": [{"partition_index": 0, "timestamp": _LATEST}]}
        _until(
            lambda: self.ask(_LIST_OFFSETS, {"replica_id": -1, "topics": [end]}).topics[0].partitions[0],
            lambda partition: partition.error_code == 0,
        )

    def delete_topic(self, topic: str) -> None:
        answer = self.ask(_DELETE_TOPICS, {"topic_names": [topic], "timeout": 30_000})
        assert answer.responses[0].error_code == 0, answer

    def produce(self, topic: str, producer_id: int, batches: Sequence[Batch]) -> list[Answer]:
        """All batches are sent before the first answer is read."""
        for batch in batches:
            partition = {"index": 0, "records": _records(producer_id, batch)}
            data = [{"name": topic, "partition_data": [partition]}]
            self.send(_PRODUCE, {"acks": -1, "timeout": 30_000, "topic_data": data})
        return [self._produced() for _ in batches]

    def _produced(self) -> Answer:
        (topic,) = self.receive(_PRODUCE).responses
        (partition,) = topic.partition_responses
        return Answer(partition.error_code, partition.base_offset)

    def delete_all_records(self, topic: str) -> None:
        partition = {"partition_index": 0, "offset": -1}
        answer = self.ask(_DELETE_RECORDS, {"topics": [{"name": topic, "partitions": [partition]}], "timeout": 30_000})
        assert answer.topics[0].partitions[0].error_code == 0, answer

    def forget_on_kafka(self, topic: str) -> None:
        """Expire every producer by a short ``producer.id.expiration.ms``, until the partition names none."""
        self._expire_after(1)
        _until(
            lambda: self.ask(_DESCRIBE_PRODUCERS, {"topics": [{"name": topic, "partition_indexes": [0]}]}),
            lambda answer: not answer.topics[0].partitions[0].active_producers,
        )
        self._expire_after(_DAY_MS)

    def _expire_after(self, milliseconds: int) -> None:
        config = {"name": _EXPIRATION, "config_operation": 0, "value": str(milliseconds)}
        resource = {"resource_type": _BROKER_CONFIGS, "resource_name": "", "configs": [config]}
        answer = self.ask(_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
        assert answer.responses[0].error_code == 0, answer


def answers(raw: RawProducer, case: Case) -> list[Answer]:
    """The answer to each batch of the case, in order, on a new topic."""
    topic = case.name
    raw.create_topic(topic)
    producer_id = raw.new_producer_id()
    got: list[Answer] = []
    for step in case.steps:
        match step:
            case Batch():
                got += raw.produce(topic, producer_id, [step])
            case Together():
                got += raw.produce(topic, producer_id, step.batches)
            case DeleteAllRecords():
                raw.delete_all_records(topic)
            case CreateTopicAgain():
                raw.delete_topic(topic)
                raw.create_topic(topic)
            case Forget():
                raw.forget_on_kafka(topic)
    return got


def _records(producer_id: int, batch: Batch) -> bytes:
    now_ms = int(time.time() * 1000)
    records = [
        Record(offset=number, timestamp_ms=now_ms, value=b"x" * batch.value_bytes) for number in range(batch.count)
    ]
    return build_batch(records, producer_id=producer_id, producer_epoch=batch.epoch, base_sequence=batch.sequence)


def _until(ask: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + _WAIT_S
    while not wanted(answer := ask()):
        assert time.monotonic() < deadline, f"still {answer}"
        time.sleep(_PAUSE_S)
    return answer
