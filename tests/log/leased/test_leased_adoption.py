"""R13: what Spark's sink has uploaded gets its offsets behind a barrier, once, whoever leads and whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from node import Node, Stage, acked, batch, settle, stored, values_in

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import (
    BackPressureRejected,
    CorruptBlob,
    MetadataUnavailable,
    NotLeader,
    ObjectNotFound,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.log.leased import adoption as adoption_module
from streamhouse.log.leased.adoption import Adoption, Share, shares_of
from streamhouse.log.leased.partition import Phase
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.maintenance.adoptions import Adoptions
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    Durability,
    Intent,
    IntentKey,
    IntentSlice,
    IntentVerdict,
    MetadataStore,
    ObjectRef,
    Topic,
)
from streamhouse.metadata.opening import open_metadata
from streamhouse.objectstore.faults import FaultyStore, StoreFault
from streamhouse.objectstore.keys import SharedBlobKey
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.metering import Meter, MeteredStore
from streamhouse.objectstore.objects import Operation
from streamhouse.objectstore.topic_requests import PARTS_PER_REQUEST, SHARED_NAME
from streamhouse.testing.services import PostgresService
from streamhouse.wire.batch import validate

WAIT_S = 10


class Meddled:
    """A metadata store whose named calls are done by the test."""

    def __init__(self, inner: MetadataStore, **calls: Callable[..., Any]) -> None:
        self._inner = inner
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return self._calls.get(name) or getattr(self._inner, name)


class Away:
    """The object store takes nothing while this is so."""

    now = False

    def next_fault(self, operation: Operation, key: str) -> StoreFault | None:
        return StoreFault.UNAVAILABLE if self.now and operation is Operation.PUT else None


class World:
    """A stage with a topic, and what a sink does to it."""

    def __init__(self, stage: Stage, topic: Topic) -> None:
        self.stage = stage
        self.topic = topic
        self.key = PartitionKey(topic.topic_id, 0)

    @property
    def metadata(self) -> MetadataStore:
        return self.stage.cluster.metadata

    async def upload(self, *batches: bytes, partition: int = 0, damage: bool = False) -> list[IntentSlice]:
        """One blob; a slice for each batch."""
        cluster = self.stage.cluster
        created_ms = await self.metadata.now_ms()
        writer = BlobWriter(created_at_ms=created_ms)
        body = writer.add(self.topic.name, PartitionKey(self.topic.topic_id, partition))
        for each in batches:
            body.append(each, validate(each))
        blob = writer.finish()
        data = bytearray(b"".join(blob.buffers))
        if damage:
            data[-1] ^= 1
        key = str(SharedBlobKey(created_ms=created_ms, object_id=cluster.randomness.uuid()))
        await cluster.store.put(key, bytes(data))
        ref = ObjectRef(key=key, size_bytes=blob.size, created_at_ms=created_ms)
        (piece,) = blob.slices
        slices, position = [], piece.byte_offset
        for each in batches:
            header = validate(each)
            smallest_ms, largest_ms = declared_times_ms(header)
            slices.append(
                IntentSlice(
                    partition=partition,
                    object=ref,
                    byte_offset=position,
                    byte_length=header.size,
                    record_count=header.record_count,
                    encoding=KAFKA_BATCHES,
                    min_timestamp_ms=smallest_ms,
                    max_timestamp_ms=largest_ms,
                )
            )
            position += header.size
        return slices

    async def register(self, slices: list[IntentSlice], *, query: str = "query", batch_id: int = 0) -> Share:
        key = IntentKey(query_id=query, topic_id=self.topic.topic_id, batch_id=batch_id)
        outcome = await self.metadata.register_intent(Intent(key=key, slices=tuple(slices)))
        assert outcome.verdict is IntentVerdict.REGISTERED
        (share,) = shares_of([(key, slices)], slices[0].partition)
        return share

    async def intend(self, *batches: bytes, query: str = "query", batch_id: int = 0, damage: bool = False) -> Share:
        return await self.register(await self.upload(*batches, damage=damage), query=query, batch_id=batch_id)

    def adoption(self, node: Node, **calls: Callable[..., Any]) -> Adoption:
        return Adoption(
            metadata=Meddled(self.metadata, **calls),  # type: ignore[arg-type]
            store=self.stage.cluster.store,
            log=node.log,
            randomness=SeededRandomness(3),
        )

    async def is_complete(self, share: Share) -> bool:
        intent = await self.metadata.get_intent(share.intent)
        return intent is not None and intent.complete


async def lead(world: World, node: Node) -> None:
    """With a lease that has run out by the time somebody else asks for it; its holder does not notice."""
    await node.lead(world.topic, ttl_ms=1)
    world.stage.cluster.clock.advance(10)
    await asyncio.sleep(0.005)


@pytest.fixture(params=["sqlite", "postgres"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    stage = Stage(tmp_path)
    if request.param == "postgres":
        service: PostgresService = request.getfixturevalue("postgres_service")
        dsn = service.create_database()
        stage.cluster.metadata = open_metadata(dsn, clock=stage.cluster.clock, randomness=SeededRandomness(5))
    async with stage:
        yield World(stage, await stage.cluster.topic())


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[World]:
    """On SQLite alone: what it proves does not depend on the backend."""
    async with Stage(tmp_path) as stage:
        yield World(stage, await stage.cluster.topic())


async def test_r13_adopts_behind_all_that_was_acknowledged_and_goes_on_from_there(world: World) -> None:
    node = await world.stage.node()
    await lead(world, node)
    await acked(node.log.append(world.key, batch("a", "b"), acks=1))
    share = await world.intend(batch("s1", "s2"), batch("s3"))
    adoption = world.adoption(node)
    await adoption.verify(share)
    await adoption.adopt(share)
    after = node.log.append(world.key, batch("c"), acks=-1)
    await acked(after)
    assert after.base_offset == 5
    assert await stored(world.stage.cluster, world.key) == list(enumerate(["a", "b", "s1", "s2", "s3", "c"]))
    assert await world.is_complete(share)
    assert adoption.stats.adopted_records == 3


async def test_r13_no_offset_is_given_before_the_verdict(world: World) -> None:
    node = await world.stage.node()
    await lead(world, node)
    share = await world.intend(batch("s1"))
    sent, go = asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> Any:
        sent.set()
        await go.wait()
        return await world.metadata.adopt_intent(*args, **kwargs)

    adopting = asyncio.create_task(world.adoption(node, adopt_intent=slow).adopt(share))
    await sent.wait()
    with pytest.raises(BackPressureRejected) as refused:
        node.log.append(world.key, batch("too early"), acks=1)
    assert refused.value.retriable
    assert node.log.partition(world.key) is not None, "readers are served meanwhile"
    writable = asyncio.create_task(node.log.wait_open([world.key]))
    await settle()
    assert not writable.done()
    go.set()
    await adopting
    async with asyncio.timeout(WAIT_S):
        await writable
    append = node.log.append(world.key, batch("a"), acks=-1)
    await acked(append)
    assert append.base_offset == 1
    assert await stored(world.stage.cluster, world.key) == [(0, "s1"), (1, "a")]


async def test_r13_a_lost_reply_is_resolved_by_sending_the_same_again(world: World) -> None:
    node = await world.stage.node()
    await lead(world, node)
    share = await world.intend(batch("s1", "s2"))
    replies = iter([True, True, False])

    async def lossy(*args: Any, **kwargs: Any) -> Any:
        outcome = await world.metadata.adopt_intent(*args, **kwargs)
        if next(replies):
            raise MetadataUnavailable("the reply is lost")
        return outcome

    await world.adoption(node, adopt_intent=lossy).adopt(share)
    append = node.log.append(world.key, batch("a"), acks=-1)
    await acked(append)
    assert append.base_offset == 2
    assert await stored(world.stage.cluster, world.key) == [(0, "s1"), (1, "s2"), (2, "a")]


async def test_r13_a_lost_reply_whose_intent_was_replaced_ends_the_leadership(small: World) -> None:
    """The adoption took place, the next batch was registered, and nobody can tell any more where the first one is."""
    node = await small.stage.node()
    await lead(small, node)
    share = await small.intend(batch("s1"))
    first = True

    async def lossy(*args: Any, **kwargs: Any) -> Any:
        nonlocal first
        outcome = await small.metadata.adopt_intent(*args, **kwargs)
        if first:
            first = False
            await small.intend(batch("s2"), batch_id=1)
            raise MetadataUnavailable("the reply is lost")
        return outcome

    with pytest.raises(NotLeader):
        await small.adoption(node, adopt_intent=lossy).adopt(share)
    with pytest.raises(NotLeader):
        node.log.append(small.key, batch("a"), acks=1)
    assert [key for key, _ in node.dropped] == [small.key]
    await lead(small, node)
    append = node.log.append(small.key, batch("a"), acks=-1)
    await acked(append)
    assert append.base_offset == 1


async def test_r13_an_adoption_cut_short_ends_the_leadership(small: World) -> None:
    node = await small.stage.node()
    await lead(small, node)
    share = await small.intend(batch("s1"))
    sent = asyncio.Event()

    async def never_answers(*args: Any, **kwargs: Any) -> Any:
        await small.metadata.adopt_intent(*args, **kwargs)
        sent.set()
        await asyncio.Event().wait()

    adopting = asyncio.create_task(small.adoption(node, adopt_intent=never_answers).adopt(share))
    await sent.wait()
    adopting.cancel()
    await asyncio.gather(adopting, return_exceptions=True)
    with pytest.raises(NotLeader):
        node.log.append(small.key, batch("a"), acks=1)
    await lead(small, node)
    append = node.log.append(small.key, batch("a"), acks=-1)
    await acked(append)
    assert await stored(small.stage.cluster, small.key) == [(0, "s1"), (1, "a")]


async def test_r13_a_later_leader_completes_it_and_the_former_is_fenced(world: World) -> None:
    old = await world.stage.node("agent-1")
    await lead(world, old)
    await acked(old.log.append(world.key, batch("a"), acks=-1))
    share = await world.intend(batch("s1"))
    new = await world.stage.node("agent-2")
    await lead(world, new)
    await world.adoption(new).adopt(share)
    with pytest.raises(NotLeader):
        await world.adoption(old).adopt(share)
    assert [key for key, _ in old.dropped] == [world.key]
    append = new.log.append(world.key, batch("b"), acks=-1)
    await acked(append)
    assert await stored(world.stage.cluster, world.key) == [(0, "a"), (1, "s1"), (2, "b")]


async def test_r13_a_share_that_was_adopted_before_changes_nothing(world: World) -> None:
    node = await world.stage.node()
    await lead(world, node)
    share = await world.intend(batch("s1", "s2"))
    adoption = world.adoption(node)
    await adoption.adopt(share)
    await acked(node.log.append(world.key, batch("a"), acks=-1))
    await adoption.adopt(share)
    append = node.log.append(world.key, batch("b"), acks=-1)
    await acked(append)
    assert append.base_offset == 3
    assert await stored(world.stage.cluster, world.key) == list(enumerate(["s1", "s2", "a", "b"]))


async def test_r13_on_a_single_node_the_wal_is_flushed_first_and_replays_behind_it(small: World) -> None:
    node = await small.stage.node(durability=Durability.WAL)
    await lead(small, node)
    await acked(node.log.append(small.key, batch("a", "b"), acks=-1))
    assert await small.stage.cluster.high_watermark(small.key) == 0, "only the WAL has it"
    share = await small.intend(batch("s1"))
    await small.adoption(node).adopt(share)
    after = node.log.append(small.key, batch("c"), acks=-1)
    await acked(after)
    assert after.base_offset == 3
    await node.crash()
    again = await small.stage.node(durability=Durability.WAL)
    await lead(small, again)
    await again.log.flush()
    assert await stored(small.stage.cluster, small.key) == list(enumerate(["a", "b", "s1", "c"]))


async def test_r13_readers_get_the_adopted_records_in_order(small: World) -> None:
    node = await small.stage.node()
    reader = LogReader(
        metadata=small.metadata,
        store=small.stage.cluster.store,
        tail=node.log._tail,
        leading=node.log,
        clock=small.stage.cluster.clock,
        options=ReaderOptions(durability=Durability.OBJECT),
    )
    await lead(small, node)
    await acked(node.log.append(small.key, batch("a"), acks=-1))
    waiting = asyncio.create_task(reader.read(small.key, 1, max_bytes=1 << 20, max_wait_ms=WAIT_S * 1000))
    await settle()
    await small.adoption(node).adopt(await small.intend(batch("s1", "s2")))
    woken = await waiting
    assert values_in(*woken.batches) == [(1, "s1"), (2, "s2")]
    await acked(node.log.append(small.key, batch("b"), acks=-1))
    found, offset = [], 0
    while offset < 4:
        result = await reader.read(small.key, offset, max_bytes=1 << 20)
        found += values_in(*result.batches)
        offset = result.next_offset
    await reader.close()
    assert found == list(enumerate(["a", "s1", "s2", "b"]))


async def test_a_store_that_is_away_does_not_keep_the_barrier_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption_module, "_BARRIER_FLUSH_S", 0.05)
    away = Away()
    store = FaultyStore(MemoryStore(clock=ManualClock()), plan=away, randomness=SeededRandomness(1))
    async with Stage(tmp_path, store) as stage:
        small = World(stage, await stage.cluster.topic())
        node = await stage.node(durability=Durability.WAL)
        await lead(small, node)
        share = await small.intend(batch("s1"))
        flushed = asyncio.Event()

        async def flush_and_take_one_more(keys: Any) -> None:
            """What comes between the flush before the barrier and the one behind it."""
            if not flushed.is_set():
                flushed.set()
                node.log.append(small.key, batch("a"), acks=1)
                away.now = True
                return
            await real_flush(keys)

        real_flush = node.log.flush
        monkeypatch.setattr(node.log, "flush", flush_and_take_one_more)
        with pytest.raises(BackPressureRejected, match="not adopted yet"):
            await small.adoption(node).adopt(share)
        append = node.log.append(small.key, batch("b"), acks=1)
        await acked(append)
        assert append.base_offset == 1
        assert not await small.is_complete(share)


async def test_a_partition_that_closes_waits_for_the_adoption_under_way(small: World) -> None:
    node = await small.stage.node()
    await lead(small, node)
    share = await small.intend(batch("s1", "s2"))
    sent, go = asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> Any:
        sent.set()
        await go.wait()
        return await small.metadata.adopt_intent(*args, **kwargs)

    adopting = asyncio.create_task(small.adoption(node, adopt_intent=slow).adopt(share))
    await sent.wait()
    closing = asyncio.create_task(node.log.close_partition(small.key))
    await settle()
    assert not closing.done()
    go.set()
    await adopting
    assert await closing == 2
    partition = node.log.partition(small.key)
    assert partition is not None
    assert partition.phase is Phase.CLOSING


async def test_damage_is_found_before_anything_is_adopted(small: World) -> None:
    node = await small.stage.node()
    await lead(small, node)
    adoption = small.adoption(node)
    with pytest.raises(CorruptBlob, match=r"bytes \d+ to \d+ of"):
        await adoption.verify(await small.intend(batch("s1"), damage=True))
    from_producer = await small.intend(batch("s1", producer=(7, 0, 0)), query="other")
    with pytest.raises(CorruptBlob, match="idempotent producer"):
        await adoption.verify(from_producer)
    (piece,) = from_producer.slices
    await small.stage.cluster.store.delete([piece.object.key])
    with pytest.raises(ObjectNotFound):
        await adoption.verify(from_producer)


async def test_s2_31_the_reads_of_the_check_are_the_topics(small: World) -> None:
    node = await small.stage.node()
    await lead(small, node)
    share = await small.intend(batch("s1"), batch("s2"))
    adoption, meter = small.adoption(node), Meter()
    meter.topics.name_of = {small.topic.topic_id: "t"}.get
    adoption.store = MeteredStore(adoption.store, meter=meter, clock=ManualClock())
    await adoption.verify(share)
    assert meter.topics.read() == {SHARED_NAME: {}, "t": {Operation.RANGE_GET: 2 * PARTS_PER_REQUEST}}


class Loop:
    """The agent's loop, and what it says of its health."""

    def __init__(self, world: World, node: Node) -> None:
        self.health: dict[str, Exception | None] = {}
        self.verified = 0
        self.adoption = world.adoption(node)
        self.adoptions = Adoptions(
            adoption=self.adoption,
            metadata=world.metadata,
            log=node.log,
            clock=world.stage.cluster.clock,
            report=self.health.__setitem__,
        )
        world.stage.push_async_callback(self.adoptions.close)
        self.adoptions.start()


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            answer = condition()
            if await answer if asyncio.iscoroutine(answer) else answer:
                return
            await asyncio.sleep(0.01)


