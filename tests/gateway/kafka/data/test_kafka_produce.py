"""Produce: what kafka.md says of it, one line a test."""

from __future__ import annotations

import asyncio
import struct
import uuid
from typing import Any

import pytest
from crc32c import crc32c
from data_ground import OTHER, PRODUCE, Ground, batch_of, new_client, produce_request

from streamhouse.broker import produce
from streamhouse.broker.cluster_view import Leader
from streamhouse.cluster.lease_table import Stage
from streamhouse.core.errors import BackPressureRejected, StaleEpoch, WalOutcomeUnknown
from streamhouse.gateway.kafka.api import CloseConnection, apis
from streamhouse.log.leased.partition import Phase
from streamhouse.wire.batch import read_header
from streamhouse.wire.codecs import Codec


def changed(batch: bytes, at: int, shape: str, value: int) -> bytes:
    out = bytearray(batch)
    struct.pack_into(shape, out, at, value)
    return bytes(out)


def with_crc(batch: bytes) -> bytes:
    return changed(batch, 17, ">I", crc32c(batch[21:]))


def test_versions_0_to_13_are_advertised_and_3_to_13_served() -> None:
    api = apis()[PRODUCE]
    assert (api.advertised_min_version, api.min_version, api.max_version) == (0, 3, 13)
    assert api.pipelined


async def test_every_version_gives_offsets(kafka: Ground) -> None:
    topic = await kafka.topic()
    for number, version in enumerate(range(3, 14)):
        name: Any = topic.topic_id if version >= 13 else "t"
        response = await kafka.ask(PRODUCE, version, produce_request({name: {0: batch_of(b"a", b"b", b"c")}}))
        (answer,) = response.responses[0].partition_responses
        assert (answer.error_code, answer.base_offset, answer.log_append_time) == (0, 3 * number, -1)
    assert [record.value for record in await kafka.sh.read("t", 0, 0)] == [b"a", b"b", b"c"] * 11


async def test_the_request_is_not_kept_and_records_come_back_as_they_went(kafka: Ground) -> None:
    await kafka.topic()
    await kafka.produce(batch_of(b"x" * 10_000))  # the harness overwrites the request's memory
    assert (await kafka.sh.read("t", 0, 0))[0].value == b"x" * 10_000


async def test_offsets_are_assigned_before_the_handler_returns(kafka: Ground) -> None:
    topic = await kafka.topic()
    started = [kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(b"%d" % number)}})) for number in range(3)]
    partition = kafka.sh.agent.log.partition(topic.partition_keys()[0])
    assert partition is not None
    assert partition.next_offset == 3
    answers = [await kafka.answer(PRODUCE, 9, each) for each in started]
    assert [each.responses[0].partition_responses[0].base_offset for each in answers] == [0, 1, 2]


async def test_each_partition_has_its_own_error(kafka: Ground) -> None:
    await kafka.topic(partitions=2)
    good, bad = batch_of(b"good"), changed(batch_of(b"bad"), 17, ">I", 1)
    request = produce_request({"t": {0: good, 1: bad, 2: good}, "none": {0: good}})
    response = await kafka.ask(PRODUCE, 9, request)
    codes = [[each.error_code for each in topic.partition_responses] for topic in response.responses]
    assert codes == [[0, 2, 3], [3]]


async def test_unknown_topic_id_is_100(kafka: Ground) -> None:
    response = await kafka.ask(PRODUCE, 13, produce_request({uuid.UUID(int=5): {0: batch_of(b"v")}}))
    assert response.responses[0].partition_responses[0].error_code == 100


async def test_other_acks_are_21(kafka: Ground) -> None:
    await kafka.topic()
    for acks in (2, -2, 100):
        assert (await kafka.produce(batch_of(b"v"), acks=acks)).error_code == 21
    assert await kafka.sh.read("t", 0, 0) == []


async def test_acks_0_has_no_response(kafka: Ground) -> None:
    await kafka.topic()
    assert kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(b"v")}}, acks=0)) is None
    await kafka.sh.flush()
    assert [record.value for record in await kafka.sh.read("t", 0, 0)] == [b"v"]


