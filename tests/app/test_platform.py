"""The Python API on the embedded defaults: topics, records, groups, and what comes back after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamhouse import StreamHouse
from streamhouse.cluster.member import FleetMember
from streamhouse.core.errors import (
    ConfigError,
    DurabilityMismatch,
    InvalidAcks,
    InvalidRecord,
    InvalidRequest,
    InvalidTopicConfig,
    LimitExceeded,
    OffsetOutOfRange,
    PartitionNotFound,
    StoreDenied,
    StoreUnavailable,
    TopicExists,
    TopicNotFound,
    UnknownSetting,
    WalInUse,
)
from streamhouse.core.ids import TopicId
from streamhouse.metadata.contract import NewTopic, WriteMode
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.wire.codecs import Codec
from streamhouse.wire.murmur2 import partition_for_key
from streamhouse.wire.records import Record


async def test_s1_3_create_topic_makes_topic_and_partitions(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        topic = await sh.create_topic("clicks", 4, configs={"retention.ms": "1000"})
        assert [key.partition for key in topic.partition_keys()] == [0, 1, 2, 3]
        assert len(await sh.stores.metadata.get_partitions(topic.partition_keys())) == 4
        with pytest.raises(TopicExists):
            await sh.create_topic("clicks", 1)
        with pytest.raises(InvalidTopicConfig, match=r"retention\.ms"):
            await sh.create_topic("other", 1, configs={"retention.mss": "1"})
        await sh.delete_topic("clicks")
        with pytest.raises(TopicNotFound):
            await sh.topic("clicks")


async def test_r19_write_mode_follows_diskless_enable(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        topic = await sh.create_topic("cheap", 1, configs={"diskless.enable": "true"})
        assert topic.write_mode is WriteMode.LEADERLESS


async def test_unknown_keyword_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UnknownSetting, match="data_dir"):
        async with StreamHouse.open(data_dri=str(tmp_path)):
            pass


async def test_records_come_back_as_they_went(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        await sh.create_topic("orders", 3)
        sent = await sh.produce("orders", b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=42)
        assert sent.partition == partition_for_key(b"k", 3)
        (record,) = await sh.read("orders", sent.partition, sent.offset)
        assert (record.key, record.value, record.timestamp_ms) == (b"k", b"v", 42)
        assert [(header.key, header.value) for header in record.headers] == [("h", b"1"), ("n", None)]
        unkeyed = {(await sh.produce("orders", None)).partition for _ in range(3)}
        assert unkeyed == {0, 1, 2}


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_batch_is_read_from_buffer_and_from_objects(tmp_path: Path, codec: Codec) -> None:
    records = [Record(value=f"v{number}".encode(), timestamp_ms=number) for number in range(500)]
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        await sh.create_topic("t", 1)
        await sh.produce_batch("t", 0, records, codec=codec)
        hot = await sh.read("t", 0, 0)
        await sh.flush()
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        cold = await sh.read("t", 0, 0)
        first, *_ = await sh.read("t", 0, 123)
        assert first.offset == 123
    assert hot == cold
    assert [record.value for record in cold] == [record.value for record in records]


async def test_a_reader_at_the_end_waits_for_the_next_record(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        await sh.create_topic("t", 1)
        assert await sh.read("t", 0, 0) == []
        waiting = asyncio.create_task(sh.read("t", 0, 0, wait_ms=30_000))
        await asyncio.sleep(0)
        await sh.produce("t", b"at last")
        assert [record.value for record in await waiting] == [b"at last"]
        with pytest.raises(OffsetOutOfRange):
            await sh.read("t", 0, 99)
        with pytest.raises(PartitionNotFound, match="0 to 0"):
            await sh.read("t", 5, 0)


async def test_offsets_of_a_group_are_kept(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        await sh.create_topic("t", 2)
        await sh.commit_offsets("billing", {("t", 0): 7, ("t", 1): 9})
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        found = await sh.committed_offsets("billing", "t")
        assert {partition: committed.offset for partition, committed in found.items()} == {0: 7, 1: 9}
        assert await sh.committed_offsets("nobody", "t") == {}


async def recreated(sh: StreamHouse, name: str) -> None:
    """Deleted and created again, as another process does it: this one's memory of the name is not told."""
    topic = await sh.topic(name)
    await sh.stores.metadata.delete_topic(topic.topic_id)
    async with asyncio.timeout(20):
        while sh.agent.log.partition(topic.partition_keys()[0]) is not None:
            sh.agent.member._tick_signal.set()
            await asyncio.sleep(0.01)
    await sh.stores.metadata.create_topic(
        NewTopic(topic_id=TopicId(sh.randomness.uuid()), name=name, partition_count=1, configs={})
    )


