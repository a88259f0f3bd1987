"""The group APIs from request bytes to response bytes, every version, with a real coordinator on SQLite behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import Endpoint, Node
from streamhouse.broker.groups.coordinator import GroupCoordinator
from streamhouse.broker.slots.slots import Slots
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import MetadataUnavailable, TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import COORDINATOR_SLOTS
from streamhouse.core.randomness import SeededRandomness
from streamhouse.gateway.kafka.api import Call, ClientConnection, ServerMemory, apis
from streamhouse.gateway.kafka.handlers import register_all
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.schema import read_request, read_response, write_request, write_response
from streamhouse.metadata.contract import CommittedOffset, Holder, NewTopic, SlotKey, Topic
from streamhouse.metadata.sqlite.store import SqliteMetadata

register_all()

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, OFFSET_DELETE = (
    *range(8, 17),
    42,
    47,
)
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 68, 69
ZERO = UUID(int=0)


def versions(key: int) -> list[int]:
    return list(range(apis()[key].min_version, apis()[key].max_version + 1))


class View:
    node_id = 1

    def __init__(self, store: SqliteMetadata) -> None:
        self._store = store
        self._known: list[Topic] = []
        self.me = self.node = Node(node_id=1, agent_id="a", host="registered", port=1, rack="")
        self.node: Node | None

    def topics(self) -> list[Topic]:
        return self._known

    def leaving_epoch(self, slot: SlotKey) -> int | None:
        return None

    async def look_at_slots(self) -> None:
        pass

    async def wait_changed(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    async def all_topics(self) -> list[Topic]:
        self._known = await self._store.list_topics()
        return self._known

    async def find_topic(self, name: str) -> Topic | None:
        try:
            return await self._store.get_topic(name)
        except TopicNotFound:
            return None

    async def find_topic_by_id(self, topic_id: TopicId) -> Topic | None:
        try:
            return await self._store.get_topic_by_id(topic_id)
        except TopicNotFound:
            return None

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        return next((topic for topic in self._known if topic.topic_id == topic_id), None)

    def coordinator(self, slot: SlotKey) -> Node | None:
        return self.node

    def endpoint(self, node: Node, listener: str) -> Endpoint:
        return Endpoint(host=f"{listener}-host", port=9092)


class Topics:
    def __init__(self, view: View) -> None:
        self._view = view

    async def find(self, ref: str | UUID, *, caller: Caller) -> Topic | None:
        assert caller.client_id == "tester"
        return await (self._view.find_topic(ref) if isinstance(ref, str) else self._view.find_topic_by_id(TopicId(ref)))


class Broker:
    """The broker as a client sees it: bytes in, bytes out."""

    def __init__(self, store: SqliteMetadata, topic: Topic) -> None:
        self.topic = topic
        self.store = store
        self.view = View(store)
        self.groups = GroupCoordinator(
            metadata=store,
            view=self.view,
            clock=SystemClock(),
            randomness=SeededRandomness(3),
            slots=Slots(view=self.view),
        )

    async def ask(self, key: int, version: int, /, **fields: Any) -> Message:
        parts: Any = SimpleNamespace(view=self.view, topics=Topics(self.view), groups=self.groups)
        call = Call(
            api_key=key,
            version=version,
            correlation_id=1,
            client=ClientConnection(host="10.0.0.1", listener="inside", client_id="tester"),
            broker=parts,
            memory=ServerMemory(SystemClock(), max_fetch_sessions=0),
        )
        request = read_request(key, version, memoryview(write_request(key, version, fields)))
        handler = apis()[key].cold
        assert handler is not None
        async with asyncio.timeout(10):
            answer = await handler(call, request)
        return read_response(key, version, memoryview(write_response(key, version, answer)))

    async def join(self, version: int = 9, group: str = "g", **changes: Any) -> Message:
        fields: dict[str, Any] = {
            "group_id": group,
            "session_timeout": 10_000,
            "rebalance_timeout": 60_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0"}],
            **changes,
        }
        answer = await self.ask(JOIN, version, **fields)
        if answer.error_code == 79:
            answer = await self.ask(JOIN, version, **{**fields, "member_id": answer.member_id})
        return answer

    async def stable(self, group: str = "g") -> Message:
        joined = await self.join(group=group)
        await self.ask(
            SYNC,
            5,
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[{"member_id": joined.member_id, "assignment": b"all"}],
        )
        return joined

    async def commit(self, version: int = 9, *, offset: int = 7, note: str = "m", **changes: Any) -> Message:
        partitions = [
            {"partition_index": index, "committed_offset": offset, "committed_metadata": note} for index in (0, 9)
        ]
        topics = [
            {"name": "orders", "topic_id": self.topic.topic_id, "partitions": partitions},
            {"name": "nothing", "topic_id": UUID(int=5), "partitions": partitions[:1]},
        ]
        fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        return await self.ask(COMMIT, version, **{**fields, **changes})

    async def consumer(self, version: int, epoch: int, **changes: Any) -> Message:
        fields: dict[str, Any] = {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": epoch,
            "rebalance_timeout": 60_000 if epoch == 0 else -1,
            "subscribed_topic_names": ["orders"] if epoch == 0 else None,
            "topic_partitions": [] if epoch == 0 else None,
        }
        return await self.ask(CONSUMER_HEARTBEAT, version, **{**fields, **changes})


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    ids = SeededRandomness(1)
    async with SqliteMetadata(tmp_path / "metadata.db", clock=SystemClock(), randomness=ids) as store:
        assert isinstance(store, SqliteMetadata)
        topic = NewTopic(topic_id=TopicId(ids.uuid()), name="orders", partition_count=2, configs={})
        made = Broker(store, await store.create_topic(topic))
        holder = Holder(agent_id="a", incarnation=ids.uuid(), wal_id=ids.uuid())
        slots = [SlotKey(number) for number in range(COORDINATOR_SLOTS)]
        for outcome in await store.acquire_leases(holder, slots, ttl_ms=60_000):
            assert outcome.lease is not None
            await made.groups.slots.gained(outcome.lease, guard=Always())
        yield made
        await made.groups.close()


class Always:
    def valid(self) -> bool:
        return True


@pytest.mark.parametrize("version", versions(FIND))
async def test_a_coordinator_is_named_by_the_address_of_the_clients_own_listener(broker: Broker, version: int) -> None:
    answer = await broker.ask(FIND, version, key="g", key_type=0, coordinator_keys=["g", "h"])
    found = answer.coordinators if version >= 4 else [answer]
    assert len(found) == (2 if version >= 4 else 1)
    assert (found[0].error_code, found[0].node_id, found[0].host, found[0].port) == (0, 1, "inside-host", 9092)


async def test_coordinators_that_are_not_there(broker: Broker) -> None:
    assert (await broker.ask(FIND, 3, key="t", key_type=1)).error_code == 53
    assert (await broker.ask(FIND, 6, key_type=2, coordinator_keys=["s"])).coordinators[0].error_code == 42
    for number in range(COORDINATOR_SLOTS):
        broker.groups.slots.lost(SlotKey(number))
    broker.view.node = None
    answer = await broker.ask(FIND, 3, key="g", key_type=0)
    assert (answer.error_code, answer.node_id) == (15, -1)


@pytest.mark.parametrize("version", versions(JOIN))
async def test_join_in_every_version(broker: Broker, version: int) -> None:
    joined = await broker.join(version)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
    assert joined.member_id.startswith("tester-")
    assert [member.member_id for member in joined.members] == [joined.member_id]
    refused = await broker.join(version, session_timeout=1)
    assert (refused.error_code, refused.generation_id) == (26, -1)


async def test_a_member_id_is_required_from_version_4_on(broker: Broker) -> None:
    fields = {"group_id": "g", "session_timeout": 10_000, "protocol_type": "consumer"}
    protocols = [{"name": "range", "metadata": b""}]
    assert (await broker.ask(JOIN, 3, **fields, member_id="", protocols=protocols)).error_code == 0
    told = await broker.ask(JOIN, 4, **{**fields, "group_id": "h"}, member_id="", protocols=protocols)
    assert told.error_code == 79
    assert told.member_id


@pytest.mark.parametrize("version", versions(SYNC))
async def test_sync_in_every_version(broker: Broker, version: int) -> None:
    joined = await broker.join()
    fields = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    if version >= 5:
        fields |= {"protocol_type": "consumer", "protocol_name": "range"}
    assigned = [{"member_id": joined.member_id, "assignment": b"all"}]
    answer = await broker.ask(SYNC, version, **fields, assignments=assigned)
    assert (answer.error_code, answer.assignment) == (0, b"all")
    assert (await broker.ask(SYNC, version, **{**fields, "generation_id": 9}, assignments=[])).error_code == 22


@pytest.mark.parametrize("version", versions(HEARTBEAT))
async def test_heartbeat_in_every_version(broker: Broker, version: int) -> None:
    joined = await broker.stable()
    fields = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
    assert (await broker.ask(HEARTBEAT, version, **fields)).error_code == 0
    assert (await broker.ask(HEARTBEAT, version, **{**fields, "group_id": ""})).error_code == 24
    assert (await broker.ask(HEARTBEAT, version, **{**fields, "group_id": "other"})).error_code == 25


@pytest.mark.parametrize("version", versions(LEAVE))
async def test_leave_in_every_version(broker: Broker, version: int) -> None:
    joined = await broker.stable()
    if version < 3:
        assert (await broker.ask(LEAVE, version, group_id="g", member_id=joined.member_id)).error_code == 0
        assert (await broker.ask(LEAVE, version, group_id="g", member_id=joined.member_id)).error_code == 25
        return
    members = [{"member_id": joined.member_id}, {"member_id": "x", "group_instance_id": "s"}]
    answer = await broker.ask(LEAVE, version, group_id="g", members=members)
    assert answer.error_code == 0
    assert [(member.member_id, member.error_code) for member in answer.members] == [(joined.member_id, 0), ("x", 25)]


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_commit_in_every_version(broker: Broker, version: int) -> None:
    orders, nothing = (await broker.commit(version)).topics
    assert [(each.partition_index, each.error_code) for each in orders.partitions] == [(0, 0), (9, 3)]
    assert nothing.partitions[0].error_code == (100 if version >= 10 else 3)
    refused = await broker.commit(version, generation_id_or_member_epoch=4, member_id="m")
    assert refused.topics[0].partitions[0].error_code == 25
    missing = await broker.commit(version, group_id="missing", generation_id_or_member_epoch=4, member_id="m")
    assert missing.topics[0].partitions[0].error_code == (69 if version >= 9 else 22)


@pytest.mark.parametrize("version", versions(FETCH))
async def test_fetch_in_every_version(broker: Broker, version: int) -> None:
    await broker.commit()
    topics: list[dict[str, Any]] = [
        {"name": "orders", "partition_indexes": [0, 1]},
        {"name": "nothing", "partition_indexes": [0]},
    ]
    if version >= 10:
        topics = [{"topic_id": broker.topic.topic_id, "partition_indexes": [0, 1]}]
        topics.append({"topic_id": UUID(int=5), "partition_indexes": [0]})
    if version >= 8:
        answer = await broker.ask(FETCH, version, groups=[{"group_id": "g", "topics": topics}, {"group_id": "h"}])
        group, all_of_none = answer.groups
        assert (all_of_none.group_id, all_of_none.topics, all_of_none.error_code) == ("h", [], 0)
    else:
        group = await broker.ask(FETCH, version, group_id="g", topics=topics)
    orders, nothing = group.topics
    assert [(each.committed_offset, each.metadata) for each in orders.partitions] == [(7, "m"), (-1, "")]
    assert nothing.partitions[0].committed_offset == -1
    assert nothing.partitions[0].error_code == (100 if version >= 10 else 0)


@pytest.mark.parametrize("offset", [-1, -2, -1001])
async def test_a_negative_offset_and_a_nul_are_committed_and_fetched_as_in_kafka(broker: Broker, offset: int) -> None:
    """kafkajs commits -1 to recover from OFFSET_OUT_OF_RANGE; librdkafka's tests send a NUL."""
    await broker.commit()
    answer = await broker.commit(offset=offset, note="a\0b")
    assert answer.topics[0].partitions[0].error_code == 0
    (group,) = (await broker.ask(FETCH, 9, groups=[{"group_id": "g", "topics": None}])).groups
    assert [(each.committed_offset, each.metadata) for each in group.topics[0].partitions] == [(offset, "a\0b")]
    deleted = await broker.ask(
        OFFSET_DELETE, 0, group_id="g", topics=[{"name": "orders", "partitions": [{"partition_index": 0}]}]
    )
    assert deleted.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("version", [version for version in versions(FETCH) if version >= 2])
