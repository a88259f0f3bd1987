"""What is stored, divided between topics: every byte of the listing once (S2.31)."""

from __future__ import annotations

from uuid import UUID

import pytest

from streamhouse.app import topic_shares
from streamhouse.app.topic_shares import TopicShares
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import KAFKA_BATCHES, Entry, EntryKind
from streamhouse.objectstore.keys import CompactedKey, SharedBlobKey
from streamhouse.objectstore.objects import ObjectInfo

A, B, GONE = (TopicId(UUID(int=number)) for number in (1, 2, 3))


def blob(number: int) -> str:
    return str(SharedBlobKey(created_ms=1, object_id=UUID(int=number)))


def segment(topic_id: TopicId) -> str:
    log = PartitionKey(topic_id, 0)
    return str(CompactedKey(log=log, base_offset=0, end_offset=9, created_ms=1, object_id=UUID(int=9)))


def entry(key: str, size_bytes: int) -> Entry:
    return Entry(
        base_offset=0,
        end_offset=0,
        kind=EntryKind.WAL,
        object_key=key,
        byte_offset=0,
        byte_length=size_bytes,
        record_count=1,
        encoding=KAFKA_BATCHES,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        epoch=1,
        created_at_ms=0,
    )


def info(key: str, size_bytes: int) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=size_bytes, modified_ms=0, etag=None)


def shares() -> TopicShares:
    made = TopicShares()
    made.add_topic(A, "a", 1)
    made.add_topic(B, "b", 1)
    return made


def test_s2_31_a_shared_blob_is_divided_by_the_bytes_that_each_topic_has_in_it() -> None:
    made = shares()
    made.add_entry(A, entry(blob(1), 300))
    made.add_entry(B, entry(blob(1), 60))
    made.add_entry(B, entry(blob(1), 40))
    made.add_object(info(blob(1), 1_000))
    a, b = made.topics[A], made.topics[B]
    assert (a.stored_bytes, b.stored_bytes) == (750, 250), "dead bytes are paid by those that keep them"
    assert (a.log_bytes, b.log_bytes) == (300, 100)
    assert (a.entries, b.entries, a.shared_objects, b.shared_objects) == (1, 2, 1, 1)
    assert made.unowned_bytes == 0


def test_s2_31_an_object_in_a_topics_folder_is_the_topics_and_the_rest_is_no_topics() -> None:
    made = shares()
    made.add_entry(A, entry(segment(A), 90))
    for key, size_bytes in ((segment(A), 100), (segment(GONE), 7), (blob(1), 11), ("cluster-id", 3)):
        made.add_object(info(key, size_bytes))
    assert (made.topics[A].stored_bytes, made.topics[A].objects, made.topics[B].stored_bytes) == (100, 1, 0)
    assert (made.unowned_bytes, made.unowned_objects) == (21, 3)


def test_s2_31_blobs_beyond_the_limit_are_no_topics_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_shares, "MAX_SHARED_BLOBS", 1)
    made = shares()
    for number in (1, 2, 1):
        made.add_entry(A, entry(blob(number), 10))
    for number in (1, 2):
        made.add_object(info(blob(number), 50))
    assert (made.topics[A].stored_bytes, made.unowned_bytes, made.blobs_left_out) == (50, 50, 1)
    assert made.topics[A].log_bytes == 30