async def test_acks_0_closes_the_connection_on_error(kafka: Ground) -> None:
    with pytest.raises(CloseConnection):
        kafka.start(PRODUCE, 9, produce_request({"none": {0: batch_of(b"v")}}, acks=0))


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, 87),
        (b"", 87),
        (b"short", 2),
        (changed(batch_of(b"v"), 16, ">b", 1), 87),
        (changed(batch_of(b"v"), 17, ">I", 7), 2),
        (batch_of(b"v") + batch_of(b"w"), 87),
        (changed(batch_of(b"v"), 8, ">i", 5000), 2),
        (with_crc(changed(batch_of(b"v"), 23, ">i", 5)), 87),
        (with_crc(changed(batch_of(b"v"), 57, ">i", 0)), 87),
        (with_crc(changed(batch_of(b"v"), 21, ">h", 0x20)), 87),
        (with_crc(changed(batch_of(b"v"), 21, ">h", 0x10)), 53),
        (with_crc(changed(batch_of(b"v"), 21, ">h", 5)), 76),
        (with_crc(changed(batch_of(b"v"), 21, ">h", 0x08)), 32),
        (with_crc(changed(batch_of(b"v"), 43, ">q", 9)), 87),
    ],
    ids=[
        "null",
        "empty",
        "no batch",
        "magic 1",
        "crc",
        "two batches",
        "length",
        "count and last delta differ",
        "no records",
        "control",
        "transactional",
        "codec 5",
        "log append time by a client",
        "producer without a sequence",
    ],
)
async def test_what_is_not_one_batch_of_a_client_is_refused(kafka: Ground, records: bytes | None, code: int) -> None:
    await kafka.topic()
    await kafka.topic("opened", compression_type="gzip")
    for topic in ("t", "opened"):
        answer = await kafka.produce(records, topic=topic)
        assert (answer.error_code, answer.base_offset) == (code, -1)
        assert answer.error_message
        assert (await kafka.produce(batch_of(b"next"), topic=topic)).base_offset == 0


async def test_zstd_only_from_version_7(kafka: Ground) -> None:
    await kafka.topic()
    for codec in Codec:
        for version in (6, 7):
            answer = await kafka.produce(batch_of(b"v" * 100, codec=codec), version=version)
            assert answer.error_code == (76 if codec is Codec.ZSTD and version < 7 else 0)


async def test_over_max_message_bytes_is_10(kafka: Ground) -> None:
    await kafka.topic(max_message_bytes="1000")
    assert (await kafka.produce(batch_of(b"v" * 1000))).error_code == 10
    assert (await kafka.produce(batch_of(b"v" * 800))).error_code == 0


async def test_transactional_id_is_53(kafka: Ground) -> None:
    await kafka.topic()
    request = produce_request({"t": {0: batch_of(b"v")}}, transactional_id="tx")
    response = await kafka.ask(PRODUCE, 9, request)
    assert response.responses[0].partition_responses[0].error_code == 53


async def test_log_append_time_is_reported(kafka: Ground) -> None:
    await kafka.topic(message_timestamp_type="LogAppendTime")
    answer = await kafka.produce(batch_of(b"v"))
    (record,) = await kafka.sh.read("t", 0, 0)
    assert answer.log_append_time == record.timestamp_ms > 1_600_000_000_000


async def test_times_too_far_off_are_32(kafka: Ground) -> None:
    await kafka.topic(message_timestamp_before_max_ms="3600000")
    now_ms = kafka.sh.clock.wall_ms()
    assert (await kafka.produce(batch_of(b"v", base_ms=now_ms))).error_code == 0
    assert (await kafka.produce(batch_of(b"v", base_ms=now_ms + 2 * 3_600_000))).error_code == 32
    assert (await kafka.produce(batch_of(b"v", base_ms=now_ms - 2 * 3_600_000))).error_code == 32


async def test_a_duplicate_gives_the_original_offset_and_a_gap_is_45(kafka: Ground) -> None:
    await kafka.topic()

    def batch(sequence: int, epoch: int = 0) -> bytes:
        return batch_of(b"v", producer_id=4, producer_epoch=epoch, base_sequence=sequence)

    assert [(await kafka.produce(batch(number))).base_offset for number in (0, 1, 2, 1)] == [0, 1, 2, 1]
    assert (await kafka.produce(batch(7))).error_code == 45
    assert (await kafka.produce(batch(0, epoch=1))).base_offset == 3
    assert (await kafka.produce(batch(3))).error_code == 47


async def test_a_new_epoch_stands_in_the_batch(kafka: Ground) -> None:
    topic = await kafka.topic()
    await kafka.produce(batch_of(b"v"))
    found = await kafka.sh.agent.reader.read(topic.partition_keys()[0], 0, max_bytes=1000)
    assert read_header(found.batches[0]).partition_leader_epoch == 1