async def test_fetch_of_all_topics(broker: Broker, version: int) -> None:
    await broker.commit()
    if version >= 8:
        (group,) = (await broker.ask(FETCH, version, groups=[{"group_id": "g", "topics": None}])).groups
    else:
        group = await broker.ask(FETCH, version, group_id="g", topics=None)
    (topic,) = group.topics
    assert topic.topic_id == broker.topic.topic_id if version >= 10 else topic.name == "orders"
    assert [each.committed_offset for each in topic.partitions] == [7]


@pytest.mark.parametrize("version", versions(FETCH))
async def test_an_agent_that_does_not_coordinate_the_group_tells_what_the_store_has(
    broker: Broker, version: int
) -> None:
    await broker.commit()
    for number in range(COORDINATOR_SLOTS):
        broker.groups.slots.lost(SlotKey(number))
    code, topics = await fetch_one(broker, version)
    assert (code, topics[0].partitions[0].error_code, topics[0].partitions[0].committed_offset) == (0, 0, 7)


@pytest.mark.parametrize("version", versions(FETCH))
async def test_no_offset_is_never_said_for_want_of_knowing(broker: Broker, version: int) -> None:
    async def away(*args: object) -> dict[PartitionKey, CommittedOffset]:
        raise MetadataUnavailable("away")

    broker.store.fetch_offsets = away  # type: ignore[method-assign, assignment]
    code, topics = await fetch_one(broker, version)
    assert (code or topics[0].partitions[0].error_code) == 14


