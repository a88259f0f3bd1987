"""aiokafka behind the common command line of the client programs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError, for_code
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

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own, for members that poll by themselves."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, call: Coroutine[Any, Any, T], timeout_s: float = 60) -> T:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(timeout_s)


def version(_request: Request) -> dict[str, str]:
    return {"client": "aiokafka", "version": aiokafka.__version__}


async def _produce(request: Request) -> dict[str, Any]:
    acks = request.args.get("acks", "all")
    offsets: list[list[int]] = []
    for batch in request.args["batches"]:
        codec = batch.get("codec", "none")
        producer = AIOKafkaProducer(
            bootstrap_servers=request.bootstrap,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=bool(request.args.get("idempotent")),
            compression_type=None if codec == "none" else codec,
            linger_ms=0 if request.args.get("pause_ms") else 20,
            request_timeout_ms=60_000,
        )
        await producer.start()
        try:
            sent = []
            for record in batch["records"]:
                sent.append(
                    await producer.send(
                        request.topic,
                        value=unpack(record["value"]),
                        key=unpack(record["key"]),
                        headers=headers_of(record),
                        partition=batch["partition"],
                        timestamp_ms=record.get("timestamp"),
                    )
                )
                await asyncio.sleep(request.args.get("pause_ms", 0) / 1000)
            for future in sent:
                told = await future
                offsets.append([batch["partition"], -1] if told is None else [told.partition, told.offset])
        finally:
            await producer.stop()
    return {"offsets": offsets}


def _read(record: Any) -> dict[str, Any]:
    return record_read(
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, list(record.headers)
    )


async def _assigned_consumer(request: Request) -> tuple[AIOKafkaConsumer, list[TopicPartition]]:
    consumer = AIOKafkaConsumer(bootstrap_servers=request.bootstrap, enable_auto_commit=False)
    await consumer.start()
    partitions = []
    for topic in request.topics:
        # Only a topic that the client was told of is in its metadata.
        await consumer._client._wait_on_metadata(topic)
        partitions += [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or [])]
    consumer.assign(partitions)
    return consumer, partitions


async def _poll_until(consumer: AIOKafkaConsumer, count: int, until: float) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    while len(records) < count and time.monotonic() < until:
        for batch in (await consumer.getmany(timeout_ms=200)).values():
            records += map(_read, batch)
    return records


async def _consume(request: Request) -> dict[str, Any]:
    consumer, partitions = await _assigned_consumer(request)
    start = request.args.get("start", "earliest")
    if start == "earliest":
        await consumer.seek_to_beginning()
    else:
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, start["timestamp"]))
        for partition, at in found.items():
            if at is None:
                await consumer.seek_to_end(partition)
            else:
                consumer.seek(partition, at.offset)
    records = await _poll_until(consumer, request.args["count"], request.deadline)
    await consumer.stop()
    return {"records": in_order(records)}


async def _tail(request: Request) -> dict[str, Any]:
    consumer, partitions = await _assigned_consumer(request)
    await consumer.seek_to_end()
    for partition in partitions:
        await consumer.position(partition)
    wanted = request.args["records"]
    request.args["batches"] = [{"partition": 0, "records": wanted}]
    await _produce(request)
    records = await _poll_until(consumer, len(wanted), request.deadline)
    await consumer.stop()
    return {"records": in_order(records)}


class PollingMember(Owning, ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(
        self, loop: Loop, request: Request, instance: str | None, on_record: Callable[[bytes | None], None]
    ) -> None:
        super().__init__()
        args = request.args
        if args.get("protocol", "classic") != "classic":
            raise Unsupported("aiokafka has no KIP-848 groups")
        if args.get("assignor", "range") not in ASSIGNORS:
            raise Unsupported(f"aiokafka has no assignor {args['assignor']}")
        self._loop = loop
        self._on_record = on_record
        self._consumer = loop.run(self._start(request, instance))
        self._polling = asyncio.run_coroutine_threadsafe(self._poll(), loop.loop)

    async def _start(self, request: Request, instance: str | None) -> AIOKafkaConsumer:
        args = request.args
        consumer = AIOKafkaConsumer(
            bootstrap_servers=request.bootstrap,
            group_id=args["group"],
            group_instance_id=instance,
            partition_assignment_strategy=[ASSIGNORS[args.get("assignor", "range")]],
            session_timeout_ms=10_000,
            heartbeat_interval_ms=400,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
        )
        consumer.subscribe([request.topic], listener=self)
        # Not awaited to its end: it returns only when the group is stable, which the caller watches by itself.
        await consumer.start()
        return consumer

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._owned = {each.partition for each in assigned}
        self._assignments += 1

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._lost |= {each.partition for each in revoked}
        self._owned = set()

    async def _poll(self) -> None:
        while True:
            for batch in (await self._consumer.getmany(timeout_ms=100)).values():
                for record in batch:
                    self._on_record(record.value)

    def close(self) -> None:
        self._polling.cancel()
        self._loop.run(self._consumer.stop())


async def _resume(request: Request) -> dict[str, Any]:
    args = request.args
    if args.get("protocol", "classic") != "classic":
        raise Unsupported("aiokafka has no KIP-848 groups")
    here = TopicPartition(request.topic, 0)
    until = request.deadline

    async def consumer() -> AIOKafkaConsumer:
        made = AIOKafkaConsumer(
            request.topic,
            bootstrap_servers=request.bootstrap,
            group_id=args["group"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await made.start()
        return made

    async def take(source: AIOKafkaConsumer, count: int) -> list[int]:
        offsets: list[int] = []
        while len(offsets) < count and time.monotonic() < until:
            for batch in (await source.getmany(timeout_ms=200, max_records=1)).values():
                offsets += [record.offset for record in batch]
                await source.commit({here: offsets[-1] + 1})
        return offsets

    one = await consumer()
    first = await take(one, args["first"])
    await one.stop()
    two = await consumer()
    committed = await two.committed(here)
    second = await take(two, args["total"] - args["first"])
    after = await two.committed(here)
    await two.stop()
    return {"first": first, "committed": committed, "second": second, "committed_after": after}


class PatientProducer:
    def __init__(self, loop: Loop, request: Request) -> None:
        self._loop = loop
        self._topic = request.topic
        self._producer = loop.run(self._start(request))

    async def _start(self, request: Request) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=request.bootstrap, enable_idempotence=True, request_timeout_ms=90_000, linger_ms=5
        )
        await producer.start()
        return producer

    def send(self, partition: int, value: bytes, done: Callable[[Exception | None], None]) -> None:
        async def queue() -> None:
            future = await self._producer.send(self._topic, value=value, partition=partition)
            future.add_done_callback(lambda told: done(told.exception()))

        self._loop.run(queue(), 100)

    def close(self) -> None:
        self._loop.run(self._producer.flush(), 100)


def _code(error: Exception) -> Any:
    if isinstance(error, KafkaError):
        return getattr(error, "errno", None) or type(error).__name__
    return type(error).__name__


def _check(code: int) -> None:
    if code:
        raise for_code(code)()


class Admin:
    def __init__(self, loop: Loop, request: Request) -> None:
        self._loop = loop
        self._request = request
        self._admin = loop.run(self._start(request))

    async def _start(self, request: Request) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=request.bootstrap)
        await admin.start()
        return admin

    def create_topic(self, step: dict[str, Any]) -> None:
        topic = NewTopic(step["topic"], step["partitions"], 1, topic_configs=step.get("configs") or {})
        told = self._loop.run(self._admin.create_topics([topic]))
        _check(told.topic_errors[0][1])

    def list_topics(self, step: dict[str, Any]) -> list[str]:
        return sorted(name for name in self._loop.run(self._admin.list_topics()) if name.startswith(step["prefix"]))

    def describe_topic(self, step: dict[str, Any]) -> Any:
        (found,) = self._loop.run(self._admin.describe_topics([step["topic"]]))
        return {
            "partitions": sorted(each["partition"] for each in found["partitions"]),
            "led": all(each["leader"] >= 0 for each in found["partitions"]),
            "in_sync": all(each["isr"] for each in found["partitions"]),
        }

    def grow(self, step: dict[str, Any]) -> None:
        self._loop.run(self._admin.create_partitions({step["topic"]: NewPartitions(step["total"])}))

    def describe_configs(self, step: dict[str, Any]) -> Any:
        asked = ConfigResource(ConfigResourceType.TOPIC, step["topic"], dict.fromkeys(step["keys"], ""))
        (told,) = self._loop.run(self._admin.describe_configs([asked]))
        (resource,) = told.resources
        _check(resource[0])
        found = {entry[0]: entry[1] for entry in resource[4]}
        return {key: found.get(key) for key in step["keys"]}

    def alter_configs(self, step: dict[str, Any]) -> None:
        """It has only the older call, which replaces all that was set before."""
        asked = ConfigResource(ConfigResourceType.TOPIC, step["topic"], step.get("set") or {})
        (told,) = self._loop.run(self._admin.alter_configs([asked]))
        _check(told.resources[0][0])

    def delete_records(self, step: dict[str, Any]) -> int:
        here = TopicPartition(step["topic"], step["partition"])
        told = self._loop.run(self._admin.delete_records({here: RecordsToDelete(step["before"])}))
        return int(told[here])

    def list_groups(self, step: dict[str, Any]) -> list[str]:
        found = self._loop.run(self._admin.list_consumer_groups())
        return sorted(each[0] for each in found if each[0].startswith(step["prefix"]))

    def describe_group(self, step: dict[str, Any]) -> Any:
        (told,) = self._loop.run(self._admin.describe_consumer_groups([step["group"]]))
        (group,) = told.groups
        _check(group[0])
        return {"state": group[2], "members": len(group[5])}

    def group_offsets(self, step: dict[str, Any]) -> Any:
        found = self._loop.run(self._admin.list_consumer_group_offsets(step["group"]))
        return {f"{each.topic}/{each.partition}": at.offset for each, at in found.items()}

    def delete_topic(self, step: dict[str, Any]) -> None:
        told = self._loop.run(self._admin.delete_topics([step["topic"]]))
        _check(told.topic_error_codes[0][1])

    def describe_cluster(self, _step: dict[str, Any]) -> Any:
        found = self._loop.run(self._admin.describe_cluster())
        return {"brokers": len(found["brokers"]), "controller": found["controller_id"] >= 0}

    def commit(self, step: dict[str, Any]) -> None:
        async def commit() -> None:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._request.bootstrap, group_id=step["group"], enable_auto_commit=False
            )
            await consumer.start()
            here = TopicPartition(step["topic"], step["partition"])
            consumer.assign([here])
            await consumer.commit({here: step["offset"]})
            await consumer.stop()

        self._loop.run(commit())


def admin(request: Request) -> Any:
    return run_steps(request, Admin(Loop(), request), _code)


def _member(request: Request) -> Callable[[str | None, Callable[[bytes | None], None]], PollingMember]:
    loop = Loop()
    return lambda instance, on_record: PollingMember(loop, request, instance, on_record)


if __name__ == "__main__":
    serve(
        {
            "version": version,
            "produce": lambda request: asyncio.run(_produce(request)),
            "consume": lambda request: asyncio.run(_consume(request)),
            "tail": lambda request: asyncio.run(_tail(request)),
            "rebalance": lambda request: rebalance(request, _member(request)),
            "resume": lambda request: asyncio.run(_resume(request)),
            "admin": admin,
            "soak": lambda request: soak(request, lambda: PatientProducer(Loop(), request), _member(request)),
        }
    )
