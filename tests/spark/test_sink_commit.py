"""The sink without Spark: rows to blobs, blobs to intents, intents into the log; each batch once (R8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from sink_ground import address_of, everything, values_of

from streamhouse.app.platform import StreamHouse
from streamhouse.core.errors import (
    BatchRegressed,
    InvalidRecord,
    LimitExceeded,
    MetadataUnavailable,
    NotAdopted,
    StoreUnavailable,
    TopicNotFound,
)
from streamhouse.core.ids import TopicId
from streamhouse.metadata.contract import Intent, IntentKey, IntentOutcome, MetadataStore
from streamhouse.spark import sink_blobs, sink_commit
from streamhouse.spark.connection import Connection
from streamhouse.spark.sink_blobs import BlobSink, StampClock
from streamhouse.spark.sink_commit import BatchId, SinkCommit, TopicShare, merged
from streamhouse.spark.sink_options import parse_write_options
from streamhouse.testing.services import PostgresService, S3Service
from streamhouse.wire.murmur2 import partition_for_key
from streamhouse.wire.records import Header


class Ground:
    def __init__(self, api: StreamHouse, connection: Connection) -> None:
        self.api = api
        self.connection = connection

    @property
    def metadata(self) -> MetadataStore:
        return self.api.stores.metadata

    async def upload(
        self, columns: dict[str, pa.Array], *, topic: str | None = "out", **options: str
    ) -> list[TopicShare]:
        """Write as a task does, in a thread, because its calls are plain functions."""
        given = dict(options) if topic is None else {"topic": topic, **options}
        chosen = parse_write_options(given, streaming=True)
        places = {name: place for place, name in enumerate(columns)}
        known = None if topic is None else await self.metadata.get_topic(topic)
        now_ms = await self.metadata.now_ms()
        stamps = StampClock(planned_ms=now_ms, ahead_ms=now_ms - self.api.clock.wall_ms())

        def task() -> list[TopicShare]:
            sink = BlobSink(self.connection, chosen, places, topic=known, stamps=stamps, turn=0)
            sink.add(pa.table(columns).to_batches(max_chunksize=100))
            return sink.finish()

        return await asyncio.to_thread(task)

    async def commit(self, query: str, batch_id: int, shares: list[TopicShare], timeout_ms: int = 10_000) -> None:
        await SinkCommit(self.metadata, timeout_ms=timeout_ms).commit(
            BatchId(query_id=query, batch_id=batch_id), merged(shares)
        )

    async def write(self, query: str, batch_id: int, *values: str) -> None:
        await self.commit(query, batch_id, await self.upload({"value": pa.array(values)}))


@pytest.fixture(params=["sqlite", "postgres"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    chosen: dict[str, Any] = {"data_dir": str(tmp_path / "data")}
    if request.param == "postgres":
        postgres: PostgresService = request.getfixturevalue("postgres_service")
        s3: S3Service = request.getfixturevalue("s3_service")
        chosen |= {
            "metadata_url": postgres.create_database(),
            "store_url": f"s3://{s3.create_bucket()}",
            "store_endpoint_url": s3.endpoint_url,
            "store_access_key_id": s3.access_key,
            "store_secret_access_key": s3.secret_key,
            "store_region": s3.region,
        }
    async with StreamHouse.open(**chosen) as api:
        topic = await api.create_topic("out", 3)
        assert await api.agent.wait_leading(topic.partition_keys(), timeout_s=30)
        connection = Connection(address_of(api))
        try:
            yield Ground(api, connection)
        finally:
            await asyncio.to_thread(connection.close)


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Ground]:
    """A single node: what it proves does not depend on the stores."""
    async with StreamHouse.open(data_dir=str(tmp_path / "data")) as api:
        await api.create_topic("out", 3)
        connection = Connection(address_of(api))
        try:
            yield Ground(api, connection)
        finally:
            await asyncio.to_thread(connection.close)


async def test_rows_arrive_with_keys_times_headers_and_partitions(ground: Ground) -> None:
    await ground.api.produce("out", b"before", partition=1)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    shares = await ground.upload(
        {
            "key": pa.array([b"a", b"b", None, b"a"]),
            "value": pa.array(["1", None, "3", "4"]),
            "timestamp": pa.array([1_700_000_000_000_123, 5_000, None, 6_000], pa.timestamp("us", "UTC")),
            "headers": pa.array([[("h", b"x"), ("h", None)], None, [], None], header),
            "partition": pa.array([None, 1, None, None], pa.int32()),
        }
    )
    await ground.commit("query", 0, shares)
    await ground.api.produce("out", b"after", partition=1)
    found = await everything(ground.api, "out")
    home = found[partition_for_key(b"a", 3)]
    first, last = (record for record in home if record.key == b"a")
    assert (first.value, first.timestamp_ms) == (b"1", 1_700_000_000_000)
    assert first.headers == (Header("h", b"x"), Header("h", None))
    assert last.value == b"4", "rows of one key stay in order"
    ones = [record.value for record in found[1] if record.key != b"a"]
    assert ones[0] == b"before"
    assert None in ones
    assert ones[-1] == b"after"
    assert sum(len(records) for records in found.values()) == 6


async def test_r8_a_batch_that_comes_again_is_in_the_log_once(ground: Ground) -> None:
    await ground.write("query", 0, "a", "b")
    await ground.write("query", 0, "other", "rows", "this time")
    await ground.write("query", 1, "c")
    await ground.write("another query", 0, "d")
    assert await values_of(ground.api, "out") == ["a", "b", "c", "d"]


async def test_r8_two_drivers_with_the_same_batch_write_it_once(ground: Ground) -> None:
    await asyncio.gather(*(ground.write("query", 0, f"{driver}-{row}") for driver in "xyz" for row in "1"))
    (value,) = await values_of(ground.api, "out")
    assert value in ("x-1", "y-1", "z-1")


async def test_r8_a_restored_old_checkpoint_is_refused_and_drops_nothing_silently(ground: Ground) -> None:
    await ground.write("query", 0, "a")
    await ground.write("query", 5, "b")
    with pytest.raises(BatchRegressed, match="batch 4"):
        await ground.write("query", 4, "lost?")
    assert await values_of(ground.api, "out") == ["a", "b"]


async def test_r8_a_restored_checkpoint_that_is_one_batch_old_drops_nothing_silently(ground: Ground) -> None:
    """Spark gives the last batch's number to a batch of other rows. A repeated one has as many as the first time."""
    batch = BatchId(query_id="query", batch_id=3)
    strict = SinkCommit(ground.metadata, timeout_ms=10_000, refuses_other_rows=True)
    await strict.commit(batch, await ground.upload({"value": pa.array(["a", "b"])}))
    await strict.commit(batch, await ground.upload({"value": pa.array(["b", "a"])}))
    with pytest.raises(BatchRegressed, match="batch 3 of query query has 3 rows for out, which has 2 rows"):
        await strict.commit(batch, await ground.upload({"value": pa.array(["b", "c", "d"])}))
    assert await values_of(ground.api, "out") == ["a", "b"]