async def fetch_one(broker: Broker, version: int) -> tuple[int, list[Message]]:
    """The error of the whole, which early versions do not have, and the topics."""
    named = {"topic_id": broker.topic.topic_id} if version >= 10 else {"name": "orders"}
    topics = [{**named, "partition_indexes": [0]}]
    if version >= 8:
        (answer,) = (await broker.ask(FETCH, version, groups=[{"group_id": "g", "topics": topics}])).groups
    else:
        answer = await broker.ask(FETCH, version, group_id="g", topics=topics)
    return answer.error_code if version >= 2 else 0, answer.topics


async def test_offsets_of_partitions_not_heard_of_here_yet_are_the_stores_to_judge(broker: Broker) -> None:
    before = broker.topic
    await broker.store.grow_topic(before.topic_id, 4)

    async def as_it_was(name: str) -> Topic | None:
        return before if name == before.name else None

    broker.view.find_topic = as_it_was  # type: ignore[method-assign]
    partitions = [{"partition_index": index, "committed_offset": 7} for index in (3, 4, -1)]
    committed = await broker.commit(topics=[{"name": "orders", "partitions": partitions}])
    assert [each.error_code for each in committed.topics[0].partitions] == [0, 3, 3]
    asked = [{"name": "orders", "partition_indexes": [3, 4, -1]}]
    (group,) = (await broker.ask(FETCH, 9, groups=[{"group_id": "g", "topics": asked}])).groups
    assert [each.committed_offset for each in group.topics[0].partitions] == [7, -1, -1]


