"""One table of behaviours, the same through every front end: the Python API, the Kafka port, and the broker itself.

A behaviour is a short story of calls with one expected end: a value, or the name of an error. The adapters are in
front_end_adapters.py; a new front end is one more line in FRONT_ENDS.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from front_end_adapters import BrokerFrontEnd, FrontEnd, KafkaFrontEnd, PythonFrontEnd, Refused

from streamhouse import StreamHouse
from streamhouse.broker import leading, produce
from streamhouse.broker.cluster_view import Leader, Node
from streamhouse.cluster.lease_table import Stage
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_PARTITIONS_PER_TOPIC
from streamhouse.log.leased.partition import Phase
from streamhouse.testing.plugin import RunningStreamHouse, running
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Header, Record

FRONT_ENDS: Mapping[str, Callable[[StreamHouse], FrontEnd]] = {
    "python": PythonFrontEnd,
    "kafka": KafkaFrontEnd,
    "broker": BrokerFrontEnd,
}
OTHER = Node(node_id=77, agent_id="other", host="other.example", port=9092, rack="")
TEN_YEARS_MS = 10 * 365 * 86_400_000
SOON_S = 0.05
_names = itertools.count()


class Scene:
    """A platform, one front end to it, and a topic of the behaviour's own."""

    def __init__(self, sh: StreamHouse, front: FrontEnd) -> None:
        self.sh = sh
        self.front = front
        self.topic = f"behaviour-{next(_names)}"

    async def create(self, partitions: int = 1, **configs: str) -> int:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        return await self.front.create_topic(self.topic, partitions, named)

    async def write(
        self,
        *values: bytes | None,
        partition: int = 0,
        at_ms: int | None = None,
        acks: int = -1,
        codec: Codec = Codec.NONE,
        timeout_ms: int = 30_000,
        topic: str | None = None,
    ) -> int | None:
        time_ms = self.sh.clock.wall_ms() if at_ms is None else at_ms
        records = [Record(value=value, timestamp_ms=time_ms) for value in values]
        (offset,) = await self.front.produce(
            topic or self.topic, partition, [records], acks=acks, codec=codec, timeout_ms=timeout_ms
        )
        return offset

    async def write_record(self, record: Record) -> Record:
        """The record as it is read back."""
        await self.front.produce(self.topic, 0, [[record]], acks=-1, codec=Codec.NONE, timeout_ms=30_000)
        (found,) = await self.front.fetch(self.topic, 0, 0, max_bytes=1 << 20, wait_ms=10_000)
        return found

    async def read(
        self,
        offset: int = 0,
        *,
        partition: int = 0,
        max_bytes: int = 1 << 20,
        wait_ms: int = 0,
        topic: str | None = None,
    ) -> list[bytes | None]:
        found = await self.front.fetch(topic or self.topic, partition, offset, max_bytes=max_bytes, wait_ms=wait_ms)
        return [record.value for record in found]

    async def offset(self, at: int, *, partition: int = 0, topic: str | None = None) -> int:
        return await self.front.list_offset(topic or self.topic, partition, at)

    async def key(self) -> PartitionKey:
        return (await self.sh.topic(self.topic)).partition_keys()[0]

    async def delete_before(self, offset: int) -> None:
        await self.sh.broker.writes.delete_before(await self.key(), offset)

    async def opening(self) -> Opening:
        return Opening(self.sh, await self.key())

    @contextmanager
    def no_acknowledgement(self) -> Iterator[None]:
        """The WAL syncs, and no one is told."""
        wal, synced = self.sh.agent.wal, list(self.sh.agent.wal._on_synced)
        held: list[int] = []
        wal._on_synced[:] = [held.append]
        try:
            yield
        finally:
            wal._on_synced[:] = synced
            for call in synced if held else ():
                call(held[-1])

    @contextmanager
    def led_elsewhere(self, key: PartitionKey) -> Iterator[None]:
        view = self.sh.broker.view
        known = view.leader
        with patch.object(view, "leader", lambda asked: Leader(node=OTHER, epoch=9) if asked == key else known(asked)):
            yield