async def test_not_leader_is_6_and_names_the_leader_from_version_10(kafka: Ground) -> None:
    topic = await kafka.topic()
    (key,) = topic.partition_keys()
    kafka.sh.agent.log.drop_partition(key, "for the test")
    kafka.view.elsewhere[key] = Leader(node=OTHER, epoch=5)
    for version in (9, 10, 12):
        response = await kafka.ask(PRODUCE, version, produce_request({"t": {0: batch_of(b"v")}}))
        (answer,) = response.responses[0].partition_responses
        assert answer.error_code == 6
        told = (answer.current_leader.leader_id, answer.current_leader.leader_epoch)
        nodes = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
        if version < 10:
            assert (told, nodes) == ((-1, -1), [])
        else:
            assert (told, nodes) == ((7, 5), [(7, "other.example", 9999, "zone-b")])


async def test_a_leadership_that_ends_while_a_batch_waits_is_6(kafka: Ground) -> None:
    topic = await kafka.topic()
    started = kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(b"v")}}))
    kafka.sh.agent.log.drop_partition(topic.partition_keys()[0], "for the test")
    response = await kafka.answer(PRODUCE, 9, started)
    assert response.responses[0].partition_responses[0].error_code == 6


@pytest.mark.parametrize(
    ("error", "code"),
    [(WalOutcomeUnknown("x"), 20), (StaleEpoch("x", expected=1, actual=2), 7), (ValueError("a bug"), 7)],
)
async def test_an_unknown_outcome_is_7_or_20_and_never_a_code_that_clients_die_of(
    kafka: Ground, error: Exception, code: int
) -> None:
    topic = await kafka.topic()
    started = kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(b"v")}}))
    partition = kafka.sh.agent.log.partition(topic.partition_keys()[0])
    assert partition is not None
    partition.pending[0].fail(error)
    response = await kafka.answer(PRODUCE, 9, started)
    assert response.responses[0].partition_responses[0].error_code == code


async def test_after_the_timeout_the_answer_is_7_and_the_append_goes_on(kafka: Ground, monkeypatch: Any) -> None:
    await kafka.topic()
    log = kafka.sh.agent.log
    synced = log._writing.synced
    held: list[int] = []
    kafka.sh.agent.wal._on_synced[:] = [held.append]
    answer = await kafka.ask(PRODUCE, 9, produce_request({"t": {0: batch_of(b"v")}}, timeout=10))
    assert answer.responses[0].partition_responses[0].error_code == 7
    assert len(kafka.broker.produce.deadlines) == 0
    kafka.sh.agent.wal._on_synced[:] = [synced]
    synced(held[-1])
    assert [record.value for record in await kafka.sh.read("t", 0, 0)] == [b"v"]


async def test_the_answer_waits_for_all_its_partitions(kafka: Ground) -> None:
    topic = await kafka.topic(partitions=2)
    log, wal = kafka.sh.agent.log, kafka.sh.agent.wal
    synced = log._writing.synced
    wal._on_synced[:] = []
    started = kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(b"v"), 1: batch_of(b"w")}}))
    first, second = (log._partitions[key].pending[0].lsn for key in topic.partition_keys())
    synced(first)
    await asyncio.sleep(0.01)
    assert not started.done()
    synced(second)
    response = await kafka.answer(PRODUCE, 9, started)
    assert [each.error_code for each in response.responses[0].partition_responses] == [0, 0]
    wal._on_synced[:] = [synced]


async def test_a_client_that_hangs_up_does_not_cancel_the_append(kafka: Ground) -> None:
    await kafka.topic()
    started = kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(b"v")}}))
    started.cancel()
    assert (await kafka.produce(batch_of(b"w"))).base_offset == 1
    assert [record.value for record in await kafka.sh.read("t", 0, 0)] == [b"v", b"w"]
    assert len(kafka.broker.produce.deadlines) == 0


class Opening:
    """A partition that this agent holds and has not opened yet."""

    def __init__(self, kafka: Ground, key: Any) -> None:
        self._leadership = kafka.sh.agent.member.lease_table.get(key)
        self._partition = kafka.sh.agent.log._partitions[key]
        self._log = kafka.sh.agent.log
        assert self._leadership is not None
        self._leadership.stage = Stage.OPENING
        self._partition.phase = Phase.OPENING

    def done(self) -> None:
        assert self._leadership is not None
        self._leadership.stage = Stage.SERVING
        self._partition.phase = Phase.OPEN
        self._log._opened.set()
        self._log._opened = asyncio.Event()