async def test_a_group_that_is_named_a_thousand_times_is_answered_once(broker: Broker) -> None:
    await broker.stable()
    assert len((await broker.ask(DESCRIBE, 6, groups=["g"] * 1000)).groups) == 1
    assert len((await broker.ask(CONSUMER_DESCRIBE, 1, group_ids=["g"] * 1000)).groups) == 1
    fetched = await broker.ask(FETCH, 8, groups=[{"group_id": "g", "topics": None}] * 1000)
    assert [group.group_id for group in fetched.groups] == ["g"]


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_describe_in_every_version(broker: Broker, version: int) -> None:
    await broker.stable()
    fields = {"include_authorized_operations": True} if version >= 3 else {}
    stable, missing = (await broker.ask(DESCRIBE, version, groups=["g", "nobody"], **fields)).groups
    assert (stable.error_code, stable.group_state, stable.protocol_data) == (0, "Stable", "range")
    (member,) = stable.members
    assert (member.client_id, member.client_host, member.member_assignment) == ("tester", "/10.0.0.1", b"all")
    assert (missing.error_code, missing.group_state) == (69 if version >= 6 else 0, "Dead")
    if version >= 3:
        assert stable.authorized_operations > 0


@pytest.mark.parametrize("version", versions(LIST))
async def test_list_in_every_version(broker: Broker, version: int) -> None:
    await broker.stable()
    answer = await broker.ask(LIST, version)
    assert [(group.group_id, group.protocol_type) for group in answer.groups] == [("g", "consumer")]
    if version >= 4:
        assert (await broker.ask(LIST, version, states_filter=["Empty"])).groups == []
    if version >= 5:
        assert [g.group_type for g in (await broker.ask(LIST, version, types_filter=["classic"])).groups] == ["classic"]