async def test_r13_a_leader_hears_of_an_intent_and_adopts_it(world: World) -> None:
    node = await world.stage.node()
    await lead(world, node)
    Loop(world, node)
    await settle()
    first = await world.intend(batch("s1"))
    await eventually(lambda: world.is_complete(first))
    second = await world.intend(batch("s2"), batch_id=1)
    await eventually(lambda: world.is_complete(second))
    await node.log.wait_open([world.key])  # the store may show the adoption before the leader has heard of it
    await acked(node.log.append(world.key, batch("a"), acks=-1))
    assert await stored(world.stage.cluster, world.key) == [(0, "s1"), (1, "s2"), (2, "a")]


async def test_r13_a_new_leader_looks_for_what_nobody_adopted(world: World) -> None:
    node = await world.stage.node()
    Loop(world, node)
    share = await world.intend(batch("s1"))
    await settle()
    assert not await world.is_complete(share)
    await lead(world, node)
    await eventually(lambda: world.is_complete(share))


async def test_what_cannot_be_adopted_shows_in_health_and_holds_up_nobody_else(small: World) -> None:
    node = await small.stage.node()
    await lead(small, node)
    damaged = await small.intend(batch("bad"), query="damaged", damage=True)
    loop = Loop(small, node)
    await eventually(lambda: loop.health.get("adoption"))
    assert "batch 0 of query damaged cannot be adopted" in str(loop.health["adoption"])
    good = await small.intend(batch("s1"), query="good")
    await eventually(lambda: small.is_complete(good))
    assert not await small.is_complete(damaged)
    tried = loop.adoptions._failures[(damaged.intent, 0)].tries
    await settle(500)
    assert loop.adoptions._failures[(damaged.intent, 0)].tries == tried, "not again before its time"
    small.stage.cluster.clock.advance(10_000)
    loop.adoptions._look_now.set()
    await eventually(lambda: loop.adoptions._failures[(damaged.intent, 0)].tries == tried + 1)
    assert await stored(small.stage.cluster, small.key) == [(0, "s1")]
    await small.metadata.delete_topic(small.topic.topic_id)
    loop.adoptions._look_now.set()
    await eventually(lambda: loop.health.get("adoption") is None)