async def test_later_produces_of_a_connection_wait_behind_one_that_waits_for_a_lease(kafka: Ground) -> None:
    topic = await kafka.topic(partitions=2)
    opening = Opening(kafka, topic.partition_keys()[0])
    requests = [{"t": {0: batch_of(b"0")}}, {"t": {1: batch_of(b"1"), 0: batch_of(b"2")}}, {"t": {0: batch_of(b"3")}}]
    started = [kafka.start(PRODUCE, 9, produce_request(each)) for each in requests]
    other = await kafka.ask(PRODUCE, 9, produce_request({"t": {1: batch_of(b"other")}}), client=new_client())
    assert other.responses[0].partition_responses[0].base_offset == 0  # another connection does not wait
    assert not any(each.done() for each in started)
    opening.done()
    answers = [await kafka.answer(PRODUCE, 9, each) for each in started]
    assert [
        [(each.index, each.error_code, each.base_offset) for each in answer.responses[0].partition_responses]
        for answer in answers
    ] == [[(0, 0, 0)], [(1, 0, 1), (0, 0, 1)], [(0, 0, 2)]]
    assert [record.value for record in await kafka.sh.read("t", 0, 0)] == [b"0", b"2", b"3"]
    assert (await kafka.produce(batch_of(b"4"))).base_offset == 3
    assert kafka.client.order.gate is None


async def test_r13_produces_wait_behind_the_barrier_of_an_adoption_and_keep_their_order(kafka: Ground) -> None:
    topic = await kafka.topic()
    log = kafka.sh.agent.log
    partition = log.partition(topic.partition_keys()[0])
    assert partition is not None
    with log.barrier(partition):
        started = [kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(value)}})) for value in (b"0", b"1")]
        by_hand = asyncio.create_task(kafka.sh.produce("t", b"2"))
        await asyncio.sleep(0.01)
        assert not any(each.done() for each in started)
        assert partition.next_offset == 0
    answers = [await kafka.answer(PRODUCE, 9, each) for each in started]
    await by_hand
    offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
    assert offsets == sorted(offsets)
    assert sorted(record.value or b"" for record in await kafka.sh.read("t", 0, 0)) == [b"0", b"1", b"2"]