class Opening:
    """A partition that this agent leads and has not opened yet."""

    def __init__(self, sh: StreamHouse, key: PartitionKey) -> None:
        leadership = sh.agent.member.lease_table.get(key)
        assert leadership is not None
        self._leadership, self._log = leadership, sh.agent.log
        self._partition = self._log._partitions[key]
        self._leadership.stage = Stage.OPENING
        self._partition.phase = Phase.OPENING

    def done(self) -> None:
        self._leadership.stage = Stage.SERVING
        self._log._open(self._partition)


Behaviour = Callable[[Scene], Awaitable[Any]]
TABLE: dict[str, tuple[Any, Behaviour]] = {}


def behaviour(expected: Any) -> Callable[[Behaviour], Behaviour]:
    """``expected``: what the story returns, or ``refused("…")``."""

    def add(story: Behaviour) -> Behaviour:
        name = story.__name__  # type: ignore[attr-defined]
        assert name not in TABLE
        TABLE[name] = (expected, story)
        return story

    return add


def refused(name: str) -> tuple[str, str]:
    return ("refused", name)


# Topics.


@behaviour(3)
async def a_topic_has_the_partitions_that_were_asked_for(on: Scene) -> Any:
    return await on.create(3)


@behaviour(1)
async def minus_one_asks_for_the_default_partition_count(on: Scene) -> Any:
    return await on.create(-1)


@behaviour(refused("TOPIC_ALREADY_EXISTS"))
async def a_topic_is_created_once(on: Scene) -> Any:
    await on.create()
    return await on.create()


@behaviour(refused("INVALID_TOPIC_EXCEPTION"))
async def a_topic_name_has_no_slash(on: Scene) -> Any:
    return await on.front.create_topic("a/b", 1, {})


@behaviour(refused("INVALID_TOPIC_EXCEPTION"))
async def a_topic_name_is_not_a_dot(on: Scene) -> Any:
    return await on.front.create_topic(".", 1, {})


@behaviour(refused("INVALID_TOPIC_EXCEPTION"))
async def a_topic_name_is_not_empty(on: Scene) -> Any:
    return await on.front.create_topic("", 1, {})


@behaviour(refused("INVALID_TOPIC_EXCEPTION"))
async def a_topic_name_has_at_most_249_characters(on: Scene) -> Any:
    return await on.front.create_topic("x" * 250, 1, {})


@behaviour(refused("INVALID_PARTITIONS"))
async def a_topic_has_at_least_one_partition(on: Scene) -> Any:
    return await on.create(0)


@behaviour(refused("INVALID_PARTITIONS"))
async def a_topic_has_no_negative_number_of_partitions(on: Scene) -> Any:
    return await on.create(-2)


@behaviour(refused("INVALID_PARTITIONS"))
async def a_topic_has_a_largest_number_of_partitions(on: Scene) -> Any:
    return await on.create(MAX_PARTITIONS_PER_TOPIC + 1)


@behaviour(refused("INVALID_CONFIG"))
async def an_unknown_config_is_refused(on: Scene) -> Any:
    return await on.create(retention_mss="1")


@behaviour(refused("INVALID_CONFIG"))
async def a_config_with_a_wrong_value_is_refused(on: Scene) -> Any:
    return await on.create(retention_ms="soon")


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_topic_is_deleted_once(on: Scene) -> Any:
    await on.create()
    await on.front.delete_topic(on.topic)
    await on.front.delete_topic(on.topic)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_topic_that_never_was_cannot_be_deleted(on: Scene) -> Any:
    await on.front.delete_topic(on.topic)


@behaviour((0, [b"new"]))
async def a_topic_that_is_created_anew_begins_at_offset_0(on: Scene) -> Any:
    await on.create()
    await on.write(b"old")
    await on.front.delete_topic(on.topic)
    await on.create()
    return await on.write(b"new"), await on.read()


# Writes.