async def test_r19_a_topic_that_another_process_created_anew_is_found_under_its_new_id(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        await sh.create_topic("t", 1)
        await sh.produce("t", b"old")
        await recreated(sh, "t")
        assert await sh.read("t", 0, 0) == []
        await recreated(sh, "t")
        await sh.commit_offsets("billing", {("t", 0): 7})
        assert {at: each.offset for at, each in (await sh.committed_offsets("billing", "t")).items()} == {0: 7}
        await recreated(sh, "t")
        assert await sh.committed_offsets("billing", "t") == {}
        await sh.commit_offsets("billing", {("t", 0): 1})
        assert {at: each.offset for at, each in (await sh.committed_offsets("billing", "t")).items()} == {0: 1}
        await sh.delete_topic("t")
        with pytest.raises(TopicNotFound):
            await sh.read("t", 0, 0)


async def test_r2_a_data_directory_serves_one_process(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)):
        with pytest.raises(WalInUse):
            async with StreamHouse.open(data_dir=str(tmp_path)):
                pass


async def test_s3_6_without_an_agent_nothing_is_led_here(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), embedded_agent=False) as sh:
        await sh.create_topic("t", 1)
        for call in (sh.produce("t", b"v"), sh.read("t", 0, 0), sh.list_offset("t", 0), sh.flush()):
            with pytest.raises(ConfigError, match="no agent"):
                await call


async def test_a_config_change_reaches_the_running_log(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        topic = await sh.create_topic("t", 1)
        await sh.produce("t", b"x" * 1000)
        await sh.stores.metadata.alter_topic_configs(topic.topic_id, set_configs={"max.message.bytes": "500"})
        async with asyncio.timeout(20):
            while True:
                try:
                    await sh.produce("t", b"x" * 1000)
                except LimitExceeded:
                    break
                await asyncio.sleep(0.01)


async def test_a_start_that_fails_leaves_the_directory_free(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), agent_id="one"):
        pass
    with pytest.raises(DurabilityMismatch):
        async with StreamHouse.open(data_dir=str(tmp_path), agent_id="one", durability="object"):
            pass
    async with StreamHouse.open(data_dir=str(tmp_path), agent_id="one") as sh:
        await sh.create_topic("t", 1)


