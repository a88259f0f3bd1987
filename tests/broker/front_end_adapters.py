"""Front ends as the table of behaviours uses them: one adapter each. A new front end needs one more class here,
and one more line in FRONT_ENDS.

An adapter translates a call of the table into its front end, and the front end's errors into ``Refused`` with the name
of the error's Kafka code. It decides and repeats nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from streamhouse import StreamHouse
from streamhouse.broker import fetch as broker_fetch
from streamhouse.broker.broker import Broker
from streamhouse.broker.caller import Caller
from streamhouse.broker.fetch import PlainWanted
from streamhouse.broker.log_offsets import OffsetQuestion
from streamhouse.broker.produce import WriteOrder
from streamhouse.broker.topics import WantedTopic
from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.headers import has_flexible_response, request_frame
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.schema import read_response, write_request
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record, build_batch, decode_records

T = TypeVar("T")


class Refused(Exception):
    """The name of the error that the front end gave."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)

    @property
    def name(self) -> str:
        return str(self.args[0])


class FrontEnd(Protocol):
    async def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> int:
        """The number of partitions."""
        ...

    async def delete_topic(self, name: str) -> None: ...

    async def produce(
        self,
        topic: str,
        partition: int,
        batches: Sequence[Sequence[Record]],
        *,
        acks: int,
        codec: Codec,
        timeout_ms: int,
    ) -> list[int | None]:
        """The base offset of each batch, sent one after the other without a wait. None with acks=0."""
        ...

    async def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int) -> list[Record]:
        """Records from ``offset`` on."""
        ...

    async def list_offset(self, topic: str, partition: int, at: int) -> int: ...

    async def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> None: ...

    async def committed_offset(self, group: str, topic: str, partition: int) -> int:
        """-1 if there is none."""
        ...


async def translated(call: Awaitable[T]) -> T:
    try:
        return await call
    except StreamHouseError as error:
        raise Refused(error.kafka_code) from error


def records_in(batches: Sequence[Any], offset: int) -> list[Record]:
    return [
        record
        for batch in batches
        for position, _ in iter_batches(batch)
        for record in decode_records(batch, position)
        if record.offset >= offset
    ]


class PythonFrontEnd:
    """The Python API."""

    def __init__(self, sh: StreamHouse) -> None:
        self._sh = sh

    async def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> int:
        return (await translated(self._sh.create_topic(name, partitions, configs=configs))).partition_count

    async def delete_topic(self, name: str) -> None:
        await translated(self._sh.delete_topic(name))

    async def produce(
        self,
        topic: str,
        partition: int,
        batches: Sequence[Sequence[Record]],
        *,
        acks: int,
        codec: Codec,
        timeout_ms: int,
    ) -> list[int | None]:
        wanted: Any = "all" if acks == -1 else acks
        calls = [
            self._sh.produce_batch(topic, partition, records, acks=wanted, codec=codec, timeout_ms=timeout_ms)
            for records in batches
        ]
        sent = await translated(asyncio.gather(*calls))
        return [None if acks == 0 else each.offset for each in sent]

    async def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int) -> list[Record]:
        return await translated(self._sh.read(topic, partition, offset, max_bytes=max_bytes, wait_ms=wait_ms))

    async def list_offset(self, topic: str, partition: int, at: int) -> int:
        return await translated(self._sh.list_offset(topic, partition, at))

    async def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        await translated(self._sh.commit_offsets(group, {(topic, partition): offset}))

    async def committed_offset(self, group: str, topic: str, partition: int) -> int:
        found = await translated(self._sh.committed_offsets(group, topic))
        return found[partition].offset if partition in found else -1


class BrokerFrontEnd:
    """The broker itself, without any protocol."""

    def __init__(self, sh: StreamHouse) -> None:
        self._broker: Broker = sh.broker
        self._caller = Caller(protocol="test")

    async def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> int:
        wanted = WantedTopic(name=name, partition_count=partitions, configs=configs)
        return (await translated(self._broker.topics.create(wanted, caller=self._caller))).partition_count

    async def delete_topic(self, name: str) -> None:
        topic = await translated(self._broker.topics.fresh(name, caller=self._caller))
        await translated(self._broker.topics.delete(topic, caller=self._caller))

    async def produce(
        self,
        topic: str,
        partition: int,
        batches: Sequence[Sequence[Record]],
        *,
        acks: int,
        codec: Codec,
        timeout_ms: int,
    ) -> list[int | None]:
        order = WriteOrder()
        calls = [
            self._broker.produce.run(
                [((topic, partition), build_batch(records, codec=codec))],
                acks=acks,
                timeout_ms=timeout_ms,
                order=order,
                caller=self._caller,
            )
            for records in batches
        ]
        offsets: list[int | None] = []
        for (outcome,) in await asyncio.gather(*calls):
            if isinstance(outcome.error, StreamHouseError):
                raise Refused(outcome.error.kafka_code)
            assert outcome.error is None
            assert outcome.append is not None
            offsets.append(outcome.append.base_offset if acks else None)
        return offsets

    async def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int) -> list[Record]:
        (found,) = await self._broker.fetch.run(
            [(topic, PlainWanted(partition, offset, max_bytes))],
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            caller=self._caller,
        )
        if isinstance(found, broker_fetch.Refused):
            raise Refused(found.error.kafka_code)
        assert not isinstance(found, broker_fetch.Diverging)
        return records_in(found.batches, offset)

    async def list_offset(self, topic: str, partition: int, at: int) -> int:
        question = OffsetQuestion(topic, partition, at)
        (found,) = await self._broker.offsets.list_offsets([question], caller=self._caller)
        if isinstance(found, StreamHouseError):
            raise Refused(found.kafka_code)
        return found.offset

    async def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        await translated(self._broker.simple_offsets.commit(group, {(topic, partition): offset}, caller=self._caller))

    async def committed_offset(self, group: str, topic: str, partition: int) -> int:
        found = await translated(self._broker.simple_offsets.fetch(group, topic, caller=self._caller))
        return found[partition].offset if partition in found else -1