@pytest.mark.parametrize("version", versions(DELETE))
async def test_delete_in_every_version(broker: Broker, version: int) -> None:
    await broker.stable()
    await broker.commit(group_id="empty")
    answer = await broker.ask(DELETE, version, groups_names=["g", "empty", "nobody", ""])
    codes = {result.group_id: result.error_code for result in answer.results}
    assert codes == {"g": 68, "empty": 0, "nobody": 69, "": 24}


async def test_offset_delete(broker: Broker) -> None:
    await broker.commit()
    partitions = [{"partition_index": index} for index in (0, 9)]
    topics = [{"name": "orders", "partitions": partitions}, {"name": "nothing", "partitions": partitions[:1]}]
    answer = await broker.ask(OFFSET_DELETE, 0, group_id="g", topics=topics)
    codes = [[each.error_code for each in topic.partitions] for topic in answer.topics]
    assert (answer.error_code, codes) == (0, [[0, 3], [3]])
    assert (await broker.ask(OFFSET_DELETE, 0, group_id="nobody", topics=topics)).error_code == 69


@pytest.mark.parametrize("version", versions(CONSUMER_HEARTBEAT))
async def test_consumer_heartbeat_in_every_version(broker: Broker, version: int) -> None:
    joined = await broker.consumer(version, 0)
    assert (joined.error_code, joined.member_epoch, joined.heartbeat_interval) == (0, 1, 5_000)
    (topic,) = joined.assignment.topic_partitions
    assert (topic.topic_id, topic.partitions) == (broker.topic.topic_id, [0, 1])
    assert (await broker.consumer(version, 1)).assignment is None
    fenced = await broker.consumer(version, 7)
    assert (fenced.error_code, fenced.assignment) == (110, None)
    assert fenced.error_message
    assert (await broker.consumer(version, -1)).member_epoch == -1