class NoStore:
    """Objects that cannot be put."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, *arguments: Any, **options: Any) -> Any:
        raise StoreUnavailable("no server is there")


@pytest.mark.parametrize("durability", ["wal", "object"])
async def test_a_stop_without_a_store_ends_and_tells_what_stays_in_the_wal(tmp_path: Path, durability: str) -> None:
    options = {"data_dir": str(tmp_path), "durability": durability, "agent_stop_timeout": "100ms"}
    async with asyncio.timeout(60):
        async with StreamHouse.open(**options) as sh:
            await sh.create_topic("t", 1)
            async with asyncio.timeout(20):
                assert await sh.agent.wait_leading((await sh.topic("t")).partition_keys(), timeout_s=20)
            committer = sh.agent.log._committer
            committer.store = NoStore(committer.store)  # type: ignore[assignment]
            await sh.produce("t", b"v", acks=1)
        assert sh.left_behind.startswith("one batch is not in the log yet, and kept in the WAL in")
        async with StreamHouse.open(**{**options, "agent_stop_timeout": "30s"}) as sh:
            assert await sh.agent.wait_leading((await sh.topic("t")).partition_keys(), timeout_s=20)
            assert [record.value for record in await sh.read("t", 0, 0)] == [b"v"]
        assert sh.left_behind == ""


async def test_wrong_s3_credentials_show_before_anything_is_created(tmp_path: Path, s3_service: Any) -> None:
    options = {
        "data_dir": str(tmp_path),
        "metadata_url": f"sqlite://{tmp_path}/metadata.db",
        "store_url": f"s3://{s3_service.create_bucket()}/x",
        "store_endpoint_url": s3_service.endpoint_url,
        "store_region": s3_service.region,
        "store_access_key_id": s3_service.access_key,
    }
    with pytest.raises(StoreDenied):
        async with StreamHouse.open(**options, store_secret_access_key="wrong"):
            pass
    async with StreamHouse.open(**options, store_secret_access_key=s3_service.secret_key) as sh:
        assert await sh.topics() == []
        assert await sh.stores.metadata.list_agents() != []


async def test_what_a_deleted_topic_leaves_behind_does_not_keep_writers_out(tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_max_age": "10m", "memory_write_buffer_bytes": "2MiB"}
    async with StreamHouse.open(data_dir=str(tmp_path), **options) as sh:
        gone = (await sh.create_topic("gone", 2)).partition_keys()
        await sh.create_topic("stays", 1)
        for number in range(18):
            await sh.produce("gone", bytes(100_000), partition=number % 2)
        await sh.delete_topic("gone")
        async with asyncio.timeout(30):
            while sh.agent.log.led_keys() & set(gone):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await sh.produce("stays", bytes(1_000_000), partition=0)
        assert sh.agent.log.buffer_bytes < 1_100_000, "what is left of the deleted topic is in the WAL alone"


def settings_of(tmp_path: Path) -> dict[str, object]:
    return {"data_dir": str(tmp_path), "wal_file_bytes": "1MiB"}


async def test_what_is_not_bytes_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with StreamHouse.open(**settings_of(tmp_path)) as sh:
        await sh.create_topic("t", 1)
        wrong: Any
        for wrong, says in [
            ({"value": "text"}, "value is a str, not bytes.*encode"),
            ({"value": 5}, "value is an int, not bytes"),
            ({"value": b"v", "key": "k"}, "key is a str, not bytes.*encode"),
            ({"value": b"v", "headers": {"h": b"1"}}, "headers is a dict.*items"),
            ({"value": b"v", "headers": [("h", "1")]}, "header 'h' is a str, not bytes"),
            ({"value": b"v", "headers": [(b"h", b"1")]}, "a header's name is a bytes, not a str"),
            ({"value": b"v", "headers": ["h"]}, r"a header is 'h'.*pairs"),
        ]:
            with pytest.raises(InvalidRecord, match=says):
                await sh.produce("t", **wrong)
        for wrong, says in [
            ([], "no records"),
            (b"v", "records is a bytes"),
            ([b"v"], "one of the records is a bytes"),
            ([Record(value="v", timestamp_ms=1)], "value is a str"),  # type: ignore[arg-type]
        ]:
            with pytest.raises(InvalidRecord, match=says):
                await sh.produce_batch("t", 0, wrong)
        assert await sh.read("t", 0, 0) == []


async def test_other_wrong_arguments_are_refused_with_what_to_do(tmp_path: Path) -> None:
    async with StreamHouse.open(**settings_of(tmp_path)) as sh:
        await sh.create_topic("t", 1)
        wrong: Any = "some"
        with pytest.raises(InvalidAcks, match=r"acks is 'some'.*\"all\", 1 or 0"):
            await sh.produce("t", b"v", acks=wrong)
        with pytest.raises(InvalidAcks):
            await sh.produce("t", b"v", acks=True)
        wrong = b"t"
        with pytest.raises(InvalidRequest, match="topic is a bytes, not a str"):
            await sh.produce(wrong, b"v")
        with pytest.raises(InvalidRequest, match="topic is a bytes"):
            await sh.create_topic(wrong, 1)
        with pytest.raises(InvalidRequest, match="partition is a str, not an int"):
            await sh.read("t", "0", 0)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="partition_count is a str"):
            await sh.create_topic("u", "3")  # type: ignore[arg-type]
        with pytest.raises(InvalidTopicConfig, match=r"retention\.ms' is an int, not a str.*'1000'"):
            await sh.create_topic("u", 1, configs={"retention.ms": 1000})  # type: ignore[dict-item]
        with pytest.raises(InvalidRequest, match="'t' is no partition"):
            await sh.commit_offsets("g", {"t": 5})  # type: ignore[dict-item]


async def test_a_closed_platform_says_so(tmp_path: Path) -> None:
    async with StreamHouse.open(**settings_of(tmp_path)) as sh:
        await sh.create_topic("t", 1)
    calls = [sh.produce("t", b"v"), sh.read("t", 0, 0), sh.topics(), sh.create_topic("u", 1)]
    for call in [*calls, sh.committed_offsets("g", "t")]:
        with pytest.raises(InvalidRequest, match="this StreamHouse is closed"):
            await call


async def test_with_and_await_say_how_to_open_a_platform(tmp_path: Path) -> None:
    opening: Any = StreamHouse.open(**settings_of(tmp_path))
    with pytest.raises(InvalidRequest, match="async with"), opening:
        pass
    with pytest.raises(InvalidRequest, match="async with"):
        await opening


async def test_errors_name_the_topic_and_not_its_id(tmp_path: Path) -> None:
    async with StreamHouse.open(**settings_of(tmp_path)) as sh:
        await sh.create_topic("orders", 1, configs={"max.message.bytes": "500"})
        with pytest.raises(OffsetOutOfRange, match="the log of orders/0"):
            await sh.read("orders", 0, 99)
        with pytest.raises(LimitExceeded, match="orders/0"):
            await sh.produce("orders", b"x" * 600)
        with pytest.raises(PartitionNotFound, match="orders has partitions 0 to 0, not 3"):
            await sh.produce("orders", b"x", partition=3)
        with pytest.raises(TopicNotFound, match="nothing"):
            await sh.produce("nothing", b"x", partition=0)


async def test_writes_of_one_task_after_the_other_do_not_wait_for_another_partition(tmp_path: Path) -> None:
    async with StreamHouse.open(**settings_of(tmp_path)) as sh:
        first, _ = (await sh.create_topic("t", 2)).partition_keys()
        led = sh.agent.log.partition(first)
        assert led is not None
        with sh.agent.log.barrier(led):
            waiting = asyncio.create_task(sh.produce("t", b"a", partition=0))
            await asyncio.sleep(0.01)
            assert (await sh.produce("t", b"b", partition=1)).offset == 0
            assert not waiting.done()
        assert (await waiting).offset == 0


async def test_s1_16_a_write_to_a_partition_that_is_not_led_yet_asks_for_its_lease_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notification is lost, and the next look of the assigner is ten minutes away."""
    monkeypatch.setattr(FleetMember, "_on_change", lambda self, change: None)
    async with StreamHouse.open(**settings_of(tmp_path), assigner_interval="10m") as sh:
        async with asyncio.timeout(20):
            while sh.agent.member.stats.ticks < 2:  # noqa: ASYNC110 -- the start, and what the first heartbeat shows
                await asyncio.sleep(0.01)
        new = NewTopic(topic_id=TopicId(sh.randomness.uuid()), name="t", partition_count=1, configs={})
        topic = await sh.stores.metadata.create_topic(new)
        assert sh.agent.log.partition(topic.partition_keys()[0]) is None
        assert (await sh.produce("t", b"v")).offset == 0
