"""The cluster view, first by itself on SQLite, then as two agents on PostgreSQL see each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from streamhouse import StreamHouse
from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView, Endpoint
from streamhouse.broker.topics import WantedTopic
from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SystemRandomness
from streamhouse.metadata.contract import (
    AgentInfo,
    ChangeKind,
    HeldLease,
    Holder,
    MetadataStore,
    NewTopic,
    SlotKey,
    Topic,
    WriteMode,
)
from streamhouse.metadata.opening import open_metadata

WAIT_S = 30
ME = UUID(int=1)
WAL = UUID(int=9)

CALLER = Caller(protocol="test")


async def eventually(what: str, check: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not check():  # noqa: ASYNC110 -- it looks from outside, as a client does
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"still not: {what}") from None


# By itself.


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    url = f"sqlite://{tmp_path}/metadata.db"
    async with open_metadata(url, clock=SystemClock(), randomness=SystemRandomness()) as store:
        yield store


@asynccontextmanager
async def view_of(
    metadata: MetadataStore, agent_id: str = "me", address: str = "10.0.0.1:9092"
) -> AsyncIterator[ClusterView]:
    view = ClusterView(metadata=metadata, agent_id=agent_id, liveness_timeout_ms=60_000, heartbeat_interval_ms=50)
    me = await metadata.register_agent(AgentInfo(agent_id=agent_id, incarnation=ME, listeners={"kafka": address}))
    await view.start(me, {"inside": Endpoint(host="inner.example", port=1)})
    try:
        yield view
    finally:
        await view.close()


async def make_topic(metadata: MetadataStore, name: str, *, mode: WriteMode = WriteMode.LEASED) -> Topic:
    topic_id = TopicId(SystemRandomness().uuid())
    new = NewTopic(topic_id=topic_id, name=name, partition_count=2, configs={}, write_mode=mode)
    return await metadata.create_topic(new)


async def lead(metadata: MetadataStore, agent_id: str, keys: Sequence[PartitionKey | SlotKey]) -> None:
    incarnation = ME if agent_id == "me" else UUID(int=2)
    holder = Holder(agent_id=agent_id, incarnation=incarnation, wal_id=WAL)
    await metadata.acquire_leases(holder, keys, ttl_ms=60_000)


async def join(metadata: MetadataStore, agent_id: str, address: str) -> int:
    info = AgentInfo(
        agent_id=agent_id, incarnation=UUID(int=2), listeners={"kafka": address}, availability_zone="zone-b"
    )
    return (await metadata.register_agent(info)).node_id


async def test_the_cluster_has_one_id_in_kafkas_spelling(metadata: MetadataStore) -> None:
    async with view_of(metadata) as one, view_of(metadata, "other", "10.0.0.2:9092") as two:
        assert one.cluster_id == two.cluster_id
        assert len(one.cluster_id) == 22
        assert one.node_id != two.node_id


@pytest.mark.parametrize("address", ["not-listening:0", "", "nonsense", "host:", "host:99999", ":9092"])
async def test_an_agent_that_does_not_listen_is_no_broker(metadata: MetadataStore, address: str) -> None:
    async with view_of(metadata) as view:
        await join(metadata, "deaf", address or "x")
        await join(metadata, "hears", "[::1]:9093")
        await view.refresh()
        assert [(node.agent_id, node.host, node.port, node.rack) for node in view.nodes()] == [
            ("me", "10.0.0.1", 9092, "default"),
            ("hears", "::1", 9093, "zone-b"),
        ]
        assert view.controller() == view.nodes()[0]


async def test_clients_are_not_told_of_a_leader_that_does_not_listen(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        topic = await make_topic(metadata, "t")
        keys = topic.partition_keys()
        await join(metadata, "deaf", "not-listening:0")
        await lead(metadata, "deaf", keys)
        await view.refresh()
        assert [leader and leader.node.listens for leader in map(view.leader, keys)] == [False, False]
        assert view.leaders_of(topic) == [(-1, -1), (-1, -1)], "as clients are told"
        before = view.generation(topic.topic_id)
        node_id = await join(metadata, "deaf", "10.0.0.3:9092")
        await eventually("it is seen to listen", lambda: view.leaders_of(topic)[0][0] >= 0)
        leader = view.leader(keys[0])
        assert leader is not None
        assert (leader.node.node_id, leader.epoch) == (node_id, 1)
        assert view.leaders_of(topic) == [(node_id, 1), (node_id, 1)]
        assert view.generation(topic.topic_id) != before, "what was encoded before names no leader"


async def test_an_agent_that_does_not_know_a_leader_asks_the_store(
    metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with view_of(metadata) as view:
        monkeypatch.setattr(view, "_heard", lambda change: None)  # no notification arrives
        topic = await make_topic(metadata, "t")
        view.learned(topic)
        node_id = await join(metadata, "other", "10.0.0.3:9092")
        await lead(metadata, "other", topic.partition_keys())
        assert view.leaders_of(topic) == [(-1, -1), (-1, -1)]
        await view.find_leaders([topic])
        assert view.leaders_of(topic) == [(node_id, 1), (node_id, 1)]


async def test_a_store_that_does_not_answer_is_not_waited_for(
    metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(**_: object) -> list[object]:
        await asyncio.Event().wait()
        return []

    async with view_of(metadata) as view:
        topic = await make_topic(metadata, "t")
        view.learned(topic)
        monkeypatch.setattr(metadata, "list_leases", hangs)
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(view.find_leaders([topic], timeout_s=0.01) for _ in range(20)))
        assert view.leaders_of(topic) == [(-1, -1), (-1, -1)]


async def test_leases_of_others_are_seen_when_they_change_and_own_ones_only_when_told(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        await join(metadata, "other", "10.0.0.2:9092")
        topic = await make_topic(metadata, "t")
        mine, theirs = topic.partition_keys()
        slot = SlotKey(7)
        await lead(metadata, "me", [mine])
        await lead(metadata, "other", [theirs, slot])
        await eventually("their partition is seen", lambda: view.leader(theirs) is not None)
        await eventually("their slot is seen", lambda: view.coordinator(slot) is not None)
        assert view.leader(mine) is None, "the store's word about this agent's own leases counts for nothing"
        (lease,) = await metadata.list_leases(keys=[mine])
        before = view.generation(topic.topic_id)
        view.gained(lease)
        told = view.leader(mine)
        assert told is not None
        assert (told.node.node_id, told.epoch) == (view.node_id, lease.epoch)
        assert view.generation(topic.topic_id) != before
        view.ended(mine)
        await view.refresh()
        assert view.leader(mine) is None


async def test_a_take_over_from_here_is_seen(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        await join(metadata, "other", "10.0.0.2:9092")
        key = (await make_topic(metadata, "t")).partition_keys()[0]
        await lead(metadata, "me", [key])
        (lease,) = await metadata.list_leases(keys=[key])
        view.gained(lease)
        holder = Holder(agent_id="me", incarnation=ME, wal_id=WAL)
        view.ended(key)
        await metadata.release_leases(holder, [HeldLease(key=lease.key, epoch=lease.epoch)])
        await lead(metadata, "other", [key])

        def taken() -> bool:
            leader = view.leader(key)
            return leader is not None and leader.node.agent_id == "other" and leader.epoch == lease.epoch + 1

        await eventually("the other leads", taken)


async def led_here(metadata: MetadataStore, view: ClusterView) -> tuple[Topic, PartitionKey, HeldLease]:
    topic = await make_topic(metadata, "t")
    key = topic.partition_keys()[0]
    view.learned(topic)
    await lead(metadata, "me", [key])
    (lease,) = await metadata.list_leases(keys=[key])
    view.gained(lease)
    return topic, key, HeldLease(key=key, epoch=lease.epoch)


async def test_what_is_being_handed_over_is_this_agents_until_the_store_names_another(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        node_id = await join(metadata, "other", "10.0.0.2:9092")
        topic, key, held = await led_here(metadata, view)
        view.leaving(key)
        await view.refresh()
        assert view.leaving_epoch(key) == held.epoch
        assert view.leaders_of(topic)[0] == (view.node_id, held.epoch)
        await metadata.release_leases(Holder(agent_id="me", incarnation=ME, wal_id=WAL), [held])
        await lead(metadata, "other", [key])
        await eventually("the other leads", lambda: view.leaders_of(topic)[0] == (node_id, held.epoch + 1))
        assert view.leaving_epoch(key) is None


async def test_a_hand_over_that_ends_with_nobody_is_over_too(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        _, key, held = await led_here(metadata, view)
        view.leaving(key)
        await metadata.release_leases(Holder(agent_id="me", incarnation=ME, wal_id=WAL), [held])
        await eventually("it is over", lambda: view.leaving_epoch(key) is None)
        assert view.leader(key) is None


async def test_a_lease_lost_on_the_way_out_is_lost_and_one_that_comes_back_is_led(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        _, key, held = await led_here(metadata, view)
        view.leaving(key)
        view.ended(key)
        assert view.leader(key) is None
        (lease,) = await metadata.list_leases(keys=[key])
        view.gained(lease)
        view.leaving(key)
        view.gained(lease)
        assert view.leaving_epoch(key) is None
        assert view.leader(key) is not None
        assert held.epoch == lease.epoch


async def test_a_look_at_the_slots_finds_their_holders_before_any_notification(metadata: MetadataStore) -> None:
    view = ClusterView(metadata=metadata, agent_id="me", liveness_timeout_ms=60_000, heartbeat_interval_ms=50)
    slot = SlotKey(3)
    await join(metadata, "other", "10.0.0.2:9092")
    await lead(metadata, "other", [slot])
    assert view.coordinator(slot) is None
    await asyncio.gather(*(view.look_at_slots() for _ in range(3)))
    found = view.coordinator(slot)
    assert found is not None
    assert found.agent_id == "other"


async def test_a_slot_that_is_handed_over_is_this_agents_until_the_store_names_another(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        slot = SlotKey(3)
        await lead(metadata, "me", [slot])
        (lease,) = await metadata.list_leases(keys=[slot])
        view.gained(lease)
        view.leaving(slot)
        await view.look_at_slots()
        held = view.coordinator(slot)
        assert held is not None
        assert (held.agent_id, view.leaving_epoch(slot)) == ("me", lease.epoch)
        await metadata.release_leases(
            Holder(agent_id="me", incarnation=ME, wal_id=WAL), [HeldLease(key=slot, epoch=lease.epoch)]
        )
        await join(metadata, "other", "10.0.0.2:9092")
        await lead(metadata, "other", [slot])
        await view.look_at_slots()
        now = view.coordinator(slot)
        assert now is not None
        assert (now.agent_id, view.leaving_epoch(slot)) == ("other", None)


async def test_a_topic_made_elsewhere_is_found_before_anybody_has_told(metadata: MetadataStore) -> None:
    view = ClusterView(metadata=metadata, agent_id="me", liveness_timeout_ms=60_000, heartbeat_interval_ms=50)
    made = await make_topic(metadata, "elsewhere")
    assert view.topic("elsewhere") is None
    assert await view.find_topic("elsewhere") == made
    assert view.topic("elsewhere") == view.topic_by_id(made.topic_id) == made
    assert await view.find_topic("nowhere") is None
    assert await view.find_topic_by_id(TopicId(UUID(int=5))) is None


@pytest.mark.parametrize("leader", ["me", "other"])
async def test_a_lease_on_an_unknown_topic_makes_the_agent_look_for_the_topic(
    metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch, leader: str
) -> None:
    """The notice of its creation was lost. A leader answered "unknown topic" for a minute, until it looked at all."""
    async with view_of(metadata) as view:
        old = await make_topic(metadata, "t")
        view.learned(old)
        original = view._heard
        monkeypatch.setattr(view, "_heard", lambda change: change.kind is ChangeKind.TOPICS or original(change))
        await metadata.delete_topic(old.topic_id)
        topic = await make_topic(metadata, "t")
        if leader == "other":
            await join(metadata, "other", "10.0.0.3:9092")
        await lead(metadata, leader, topic.partition_keys())
        if leader == "me":
            for lease in await metadata.list_leases(keys=topic.partition_keys()):
                view.gained(lease)
        await eventually("the new topic is known", lambda: view.topic_by_id(topic.topic_id) is not None)
        assert view.topic_by_id(old.topic_id) is None
        assert -1 not in [node_id for node_id, _ in view.leaders_of(topic)]


async def test_a_topic_deleted_and_made_again_is_another(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        first = await make_topic(metadata, "t")
        assert await view.find_topic("t") == first
        await metadata.delete_topic(first.topic_id)
        await eventually("it is gone", lambda: view.topic("t") is None)
        new = NewTopic(topic_id=TopicId(UUID(int=77)), name="t", partition_count=5, configs={})
        second = await metadata.create_topic(new)
        await eventually("the new one is seen", lambda: view.topic("t") == second)
        assert view.topic_by_id(first.topic_id) is None
        grown = await metadata.grow_topic(second.topic_id, 9)
        await eventually("its growth is seen", lambda: view.topic("t") == grown)


async def test_an_older_word_about_a_topic_does_not_undo_a_newer_one(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        old = await make_topic(metadata, "t")
        new = await metadata.grow_topic(old.topic_id, 9)
        view.learned(new)
        view.learned(old)
        assert view.topic("t") == new


async def test_a_listing_under_way_does_not_undo_what_is_heard_meanwhile(
    metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a topic that was just created is unknown again, and its leaders elsewhere for up to a minute."""
    asked, answer, list_topics = asyncio.Event(), asyncio.Event(), metadata.list_topics

    async def slowly() -> list[Topic]:
        found = await list_topics()
        asked.set()
        await answer.wait()
        return found

    gone = await make_topic(metadata, "gone")
    async with view_of(metadata) as view:
        await join(metadata, "other", "10.0.0.2:9092")
        monkeypatch.setattr(metadata, "list_topics", slowly)
        listing = asyncio.create_task(view.all_topics())
        await asked.wait()
        made = await make_topic(metadata, "made")
        await lead(metadata, "other", made.partition_keys())
        await metadata.delete_topic(gone.topic_id)
        await eventually("it is led", lambda: all(view.leader(key) is not None for key in made.partition_keys()))
        await eventually("it is gone", lambda: view.topic("gone") is None)
        answer.set()
        assert await listing == [gone]
        assert (view.topic("made"), view.topic("gone")) == (made, None)
        assert all(view.leader(key) is not None for key in made.partition_keys())


