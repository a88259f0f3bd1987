"""What clients meet while a partition goes from one agent to another: a moment's wait here, and then where to go."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import pytest
from data_ground import (
    DELETE_RECORDS,
    EPOCH_END,
    FETCH,
    LIST_OFFSETS,
    OTHER,
    PRODUCE,
    PRODUCERS,
    Ground,
    batch_of,
    fetch_request,
    produce_request,
)
from test_kafka_produce import Opening

from streamhouse.broker.cluster_view import Leader
from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import apis
from streamhouse.gateway.kafka.handlers import register_all


async def hand_over(kafka: Ground) -> PartitionKey:
    """Begun: everything is flushed and the partition is closed, and no other agent leads yet."""
    kafka.view._alone = False  # the platform behind it is, but that is not what is tried here
    (key,) = (await kafka.sh.topic("t")).partition_keys()
    (lease,) = await kafka.sh.stores.metadata.list_leases(keys=[key])
    kafka.view.gained(lease)
    kafka.view.leaving(key)
    await kafka.sh.agent.log.close_partition(key)
    kafka.sh.agent.log.drop_partition(key, "handed over")
    return key


def is_over(kafka: Ground, key: PartitionKey) -> None:
    kafka.view.elsewhere[key] = Leader(node=OTHER, epoch=5)
    kafka.view.ended(key)


async def test_a_produce_waits_until_it_can_be_told_who_leads_now(kafka: Ground) -> None:
    topic = await kafka.topic()
    key = await hand_over(kafka)
    requests = [produce_request({topic.topic_id: {0: batch_of(value)}}) for value in (b"0", b"1")]
    started = [kafka.start(PRODUCE, 13, each) for each in requests]
    await asyncio.sleep(0.05)
    assert not any(each.done() for each in started)
    is_over(kafka, key)
    for each in started:
        response = await kafka.answer(PRODUCE, 13, each)
        (answer,) = response.responses[0].partition_responses
        assert (answer.error_code, answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (6, 7, 5)
        assert [(node.node_id, node.host) for node in response.node_endpoints] == [(7, "other.example")]


async def test_a_produce_does_not_wait_longer_than_its_time(kafka: Ground) -> None:
    await kafka.topic()
    await hand_over(kafka)
    answer = await kafka.ask(PRODUCE, 9, produce_request({"t": {0: batch_of(b"v")}}, timeout=1))
    assert answer.responses[0].partition_responses[0].error_code in (6, 7)


async def test_what_is_committed_is_served_until_another_leads(kafka: Ground) -> None:
    topic = await kafka.topic()
    await kafka.produce(batch_of(b"a", b"b"))
    key = await hand_over(kafka)
    answer = await kafka.fetch(0)
    assert (answer.error_code, answer.high_watermark) == (0, 2)
    assert answer.records
    assert (await kafka.fetch(2)).error_code == 0, "nothing new, and no reason to rest"
    is_over(kafka, key)
    response = await kafka.ask(FETCH, 16, fetch_request({topic.topic_id: {0: 2}}))
    (answer,) = response.responses[0].partitions
    assert (answer.error_code, answer.current_leader.leader_id) == (6, 7)


async def test_a_fetch_waits_for_a_partition_that_is_about_to_open(kafka: Ground) -> None:
    topic = await kafka.topic()
    await kafka.produce(batch_of(b"a"))
    opening = Opening(kafka, topic.partition_keys()[0])
    assert (await kafka.fetch(0)).error_code == 6, "without any time to wait"
    started = asyncio.ensure_future(kafka.start(FETCH, 12, fetch_request({"t": {0: 0}}, max_wait=30_000)))
    await asyncio.sleep(0.05)
    assert not started.done()
    opening.done()
    response = await kafka.answer(FETCH, 12, started)
    (answer,) = response.responses[0].partitions
    assert answer.error_code == 0
    assert answer.records


FOR_LEADERS = [
    pytest.param(LIST_OFFSETS, 11, {"timestamp": -1}, {"replica_id": -1, "timeout": 30_000}, id="ListOffsets"),
    pytest.param(LIST_OFFSETS, 7, {"timestamp": -1}, {"replica_id": -1}, id="ListOffsets without a time-out"),
    pytest.param(DELETE_RECORDS, 2, {"offset": 1}, {"timeout": 30_000}, id="DeleteRecords"),
    pytest.param(EPOCH_END, 4, {"current_leader_epoch": -1, "leader_epoch": 1}, {}, id="OffsetForLeaderEpoch"),
    pytest.param(PRODUCERS, 0, {}, {}, id="DescribeProducers"),
]


def test_r9_no_api_that_asks_a_leader_is_missing_here() -> None:
    """A handler reaches the log through these parts of the broker only (an import contract); all of them wait."""
    register_all()
    asking = {
        key
        for key, api in apis().items()
        if (module := inspect.getmodule(api.hot or api.cold)) is not None
        and re.search(r"broker\.(produce|fetch|offsets|leading|reads|writes)\b", inspect.getsource(module))
    }
    assert asking == {PRODUCE, FETCH, *(each.values[0] for each in FOR_LEADERS)}
    for key in asking - {PRODUCE, FETCH, LIST_OFFSETS, EPOCH_END}:
        source = inspect.getsource(inspect.getmodule(apis()[key].cold))  # type: ignore[arg-type]
        assert "broker.leading.begin(" in source, "reads and writes are asked with the wait for a leader"


def leader_request(api_key: int, partition: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """What this API asks about partition 0 of topic t."""
    if api_key == PRODUCERS:
        return {"topics": [{"name": "t", "partition_indexes": [0]}]}
    if api_key == EPOCH_END:
        return {"topics": [{"topic": "t", "partitions": [{"partition": 0, **partition}]}]}
    return {"topics": [{"name": "t", "partitions": [{"partition_index": 0, **partition}]}], **more}


@pytest.mark.parametrize(("api_key", "version", "partition", "more"), FOR_LEADERS)
async def test_r9_a_question_for_the_leader_waits_for_a_partition_that_is_about_to_open(
    kafka: Ground, api_key: int, version: int, partition: dict[str, Any], more: dict[str, Any]
) -> None:
    topic = await kafka.topic()
    await kafka.produce(batch_of(b"a", b"b"))
    opening = Opening(kafka, topic.partition_keys()[0])
    started = asyncio.ensure_future(kafka.start(api_key, version, leader_request(api_key, partition, more)))
    await asyncio.sleep(0.05)
    assert not started.done()
    opening.done()
    response = await kafka.answer(api_key, version, started)
    assert response.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize(("api_key", "version", "partition", "more"), FOR_LEADERS)
async def test_r9_a_question_for_the_leader_waits_until_another_leads(
    kafka: Ground, api_key: int, version: int, partition: dict[str, Any], more: dict[str, Any]
) -> None:
    await kafka.topic()
    key = await hand_over(kafka)
    started = asyncio.ensure_future(kafka.start(api_key, version, leader_request(api_key, partition, more)))
    await asyncio.sleep(0.05)
    assert not started.done()
    is_over(kafka, key)
    response = await kafka.answer(api_key, version, started)
    assert response.topics[0].partitions[0].error_code == 6


@pytest.mark.parametrize(("api_key", "version"), [(LIST_OFFSETS, 11), (DELETE_RECORDS, 2)])
async def test_a_question_for_the_leader_does_not_wait_longer_than_its_time(
    kafka: Ground, api_key: int, version: int
) -> None:
    await kafka.topic()
    await hand_over(kafka)
    partition = {"timestamp": -1} if api_key == LIST_OFFSETS else {"offset": 1}
    more = {"timeout": 1, **({"replica_id": -1} if api_key == LIST_OFFSETS else {})}
    response = await kafka.ask(api_key, version, leader_request(api_key, partition, more))
    assert response.topics[0].partitions[0].error_code == 6
