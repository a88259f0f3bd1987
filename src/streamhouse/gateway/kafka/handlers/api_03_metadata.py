"""Metadata (3), versions 0–13: the brokers, the topics asked for, and the leaders of their partitions.

No topics named: all of them (null; in version 0 an empty list); an empty list: none. By name or, from version 12 on, by
id. A topic that does not exist is created when the client and the setting kafka.auto_create_topics allow it.

Different from Apache Kafka: a topic that is created on the way is led when the answer leaves, so that its first answer
is not an error. Before a partition without a leader gets error 5, the store is asked, for at most half a second:
another agent may have become its leader a moment ago. A partition has one replica, its leader, or none. The controller
is the live broker with the smallest id; every broker serves admin requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final
from uuid import UUID

from streamhouse.broker.cluster_view import NO_LEADER
from streamhouse.broker.topics import Topic
from streamhouse.core.errors import MalformedRequest, MetadataError, StreamHouseError
from streamhouse.core.ids import check_topic_name
from streamhouse.gateway.kafka.api import Buffers, Call, hot_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from streamhouse.gateway.kafka.hot.metadata import (
    NO_OPERATIONS,
    BrokerRow,
    TopicRow,
    encode_response,
    encode_topic,
)
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.primitives import ZERO_UUID
from streamhouse.gateway.kafka.wire.schema import read_request

_KEY: Final = 3
_IDS_FROM: Final = 12
_PARTITIONS_AT_A_TIME: Final = 2_000  # a millisecond or two of encoding; then others have their turn
_MANY_UNKNOWN: Final = 20  # above it, one look at all topics is cheaper than one at each
_MAX_CREATED: Final = 100  # topics of one request; a client that wants more asks again
_LAST_TRY: Final = 3

_Found = Topic | TopicRow


@hot_api(_KEY, (0, 13))
def metadata(call: Call, body: memoryview) -> Awaitable[Buffers]:
    return _answer(call, read_request(_KEY, call.version, body))


async def _answer(call: Call, request: Message) -> Buffers:
    found = await _find(call, request)
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NO_OPERATIONS
    view = call.broker.view
    asked = False
    for tries in range(1, _LAST_TRY + 1):
        nodes = view.nodes()
        blocks, without_leader = await _encode(call, found, operations, hurry=tries == _LAST_TRY)
        if without_leader and not asked:
            asked = True
            await view.find_leaders(without_leader)
        elif view.nodes() is nodes:
            break  # else a leader in the blocks may be missing among the brokers
    controller = view.controller()
    return encode_response(
        call.version,
        brokers=_brokers(call),
        cluster_id=view.cluster_id,
        controller_id=-1 if controller is None else controller.node_id,
        topics=blocks,
        cluster_operations=CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_OPERATIONS,
    )


def _brokers(call: Call) -> list[BrokerRow]:
    view, rows = call.broker.view, list[BrokerRow]()
    for node in view.nodes():
        endpoint = view.endpoint(node, call.client.listener)
        rows.append(BrokerRow(node_id=node.node_id, host=endpoint.host, port=endpoint.port, rack=node.rack))
    return rows


# Which topics.


async def _find(call: Call, request: Message) -> Sequence[_Found]:
    view = call.broker.view
    if request.topics is None or (call.version == 0 and not request.topics):
        return await _all(call)
    wanted = _distinct(call, request)
    unknown = {name for name, _ in wanted if name is not None and view.topic(name) is None}
    if len(unknown) > _MANY_UNKNOWN:
        await _all(call)
    ask_store = len(unknown) <= _MANY_UNKNOWN
    may_create = _MAX_CREATED if request.allow_auto_topic_creation else 0
    found: list[_Found] = []
    for name, topic_id in wanted:
        if name is None:
            found.append(await _by_id(call, topic_id))
            continue
        one = await _by_name(call, name, ask_store=ask_store, may_create=may_create > 0)
        may_create -= name in unknown and isinstance(one, Topic)
        found.append(one)
    return found


async def _all(call: Call) -> Sequence[Topic]:
    """While the store is away, what is known here: to hang up would cost the client its fetches, too."""
    try:
        return await call.broker.topics.all(caller=call.client.caller)
    except MetadataError:
        return call.broker.view.topics()


def _distinct(call: Call, request: Message) -> list[tuple[str | None, UUID]]:
    """Name or id of each. An id counts before the name beside it, which the Java client leaves empty, not null."""
    asked: dict[tuple[str | None, UUID], None] = {}
    for topic in request.topics:
        if call.version >= _IDS_FROM and topic.topic_id != ZERO_UUID:
            asked[None, topic.topic_id] = None
        elif topic.name is not None:
            asked[topic.name, ZERO_UUID] = None
        else:
            raise MalformedRequest("Metadata names a topic neither by name nor by an id that this version may use")
    return list(asked)


async def _by_id(call: Call, topic_id: UUID) -> _Found:
    try:
        topic = await call.broker.topics.find(topic_id, caller=call.client.caller)
    except StreamHouseError as error:
        return TopicRow(name=None, topic_id=topic_id, error=error.kafka_code)
    if topic is None:
        return TopicRow(name=None, topic_id=topic_id, error=ErrorCode.UNKNOWN_TOPIC_ID)
    return topic


async def _by_name(call: Call, name: str, *, ask_store: bool, may_create: bool) -> _Found:
    view = call.broker.view
    try:
        check_topic_name(name)
        topic = await call.broker.topics.find(name, caller=call.client.caller) if ask_store else view.topic(name)
        if topic is None and may_create:
            topic = await call.broker.topics.create_on_demand(name, caller=call.client.caller)
    except StreamHouseError as error:
        return TopicRow(name=name, topic_id=ZERO_UUID, error=error.kafka_code)
    if topic is None:
        return TopicRow(name=name, topic_id=ZERO_UUID, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


# Their leaders.


async def _encode(
    call: Call, found: Sequence[_Found], operations: int, *, hurry: bool
) -> tuple[list[bytes], list[Topic]]:
    """The topics' parts of the response, and the topics of which a partition has no leader as far as is known here."""
    view, kept = call.broker.view, call.memory.topic_blocks
    blocks: list[bytes] = []
    without_leader: list[Topic] = []
    encoded = 0
    for one in found:
        if isinstance(one, TopicRow):
            blocks.append(encode_topic(call.version, one))
            continue
        topic = view.topic_by_id(one.topic_id) or one
        key, generation = (topic.topic_id, call.version, operations), (view.generation(topic.topic_id), topic.version)
        block = kept.get(key, generation)
        if block is None:
            leaders = view.leaders_of(topic)
            row = TopicRow(name=topic.name, topic_id=topic.topic_id, operations=operations, partitions=leaders)
            block = encode_topic(call.version, row)
            if NO_LEADER in leaders:
                without_leader.append(topic)
            else:
                kept.put(key, generation, block)
            encoded += topic.partition_count
        blocks.append(block)
        if encoded >= _PARTITIONS_AT_A_TIME and not hurry:
            encoded = 0
            await asyncio.sleep(0)
    return blocks, without_leader
