"""kafka-python behind the common command line of the client programs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import kafka
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, KafkaAdminClient
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.structs import OffsetAndMetadata
from protocol import (
    Owning,
    Request,
    Unsupported,
    headers_of,
    in_order,
    rebalance,
    record_read,
    run_steps,
    serve,
    soak,
    unpack,
)

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
TIMEOUT_S = 60.0
POLL_MS = 3_000
"""How long a group's member polls: longer than a rebalance takes on a busy machine. If a poll of kafka-python 3.0.12
ends before the SyncGroup answer is there, the client drops that answer, and the member never learns its partitions."""
SPECIAL_TIMES = {"latest": -1, "earliest": -2, "max_timestamp": -3}


def version(_request: Request) -> dict[str, str]:
    return {"client": "kafka-python", "version": kafka.__version__}


def produce(request: Request) -> dict[str, Any]:
    acks = request.args.get("acks", "all")
    offsets: list[list[int]] = []
    for batch in request.args["batches"]:
        codec = batch.get("codec", "none")
        producer = KafkaProducer(
            bootstrap_servers=request.bootstrap.split(","),
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=bool(request.args.get("idempotent")),
            compression_type=None if codec == "none" else codec,
            linger_ms=0 if request.args.get("pause_ms") else 20,
            retries=1_000_000,
            delivery_timeout_ms=60_000,
        )
        sent = []
        for record in batch["records"]:
            sent.append(
                producer.send(
                    request.topic,
                    value=unpack(record["value"]),
                    key=unpack(record["key"]),
                    headers=headers_of(record),
                    partition=batch["partition"],
                    timestamp_ms=record.get("timestamp"),
                )
            )
            if request.args.get("pause_ms"):
                time.sleep(request.args["pause_ms"] / 1000)
        producer.flush(TIMEOUT_S)
        for future in sent:
            told = future.get(TIMEOUT_S)
            offsets.append([told.partition, told.offset])
        producer.close()
    return {"offsets": offsets}


def _read(record: Any) -> dict[str, Any]:
    return record_read(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        list(record.headers),
    )


def _partitions(consumer: KafkaConsumer, topics: list[str]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic) or []]


def _poll_until(consumer: KafkaConsumer, count: int, until: float) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    while len(records) < count and time.monotonic() < until:
        for batch in consumer.poll(timeout_ms=200).values():
            records += map(_read, batch)
    return records


def consume(request: Request) -> dict[str, Any]:
    consumer = KafkaConsumer(bootstrap_servers=request.bootstrap.split(","), enable_auto_commit=False)
    partitions = _partitions(consumer, request.topics)
    consumer.assign(partitions)
    start = request.args.get("start", "earliest")
    if start == "earliest":
        consumer.seek_to_beginning()
    else:
        found = consumer.offsets_for_times(dict.fromkeys(partitions, start["timestamp"]))
        for partition, at in found.items():
            if at is None:
                consumer.seek_to_end(partition)
            else:
                consumer.seek(partition, at.offset)
    records = _poll_until(consumer, request.args["count"], request.deadline)
    consumer.close()
    return {"records": in_order(records)}


def tail(request: Request) -> dict[str, Any]:
    consumer = KafkaConsumer(bootstrap_servers=request.bootstrap.split(","), enable_auto_commit=False)
    partitions = _partitions(consumer, [request.topic])
    consumer.assign(partitions)
    consumer.seek_to_end()
    for partition in partitions:
        consumer.position(partition)
    wanted = request.args["records"]
    request.args["batches"] = [{"partition": 0, "records": wanted}]
    produce(request)
    records = _poll_until(consumer, len(wanted), request.deadline)
    consumer.close()
    return {"records": in_order(records)}


class PollingMember(Owning, ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, request: Request, instance: str | None, on_record: Callable[[bytes | None], None]) -> None:
        super().__init__()
        args = request.args
        if args.get("protocol", "classic") != "classic":
            raise Unsupported("kafka-python has no KIP-848 groups")
        self._cooperative = args.get("assignor") == "cooperative-sticky"
        self._consumer = KafkaConsumer(
            bootstrap_servers=request.bootstrap.split(","),
            group_id=args["group"],
            group_instance_id=instance,
            partition_assignment_strategy=[ASSIGNORS[args.get("assignor", "range")]],
            session_timeout_ms=10_000,
            heartbeat_interval_ms=400,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
        )
        self._closing = threading.Event()
        self._on_record = on_record
        self._consumer.subscribe([request.topic], listener=self)
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        new = {each.partition for each in assigned}
        self._owned = self._owned | new if self._cooperative else new
        self._assignments += 1

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        gone = {each.partition for each in revoked}
        self._lost |= gone
        self._owned = self._owned - gone

    def _poll(self) -> None:
        while not self._closing.is_set():
            for batch in self._consumer.poll(timeout_ms=POLL_MS).values():
                for record in batch:
                    self._on_record(record.value)
        self._consumer.close()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(30)


def resume(request: Request) -> dict[str, Any]:
    args = request.args
    if args.get("protocol", "classic") != "classic":
        raise Unsupported("kafka-python has no KIP-848 groups")
    here = TopicPartition(request.topic, 0)
    until = request.deadline

    def consumer() -> KafkaConsumer:
        return KafkaConsumer(
            request.topic,
            bootstrap_servers=request.bootstrap.split(","),
            group_id=args["group"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=1,
        )

    def take(source: KafkaConsumer, count: int) -> list[int]:
        offsets: list[int] = []
        while len(offsets) < count and time.monotonic() < until:
            for batch in source.poll(timeout_ms=POLL_MS).values():
                offsets += [record.offset for record in batch]
                source.commit({here: OffsetAndMetadata(offsets[-1] + 1, "", -1)})
        return offsets

    one = consumer()
    first = take(one, args["first"])
    one.close()
    two = consumer()
    committed = two.committed(here)
    second = take(two, args["total"] - args["first"])
    after = two.committed(here)
    two.close()
    return {"first": first, "committed": committed, "second": second, "committed_after": after}


class PatientProducer:
    def __init__(self, request: Request) -> None:
        self._topic = request.topic
        self._producer = KafkaProducer(
            bootstrap_servers=request.bootstrap.split(","),
            enable_idempotence=True,
            retries=1_000_000,
            delivery_timeout_ms=90_000,
            linger_ms=5,
        )

    def send(self, partition: int, value: bytes, done: Callable[[Exception | None], None]) -> None:
        future = self._producer.send(self._topic, value=value, partition=partition)
        future.add_callback(lambda _told: done(None))
        future.add_errback(done)

    def close(self) -> None:
        self._producer.flush(100)


def _code(error: Exception) -> Any:
    return getattr(error, "errno", None) or type(error).__name__


class Admin:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._admin = KafkaAdminClient(bootstrap_servers=request.bootstrap.split(","))

    def create_topic(self, step: dict[str, Any]) -> None:
        options = {"num_partitions": step["partitions"], "configs": step.get("configs") or {}}
        self._admin.create_topics({step["topic"]: options})

    def list_topics(self, step: dict[str, Any]) -> list[str]:
        return sorted(name for name in self._admin.list_topics() if name.startswith(step["prefix"]))

    def describe_topic(self, step: dict[str, Any]) -> Any:
        (found,) = self._admin.describe_topics([step["topic"]])
        return {
            "partitions": sorted(each["partition_index"] for each in found["partitions"]),
            "led": all(each["leader_id"] >= 0 for each in found["partitions"]),
            "in_sync": all(each["isr_nodes"] for each in found["partitions"]),
        }

    def grow(self, step: dict[str, Any]) -> None:
        self._admin.create_partitions({step["topic"]: step["total"]})

    def describe_configs(self, step: dict[str, Any]) -> Any:
        asked = ConfigResource("topic", step["topic"], step["keys"])
        found = self._admin.describe_configs([asked], config_filter="all")["topic"][step["topic"]]
        return {key: found[key]["value"] if key in found else None for key in step["keys"]}

    def alter_configs(self, step: dict[str, Any]) -> Any:
        changes: dict[str, Any] = {name: ("SET", value) for name, value in (step.get("set") or {}).items()}
        changes |= dict.fromkeys(step.get("delete") or [], ("DELETE", None))
        asked = ConfigResource("topic", step["topic"], changes)
        told = str(self._admin.alter_configs([asked], raise_on_unknown=False)["topic"][step["topic"]])
        return told.partition("]")[0]  # "OK" or "[Error 40"; the words after it are the server's own

    def list_offsets(self, step: dict[str, Any]) -> int:
        here = TopicPartition(step["topic"], step["partition"])
        at = SPECIAL_TIMES.get(step["at"], step["at"])
        return int(self._admin.list_partition_offsets({here: at})[here].offset)

    def delete_records(self, step: dict[str, Any]) -> Any:
        here = TopicPartition(step["topic"], step["partition"])
        told = self._admin.delete_records({here: step["before"]})[here]
        return told["low_watermark"]

    def list_groups(self, step: dict[str, Any]) -> list[str]:
        found = (each["group_id"] for each in self._admin.list_groups())
        return sorted(name for name in found if name.startswith(step["prefix"]))

    def describe_group(self, step: dict[str, Any]) -> Any:
        found = self._admin.describe_groups([step["group"]])[step["group"]]
        return {"state": found["group_state"], "members": len(found["members"])}

    def group_offsets(self, step: dict[str, Any]) -> Any:
        found = self._admin.list_group_offsets([step["group"]])[step["group"]]
        return {f"{each.topic}/{each.partition}": at.offset for each, at in found.items()}

    def alter_group_offsets(self, step: dict[str, Any]) -> Any:
        here = TopicPartition(step["topic"], step["partition"])
        told = self._admin.alter_group_offsets(step["group"], {here: OffsetAndMetadata(step["offset"], "", -1)})
        return told[here].__name__

    def delete_group_offsets(self, step: dict[str, Any]) -> Any:
        here = TopicPartition(step["topic"], step["partition"])
        return self._admin.delete_group_offsets(step["group"], [here])[here].__name__

    def delete_group(self, step: dict[str, Any]) -> Any:
        return self._admin.delete_groups([step["group"]])[step["group"]]

    def delete_topic(self, step: dict[str, Any]) -> None:
        self._admin.delete_topics([step["topic"]])

    def describe_cluster(self, _step: dict[str, Any]) -> Any:
        found = self._admin.describe_cluster()
        return {"brokers": len(found["brokers"]), "controller": found["controller_id"] >= 0}

    def commit(self, step: dict[str, Any]) -> None:
        consumer = KafkaConsumer(bootstrap_servers=self._request.bootstrap.split(","), group_id=step["group"])
        here = TopicPartition(step["topic"], step["partition"])
        consumer.assign([here])
        consumer.commit({here: OffsetAndMetadata(step["offset"], "", -1)})
        consumer.close(autocommit=False)


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
            "soak": lambda request: soak(request, lambda: PatientProducer(request), _member(request)),
        }
    )
