"""Keys: what is built is parsed back, what is not ours is left alone."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import InvalidRequest
from streamhouse.core.ids import PartitionKey, TopicId, parse_topic_id
from streamhouse.core.limits import MAX_PARTITIONS_PER_TOPIC
from streamhouse.objectstore.checks import is_key
from streamhouse.objectstore.keys import (
    PROBE_PREFIX,
    SHARED_BLOB_PREFIX,
    STAGING_PREFIX,
    CompactedKey,
    ObjectKey,
    ObjectUri,
    ProbeKey,
    SegmentKey,
    SharedBlobKey,
    StagingKey,
    created_between,
    parse,
    parse_uri,
    partition_prefix,
    topic_of,
    topic_prefix,
)
from streamhouse.objectstore.memory import MemoryStore

CLOCK = SystemClock()

EPOCHS = st.integers(0, 2**31 - 1)
STAMPS = st.integers(0, 10**13 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
LOGS = st.builds(PartitionKey, st.uuids().map(TopicId), st.integers(0, MAX_PARTITIONS_PER_TOPIC - 1))
KEYS: st.SearchStrategy[ObjectKey] = st.one_of(
    st.builds(SharedBlobKey, created_ms=STAMPS, object_id=st.uuids()),
    st.builds(
        SegmentKey,
        log=LOGS,
        base_offset=OFFSETS,
        epoch=EPOCHS,
        created_ms=STAMPS,
        object_id=st.uuids(),
    ),
    st.tuples(LOGS, OFFSETS, OFFSETS, STAMPS, st.uuids()).map(
        lambda t: CompactedKey(
            log=t[0], base_offset=min(t[1:3]), end_offset=max(t[1:3]), created_ms=t[3], object_id=t[4]
        )
    ),
    st.builds(StagingKey, created_ms=STAMPS, object_id=st.uuids()),
    st.builds(ProbeKey, created_ms=STAMPS, object_id=st.uuids()),
)
STORES = st.sampled_from(
    ["s3://bucket", "s3://bucket/llog/a", "file:///var/lib/x%20y/objects", "memory://", "gs://b/c"]
)

TOPIC = TopicId(uuid.UUID("0123abcd-0000-4000-8000-00000000000f"))
OBJECT = uuid.UUID("12345678-1234-4234-8234-123456789abc")
STAMP = 1_700_000_000_000


@given(KEYS)
def test_r6_what_is_built_is_parsed_back(key: ObjectKey) -> None:
    assert parse(str(key)) == key
    assert is_key(str(key))
    assert str(key) == str(key).lower()


@given(KEYS)
def test_s2_31_the_topic_of_a_key_is_that_of_its_folder(key: ObjectKey) -> None:
    assert topic_of(str(key)) == (key.log.topic_id if isinstance(key, SegmentKey | CompactedKey) else None)
    assert topic_of(f"x{key}") is None


@given(STORES, KEYS)
def test_s2_36_an_address_is_parsed_back(store_url: str, key: ObjectKey) -> None:
    uri = ObjectUri(store_url=store_url, key=key)
    assert parse_uri(str(uri)) == uri


@given(KEYS, st.data())
def test_a_key_with_any_character_changed_is_another_key_or_none(key: ObjectKey, data: st.DataObject) -> None:
    text = str(key)
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.sampled_from("0az-/._A ")) + text[place + 1 :]
    parsed = parse(changed)
    assert parsed is None or str(parsed) == changed


def test_keys_are_spelled_like_this() -> None:
    log = PartitionKey(TOPIC, 7)
    assert str(SharedBlobKey(created_ms=STAMP, object_id=OBJECT)) == (
        "wal-shared/1700000000000-12345678-1234-4234-8234-123456789abc.lls1"
    )
    assert str(SegmentKey(log=log, base_offset=42, epoch=3, created_ms=STAMP, object_id=OBJECT)) == (
        "topics/0123abcd00004000800000000000000f/00007/segments/"
        "00000000000000000042-0000000003-1700000000000-12345678-1234-4234-8234-123456789abc.strm"
    )
    assert str(CompactedKey(log=log, base_offset=0, end_offset=99, created_ms=STAMP, object_id=OBJECT)) == (
        "topics/0123abcd00004000800000000000000f/00007/compacted/"
        "00000000000000000000-00000000000000000099-1700000000000-12345678-1234-4234-8234-123456789abc.strm"
    )


def test_topic_ids_that_differ_in_case_only_have_keys_that_differ_in_more() -> None:
    one, two = parse_topic_id("AAAAAAAAAAAAAAAAAAAAAA"), parse_topic_id("aAAAAAAAAAAAAAAAAAAAAA")
    assert topic_prefix(one).lower() != topic_prefix(two).lower()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "wal-shared/",
        "wal-shared/x.lls1",
        "wal-shared/1700000000000-12345678-1234-4234-8234-123456789ABC.lls1",
        "wal-shared/170000000000-12345678-1234-4234-8234-123456789abc.lls1",
        "wal-shared/1700000000000-12345678-1234-4234-8234-123456789abc.lls1\n",
        "wal-shared/1700000000000-12345678-1234-4234-8234-123456789abc.strm",
        "x/wal-shared/1700000000000-12345678-1234-4234-8234-123456789abc.lls1",
        "wal-shared/１７00000000000-12345678-1234-4234-8234-123456789abc.lls1",
        # An epoch and offsets that no writer can have.
        f"{topic_prefix(TOPIC)}00001/segments/{0:020d}-{2**31:010d}-{STAMP}-{OBJECT}.strm",
        f"{topic_prefix(TOPIC)}00001/segments/{2**63:020d}-{0:010d}-{STAMP}-{OBJECT}.strm",
        f"{topic_prefix(TOPIC)}00001/compacted/{9:020d}-{8:020d}-{STAMP}-{OBJECT}.strm",
    ],
)
def test_what_no_builder_makes_is_not_ours(text: str) -> None:
    assert parse(text) is None
    with pytest.raises(InvalidRequest):
        parse_uri(f"s3://bucket/{text}") if "x/" not in text else parse_uri(text)


@pytest.mark.parametrize(
    ("partition", "offset", "epoch", "stamp"),
    [
        (-1, 0, 0, 0),
        (100_000, 0, 0, 0),
        (0, -1, 0, 0),
        (0, 2**63, 0, 0),
        (0, 0, -1, 0),
        (0, 0, 2**31, 0),
        (0, 0, 0, 10**13),
    ],
)
def test_a_number_that_does_not_fit_is_refused(partition: int, offset: int, epoch: int, stamp: int) -> None:
    with pytest.raises(InvalidRequest, match="object key cannot hold"):
        SegmentKey(
            log=PartitionKey(TOPIC, partition), base_offset=offset, epoch=epoch, created_ms=stamp, object_id=OBJECT
        )


@given(st.lists(OFFSETS, min_size=2, max_size=2, unique=True))
def test_keys_of_a_partition_sort_by_offset(offsets: list[int]) -> None:
    low, high = sorted(offsets)
    first, second = (
        str(SegmentKey(log=PartitionKey(TOPIC, 0), base_offset=base, epoch=9, created_ms=5, object_id=OBJECT))
        for base in (low, high)
    )
    assert first < second


async def test_objects_older_than_a_stamp_are_listed_by_their_keys() -> None:
    store = MemoryStore(clock=CLOCK)
    stamps = [5, 10, 11, 10**12]
    for prefix, kind in ((SHARED_BLOB_PREFIX, SharedBlobKey), (STAGING_PREFIX, StagingKey), (PROBE_PREFIX, ProbeKey)):
        for stamp in stamps:
            await store.put(str(kind(created_ms=stamp, object_id=uuid.UUID(int=stamp))), b"")

        async def listed(prefix: str, **bounds: int) -> list[int]:
            found = created_between(prefix, **bounds)
            objects = store.list(found.prefix, start_after=found.start_after, stop_before=found.stop_before)
            parsed = [parse(info.key) async for info in objects]
            return [key.created_ms for key in parsed if key is not None]

        assert await listed(prefix) == stamps
        assert await listed(prefix, before_ms=11) == [5, 10]
        assert await listed(prefix, from_ms=10) == [10, 11, 10**12]
        assert await listed(prefix, from_ms=6, before_ms=10) == []
    with pytest.raises(InvalidRequest, match="sort"):
        created_between(topic_prefix(TOPIC), before_ms=5)


def test_prefixes_hold_their_keys_and_no_others() -> None:
    key = str(SegmentKey(log=PartitionKey(TOPIC, 1), base_offset=0, epoch=0, created_ms=0, object_id=OBJECT))
    assert key.startswith(partition_prefix(PartitionKey(TOPIC, 1)))
    assert key.startswith(topic_prefix(TOPIC))
    assert not key.startswith(partition_prefix(PartitionKey(TOPIC, 10)))
