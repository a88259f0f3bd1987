"""Batches that are opened on their way in, as Kafka's clients meet them: errors of records, and codecs of topics."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from data_ground import PRODUCE, Ground, batch_of, produce_request

from streamhouse.broker import writers
from streamhouse.core.limits import MAX_PREPARED_INLINE_BYTES
from streamhouse.log.offload import ThreadOffload
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record, build_batch

LARGE = b"x" * (MAX_PREPARED_INLINE_BYTES + 1)


def codecs_of(records: Any) -> list[int]:
    return [header.codec for _, header in iter_batches(records)]


@pytest.mark.parametrize("version", range(3, 14))
async def test_each_record_without_a_key_has_an_error_of_its_own(kafka: Ground, version: int) -> None:
    topic = await kafka.topic(partitions=2, cleanup_policy="compact")
    name: Any = topic.topic_id if version >= 13 else "t"
    some = build_batch([Record(key=key, value=b"v") for key in (b"a", None, b"b", None)])
    good = build_batch([Record(key=b"a", value=b"v")])
    response = await kafka.ask(PRODUCE, version, produce_request({name: {0: some, 1: good}}))
    refused, taken = response.responses[0].partition_responses
    assert (refused.error_code, refused.base_offset, taken.error_code, taken.base_offset) == (87, -1, 0, 0)
    if version >= 8:
        assert [each.batch_index for each in refused.record_errors] == [1, 3]
        assert all("needs a key" in each.batch_index_error_message for each in refused.record_errors)
        assert "2 of 4 records have no key" in refused.error_message
        assert taken.record_errors == []
    assert await kafka.sh.read("t", 0, 0) == []


async def test_batches_are_stored_with_the_codec_of_their_topic(kafka: Ground) -> None:
    await kafka.topic(compression_type="gzip")
    for codec in Codec:
        assert (await kafka.produce(batch_of(b"a", b"b", codec=codec))).error_code == 0
    answer = await kafka.fetch(0)
    assert codecs_of(answer.records) == [Codec.GZIP] * len(Codec)
    found = await kafka.sh.read("t", 0, 0)
    assert [record.value for record in found] == [b"a", b"b"] * len(Codec)
    assert [record.offset for record in found] == list(range(2 * len(Codec)))


async def test_a_retry_with_another_codec_is_the_same_batch(kafka: Ground) -> None:
    await kafka.topic(compression_type="zstd")
    for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
        sent = batch_of(b"a", b"b", codec=codec, producer_id=9, producer_epoch=0, base_sequence=0)
        answer = await kafka.produce(sent)
        assert (answer.error_code, answer.base_offset) == (0, 0)
    answer = await kafka.produce(batch_of(b"c", producer_id=9, producer_epoch=0, base_sequence=2))
    assert (answer.error_code, answer.base_offset) == (0, 2)
    assert (await kafka.produce(batch_of(b"d", producer_id=9, producer_epoch=0, base_sequence=7))).error_code == 45


async def test_the_broker_stamps_what_it_compresses(kafka: Ground) -> None:
    await kafka.topic(compression_type="lz4", message_timestamp_type="LogAppendTime")
    answer = await kafka.produce(batch_of(b"a"))
    (found,) = await kafka.sh.read("t", 0, 0)
    assert found.timestamp_ms == answer.log_append_time > 0


async def test_large_batches_are_opened_in_a_thread_and_keep_their_order(
    kafka: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kafka.topic(compression_type="zstd")
    threads: list[str] = []
    opened = threading.Event()

    def prepare(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        assert opened.wait(20)
        return plain(*args)

    plain = writers.prepare
    monkeypatch.setattr(writers, "prepare", prepare)
    kafka.broker.writes._leased._offload = ThreadOffload(1)  # type: ignore[attr-defined]
    batches = [
        batch_of(value, producer_id=5, producer_epoch=0, base_sequence=number)
        for number, value in enumerate((LARGE, b"small", LARGE, b"last"))
    ]
    started = [kafka.start(PRODUCE, 9, produce_request({"t": {0: batch}})) for batch in batches]
    await asyncio.sleep(0.05)
    assert not any(each.done() for each in started)
    opened.set()
    answers = [await kafka.answer(PRODUCE, 9, each) for each in started]
    parts = [answer.responses[0].partition_responses[0] for answer in answers]
    assert [(part.error_code, part.base_offset) for part in parts] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert len(threads) >= 2
    assert threading.main_thread().name not in threads
    assert [record.value for record in await kafka.sh.read("t", 0, 0, max_bytes=4 << 20)] == [
        LARGE,
        b"small",
        LARGE,
        b"last",
    ]


async def test_a_large_batch_is_refused_where_it_waits(kafka: Ground) -> None:
    await kafka.topic(cleanup_policy="compact")
    answer = await kafka.produce(batch_of(b"small", LARGE, codec=Codec.GZIP))
    assert (answer.error_code, [each.batch_index for each in answer.record_errors]) == (87, [0, 1])
    assert (await kafka.produce(build_batch([Record(key=b"k", value=LARGE)]))).error_code == 0
