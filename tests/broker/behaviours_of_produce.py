"""Behaviours of writes: offsets, acks, what a topic allows, codecs, and what a record keeps."""

from __future__ import annotations

from typing import Any

from behaviour_table import Scene, Table, refused

from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Header, Record

TEN_YEARS_MS = 10 * 365 * 86_400_000

TABLE = Table()
behaviour = TABLE.behaviour


@behaviour((0, 1, 2))
async def offsets_are_dense(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a"), await on.write(b"b"), await on.write(b"c")


@behaviour((0, 3))
async def a_batch_takes_an_offset_for_each_record(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", b"b", b"c"), await on.write(b"d")


@behaviour((0, 0))
async def partitions_have_offsets_of_their_own(on: Scene) -> Any:
    await on.create(2)
    return await on.write(b"a"), await on.write(b"b", partition=1)


@behaviour((0, [b"a"]))
async def acks_1_is_acknowledged_with_an_offset(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", acks=1), await on.read()


@behaviour([b"a"])
async def acks_0_writes_without_an_answer(on: Scene) -> Any:
    await on.create()
    assert await on.write(b"a", acks=0) is None
    return await on.read(wait_ms=10_000)


@behaviour(refused("INVALID_REQUIRED_ACKS"))
async def acks_are_all_1_or_0(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", acks=2)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_write_needs_a_topic(on: Scene) -> Any:
    return await on.write(b"a")


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_write_needs_a_partition_that_exists(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", partition=1)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_partition_is_not_negative(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", partition=-1)


@behaviour(refused("MESSAGE_TOO_LARGE"))
async def a_batch_above_the_limit_of_its_topic_is_refused(on: Scene) -> Any:
    await on.create(max_message_bytes="500")
    return await on.write(b"x" * 600)


@behaviour(0)
async def a_batch_within_the_limit_of_its_topic_is_taken(on: Scene) -> Any:
    await on.create(max_message_bytes="500")
    return await on.write(b"x" * 400)


@behaviour(refused("INVALID_TIMESTAMP"))
async def a_record_ten_years_ahead_is_refused_where_its_topic_allows_a_second(on: Scene) -> Any:
    await on.create(message_timestamp_after_max_ms="1000")
    return await on.write(b"a", at_ms=on.sh.clock.wall_ms() + TEN_YEARS_MS)


@behaviour(refused("INVALID_TIMESTAMP"))
async def a_record_of_long_ago_is_refused_where_its_topic_allows_a_second(on: Scene) -> Any:
    await on.create(message_timestamp_before_max_ms="1000")
    return await on.write(b"a", at_ms=on.sh.clock.wall_ms() - TEN_YEARS_MS)


@behaviour(0)
async def any_past_time_is_taken_by_default(on: Scene) -> Any:
    await on.create()
    return await on.write(b"a", at_ms=1)


@behaviour(True)
async def the_broker_stamps_records_of_a_topic_with_log_append_time(on: Scene) -> Any:
    await on.create(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms="1000")
    before_ms = on.sh.clock.wall_ms()
    found = await on.write_record(Record(value=b"a", timestamp_ms=before_ms + TEN_YEARS_MS))
    return before_ms <= found.timestamp_ms <= on.sh.clock.wall_ms()


@behaviour(refused("INVALID_RECORD"))
async def a_compacted_topic_takes_no_record_without_a_key(on: Scene) -> Any:
    await on.create(cleanup_policy="compact")
    return await on.write(b"a")


@behaviour(refused("INVALID_RECORD"))
async def a_compacted_topic_takes_no_compressed_record_without_a_key(on: Scene) -> Any:
    await on.create(cleanup_policy="compact,delete")
    return await on.write(b"a", codec=Codec.ZSTD)


@behaviour((b"", b"a"))
async def a_compacted_topic_takes_an_empty_key(on: Scene) -> Any:
    await on.create(cleanup_policy="compact")
    found = await on.write_record(Record(key=b"", value=b"a", timestamp_ms=on.sh.clock.wall_ms()))
    return found.key, found.value


@behaviour((0, [b"a" * 100, b"b", b"c"]))
async def a_topic_with_a_codec_of_its_own_takes_batches_of_every_codec(on: Scene) -> Any:
    await on.create(compression_type="gzip")
    first = await on.write(b"a" * 100)
    await on.write(b"b", codec=Codec.LZ4)
    await on.write(b"c", codec=Codec.GZIP)
    return first, await on.read()


@behaviour(refused("MESSAGE_TOO_LARGE"))
async def a_batch_is_measured_after_it_was_uncompressed_for_its_topic(on: Scene) -> Any:
    await on.create(compression_type="uncompressed", max_message_bytes="500")
    return await on.write(b"x" * 600, codec=Codec.GZIP)


@behaviour(refused("MESSAGE_TOO_LARGE"))
async def a_batch_is_measured_before_it_is_compressed_for_its_topic(on: Scene) -> Any:
    await on.create(compression_type="gzip", max_message_bytes="500")
    return await on.write(b"x" * 600)


@behaviour((None, b"", 5))
async def null_and_empty_are_kept_apart(on: Scene) -> Any:
    await on.create()
    found = await on.write_record(Record(key=None, value=b"", timestamp_ms=5))
    return found.key, found.value, found.timestamp_ms


@behaviour((b"k", None))
async def a_record_may_have_a_key_and_no_value(on: Scene) -> Any:
    await on.create()
    found = await on.write_record(Record(key=b"k", value=None, timestamp_ms=5))
    return found.key, found.value


@behaviour([("h", b"1"), ("h", None), ("other", b"")])
async def headers_keep_their_order_and_repeat(on: Scene) -> Any:
    await on.create()
    headers = (Header("h", b"1"), Header("h", None), Header("other", b""))
    found = await on.write_record(Record(value=b"v", timestamp_ms=5, headers=headers))
    return [(header.key, header.value) for header in found.headers]


def _codec(codec: Codec) -> None:
    async def story(on: Scene) -> Any:
        await on.create()
        await on.write(b"a" * 100, b"b" * 100, codec=codec)
        return await on.read()

    story.__name__ = f"batches_compressed_with_{codec.name.lower()}_come_back"
    behaviour([b"a" * 100, b"b" * 100])(story)


for each in Codec:
    _codec(each)


@behaviour(refused("INVALID_REQUEST"))
async def leaderless_topics_cannot_be_written_yet(on: Scene) -> Any:
    await on.create(diskless_enable="true")
    return await on.write(b"a")
