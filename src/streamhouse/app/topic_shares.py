"""Divides what is stored between topics. Pure: entries and listed objects in, bytes of each topic out.

    an object in a topic's own folder    is the topic's, whether or not entries still name it
    a shared blob                        is divided between the topics whose entries name it, by their bytes in it. So a
                                         topic also pays for the dead bytes that it keeps from being deleted
    anything else                        is no topic's: deleted topics, blobs that nothing names, uploads under way

Every object is counted once, so the bytes of all topics and of no topic are together what the listing has. First all
entries, then the listing: what changes in between is counted as no topic's, or is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from streamhouse.core.ids import TopicId
from streamhouse.metadata.contract import Entry
from streamhouse.objectstore.keys import CompactedKey, SegmentKey, SharedBlobKey, parse
from streamhouse.objectstore.objects import ObjectInfo
from streamhouse.objectstore.topic_requests import divided

MAX_SHARED_BLOBS: Final = 200_000
"""Blobs whose division is kept, about 500 bytes each. Compaction leaves far fewer; further ones count as no topic's."""


@dataclass(slots=True, kw_only=True)
class StoredShare:
    name: str
    partitions: int
    entries: int = 0
    log_bytes: int = 0
    """Bytes of its entries: what its log has."""
    stored_bytes: int = 0
    """Bytes of objects that are there because of it."""
    objects: int = 0
    """Objects in its own folder."""
    shared_objects: int = 0
    """Shared blobs that hold records of it."""


@dataclass(slots=True)
class TopicShares:
    topics: dict[TopicId, StoredShare] = field(default_factory=dict)
    unowned_bytes: int = 0
    """Bytes of objects that are no topic's."""
    unowned_objects: int = 0
    blobs_left_out: int = 0
    """Entries in shared blobs beyond MAX_SHARED_BLOBS."""
    _blobs: dict[str, dict[TopicId, int]] = field(default_factory=dict)
    """The bytes of each topic in each shared blob that entries name."""

    def add_topic(self, topic_id: TopicId, name: str, partitions: int) -> None:
        self.topics[topic_id] = StoredShare(name=name, partitions=partitions)

    def add_entry(self, topic_id: TopicId, entry: Entry) -> None:
        share = self.topics[topic_id]
        share.entries += 1
        share.log_bytes += entry.byte_length
        if not isinstance(parse(entry.object_key), SharedBlobKey):
            return
        blob = self._blobs.get(entry.object_key)
        if blob is None:
            if len(self._blobs) >= MAX_SHARED_BLOBS:
                self.blobs_left_out += 1
                return
            blob = self._blobs[entry.object_key] = {}
        blob[topic_id] = blob.get(topic_id, 0) + entry.byte_length

    def add_object(self, info: ObjectInfo) -> None:
        key = parse(info.key)
        if isinstance(key, SegmentKey | CompactedKey) and key.log.topic_id in self.topics:
            share = self.topics[key.log.topic_id]
            share.objects += 1
            share.stored_bytes += info.size_bytes
        elif (blob := self._blobs.get(info.key)) is not None:
            for topic_id, size_bytes in divided(info.size_bytes, blob).items():
                self.topics[topic_id].stored_bytes += size_bytes
                self.topics[topic_id].shared_objects += 1
        else:
            self.unowned_objects += 1
            self.unowned_bytes += info.size_bytes