@behaviour((0, 1, 2))
async def offsets_are_dense(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a"), await on.write(b"b"), await on.write(b"c")


@behaviour((0, 3))
async def a_batch_takes_an_offset_for_each_record(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", b"b", b"c"), await on.write(b"d")


@behaviour((0, 0))
async def partitions_have_offsets_of_their_own(on: Scene) -> Any:
    await on.create(2)
    return await on.write(b"a"), await on.write(b"b", partition=1)


@behaviour((0, [b"a"]))
async def acks_1_is_acknowledged_with_an_offset(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", acks=1), await on.read()


@behaviour([b"a"])
async def acks_0_writes_without_an_answer(on: Scene) -> Any:
    await on.create()
    assert await on.write(b"a", acks=0) is None
    return await on.read(wait_ms=10_000)


@behaviour(refused("INVALID_REQUIRED_ACKS"))
async def acks_are_all_1_or_0(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", acks=2)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_write_needs_a_topic(on: Scene) -> Any:
    return await on.write(b"a")


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_write_needs_a_partition_that_exists(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", partition=1)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_partition_is_not_negative(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", partition=-1)


@behaviour(refused("MESSAGE_TOO_LARGE"))
async def a_batch_above_the_limit_of_its_topic_is_refused(on: Scene) -> Any:
    await on.create(max_message_bytes="500")
    return await on.write(b"x" * 600)


@behaviour(0)
async def a_batch_within_the_limit_of_its_topic_is_taken(on: Scene) -> Any:
    await on.create(max_message_bytes="500")
    return await on.write(b"x" * 400)


@behaviour(refused("INVALID_TIMESTAMP"))
async def a_record_ten_years_ahead_is_refused_where_its_topic_allows_a_second(on: Scene) -> Any:
    await on.create(message_timestamp_after_max_ms="1000")
    return await on.write(b"a", at_ms=on.sh.clock.wall_ms() + TEN_YEARS_MS)


@behaviour(refused("INVALID_TIMESTAMP"))
async def a_record_of_long_ago_is_refused_where_its_topic_allows_a_second(on: Scene) -> Any:
    await on.create(message_timestamp_before_max_ms="1000")
    return await on.write(b"a", at_ms=on.sh.clock.wall_ms() - TEN_YEARS_MS)


@behaviour(0)
async def any_past_time_is_taken_by_default(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", at_ms=1)


@behaviour(True)
async def the_broker_stamps_records_of_a_topic_with_log_append_time(on: Scene) -> Any:
    await on.create(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms="1000")
    before_ms = on.sh.clock.wall_ms()
    found = await on.write_record(Record(value=b"a", timestamp_ms=before_ms + TEN_YEARS_MS))
    return before_ms <= found.timestamp_ms <= on.sh.clock.wall_ms()


@behaviour(refused("INVALID_RECORD"))
async def a_compacted_topic_takes_no_record_without_a_key(on: Scene) -> Any:
    await on.create(cleanup_policy="compact")
    return await on.write(b"a")


@behaviour(refused("INVALID_RECORD"))
async def a_compacted_topic_takes_no_compressed_record_without_a_key(on: Scene) -> Any:
    await on.create(cleanup_policy="compact,delete")
    return await on.write(b"a", codec=Codec.ZSTD)


@behaviour((b"", b"a"))
async def a_compacted_topic_takes_an_empty_key(on: Scene) -> Any:
    await on.create(cleanup_policy="compact")
    found = await on.write_record(Record(key=b"", value=b"a", timestamp_ms=on.sh.clock.wall_ms()))
    return found.key, found.value


@behaviour((0, [b"a" * 100, b"b", b"c"]))
async def a_topic_with_a_codec_of_its_own_takes_batches_of_every_codec(on: Scene) -> Any:
    await on.create(compression_type="gzip")
    first = await on.write(b"a" * 100)
    await on.write(b"b", codec=Codec.LZ4)
    await on.write(b"c", codec=Codec.GZIP)
    return first, await on.read()


@behaviour(refused("MESSAGE_TOO_LARGE"))
async def a_batch_is_measured_after_it_was_uncompressed_for_its_topic(on: Scene) -> Any:
    await on.create(compression_type="uncompressed", max_message_bytes="500")
    return await on.write(b"x" * 600, codec=Codec.GZIP)


@behaviour(refused("MESSAGE_TOO_LARGE"))
async def a_batch_is_measured_before_it_is_compressed_for_its_topic(on: Scene) -> Any:
    await on.create(compression_type="gzip", max_message_bytes="500")
    return await on.write(b"x" * 600)


@behaviour((None, b"", 5))
async def null_and_empty_are_kept_apart(on: Scene) -> Any:
    await on.create()
    found = await on.write_record(Record(key=None, value=b"", timestamp_ms=5))
    return found.key, found.value, found.timestamp_ms


@behaviour((b"k", None))
async def a_record_may_have_a_key_and_no_value(on: Scene) -> Any:
    await on.create()
    found = await on.write_record(Record(key=b"k", value=None, timestamp_ms=5))
    return found.key, found.value


@behaviour([("h", b"1"), ("h", None), ("other", b"")])
async def headers_keep_their_order_and_repeat(on: Scene) -> Any:
    await on.create()
    headers = (Header("h", b"1"), Header("h", None), Header("other", b""))
    found = await on.write_record(Record(value=b"v", timestamp_ms=5, headers=headers))
    return [(header.key, header.value) for header in found.headers]


def _codec(codec: Codec) -> None:
    async def story(on: Scene) -> Any:
        await on.create()
        await on.write(b"a" * 100, b"b" * 100, codec=codec)
        return await on.read()

    story.__name__ = f"batches_compressed_with_{codec.name.lower()}_come_back"
    behaviour([b"a" * 100, b"b" * 100])(story)


for each in Codec:
    _codec(each)


@behaviour(refused("INVALID_REQUEST"))
async def leaderless_topics_cannot_be_written_yet(on: Scene) -> Any:
    await on.create(diskless_enable="true")
    return await on.write(b"a")


# Limits and time-outs.


@behaviour((refused("NOT_ENOUGH_REPLICAS"), []))
async def a_write_that_finds_no_room_is_refused_and_not_written(on: Scene) -> Any:
    await on.create()
    budget = on.sh.agent.log._budget
    with patch.object(budget, "max_bytes", 4000), patch.object(produce, "MAX_WAIT_S", SOON_S):
        budget.held_bytes += 3000  # which no flush brings out
        try:
            end = await outcome(on.write(b"x" * 2000))
        finally:
            budget.held_bytes -= 3000
    return end, await on.read()


@behaviour(0)
async def a_write_waits_for_room(on: Scene) -> Any:
    await on.create()
    budget = on.sh.agent.log._budget
    with patch.object(budget, "max_bytes", 4000):
        budget.held_bytes += 3000
        writing = asyncio.create_task(on.write(b"x" * 2000))
        await asyncio.sleep(SOON_S)
        assert not writing.done()
        budget.held_bytes -= 3000
        budget.look_again()
        return await writing


@behaviour(refused("MESSAGE_TOO_LARGE"))
async def a_batch_that_memory_can_never_hold_is_refused_for_good(on: Scene) -> Any:
    await on.create()
    with patch.object(on.sh.agent.log._budget, "max_bytes", 1000):
        return await on.write(b"x" * 2000)


@behaviour((refused("REQUEST_TIMED_OUT"), [b"a"]))
async def a_write_that_is_not_acknowledged_in_time_may_be_written_later(on: Scene) -> Any:
    await on.create()
    with on.no_acknowledgement():
        end = await outcome(on.write(b"a", timeout_ms=10))
    return end, await on.read(wait_ms=10_000)


# Hand-overs.


@behaviour(0)
async def a_write_waits_for_a_partition_that_opens(on: Scene) -> Any:
    await on.create()
    opening = await on.opening()
    writing = asyncio.create_task(on.write(b"a"))
    await asyncio.sleep(SOON_S)
    assert not writing.done()
    opening.done()
    return await writing


@behaviour(([0, 1, 2], [b"a", b"b", b"c"]))
async def writes_that_wait_keep_their_order(on: Scene) -> Any:
    await on.create()
    opening = await on.opening()
    batches = [[Record(value=value, timestamp_ms=1)] for value in (b"a", b"b", b"c")]
    writing = asyncio.create_task(on.front.produce(on.topic, 0, batches, acks=-1, codec=Codec.NONE, timeout_ms=30_000))
    await asyncio.sleep(SOON_S)
    opening.done()
    return await writing, await on.read()


@behaviour((refused("NOT_LEADER_OR_FOLLOWER"), []))
async def a_write_does_not_wait_for_ever_for_a_partition_that_opens(on: Scene) -> Any:
    await on.create()
    opening = await on.opening()
    with patch.object(produce, "MAX_WAIT_S", SOON_S):
        end = await outcome(on.write(b"a"))
    opening.done()
    return end, await on.read()


@behaviour((refused("REQUEST_TIMED_OUT"), []))
async def a_write_whose_time_is_up_before_it_has_an_offset_is_never_written(on: Scene) -> Any:
    await on.create()
    opening = await on.opening()
    with patch.object(produce.Produce, "_append_later", _never):
        end = await outcome(on.write(b"a", timeout_ms=10))
    opening.done()
    return end, await on.read()


@behaviour(refused("NOT_LEADER_OR_FOLLOWER"))
async def a_write_to_a_partition_that_another_agent_leads_is_refused_at_once(on: Scene) -> Any:
    await on.create()
    key = await on.key()
    opening = await on.opening()
    on.sh.agent.member.lease_table.get(key).stage = Stage.CLOSED  # type: ignore[union-attr]
    try:
        with on.led_elsewhere(key):
            return await on.write(b"a")
    finally:
        opening.done()


@behaviour([b"a"])
async def a_read_waits_for_a_partition_that_opens(on: Scene) -> Any:
    await on.create()
    await on.write(b"a")
    opening = await on.opening()
    reading = asyncio.create_task(on.read(wait_ms=10_000))
    await asyncio.sleep(SOON_S)
    opening.done()
    return await reading


@behaviour(1)
async def a_question_for_an_offset_waits_for_a_partition_that_opens(on: Scene) -> Any:
    await on.create()
    await on.write(b"a")
    opening = await on.opening()
    asking = asyncio.create_task(on.offset(-1))
    await asyncio.sleep(SOON_S)
    assert not asking.done()
    opening.done()
    return await asking


@behaviour(refused("NOT_LEADER_OR_FOLLOWER"))
async def a_question_for_an_offset_does_not_wait_for_ever(on: Scene) -> Any:
    await on.create()
    opening = await on.opening()
    try:
        with patch.object(leading, "MAX_WAIT_S", SOON_S):
            return await on.offset(-1)
    finally:
        opening.done()


# Reads.


@behaviour([])
async def there_is_nothing_at_the_end_of_a_log(on: Scene) -> Any:
    await on.create()
    await on.write(b"a")
    return await on.read(1)


@behaviour([b"b", b"c"])
async def a_read_may_begin_within_a_batch(on: Scene) -> Any:
    await on.create()
    await on.write(b"a", b"b", b"c")
    return await on.read(1)


@behaviour([b"x" * 1000])
async def the_first_batch_is_given_whole(on: Scene) -> Any:
    await on.create()
    await on.write(b"x" * 1000)
    await on.write(b"y" * 1000)
    return await on.read(max_bytes=1)


@behaviour([b"a"])
async def a_read_waits_at_the_end_of_the_log(on: Scene) -> Any:
    await on.create()
    reading = asyncio.create_task(on.read(wait_ms=10_000))
    await asyncio.sleep(SOON_S)
    await on.write(b"a")
    return await reading


@behaviour([])
async def a_read_does_not_wait_longer_than_it_was_asked_to(on: Scene) -> Any:
    await on.create()
    return await on.read(wait_ms=20)


@behaviour([b"a", b"b"])
async def records_are_read_from_objects(on: Scene) -> Any:
    await on.create()
    await on.write(b"a")
    await on.write(b"b")
    await on.sh.flush()
    return await on.read()


@behaviour(refused("OFFSET_OUT_OF_RANGE"))
async def an_offset_beyond_the_end_is_out_of_range(on: Scene) -> Any:
    await on.create()
    return await on.read(1)


@behaviour(refused("OFFSET_OUT_OF_RANGE"))
async def a_negative_offset_is_out_of_range(on: Scene) -> Any:
    await on.create()
    return await on.read(-1)


@behaviour(refused("OFFSET_OUT_OF_RANGE"))
async def an_offset_before_the_log_start_is_out_of_range(on: Scene) -> Any:
    await on.create()
    await on.write(b"a", b"b")
    await on.delete_before(1)
    return await on.read(0)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_read_needs_a_topic(on: Scene) -> Any:
    return await on.read()


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_read_needs_a_partition_that_exists(on: Scene) -> Any:
    await on.create()
    return await on.read(partition=7)


# Offsets.


@behaviour((0, 0))
async def an_empty_log_begins_and_ends_at_0(on: Scene) -> Any:
    await on.create()
    return await on.offset(-2), await on.offset(-1)


@behaviour((1, 3))
async def a_log_begins_where_records_were_deleted(on: Scene) -> Any:
    await on.create()
    await on.write(b"a", b"b", b"c")
    await on.delete_before(1)
    return await on.offset(-2), await on.offset(-1)


@behaviour((1, 1, -1))
async def an_offset_is_found_by_its_time(on: Scene) -> Any:
    await on.create()
    for time_ms in (1000, 2000, 3000):
        await on.write(b"v", at_ms=time_ms)
    return await on.offset(1001), await on.offset(2000), await on.offset(3001)


@behaviour(1)
async def the_record_with_the_largest_time_is_found(on: Scene) -> Any:
    await on.create()
    for time_ms in (1000, 3000, 2000):
        await on.write(b"v", at_ms=time_ms)
    return await on.offset(-3)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_question_for_an_offset_needs_a_topic(on: Scene) -> Any:
    return await on.offset(-1)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_question_for_an_offset_needs_a_partition_that_exists(on: Scene) -> Any:
    await on.create()
    return await on.offset(-1, partition=1)


# Groups.


@behaviour((-1, 5, 6))
async def a_group_keeps_its_last_committed_offset(on: Scene) -> Any:
    await on.create()
    group = f"group-of-{on.topic}"
    none = await on.front.committed_offset(group, on.topic, 0)
    await on.front.commit_offset(group, on.topic, 0, 5)
    first = await on.front.committed_offset(group, on.topic, 0)
    await on.front.commit_offset(group, on.topic, 0, 6)
    return none, first, await on.front.committed_offset(group, on.topic, 0)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def an_offset_is_committed_for_a_partition_that_exists(on: Scene) -> Any:
    await on.create()
    await on.front.commit_offset(f"group-of-{on.topic}", on.topic, 3, 5)


async def _never(*_: object) -> None:
    """In place of the wait for a partition: the time-out comes first."""
    await asyncio.sleep(5 * SOON_S)


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except Refused as error:
        return refused(error.name)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStreamHouse]:
    home: Path = tmp_path_factory.mktemp("behaviours")
    options = {"kafka_enabled": True, "kafka_listen": "127.0.0.1:0", "wal_file_bytes": "1MiB"}
    with running({"data_dir": str(home), **options}) as started:
        yield started


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", TABLE)
def test_every_front_end_behaves_the_same(platform: RunningStreamHouse, name: str, front_end: str) -> None:
    expected, story = TABLE[name]

    async def run() -> Any:
        on = Scene(platform.api, FRONT_ENDS[front_end](platform.api))
        async with asyncio.timeout(60):
            return await outcome(story(on))

    assert platform.run(run(), timeout_s=90) == expected


def test_the_table_has_at_least_40_behaviours_and_two_front_ends_with_clients() -> None:
    assert len(TABLE) >= 40
    assert {"python", "kafka"} <= FRONT_ENDS.keys()
