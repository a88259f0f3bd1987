"""Fetch: what kafka.md says of it, one line a test."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_ground import FETCH, OTHER, Ground, batch_of, fetch_request, ground

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import Leader
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.records import decode_records

CALLER = Caller(protocol="test")


def values(records: bytes) -> list[bytes | None]:
    return [record.value for position, _ in iter_batches(records) for record in decode_records(records, position)]


async def fill(kafka: Ground, *batches: bytes, partition: int = 0) -> None:
    for batch in batches:
        assert (await kafka.produce(batch, partition=partition)).error_code == 0


async def test_every_version_gives_records(kafka: Ground) -> None:
    topic = await kafka.topic()
    await fill(kafka, batch_of(b"a", b"b"), batch_of(b"c" * 10_000))
    for version in range(4, 19):
        name: Any = topic.topic_id if version >= 13 else "t"
        response = await kafka.ask(FETCH, version, fetch_request({name: {0: 0}}))
        (answer,) = response.responses[0].partitions
        assert values(answer.records) == [b"a", b"b", b"c" * 10_000]
        assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 3, 3)
        assert answer.log_start_offset == (0 if version >= 5 else -1)
        assert answer.preferred_read_replica == -1
        assert answer.aborted_transactions is None


async def test_read_committed_gets_an_empty_list_of_aborted_transactions(kafka: Ground) -> None:
    await kafka.topic()
    await fill(kafka, batch_of(b"a"))
    answer = await kafka.fetch(isolation_level=1)
    assert answer.aborted_transactions == []
    assert values(answer.records) == [b"a"]


async def test_the_batch_that_contains_the_offset_or_the_next_after_it(kafka: Ground) -> None:
    await kafka.topic()
    await fill(kafka, batch_of(b"a", b"b", b"c"), batch_of(b"d"))
    assert values((await kafka.fetch(2)).records) == [b"a", b"b", b"c", b"d"]
    assert values((await kafka.fetch(3)).records) == [b"d"]
    assert values((await kafka.fetch(4)).records) == []


async def test_the_first_batch_is_whole_even_above_max_bytes(kafka: Ground) -> None:
    await kafka.topic(partitions=2)
    await fill(kafka, batch_of(b"a" * 5000), batch_of(b"b" * 5000))
    await fill(kafka, batch_of(b"c" * 5000), partition=1)
    assert values((await kafka.fetch(max_bytes=10)).records) == [b"a" * 5000]
    assert values((await kafka.fetch(partition_max_bytes=10)).records) == [b"a" * 5000]
    response = await kafka.ask(FETCH, 12, fetch_request({"t": {1: 0, 0: 0}}, max_bytes=100))
    sizes = [len(each.records) > 0 for each in response.responses[0].partitions]
    assert sizes == [True, False]


async def test_max_bytes_counts_over_all_partitions(kafka: Ground) -> None:
    await kafka.topic(partitions=2)
    for partition in (0, 1):
        await fill(kafka, *[batch_of(b"%d" % number * 1000) for number in range(4)], partition=partition)
    response = await kafka.ask(FETCH, 12, fetch_request({"t": {0: 0, 1: 0}}, max_bytes=6500))
    assert [len(values(each.records)) for each in response.responses[0].partitions] == [4, 2]


async def test_from_objects_after_a_restart(tmp_path: Path) -> None:
    async with ground(tmp_path) as kafka:
        await kafka.topic()
        await fill(kafka, batch_of(b"a", b"b"), batch_of(b"c"))
    async with ground(tmp_path) as kafka:
        kafka.view.learned(await kafka.sh.topic("t"))
        assert values((await kafka.fetch(1)).records) == [b"a", b"b", b"c"]


async def test_a_busy_partition_does_not_keep_an_old_one_that_comes_first_from_being_read(tmp_path: Path) -> None:
    async with ground(tmp_path) as kafka:
        await kafka.topic(partitions=3)
        for partition in (0, 2):
            await fill(kafka, batch_of(b"old" * 1000), partition=partition)
    async with ground(tmp_path) as kafka:
        kafka.view.learned(await kafka.sh.topic("t"))
        await fill(kafka, *[batch_of(b"new" * 1000) for _ in range(5)], partition=1)
        await kafka.fetch(partition=1)
        response = await kafka.ask(FETCH, 12, fetch_request({"t": {0: 0, 1: 0, 2: 0}}, max_bytes=3000))
        served = [len(each.records) > 0 for each in response.responses[0].partitions]
        assert served[1] is False
        assert served.count(True) == 1


async def test_out_of_range_is_1_at_both_ends(kafka: Ground) -> None:
    topic = await kafka.topic()
    await fill(kafka, batch_of(b"a"), batch_of(b"b"))
    for offset in (-1, 3, 100):
        answer = await kafka.fetch(offset)
        assert (answer.error_code, answer.high_watermark, answer.records) == (1, -1, b"")
    await kafka.broker.writes.delete_before(topic.partition_keys()[0], 1, caller=CALLER)
    assert (await kafka.fetch(0)).error_code == 1
    assert values((await kafka.fetch(1)).records) == [b"b"]


async def test_unknown_topics_and_partitions_are_3_and_100(kafka: Ground) -> None:
    await kafka.topic()
    assert (await kafka.fetch(topic="none")).error_code == 3
    assert (await kafka.fetch(partition=1)).error_code == 3
    assert (await kafka.fetch(partition=-1)).error_code == 3
    response = await kafka.ask(FETCH, 13, fetch_request({uuid.UUID(int=9): {0: 0}}, max_wait=30_000))
    assert response.responses[0].partitions[0].error_code == 100


async def test_not_leader_is_6_with_the_leader_from_12_and_its_address_from_16(kafka: Ground) -> None:
    topic = await kafka.topic()
    (key,) = topic.partition_keys()
    kafka.sh.agent.log.drop_partition(key, "for the test")
    kafka.view.elsewhere[key] = Leader(node=OTHER, epoch=5)
    for version in (11, 12, 15, 16, 18):
        name: Any = topic.topic_id if version >= 13 else "t"
        response = await kafka.ask(FETCH, version, fetch_request({name: {0: 0}}, max_wait=30_000))
        (answer,) = response.responses[0].partitions
        assert answer.error_code == 6
        told = (answer.current_leader.leader_id, answer.current_leader.leader_epoch)
        assert told == ((7, 5) if version >= 12 else (-1, -1))
        nodes = [(node.node_id, node.host, node.port) for node in response.node_endpoints]
        assert nodes == ([(7, "other.example", 9999)] if version >= 16 else [])


async def test_an_older_epoch_is_74_and_a_newer_one_75(kafka: Ground) -> None:
    await kafka.topic()
    for epoch, code in ((-1, 0), (1, 0), (0, 74), (2, 75)):
        request = fetch_request({"t": {0: {"fetch_offset": 0, "current_leader_epoch": epoch}}})
        response = await kafka.ask(FETCH, 12, request)
        assert response.responses[0].partitions[0].error_code == code


async def test_74_names_the_leader_and_its_new_epoch(kafka: Ground) -> None:
    topic = await kafka.topic()
    me = replace(OTHER, node_id=kafka.view.node_id, host="me.example")
    kafka.view.elsewhere[topic.partition_keys()[0]] = Leader(node=me, epoch=1)
    wanted = {"fetch_offset": 0, "current_leader_epoch": 0}
    response = await kafka.ask(FETCH, 16, fetch_request({topic.topic_id: {0: wanted}}))
    (answer,) = response.responses[0].partitions
    assert (answer.error_code, answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (74, 1, 1)
    assert [(node.node_id, node.host) for node in response.node_endpoints] == [(1, "me.example")]


async def test_a_last_fetched_epoch_that_is_not_of_this_log_is_told_where_it_diverges(kafka: Ground) -> None:
    await kafka.topic()
    await fill(kafka, batch_of(b"a"), batch_of(b"b"))
    wanted = {"fetch_offset": 1, "last_fetched_epoch": 1}
    response = await kafka.ask(FETCH, 12, fetch_request({"t": {0: wanted}}))
    assert values(response.responses[0].partitions[0].records) == [b"b"]
    response = await kafka.ask(FETCH, 12, fetch_request({"t": {0: {**wanted, "fetch_offset": 9}}}))
    (answer,) = response.responses[0].partitions
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (1, 2)
    assert answer.records == b""
    response = await kafka.ask(FETCH, 12, fetch_request({"t": {0: {**wanted, "last_fetched_epoch": 5}}}))
    assert response.responses[0].partitions[0].error_code == 1


async def test_waits_for_min_bytes_and_is_woken_by_a_produce(kafka: Ground) -> None:
    await kafka.topic()
    waiting = asyncio.ensure_future(kafka.fetch(max_wait=20_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await fill(kafka, batch_of(b"a"))
    assert values((await waiting).records) == [b"a"]


async def test_waits_until_min_bytes_are_there(kafka: Ground) -> None:
    await kafka.topic()
    await fill(kafka, batch_of(b"a"))
    waiting = asyncio.ensure_future(kafka.fetch(max_wait=20_000, min_bytes=1000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await fill(kafka, batch_of(b"b" * 1000))
    assert len(values((await waiting).records)) == 2


async def test_max_wait_ends_the_wait(kafka: Ground) -> None:
    await kafka.topic()
    assert (await kafka.fetch(max_wait=10)).records == b""


async def test_a_client_that_hangs_up_ends_its_wait(kafka: Ground) -> None:
    await kafka.topic()
    waiting = asyncio.ensure_future(kafka.start(FETCH, 12, fetch_request({"t": {0: 0}}, max_wait=20_000)))
    wakeups = kafka.sh.agent.reader._wakeups
    await asyncio.sleep(0.1)
    assert wakeups.partitions_waited_for == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert wakeups.partitions_waited_for == 0


async def test_an_error_ends_the_wait(kafka: Ground) -> None:
    await kafka.topic()
    response = await kafka.ask(FETCH, 12, fetch_request({"t": {0: 0, 5: 0}}, max_wait=30_000))
    assert [each.error_code for each in response.responses[0].partitions] == [0, 3]


async def test_a_leadership_that_ends_during_the_wait_is_6(kafka: Ground) -> None:
    topic = await kafka.topic()
    waiting = asyncio.ensure_future(kafka.fetch(max_wait=600))
    await asyncio.sleep(0.05)
    kafka.sh.agent.log.drop_partition(topic.partition_keys()[0], "for the test")
    assert (await waiting).error_code == 6


async def test_what_is_in_memory_is_answered_without_a_task(kafka: Ground) -> None:
    await kafka.topic()
    await fill(kafka, batch_of(b"a"))
    await kafka.fetch()  # the first one learns where the log begins
    assert isinstance(kafka.start(FETCH, 12, fetch_request({"t": {0: 0}}, max_wait=500)), list)


# Sessions, through the handler; fetch_sessions.py has tests of its own.


def session(session_id: int, epoch: int, topics: Any, **more: Any) -> dict[str, Any]:
    return fetch_request(topics, session_id=session_id, session_epoch=epoch, **more)


async def test_a_session_names_partitions_once_and_tells_only_what_changed(kafka: Ground) -> None:
    await kafka.topic(partitions=3)
    await fill(kafka, batch_of(b"a"))
    first = await kafka.ask(FETCH, 12, session(0, 0, {"t": {0: 1, 1: 0, 2: 0}}))
    assert first.session_id > 0
    assert [each.partition_index for each in first.responses[0].partitions] == [0, 1, 2]
    nothing = await kafka.ask(FETCH, 12, session(first.session_id, 1, {}))
    assert (nothing.session_id, nothing.error_code, nothing.responses) == (first.session_id, 0, [])
    await fill(kafka, batch_of(b"b"), partition=1)
    news = await kafka.ask(FETCH, 12, session(first.session_id, 2, {}, max_wait=10_000))
    assert [each.partition_index for each in news.responses[0].partitions] == [1]
    moved = await kafka.ask(FETCH, 12, session(first.session_id, 3, {"t": {1: 1}}))
    assert moved.responses == []
    wrong = await kafka.ask(FETCH, 12, session(first.session_id, 3, {}))
    assert (wrong.error_code, wrong.session_id, wrong.responses) == (71, 0, [])


async def test_session_errors(kafka: Ground) -> None:
    topic = await kafka.topic()
    assert (await kafka.ask(FETCH, 12, session(77, 1, {}))).error_code == 70
    first = await kafka.ask(FETCH, 12, session(0, 0, {"t": {0: 0}}))
    assert (await kafka.ask(FETCH, 13, session(first.session_id, 1, {topic.topic_id: {0: 0}}))).error_code == 106
    closed = await kafka.ask(FETCH, 12, session(first.session_id, -1, {"t": {0: 0}}))
    assert (closed.error_code, closed.session_id, len(closed.responses)) == (0, 0, 1)
    assert (await kafka.ask(FETCH, 12, session(first.session_id, 1, {}))).error_code == 70


async def test_forgotten_topics_leave_the_session(kafka: Ground) -> None:
    await kafka.topic(partitions=2)
    first = await kafka.ask(FETCH, 12, session(0, 0, {"t": {0: 0, 1: 0}}))
    forgotten = [{"topic": "t", "partitions": [0]}]
    await kafka.ask(FETCH, 12, session(first.session_id, 1, {}, forgotten_topics_data=forgotten))
    for partition in (0, 1):
        await fill(kafka, batch_of(b"x"), partition=partition)
    news = await kafka.ask(FETCH, 12, session(first.session_id, 2, {}, max_wait=10_000))
    assert [each.partition_index for each in news.responses[0].partitions] == [1]
    forgotten = [{"topic": "t", "partitions": [1]}]
    emptied = await kafka.ask(FETCH, 12, session(first.session_id, 3, {}, forgotten_topics_data=forgotten))
    assert (emptied.error_code, emptied.session_id) == (0, 0)


async def test_served_partitions_rotate_to_the_end(kafka: Ground) -> None:
    await kafka.topic(partitions=3)
    for partition in range(3):
        await fill(kafka, *[batch_of(b"%d" % number * 2000) for number in range(3)], partition=partition)
    first = await kafka.ask(FETCH, 12, session(0, 0, {"t": dict.fromkeys(range(3), 0)}, max_bytes=2000))
    served = [[each.partition_index for each in first.responses[0].partitions if each.records]]
    for epoch in (1, 2, 3):
        answer = await kafka.ask(FETCH, 12, session(first.session_id, epoch, {}, max_bytes=2000))
        served.append([each.partition_index for each in answer.responses[0].partitions if each.records])
    assert served == [[0], [0], [1], [2]]


async def test_an_error_is_told_every_time_and_its_end_too(kafka: Ground) -> None:
    topic = await kafka.topic()
    first = await kafka.ask(FETCH, 12, session(0, 0, {"t": {0: 0}}))
    kafka.view.forgot(topic)
    for epoch in (1, 2):
        answer = await kafka.ask(FETCH, 12, session(first.session_id, epoch, {}))
        assert answer.responses[0].partitions[0].error_code == 3
    kafka.view.learned(topic)
    answer = await kafka.ask(FETCH, 12, session(first.session_id, 3, {}))
    assert answer.responses[0].partitions[0].error_code == 0