async def test_a_consumer_without_an_id_is_named_in_version_0_only(broker: Broker) -> None:
    assert (await broker.consumer(0, 0, member_id="")).member_id
    assert (await broker.consumer(1, 0, member_id="")).error_code == 42


async def test_a_pattern_that_is_none(broker: Broker) -> None:
    refused = await broker.consumer(1, 0, subscribed_topic_names=None, subscribed_topic_regex="(")
    assert refused.error_code == 128


@pytest.mark.parametrize("version", versions(CONSUMER_DESCRIBE))
async def test_consumer_describe_in_every_version(broker: Broker, version: int) -> None:
    await broker.consumer(1, 0, rack_id="r", subscribed_topic_regex="^or.*")
    await broker.stable("classic")
    fields = {"group_ids": ["g", "classic", "nobody"], "include_authorized_operations": True}
    group, classic, nobody = (await broker.ask(CONSUMER_DESCRIBE, version, **fields)).groups
    assert (group.group_state, group.group_epoch, group.assignor_name) == ("Stable", 1, "uniform")
    (member,) = group.members
    (assigned,) = member.assignment.topic_partitions
    assert (assigned.topic_name, assigned.partitions) == ("orders", [0, 1])
    assert (member.rack_id, member.subscribed_topic_names, member.subscribed_topic_regex) == ("r", ["orders"], "^or.*")
    assert (classic.error_code, nobody.error_code) == (69, 69)


SUBSCRIPTION = b"\0\0\0\0\0\1\0\6orders\0\0\0\0"
BOTH = b"\0\0\0\0\0\1\0\6orders\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0"
"""The assignment of both partitions."""


async def test_a_group_becomes_a_consumer_group_and_a_classic_group_again(broker: Broker) -> None:
    protocols = [{"name": "range", "metadata": SUBSCRIPTION}]
    joined = await broker.join(protocols=protocols)
    classic = {"group_id": "g", "member_id": joined.member_id}
    given = [{"member_id": joined.member_id, "assignment": BOTH}]
    await broker.ask(SYNC, 5, **classic, generation_id=joined.generation_id, assignments=given)
    assert [group.group_type for group in (await broker.ask(LIST, 5)).groups] == ["classic"]

    new = await broker.consumer(1, 0)
    assert (new.error_code, new.assignment.topic_partitions) == (0, [])
    assert [group.group_type for group in (await broker.ask(LIST, 5)).groups] == ["consumer"]
    assert (await broker.ask(HEARTBEAT, 4, **classic, generation_id=joined.generation_id)).error_code == 27
    again = await broker.join(member_id=joined.member_id, protocols=protocols)
    assert (again.error_code, again.leader, again.members, again.protocol_name) == (0, "", [], "range")
    assert again.generation_id == new.member_epoch
    synced = await broker.ask(
        SYNC,
        5,
        **classic,
        generation_id=again.generation_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    )
    assert (synced.error_code, synced.protocol_name, len(synced.assignment)) == (0, "range", len(BOTH) - 4)
    (topic,) = (await broker.consumer(1, new.member_epoch)).assignment.topic_partitions
    assert len(topic.partitions) == 1
    (group,) = (await broker.ask(CONSUMER_DESCRIBE, 1, group_ids=["g"])).groups
    assert {member.member_id: member.member_type for member in group.members} == {"m": 1, joined.member_id: 0}

    assert (await broker.consumer(1, -1)).error_code == 0
    assert [group.group_type for group in (await broker.ask(LIST, 5)).groups] == ["classic"]
    assert (await broker.ask(HEARTBEAT, 4, **classic, generation_id=again.generation_id)).error_code == 27
    last = await broker.join(member_id=joined.member_id, protocols=protocols)
    assert (last.leader, last.generation_id) == (joined.member_id, again.generation_id + 1)
    assert (await broker.ask(LEAVE, 5, group_id="g", members=[{"member_id": joined.member_id}])).error_code == 0