async def test_leaderless_partitions_have_a_live_leader_at_epoch_0(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        await join(metadata, "other", "10.0.0.2:9092")
        topic = await make_topic(metadata, "cheap", mode=WriteMode.LEADERLESS)
        await view.refresh()
        leaders = [view.leader(key) for key in topic.partition_keys()]
        assert [leader.epoch for leader in leaders if leader is not None] == [0, 0]
        assert {leader.node.agent_id for leader in leaders if leader is not None} == {"me", "other"}


async def test_this_agent_has_an_address_for_each_listener(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        await join(metadata, "other", "10.0.0.2:9092")
        await view.refresh()
        me, other = view.nodes()
        assert view.endpoint(me, "inside") == Endpoint(host="inner.example", port=1)
        assert view.endpoint(me, "outside") == Endpoint(host="10.0.0.1", port=9092)
        assert view.endpoint(other, "inside") == Endpoint(host="10.0.0.2", port=9092)


async def test_waiting_for_leaders_ends_with_the_last_one_or_in_time(metadata: MetadataStore) -> None:
    async with view_of(metadata) as view:
        await join(metadata, "other", "10.0.0.2:9092")
        topic = await make_topic(metadata, "t")
        first, second = topic.partition_keys()
        await lead(metadata, "other", [first])
        assert not await view.wait_led([first, second], timeout_s=0.05)
        waiting = asyncio.create_task(view.wait_led([first, second], timeout_s=WAIT_S))
        await lead(metadata, "other", [second])
        assert await waiting


# Two agents on PostgreSQL.


@asynccontextmanager
async def agent(tmp_path: Path, dsn: str, name: str) -> AsyncIterator[StreamHouse]:
    async with StreamHouse.open(
        data_dir=str(tmp_path / name),
        metadata_url=dsn,
        store_url=f"file://{tmp_path}/objects",
        agent_id=name,
        agent_zone=f"zone-{name}",
        kafka_enabled=True,
        kafka_listen="127.0.0.1:0",
        agent_heartbeat_interval="200ms",
        agent_liveness_timeout="2s",
        lease_ttl="3s",
        lease_renew_interval="500ms",
        assigner_interval="300ms",
    ) as sh:
        yield sh


def view_in(sh: StreamHouse) -> ClusterView:
    return sh.agent.broker.view


def leaders(sh: StreamHouse, keys: Sequence[PartitionKey]) -> list[tuple[str, int] | None]:
    found = [view_in(sh).leader(key) for key in keys]
    return [None if leader is None else (leader.node.agent_id, leader.epoch) for leader in found]


async def test_two_agents_see_each_other_and_every_leader_that_moves(tmp_path: Path, postgres_database: str) -> None:
    async with agent(tmp_path, postgres_database, "a") as a:
        topic = await a.agent.broker.topics.create(WantedTopic(name="t", partition_count=8, configs={}), caller=CALLER)
        keys = topic.partition_keys()
        assert {led[0] for led in leaders(a, keys) if led} == {"a"}, "led when create returns"
        async with AsyncExitStack() as stack:
            b = await stack.enter_async_context(agent(tmp_path, postgres_database, "b"))
            assert await view_in(b).find_topic("t") == topic
            await eventually("both list both", lambda: len(view_in(a).nodes()) == len(view_in(b).nodes()) == 2)
            assert view_in(a).nodes() == view_in(b).nodes()
            assert view_in(a).controller() == view_in(b).controller()
            assert [node.rack for node in view_in(a).nodes()] == ["zone-a", "zone-b"]

            def shared() -> bool:
                seen = leaders(a, keys)
                return seen == leaders(b, keys) and {led[0] for led in seen if led} == {"a", "b"} and None not in seen

            await eventually("partitions are shared, and both know by whom", shared)

            def slots_agree() -> bool:
                slots = [SlotKey(number) for number in range(50)]
                seen = [view_in(a).coordinator(slot) for slot in slots]
                return seen == [view_in(b).coordinator(slot) for slot in slots] and None not in seen

            await eventually("and so are the coordinator slots", slots_agree)
            before = leaders(a, keys)
        await eventually("what b led is a's again", lambda: {led and led[0] for led in leaders(a, keys)} == {"a"})
        await eventually("b is no broker any more", lambda: len(view_in(a).nodes()) == 1)
        for was, now in zip(before, leaders(a, keys), strict=True):
            assert was is not None
            assert now is not None
            assert now[1] > was[1] if was[0] == "b" else now[1] >= was[1], "an epoch never goes back"


async def test_a_node_id_is_kept_through_a_restart(tmp_path: Path, postgres_database: str) -> None:
    async with agent(tmp_path, postgres_database, "a") as a:
        first = view_in(a).node_id
        async with agent(tmp_path, postgres_database, "b") as b:
            assert view_in(b).node_id != first
    async with agent(tmp_path, postgres_database, "a") as a:
        assert view_in(a).node_id == first


async def test_producer_ids_are_never_given_twice_by_two_agents(tmp_path: Path, postgres_database: str) -> None:
    async with agent(tmp_path, postgres_database, "a") as a, agent(tmp_path, postgres_database, "b") as b:
        ids = await asyncio.gather(
            *(sh.agent.broker.producer_ids.next(caller=CALLER) for _ in range(1_500) for sh in (a, b))
        )
        assert len(set(ids)) == 3_000