async def test_a_producer_that_outruns_the_store_is_held_back_and_keeps_its_order(
    kafka: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the limit producers feel back-pressure; all that waits is flushed at once, however young."""
    await kafka.topic()
    monkeypatch.setattr(kafka.sh.agent.log._budget, "max_bytes", 4000)
    values = [bytes([48 + n]) * 2000 for n in range(6)]
    started = [kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(value)}})) for value in values]
    answers = [await kafka.answer(PRODUCE, 9, each) for each in started]
    parts = [answer.responses[0].partition_responses[0] for answer in answers]
    assert [(part.error_code, part.base_offset) for part in parts] == [(0, offset) for offset in range(6)]
    assert [record.value for record in await kafka.sh.read("t", 0, 0)] == values


async def test_a_producer_that_finds_no_room_for_long_is_told_why(
    kafka: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kafka.topic()
    budget = kafka.sh.agent.log._budget
    monkeypatch.setattr(budget, "max_bytes", 4000)
    monkeypatch.setattr(produce, "MAX_WAIT_S", 0.05)
    budget.held_bytes += 3000  # no answer takes these out
    part = await kafka.produce(batch_of(bytes(2000)))
    assert (part.error_code, part.base_offset) == (19, -1)
    assert "the limit is 4000" in part.error_message
    with pytest.raises(BackPressureRejected, match="the limit is 4000"):
        await kafka.sh.produce("t", bytes(2000), partition=0)
    assert (await kafka.produce(batch_of(b"fits"))).base_offset == 0


async def test_a_batch_that_memory_can_never_hold_is_refused_for_good(
    kafka: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kafka.topic()
    monkeypatch.setattr(kafka.sh.agent.log._budget, "max_bytes", 1000)
    part = await kafka.produce(batch_of(bytes(2000)))
    assert (part.error_code, part.base_offset) == (10, -1)
    assert "memory.write_buffer_bytes" in part.error_message


async def test_who_asks_the_wrong_agent_is_sent_away_at_once_however_full_this_one_is(
    kafka: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = (await kafka.topic()).partition_keys()
    kafka.sh.agent.log.drop_partition(key, "another agent leads")
    kafka.view.elsewhere[key] = Leader(node=OTHER, epoch=9)
    monkeypatch.setattr(kafka.sh.agent.log._budget, "held_bytes", 1 << 40)
    waited: list[object] = []
    monkeypatch.setattr(kafka.broker.writes, "wait_settled", lambda *args: waited.append(args))
    assert (await kafka.produce(batch_of(b"v"))).error_code == 6
    assert waited == []


async def test_waiting_for_a_lease_ends_with_the_timeout(kafka: Ground) -> None:
    topic = await kafka.topic()
    Opening(kafka, topic.partition_keys()[0])
    started = kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(b"v")}}, timeout=1))
    answer = await kafka.answer(PRODUCE, 9, started)
    assert answer.responses[0].partition_responses[0].error_code in (6, 7)


async def test_those_behind_do_not_wait_for_a_lease_anew(kafka: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def in_vain(keys: object, timeout_s: float) -> bool:
        waits.append(timeout_s)
        await asyncio.sleep(0.02)
        return False

    topic = await kafka.topic()
    Opening(kafka, topic.partition_keys()[0])
    monkeypatch.setattr(kafka.broker.writes, "wait_settled", in_vain)
    started = [kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(b"v")}})) for _ in range(3)]
    codes = [(await kafka.answer(PRODUCE, 9, each)).responses[0].partition_responses[0].error_code for each in started]
    assert codes == [6, 6, 6]
    assert waits == sorted(set(waits), reverse=True)
    assert len(waits) == 3


async def test_r21_what_follows_a_refused_batch_of_its_producer_is_refused_with_the_same_error(
    kafka: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are sent as every client sends them: all at once. The first finds no room, the others are small enough."""
    await kafka.topic()
    budget = kafka.sh.agent.log._budget
    monkeypatch.setattr(budget, "max_bytes", 4000)
    monkeypatch.setattr(produce, "MAX_WAIT_S", 0.05)
    held = 3000
    budget.held_bytes += held
    batches = [
        batch_of(value, producer_id=7, producer_epoch=0, base_sequence=sequence)
        for sequence, value in enumerate((bytes(2000), b"1", b"2", b"3", b"4"))
    ]
    started = [kafka.start(PRODUCE, 9, produce_request({"t": {0: each}})) for each in batches]
    codes = [(await kafka.answer(PRODUCE, 9, each)).responses[0].partition_responses[0].error_code for each in started]
    assert codes == [19] * 5
    other = batch_of(b"other", producer_id=8, producer_epoch=0, base_sequence=0)
    assert (await kafka.produce(other)).base_offset == 0, "another producer is not concerned"
    assert (await kafka.produce(batches[1])).error_code == 19, "until the refused one has come again"
    budget.held_bytes -= held
    monkeypatch.setattr(produce, "MAX_WAIT_S", 30.0)  # some of them wait for a flush, which may take its time
    started = [kafka.start(PRODUCE, 9, produce_request({"t": {0: each}})) for each in batches]
    parts = [(await kafka.answer(PRODUCE, 9, each)).responses[0].partition_responses[0] for each in started]
    assert [(part.error_code, part.base_offset) for part in parts] == [(0, offset) for offset in range(1, 6)]
    values = [record.value for record in await kafka.sh.read("t", 0, 0)]
    assert values == [b"other", bytes(2000), b"1", b"2", b"3", b"4"]
    gap = batch_of(b"6", producer_id=7, producer_epoch=0, base_sequence=6)
    assert (await kafka.produce(gap)).error_code == 45, "nothing was refused before it"


async def test_r21_without_a_refused_one_before_it_a_first_sequence_above_0_is_out_of_order(kafka: Ground) -> None:
    await kafka.topic()
    follower = batch_of(b"1", producer_id=7, producer_epoch=0, base_sequence=1)
    assert (await kafka.produce(follower)).error_code == 45
    first = batch_of(b"0", producer_id=7, producer_epoch=0, base_sequence=0)
    assert (await kafka.produce(first)).base_offset == 0
    assert (await kafka.produce(follower)).base_offset == 1


async def test_r21_what_follows_a_refused_batch_of_a_forgotten_producer_is_refused_too(
    kafka: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log would take any of its batches first; the connection knows better."""
    topic = await kafka.topic()
    partition = kafka.sh.agent.log.partition(topic.partition_keys()[0])
    assert partition is not None
    partition.producers.forgotten_up_to = 7
    budget = kafka.sh.agent.log._budget
    monkeypatch.setattr(budget, "max_bytes", 4000)
    monkeypatch.setattr(produce, "MAX_WAIT_S", 0.05)
    budget.held_bytes += 3000
    batches = [
        batch_of(value, producer_id=7, producer_epoch=0, base_sequence=30 + place)
        for place, value in enumerate((bytes(2000), b"1", b"2"))
    ]
    started = [kafka.start(PRODUCE, 9, produce_request({"t": {0: each}})) for each in batches]
    codes = [(await kafka.answer(PRODUCE, 9, each)).responses[0].partition_responses[0].error_code for each in started]
    assert codes == [19] * 3
    budget.held_bytes -= 3000
    assert [(await kafka.produce(each)).base_offset for each in batches] == [0, 1, 2]


async def test_r21_what_follows_a_batch_for_a_topic_that_was_not_known_yet_is_refused_too(kafka: Ground) -> None:
    """The topic is made again between two requests of a living producer. Any of its sequences would be taken there."""
    batches = [
        batch_of(bytes([48 + place]), producer_id=7, producer_epoch=0, base_sequence=30 + place) for place in range(3)
    ]
    assert (await kafka.produce(batches[0])).error_code == 3
    topic = await kafka.topic()
    partition = kafka.sh.agent.log.partition(topic.partition_keys()[0])
    assert partition is not None
    partition.producers.forgot(7)
    assert (await kafka.produce(batches[1])).error_code == 3
    assert [(await kafka.produce(each)).base_offset for each in batches] == [0, 1, 2]


async def test_r21_followers_are_taken_where_the_log_knows_all_before_them(kafka: Ground) -> None:
    """The refused batch came again to another agent, which wrote it, and this agent leads again."""
    topic = await kafka.topic()
    batches = [
        batch_of(bytes([48 + place]), producer_id=7, producer_epoch=0, base_sequence=place) for place in range(3)
    ]
    assert (await kafka.produce(batches[0])).base_offset == 0
    kafka.client.order.refused(topic.partition_keys()[0], batches[1], BackPressureRejected("no room"))
    assert (await kafka.produce(batches[2])).error_code == 19
    (key,) = topic.partition_keys()
    await kafka.sh.agent.log.append(key, batches[1], acks=-1).done
    assert (await kafka.produce(batches[2])).base_offset == 2


async def test_r21_a_batch_whose_time_is_up_while_it_waits_is_not_overtaken(kafka: Ground) -> None:
    topic = await kafka.topic()
    opening = Opening(kafka, topic.partition_keys()[0])
    batches = [
        batch_of(bytes([48 + sequence]), producer_id=7, producer_epoch=0, base_sequence=sequence)
        for sequence in range(3)
    ]
    started = [
        kafka.start(PRODUCE, 9, produce_request({"t": {0: each}}, timeout=timeout))
        for each, timeout in zip(batches, (1, 30_000, 30_000), strict=True)
    ]
    first = await kafka.answer(PRODUCE, 9, started[0])
    assert first.responses[0].partition_responses[0].error_code in (6, 7)
    opening.done()
    for each in started[1:]:
        part = (await kafka.answer(PRODUCE, 9, each)).responses[0].partition_responses[0]
        assert part.error_code in (6, 7)
    for offset, each in enumerate(batches):
        assert (await kafka.produce(each)).base_offset == offset
    assert [record.value for record in await kafka.sh.read("t", 0, 0)] == [b"0", b"1", b"2"]


async def test_acks_0_waits_for_a_lease_too(kafka: Ground) -> None:
    topic = await kafka.topic()
    opening = Opening(kafka, topic.partition_keys()[0])
    started = kafka.start(PRODUCE, 9, produce_request({"t": {0: batch_of(b"v")}}, acks=0))
    bad = kafka.start(PRODUCE, 9, produce_request({"t": {0: b"junk"}}, acks=0))
    opening.done()
    assert await started is None
    with pytest.raises(CloseConnection):
        await bad
    await asyncio.sleep(0)
    assert (await kafka.produce(batch_of(b"w"))).base_offset == 1


async def test_a_leaderless_topic_is_refused_clearly_for_now(kafka: Ground) -> None:
    await kafka.topic(diskless_enable="true")
    answer = await kafka.produce(batch_of(b"v"))
    assert answer.error_code == 42
    assert "leaderless" in answer.error_message