async def test_a_lost_reply_of_the_commit_is_sent_again(small: Ground) -> None:
    shares = await small.upload({"value": pa.array(["a"])})
    lost = iter([True, True, False])

    async def lossy(intent: Any) -> Any:
        outcome = await small.metadata.register_intent(intent)
        if next(lost):
            raise MetadataUnavailable("the connection was cut")
        return outcome

    meddled = _Meddled(small.metadata, register_intent=lossy)
    await SinkCommit(meddled, timeout_ms=10_000).commit(BatchId(query_id="q", batch_id=0), shares)  # type: ignore[arg-type]
    assert await values_of(small.api, "out") == ["a"]


async def test_without_a_leader_it_says_so_and_the_batch_is_completed_later(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path / "data")) as api:
        await api.create_topic("out", 3)
    async with StreamHouse.open(data_dir=str(tmp_path / "data"), embedded_agent=False) as api:
        ground = Ground(api, Connection(address_of(api)))
        shares = await ground.upload({"value": pa.array(["a"]), "partition": pa.array([2], pa.int32())})
        with pytest.raises(
            NotAdopted, match=r"batch 3 of query q is safe, but .* into partition 2 of out after 0\.2 s"
        ):
            await ground.commit("q", 3, shares, timeout_ms=200)
        again = await ground.upload({"value": pa.array(["later"])})
        with pytest.raises(NotAdopted, match="batch 3 of query q is safe"):
            await ground.commit("q", 4, again, timeout_ms=200)
        await asyncio.to_thread(ground.connection.close)
    async with StreamHouse.open(data_dir=str(tmp_path / "data")) as api:
        ground = Ground(api, Connection(address_of(api)))
        await ground.write("q", 3, "the batch once more, by a driver that was started again")
        assert await values_of(api, "out") == ["a"]
        await asyncio.to_thread(ground.connection.close)


async def test_a_topic_deleted_meanwhile_is_an_error_and_no_success(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path / "data"), embedded_agent=False) as api:
        topic = await api.create_topic("out", 3)
        ground = Ground(api, Connection(address_of(api)))
        writing = asyncio.create_task(ground.write("q", 0, "a"))
        async with asyncio.timeout(10):
            while await api.stores.metadata.last_batch("q", topic.topic_id) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await api.delete_topic("out")
        with pytest.raises(TopicNotFound, match="topic out was deleted while q wrote to it"):
            await writing
        await asyncio.to_thread(ground.connection.close)


class LosesAnIntent:
    """A metadata store after a fail-over that took a registered intent back (R23)."""

    def __init__(self, inner: MetadataStore, last_batch: int | None) -> None:
        self.inner = inner
        self.registrations = self.looks = 0
        self._last_batch = last_batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def register_intent(self, intent: Intent) -> IntentOutcome:
        self.registrations += 1
        return await self.inner.register_intent(intent)

    async def get_intent(self, key: IntentKey) -> Intent | None:
        self.looks += 1
        return None if self.looks == 1 else await self.inner.get_intent(key)

    async def last_batch(self, query_id: str, topic_id: TopicId) -> int | None:
        return self._last_batch if self.looks == 1 else await self.inner.last_batch(query_id, topic_id)


