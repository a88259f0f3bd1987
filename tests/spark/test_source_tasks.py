"""Reading without Spark: planned ranges → rows, from every kind of entry and codec; objects that go away (R7)."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from source_ground import BASE_MS, compact, entries_of, fill, plan, read, sample

from streamhouse.core.errors import (
    DamagedObject,
    DataLost,
    InvalidSetting,
    MetadataUnavailable,
    PartitionNotFound,
    StoreUnavailable,
    TopicNotFound,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import KAFKA_BATCHES, SEGMENT_V1
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.spark.address import resolve_address
from streamhouse.spark.batch import Task
from streamhouse.spark.connection import connect
from streamhouse.spark.offsets import INITIAL
from streamhouse.spark.options import parse_read_options
from streamhouse.spark.pins import keep_renewed, pin
from streamhouse.spark.plan import ReadRange, SplitRules, plan_splits
from streamhouse.spark.rows import DEFAULT_COLUMNS, HEADERS, arrow_schema
from streamhouse.spark.snapshot import scan_ranges
from streamhouse.spark.stream import StreamRead
from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.testing.services.ports import free_ports

EVERYTHING = {"subscribe": "orders", "includeHeaders": "true"}


@pytest.fixture
def streamhouse_options(tmp_path: Path) -> dict[str, Any]:
    """Small segments, so that a test has both kinds of entry without megabytes."""
    return {"data_dir": str(tmp_path / "streamhouse"), "segment_max_bytes": "64KiB"}


@pytest.fixture
def orders(streamhouse: RunningStreamHouse) -> RunningStreamHouse:
    streamhouse.run(streamhouse.api.create_topic("orders", 2))
    return streamhouse


def key_of(platform: RunningStreamHouse, partition: int, topic: str = "orders") -> PartitionKey:
    return PartitionKey(platform.run(platform.api.topic(topic)).topic_id, partition)


def expected(number: int, partition: int, offset: int) -> dict[str, Any]:
    record = sample(number)
    moment = datetime.datetime.fromtimestamp(BASE_MS / 1000, datetime.UTC) + datetime.timedelta(milliseconds=number)
    return {
        "key": record.key,
        "value": record.value,
        "topic": "orders",
        "partition": partition,
        "offset": offset,
        "timestamp": moment,
        "timestampType": 0,
        "headers": [{"key": header.key, "value": header.value} for header in record.headers] or None,
    }


def test_rows_have_exactly_the_arrow_types_that_spark_expects_of_the_kafka_sources_columns() -> None:
    headers = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    kafka = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
            StructField("headers", headers),
        ]
    )
    assert arrow_schema((*DEFAULT_COLUMNS, HEADERS)).equals(to_arrow_schema(kafka, timezone="UTC"))


def test_every_record_comes_as_it_was_written_from_both_kinds_of_entry_and_all_codecs(
    orders: RunningStreamHouse, source_options: dict[str, str]
) -> None:
    orders.run(fill(orders.api, "orders", 0, 500))
    orders.run(fill(orders.api, "orders", 1, 20_000, per_batch=2_000))  # more than a segment's worth
    kinds = {
        entry.encoding for number in range(2) for entry in orders.run(entries_of(orders.api, key_of(orders, number)))
    }
    assert kinds == {KAFKA_BATCHES, SEGMENT_V1}
    rows = read({**source_options, **EVERYTHING})
    assert rows == [
        *(expected(number, 0, number) for number in range(500)),
        *(expected(number, 1, number) for number in range(20_000)),
    ]


def test_a_compacted_large_segment_is_read_by_several_tasks(
    orders: RunningStreamHouse, source_options: dict[str, str]
) -> None:
    orders.run(fill(orders.api, "orders", 0, 60_000, per_batch=5_000))
    orders.run(compact(orders.api, key_of(orders, 0)))
    planned = plan({**source_options, **EVERYTHING, "minPartitions": "7"})
    assert len(planned.tasks) == 7
    assert [row["offset"] for row in planned.rows()] == list(range(60_000))


def test_of_a_log_with_too_many_entries_tasks_look_up_their_own(
    orders: RunningStreamHouse, source_options: dict[str, str]
) -> None:
    for first in range(0, 1_000, 100):
        orders.run(fill(orders.api, "orders", 0, 100, first=first))
    entries = tuple(orders.run(entries_of(orders.api, key_of(orders, 0))))
    whole = ReadRange(topic="orders", key=key_of(orders, 0), from_offset=50, to_offset=990, entries=())
    (found,) = orders.run(scan_ranges(orders.api.stores.metadata, [whole], max_entries=5))
    assert found.is_coarse
    assert 1 == len(found.entries) < len(entries)
    planned = plan({**source_options, **EVERYTHING, "columns": "topic,partition,offset"})
    splits = plan_splits([found], SplitRules(parallelism=2, split_bytes=1 << 30, min_splits=3))
    assert len(splits) == 3
    tasks = [replace(planned.tasks[0], split=split) for split in splits]
    assert [row["offset"] for row in replace(planned, tasks=tasks).rows()] == list(range(50, 990))


class TestOptions:
    def test_only_the_columns_asked_for_in_their_order(
        self, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        orders.run(fill(orders.api, "orders", 0, 3))
        assert read({**source_options, "subscribe": "orders", "columns": "offset,value"}) == [
            {"offset": 0, "value": None},
            {"offset": 1, "value": b"value-1"},
            {"offset": 2, "value": b"value-2"},
        ]
        assert read({**source_options, "subscribe": "orders", "columns": "topic"}) == [{"topic": "orders"}] * 3

    def test_offsets_from_and_to(self, orders: RunningStreamHouse, source_options: dict[str, str]) -> None:
        orders.run(fill(orders.api, "orders", 0, 200))
        orders.run(fill(orders.api, "orders", 1, 100))
        rows = read(
            {
                **source_options,
                "subscribe": "orders",
                "startingOffsets": '{"orders":{"0":77,"1":-2}}',
                "endingOffsets": '{"orders":{"0":80,"1":2}}',
            }
        )
        assert [(row["partition"], row["offset"]) for row in rows] == [(0, 77), (0, 78), (0, 79), (1, 0), (1, 1)]

    def test_times_from_and_to(self, orders: RunningStreamHouse, source_options: dict[str, str]) -> None:
        orders.run(fill(orders.api, "orders", 0, 200))
        orders.run(fill(orders.api, "orders", 1, 50))
        options = {**source_options, "subscribe": "orders", "startingTimestamp": str(BASE_MS + 45)}
        rows = read({**options, "endingTimestamp": str(BASE_MS + 52)})
        assert [(row["partition"], row["offset"]) for row in rows] == [
            *((0, offset) for offset in range(45, 52)),
            *((1, offset) for offset in range(45, 50)),  # nothing is that late: to its end
        ]
        options["startingTimestamp"] = str(BASE_MS + 60)
        with pytest.raises(InvalidSetting, match=r"orders/1 has no record at or after .*Strategy"):
            read(options)
        rows = read({**options, "startingOffsetsByTimestampStrategy": "latest"})
        assert {row["partition"] for row in rows} == {0}

    def test_assigned_partitions_and_patterns(self, orders: RunningStreamHouse, source_options: dict[str, str]) -> None:
        orders.run(orders.api.create_topic("order-events", 1))
        for topic, partition in (("orders", 0), ("orders", 1), ("order-events", 0)):
            orders.run(fill(orders.api, topic, partition, 5))
        rows = read({**source_options, "assign": '{"orders":[1]}'})
        assert {(row["topic"], row["partition"]) for row in rows} == {("orders", 1)}
        rows = read({**source_options, "subscribePattern": "order.*"})
        assert {(row["topic"], row["partition"]) for row in rows} == {("orders", 0), ("orders", 1), ("order-events", 0)}

    def test_what_is_only_in_the_wal_is_flushed_for_a_read_of_latest(
        self, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        orders.run(fill(orders.api, "orders", 0, 30, flush=False))
        assert len(read({**source_options, "subscribe": "orders"})) == 30

    @pytest.mark.parametrize("ending", [-1, 30])
    def test_also_where_offsets_say_so_partition_by_partition(
        self, orders: RunningStreamHouse, source_options: dict[str, str], ending: int
    ) -> None:
        """A producer was told these offsets a moment ago."""
        orders.run(fill(orders.api, "orders", 0, 30, flush=False))
        options = {"assign": '{"orders":[0]}', "endingOffsets": f'{{"orders":{{"0":{ending}}}}}'}
        assert len(read({**source_options, **options})) == 30


class TestOneLineBeforeAnyTask:
    @pytest.mark.parametrize(
        ("options", "kind", "said"),
        [
            ({"subscribe": "order"}, TopicNotFound, "there is no topic 'order' (did you mean orders?)"),
            ({"subscribePattern": "x.*"}, TopicNotFound, "no topic's whole name matches 'x.*'"),
            ({"assign": '{"orders":[2]}'}, PartitionNotFound, "orders has partitions 0 to 1, not 2"),
            (
                {"subscribe": "orders", "startingOffsets": '{"orders":{"0":0}}'},
                InvalidSetting,
                "option startingOffsets says nothing of orders/1",
            ),
            (
                {"subscribe": "orders", "endingOffsets": '{"orders":{"0":0,"1":0,"2":0}}'},
                InvalidSetting,
                "speaks of orders/2, which is not read",
            ),
            (
                {"subscribe": "orders", "endingOffsets": '{"orders":{"0":0,"1":1}}'},
                DataLost,
                "orders/1 ends at offset 0, endingOffsets asks for 1",
            ),
            (
                {"subscribe": "orders", "dataDir": "/no/where"},
                InvalidSetting,
                "there is no StreamHouse in /no/where",
            ),
        ],
    )
    def test_a_mistake_in_the_options_is_told_in_one_line(
        self,
        orders: RunningStreamHouse,
        source_options: dict[str, str],
        options: dict[str, str],
        kind: type[Exception],
        said: str,
    ) -> None:
        with pytest.raises(kind) as caught:
            plan({**source_options, **options})
        assert said in str(caught.value)


class TestObjectsThatGoAway:
    def test_r7_a_range_that_was_compacted_under_its_tasks_is_found_again(
        self, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        orders.run(fill(orders.api, "orders", 0, 400))
        orders.run(fill(orders.api, "orders", 0, 400, first=400))
        planned = plan({**source_options, **EVERYTHING, "maxRecordsPerPartition": "150"})
        orders.run(compact(orders.api, key_of(orders, 0)))
        assert planned.rows() == [expected(number, 0, number) for number in range(800)]

    def test_r7_an_object_that_is_missing_is_an_error_and_never_fewer_rows(
        self, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        orders.run(fill(orders.api, "orders", 0, 400))
        (entry,) = orders.run(entries_of(orders.api, key_of(orders, 0)))
        planned = plan({**source_options, **EVERYTHING, "failOnDataLoss": "false"})
        orders.run(orders.api.stores.objects.delete([entry.object_key]))
        with pytest.raises(DamagedObject, match=r"orders/0, offsets 0 to 399: .* the metadata still refers to it"):
            planned.rows()

    def test_a_damaged_object_is_an_error_that_names_it_and_says_what_to_do(
        self, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        orders.run(fill(orders.api, "orders", 0, 400))
        (entry,) = orders.run(entries_of(orders.api, key_of(orders, 0)))
        planned = plan({**source_options, **EVERYTHING, "failOnDataLoss": "false"})
        objects = orders.api.stores.objects
        stored = bytearray(orders.run(objects.get(entry.object_key)))
        stored[entry.byte_offset + entry.byte_length // 2] ^= 1
        orders.run(objects.delete([entry.object_key]))
        orders.run(objects.put(entry.object_key, stored))
        with pytest.raises(DamagedObject) as caught:
            planned.rows()
        told = str(caught.value)
        assert told.startswith("orders/0, offsets 0 to 399: bytes ")
        assert entry.object_key in told
        assert "restore the object" in told
        assert "set consumers to offset 400" in told

    def test_below_the_log_start_is_data_loss_and_the_option_decides(
        self, orders: RunningStreamHouse, source_options: dict[str, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        orders.run(fill(orders.api, "orders", 0, 100))
        orders.run(fill(orders.api, "orders", 0, 100, first=100))
        options = {**source_options, "subscribe": "orders"}
        strict, lenient = plan(options), plan({**options, "failOnDataLoss": "false"})
        first = orders.run(entries_of(orders.api, key_of(orders, 0)))[0]
        orders.run(orders.api.stores.metadata.advance_log_start(key_of(orders, 0), 100))
        orders.run(orders.api.stores.objects.delete([first.object_key]))
        with pytest.raises(DataLost, match="orders/0 starts at offset 100 now, 0 was to be read"):
            strict.rows()
        assert [row["offset"] for row in lenient.rows()] == list(range(100, 200))
        assert "orders/0 starts at offset 100 now" in caplog.text

    def test_a_snapshot_whose_objects_are_still_there_is_read_whole_after_retention(
        self, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        """The pin keeps them: dereferenced is not deleted."""
        orders.run(fill(orders.api, "orders", 0, 100))
        planned = plan({**source_options, "subscribe": "orders"})
        orders.run(orders.api.stores.metadata.advance_log_start(key_of(orders, 0), 100))
        assert orders.run(orders.api.stores.metadata.list_dereferenced(grace_ms=0, limit=10)) == []
        assert len(planned.rows()) == 100
        assert read({**source_options, "subscribe": "orders"}) == []

    def test_offsets_that_were_asked_for_and_are_gone(
        self, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        orders.run(fill(orders.api, "orders", 0, 100))
        orders.run(orders.api.stores.metadata.advance_log_start(key_of(orders, 0), 40))
        options = {**source_options, "assign": '{"orders":[0]}', "startingOffsets": '{"orders":{"0":10}}'}
        with pytest.raises(DataLost, match="orders/0 starts at offset 40 now, startingOffsets asks for 10"):
            plan(options)
        rows = read({**options, "failOnDataLoss": "false"})
        assert [row["offset"] for row in rows] == list(range(40, 100))

    def test_a_topic_that_was_deleted_under_its_tasks_is_data_loss(
        self, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        orders.run(fill(orders.api, "orders", 0, 100))
        planned = plan({**source_options, "subscribe": "orders"})
        (entry,) = orders.run(entries_of(orders.api, key_of(orders, 0)))
        orders.run(orders.api.delete_topic("orders"))
        assert len(planned.rows()) == 100
        orders.run(orders.api.stores.objects.delete([entry.object_key]))
        with pytest.raises(DataLost, match="orders/0: the topic was deleted while it was read"):
            planned.rows()


class TestStoresThatDoNotAnswer:
    """Told by the planner, in one line, and not by every task."""

    def test_the_object_store(self, orders: RunningStreamHouse, source_options: dict[str, str]) -> None:
        orders.run(fill(orders.api, "orders", 0, 10))
        (port,) = free_ports(1)
        elsewhere = {
            "storeUrl": "s3://nowhere",
            "storeEndpointUrl": f"http://127.0.0.1:{port}",
            "storeAccessKeyId": "a",
            "storeSecretAccessKey": "b",
            "storeRegion": "r",
            "storeRequestTimeout": "1s",
            "storeRetryDeadline": "1s",
        }
        with pytest.raises(StoreUnavailable) as caught:
            plan({**source_options, "subscribe": "orders", **elsewhere})
        assert "\n" not in str(caught.value)

    def test_the_metadata_store(self, source_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(PostgresMetadata.__init__.__kwdefaults__, "retry_deadline_ms", 500)
        (port,) = free_ports(1)
        url = f"postgresql://someone:secret@127.0.0.1:{port}/nowhere"
        with pytest.raises(MetadataUnavailable) as caught:
            plan({**source_options, "subscribe": "orders", "metadataUrl": url})
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)


def test_r7_a_querys_pin_is_renewed_while_it_runs_also_after_a_renewal_that_failed(
    orders: RunningStreamHouse, source_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(resolve_address(source_options, environ={}))
    metadata = connection.run(connection.metadata())
    renew, renewed, asked = metadata.renew_pins, threading.Event(), []

    async def unsteady(pin_ids: Sequence[UUID], *, ttl_ms: int) -> Any:
        asked.append(list(pin_ids))
        if len(asked) == 1:
            raise MetadataUnavailable("the connection was cut")
        answer = await renew(pin_ids, ttl_ms=ttl_ms)
        renewed.set()
        return answer

    monkeypatch.setattr(metadata, "renew_pins", unsteady)
    ticket = connection.run(pin(connection, owner="a query", ttl_ms=600))
    renewal = connection.spawn(keep_renewed(connection, ticket))
    assert renewed.wait(60)
    renewal.cancel()
    assert asked[:2] == [[ticket.pin_id]] * 2


class TestStreamPastWhatIsGone:
    def test_what_is_gone_takes_no_room_in_a_batch(
        self, orders: RunningStreamHouse, source_options: dict[str, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Else a stream with a limit would crawl through thousands of empty batches."""
        orders.run(fill(orders.api, "orders", 0, 10))
        stream = open_stream(source_options, maxOffsetsPerTrigger="5", failOnDataLoss="false")
        at = stream.latest(INITIAL, is_unlimited=False)
        orders.run(fill(orders.api, "orders", 0, 990, first=10))
        orders.run(orders.api.stores.metadata.advance_log_start(key_of(orders, 0), 900))
        end = stream.latest(at, is_unlimited=False)
        assert end["orders"] == {"0": 905, "1": 0}
        assert sum(each.to_offset - each.from_offset for each in ranges(stream.plan(at, end))) == 5
        assert "orders/0 starts at offset 900 now, 5 was to be read" in caplog.text

    def test_a_log_that_is_empty_by_now_is_told_at_once(
        self, orders: RunningStreamHouse, source_options: dict[str, str]
    ) -> None:
        orders.run(fill(orders.api, "orders", 0, 10))
        stream = open_stream(source_options, maxOffsetsPerTrigger="5")
        at = stream.latest(INITIAL, is_unlimited=False)
        orders.run(orders.api.stores.metadata.advance_log_start(key_of(orders, 0), 10))
        end = stream.latest(at, is_unlimited=False)
        with pytest.raises(DataLost, match="orders/0 starts at offset 10 now, 5 was to be read"):
            stream.plan(at, end)


def test_a_flush_that_nobody_answers_is_warned_of_once(
    orders: RunningStreamHouse,
    source_options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = open_stream(source_options, flushTimeout="1ms")
    connection = connect(resolve_address(source_options, environ={}))
    asked = []

    async def pending(request_id: object) -> bool:
        asked.append(request_id)
        return True

    monkeypatch.setattr(connection.run(connection.metadata()), "pending_flush", pending)
    for _ in range(3):
        stream.prepare_available_now()
    assert len(set(asked)) == 3
    assert caplog.text.count("no flush within 1 ms") == 1


def open_stream(options: dict[str, str], **more: str) -> StreamRead:
    given = {**options, "subscribe": "orders", "startingOffsets": "earliest", **more}
    return StreamRead(resolve_address(given, environ={}), parse_read_options(given, streaming=True))


def ranges(tasks: list[Task]) -> list[ReadRange]:
    return [each for task in tasks for each in task.split.ranges]
