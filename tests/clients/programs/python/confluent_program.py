"""confluent-kafka (librdkafka) behind the common command line of the client programs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from protocol import (
    Owning,
    Request,
    headers_of,
    in_order,
    rebalance,
    record_read,
    run_steps,
    serve,
    soak,
    unpack,
)

TIMEOUT_S = 30.0


def version(_request: Request) -> dict[str, str]:
    return {
        "client": "confluent-kafka",
        "version": f"{confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}",
    }


def produce(request: Request) -> dict[str, Any]:
    offsets: dict[int, tuple[int, int]] = {}
    errors: list[KafkaError] = []
    number = 0
    for batch in request.args["batches"]:
        producer = Producer(
            {
                "bootstrap.servers": request.bootstrap,
                "compression.type": batch.get("codec", "none"),
                "acks": request.args.get("acks", "all"),
                "enable.idempotence": bool(request.args.get("idempotent")),
                "linger.ms": 0 if request.args.get("pause_ms") else 20,
                "message.timeout.ms": 60_000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
            }
        )
        for record in batch["records"]:

            def delivered(error: KafkaError | None, message: Message, number: int = number) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    offset = message.offset()
                    offsets[number] = (message.partition(), -1 if offset is None or offset < 0 else offset)

            extra = {"timestamp": record["timestamp"]} if record.get("timestamp") is not None else {}
            producer.produce(
                request.topic,
                value=unpack(record["value"]),
                key=unpack(record["key"]),
                partition=batch["partition"],
                headers=headers_of(record),
                on_delivery=delivered,
                **extra,
            )
            number += 1
            if request.args.get("pause_ms"):
                producer.poll(request.args["pause_ms"] / 1000)
        if producer.flush(90):
            raise TimeoutError("records are left in the queue")
    if errors:
        raise KafkaException(errors[0])
    return {"offsets": [list(offsets[index]) for index in range(number)]}


def _read(message: Message) -> dict[str, Any]:
    return record_read(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        message.headers() or [],
    )


def _partitions(consumer: Consumer, topics: list[str]) -> list[TopicPartition]:
    found = []
    for topic in topics:
        metadata = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        found += [TopicPartition(topic, number) for number in metadata.partitions]
    return found


def _poll_until(consumer: Consumer, count: int, until: float) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    while len(records) < count and time.monotonic() < until:
        for message in consumer.consume(500, timeout=0.2):
            if message.error():
                raise KafkaException(message.error())
            records.append(_read(message))
    return records


def consume(request: Request) -> dict[str, Any]:
    consumer = Consumer({"bootstrap.servers": request.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    partitions = _partitions(consumer, request.topics)
    start = request.args.get("start", "earliest")
    if start == "earliest":
        for partition in partitions:
            partition.offset = confluent_kafka.OFFSET_BEGINNING
    else:
        for partition in partitions:
            partition.offset = start["timestamp"]
        partitions = consumer.offsets_for_times(partitions, timeout=TIMEOUT_S)
    consumer.assign(partitions)
    records = _poll_until(consumer, request.args["count"], request.deadline)
    consumer.close()
    return {"records": in_order(records)}


def tail(request: Request) -> dict[str, Any]:
    consumer = Consumer({"bootstrap.servers": request.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    partitions = _partitions(consumer, [request.topic])
    for partition in partitions:
        partition.offset = consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)[1]
    consumer.assign(partitions)
    consumer.poll(0.2)
    wanted = request.args["records"]
    request.args["batches"] = [{"partition": 0, "records": wanted}]
    produce(request)
    records = _poll_until(consumer, len(wanted), request.deadline)
    consumer.close()
    return {"records": in_order(records)}


class PollingMember(Owning):
    def __init__(self, request: Request, instance: str | None, on_record: Callable[[bytes | None], None]) -> None:
        super().__init__()
        args = request.args
        protocol = args.get("protocol", "classic")
        config: dict[str, Any] = {
            "bootstrap.servers": request.bootstrap,
            "group.id": args["group"],
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 500,
        }
        self._cooperative = protocol == "consumer" or args.get("assignor") == "cooperative-sticky"
        if protocol == "classic":
            config |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 400}
            config["partition.assignment.strategy"] = args.get("assignor", "range")
        elif args.get("assignor"):
            config["group.remote.assignor"] = args["assignor"]
        if instance:
            config["group.instance.id"] = instance
        self._consumer = Consumer(config)
        self._closing = threading.Event()
        self._on_record = on_record
        self._consumer.subscribe(
            [args.get("pattern") or request.topic],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._revoked,
        )
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._cooperative:
            consumer.incremental_assign(partitions)
            self._owned = self._owned | {each.partition for each in partitions}
        else:
            consumer.assign(partitions)
            self._owned = {each.partition for each in partitions}
        self._assignments += 1

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {each.partition for each in partitions}
        self._lost |= gone
        if self._cooperative:
            consumer.incremental_unassign(partitions)
            self._owned = self._owned - gone
        else:
            consumer.unassign()
            self._owned = set()

    def _poll(self) -> None:
        while not self._closing.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and not message.error():
                self._on_record(message.value())
        self._consumer.close()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(30)


def resume(request: Request) -> dict[str, Any]:
    args = request.args
    here = TopicPartition(request.topic, 0)

    def consumer() -> Consumer:
        made = Consumer(
            {
                "bootstrap.servers": request.bootstrap,
                "group.id": args["group"],
                "group.protocol": args.get("protocol", "classic"),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        made.subscribe([request.topic])
        return made

    def take(source: Consumer, count: int) -> list[int]:
        offsets: list[int] = []
        while len(offsets) < count and time.monotonic() < until:
            message = source.poll(0.2)
            if message is not None:
                if message.error():
                    raise KafkaException(message.error())
                offsets.append(message.offset())
                source.commit(message, asynchronous=False)
        return offsets

    until = request.deadline
    one = consumer()
    first = take(one, args["first"])
    one.close()
    two = consumer()
    committed = two.committed([here], timeout=TIMEOUT_S)[0].offset
    second = take(two, args["total"] - args["first"])
    after = two.committed([here], timeout=TIMEOUT_S)[0].offset
    two.close()
    return {"first": first, "committed": committed, "second": second, "committed_after": after}


class QueueProducer:
    def __init__(self, request: Request) -> None:
        self._topic = request.topic
        self._producer = Producer(
            {
                "bootstrap.servers": request.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 90_000,
                "linger.ms": 5,
            }
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(0.05)

    def send(self, partition: int, value: bytes, done: Callable[[Exception | None], None]) -> None:
        def delivered(error: KafkaError | None, _message: Message) -> None:
            done(None if error is None else KafkaException(error))

        self._producer.produce(self._topic, value=value, partition=partition, on_delivery=delivered)

    def close(self) -> None:
        self._producer.flush(100)
        self._closing.set()


def _code(error: Exception) -> Any:
    if isinstance(error, KafkaException):
        return error.args[0].code()
    return type(error).__name__


def _topic_resource(step: dict[str, Any], **extra: Any) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, step["topic"], **extra)


class Admin:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._admin = AdminClient({"bootstrap.servers": request.bootstrap})

    def _one(self, futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(TIMEOUT_S)

    def create_topic(self, step: dict[str, Any]) -> None:
        topic = NewTopic(step["topic"], num_partitions=step["partitions"], config=step.get("configs") or {})
        self._one(self._admin.create_topics([topic]))

    def list_topics(self, step: dict[str, Any]) -> list[str]:
        return sorted(
            name for name in self._admin.list_topics(timeout=TIMEOUT_S).topics if name.startswith(step["prefix"])
        )

    def describe_topic(self, step: dict[str, Any]) -> Any:
        topics = confluent_kafka.TopicCollection([step["topic"]])
        found = self._one(self._admin.describe_topics(topics))
        return {
            "partitions": sorted(each.id for each in found.partitions),
            "led": all(each.leader is not None and each.leader.id >= 0 for each in found.partitions),
            "in_sync": all(each.isr for each in found.partitions),
        }

    def grow(self, step: dict[str, Any]) -> None:
        self._one(self._admin.create_partitions([NewPartitions(step["topic"], step["total"])]))

    def describe_configs(self, step: dict[str, Any]) -> Any:
        found = self._one(self._admin.describe_configs([_topic_resource(step)]))
        return {key: found[key].value if key in found else None for key in step["keys"]}

    def alter_configs(self, step: dict[str, Any]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in (step.get("set") or {}).items()
        ]
        entries += [
            ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in step.get("delete") or []
        ]
        self._one(self._admin.incremental_alter_configs([_topic_resource(step, incremental_configs=entries)]))

    def list_offsets(self, step: dict[str, Any]) -> int:
        named = {
            "earliest": OffsetSpec.earliest,
            "latest": OffsetSpec.latest,
            "max_timestamp": OffsetSpec.max_timestamp,
        }
        spec = named[step["at"]]() if step["at"] in named else OffsetSpec.for_timestamp(step["at"])
        result = self._one(self._admin.list_offsets({TopicPartition(step["topic"], step["partition"]): spec}))
        return int(result.offset)

    def delete_records(self, step: dict[str, Any]) -> int:
        wanted = [TopicPartition(step["topic"], step["partition"], step["before"])]
        return int(self._one(self._admin.delete_records(wanted)).low_watermark)

    def list_groups(self, step: dict[str, Any]) -> list[str]:
        found = self._admin.list_consumer_groups().result(TIMEOUT_S)
        return sorted(each.group_id for each in found.valid if each.group_id.startswith(step["prefix"]))

    def describe_group(self, step: dict[str, Any]) -> Any:
        found = self._one(self._admin.describe_consumer_groups([step["group"]]))
        return {"state": found.state.name, "members": len(found.members)}

    def group_offsets(self, step: dict[str, Any]) -> Any:
        asked = [confluent_kafka.ConsumerGroupTopicPartitions(step["group"])]
        found = self._one(self._admin.list_consumer_group_offsets(asked))
        return {f"{each.topic}/{each.partition}": each.offset for each in found.topic_partitions}

    def alter_group_offsets(self, step: dict[str, Any]) -> None:
        wanted = [TopicPartition(step["topic"], step["partition"], step["offset"])]
        asked = [confluent_kafka.ConsumerGroupTopicPartitions(step["group"], wanted)]
        self._one(self._admin.alter_consumer_group_offsets(asked))

    def delete_group(self, step: dict[str, Any]) -> None:
        self._one(self._admin.delete_consumer_groups([step["group"]]))

    def delete_topic(self, step: dict[str, Any]) -> None:
        self._one(self._admin.delete_topics([step["topic"]]))

    def describe_cluster(self, _step: dict[str, Any]) -> Any:
        found = self._admin.describe_cluster().result(TIMEOUT_S)
        return {"brokers": len(found.nodes), "controller": found.controller is not None and found.controller.id >= 0}

    def commit(self, step: dict[str, Any]) -> None:
        consumer = Consumer({"bootstrap.servers": self._request.bootstrap, "group.id": step["group"]})
        here = TopicPartition(step["topic"], step["partition"], step["offset"])
        consumer.commit(offsets=[here], asynchronous=False)
        consumer.close()


def admin(request: Request) -> Any:
    return run_steps(request, Admin(request), _code)


def _member(request: Request) -> Callable[[str | None, Callable[[bytes | None], None]], PollingMember]:
    return lambda instance, on_record: PollingMember(request, instance, on_record)


if __name__ == "__main__":
    serve(
        {
            "version": version,
            "produce": produce,
            "consume": consume,
            "tail": tail,
            "rebalance": lambda request: rebalance(request, _member(request)),
            "resume": resume,
            "admin": admin,
            "soak": lambda request: soak(request, lambda: QueueProducer(request), _member(request)),
        }
    )