@pytest.mark.parametrize(("batch_id", "last_batch"), [(0, None), (1, 0), (1, 1)])
async def test_r23_a_batch_whose_intent_the_store_has_lost_is_registered_again_and_not_called_written(
    small: Ground, batch_id: int, last_batch: int | None
) -> None:
    for earlier in range(batch_id):
        await small.write("q", earlier, "earlier")
    store = LosesAnIntent(small.metadata, last_batch)
    shares = await small.upload({"value": pa.array(["a"])})
    await SinkCommit(cast(MetadataStore, store), timeout_ms=10_000).commit(
        BatchId(query_id="q", batch_id=batch_id), merged(shares)
    )
    assert store.registrations == 2
    assert sorted(await values_of(small.api, "out")) == ["a"] + ["earlier"] * batch_id


async def test_rows_name_their_topics(small: Ground) -> None:
    await small.api.create_topic("other", 1)
    shares = await small.upload(
        {"value": pa.array(["1", "2", "3"]), "topic": pa.array(["out", "other", "out"])}, topic=None
    )
    await small.commit("query", 0, shares)
    assert await values_of(small.api, "out") == ["1", "3"]
    assert await values_of(small.api, "other") == ["2"]
    with pytest.raises(TopicNotFound, match="'nowhere'"):
        await small.upload({"value": pa.array(["1"]), "topic": pa.array(["nowhere"])}, topic=None)
    with pytest.raises(InvalidRecord, match="a row has no topic"):
        await small.upload({"value": pa.array(["1"]), "topic": pa.array([None], pa.string())}, topic=None)


async def test_many_rows_become_several_blobs_and_slices_in_order(
    small: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_blobs, "_SLICE_BYTES", 20_000)
    rows = [f"{number:06d}-{'x' * 500}" for number in range(1000)]
    columns = {"value": pa.array(rows), "partition": pa.array([1] * 1000, pa.int32())}
    shares = await small.upload(columns, compression="none", blobBytes="128KiB", batchBytes="8KiB")
    (share,) = shares
    assert len({piece.object.key for piece in share.slices}) >= 3
    assert len(share.slices) > 10
    assert max(piece.byte_length for piece in share.slices) < 30_000
    await small.commit("query", 0, shares)
    found = await everything(small.api, "out")
    assert [(record.value or b"").decode() for record in found[1]] == rows


async def test_the_topics_own_configs_hold_for_the_sink(small: Ground) -> None:
    compacted = {"cleanup.policy": "compact"}
    await small.api.create_topic("compacted", 1, configs=compacted)
    with pytest.raises(InvalidRecord, match="has no key"):
        await small.upload({"value": pa.array(["1"])}, topic="compacted")
    await small.api.create_topic("short", 1, configs={"max.message.bytes": "1000"})
    with pytest.raises(LimitExceeded, match=r"max\.message\.bytes allows 1000"):
        await small.upload({"value": pa.array(["x" * 2000])}, topic="short", compression="none")
    await small.api.create_topic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"})
    times = pa.array([5_000], pa.timestamp("us", "UTC"))
    await small.commit("q", 0, await small.upload({"value": pa.array(["1"]), "timestamp": times}, topic="stamped"))
    (record,) = (await everything(small.api, "stamped"))[0]
    assert record.timestamp_ms > 1_600_000_000_000


async def test_uploads_that_vacuum_may_have_taken_are_refused(small: Ground) -> None:
    shares = await small.upload({"value": pa.array(["a"])})
    await small.metadata.raise_gc_horizon(await small.metadata.now_ms() + 1)
    with pytest.raises(StoreUnavailable, match="run the query again"):
        await small.commit("query", 0, shares)
    assert await values_of(small.api, "out") == []


async def test_more_slices_than_an_intent_takes_are_refused_before_anything_is_registered(
    small: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_commit, "MAX_INTENT_SLICES", 1)
    columns = {"value": pa.array(["a", "b"]), "partition": pa.array([0, 1], pa.int32())}
    with pytest.raises(LimitExceeded, match="has 2 slices for out; 1 at most"):
        await small.commit("query", 0, await small.upload(columns))
    assert await small.metadata.last_batch("query", (await small.api.topic("out")).topic_id) is None


async def test_a_leaderless_topic_takes_it_by_the_commit_itself(small: Ground) -> None:
    topic = await small.api.create_topic("diskless", 2, configs={"diskless.enable": "true"})
    columns = {"value": pa.array(["a", "b"]), "partition": pa.array([0, 1], pa.int32())}
    await small.commit("query", 0, await small.upload(columns, topic="diskless"))
    await small.commit("query", 0, await small.upload(columns, topic="diskless"))
    states = await small.metadata.get_partitions(topic.partition_keys())
    assert [state.high_watermark for state in states] == [1, 1]


class _Meddled:
    def __init__(self, inner: MetadataStore, **calls: Callable[..., Any]) -> None:
        self._inner = inner
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return self._calls.get(name) or getattr(self._inner, name)