class KafkaFrontEnd:
    """The Kafka port, through a socket. Each call has a connection of its own."""

    def __init__(self, sh: StreamHouse) -> None:
        (address,) = sh.kafka_addresses
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))

    async def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> int:
        wanted = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": -1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        (answer,) = (await self._ask(19, 7, topics=[wanted], timeout=10_000)).topics
        _check(answer.error_code)
        return int(answer.num_partitions)

    async def delete_topic(self, name: str) -> None:
        (answer,) = (await self._ask(20, 6, topics=[{"name": name}], timeout=10_000)).responses
        _check(answer.error_code)

    async def produce(
        self,
        topic: str,
        partition: int,
        batches: Sequence[Sequence[Record]],
        *,
        acks: int,
        codec: Codec,
        timeout_ms: int,
    ) -> list[int | None]:
        requests = [
            {
                "acks": acks,
                "timeout": timeout_ms,
                "topic_data": [
                    {
                        "name": topic,
                        "partition_data": [{"index": partition, "records": build_batch(records, codec=codec)}],
                    }
                ],
            }
            for records in batches
        ]
        offsets: list[int | None] = []
        for answer in await self._ask_all(0, 9, requests, has_answer=acks != 0):
            if answer is None:
                offsets.append(None)
                continue
            (part,) = answer.responses[0].partition_responses
            _check(part.error_code)
            offsets.append(int(part.base_offset))
        return offsets

    async def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int) -> list[Record]:
        wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        answer = await self._ask(
            1,
            12,
            max_wait=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[{"topic": topic, "partitions": [wanted]}],
        )
        (part,) = answer.responses[0].partitions
        _check(part.error_code)
        return records_in([part.records] if part.records else [], offset)

    async def list_offset(self, topic: str, partition: int, at: int) -> int:
        wanted = {"partition_index": partition, "timestamp": at}
        answer = await self._ask(2, 8, topics=[{"name": topic, "partitions": [wanted]}])
        (part,) = answer.topics[0].partitions
        _check(part.error_code)
        return int(part.offset)

    async def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        wanted = {"partition_index": partition, "committed_offset": offset}
        answer = await self._ask(
            8,
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": topic, "partitions": [wanted]}],
        )
        _check(answer.topics[0].partitions[0].error_code)

    async def committed_offset(self, group: str, topic: str, partition: int) -> int:
        answer = await self._ask(
            9, 7, group_id=group, topics=[{"name": topic, "partition_indexes": [partition]}], require_stable=False
        )
        _check(answer.error_code)
        part = answer.topics[0].partitions[0]
        _check(part.error_code)
        return int(part.committed_offset)

    async def _ask(self, key: int, version: int, **fields: Any) -> Message:
        (answer,) = await self._ask_all(key, version, [fields], has_answer=True)
        assert answer is not None
        return answer

    async def _ask_all(
        self, key: int, version: int, requests: Sequence[Mapping[str, Any]], *, has_answer: bool
    ) -> list[Message | None]:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            for number, fields in enumerate(requests):
                writer.write(request_frame(key, version, number, "table", write_request(key, version, fields)))
            if not has_answer:
                writer.write(request_frame(18, 0, 99, "table", b""))  # whose answer comes after the others are served
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                return [None] * len(requests)
            answers: list[Message | None] = []
            for _ in requests:
                body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                head = 5 if has_flexible_response(key, version) else 4
                answers.append(read_response(key, version, memoryview(body)[head:]))
            return answers
        finally:
            writer.close()


def _check(code: int) -> None:
    if code:
        raise Refused(code)


FRONT_ENDS: Mapping[str, Callable[[StreamHouse], FrontEnd]] = {
    "python": PythonFrontEnd,
    "kafka": KafkaFrontEnd,
    "broker": BrokerFrontEnd,
}
"""Every behaviour of the table runs through each of these."""
