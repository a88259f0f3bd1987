"""What is stored, by prefix, against a bucket whose contents the test made (S2.31)."""

from __future__ import annotations

from uuid import UUID

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.maintenance.service.usage import PREFIXES, PrefixUsage, prefix_of, usage_by_prefix
from streamhouse.objectstore.keys import (
    CLUSTER_ID_KEY,
    CompactedKey,
    ProbeKey,
    SegmentKey,
    SharedBlobKey,
    StagingKey,
    metadata_progress_key,
)
from streamhouse.objectstore.memory import MemoryStore

LOG, ID = PartitionKey(TopicId(UUID(int=7)), 3), UUID(int=1)
KEYS = {
    "wal-shared/": str(SharedBlobKey(created_ms=1, object_id=ID)),
    "topics/*/segments/": str(SegmentKey(log=LOG, base_offset=0, epoch=1, created_ms=1, object_id=ID)),
    "topics/*/compacted/": str(CompactedKey(log=LOG, base_offset=0, end_offset=9, created_ms=1, object_id=ID)),
    "upload-staging/": str(StagingKey(created_ms=1, object_id=ID)),
    "store-probe/": str(ProbeKey(created_ms=1, object_id=ID)),
    "metadata-progress/": metadata_progress_key(5),
    "other": CLUSTER_ID_KEY,
}


@pytest.mark.parametrize(("prefix", "key"), KEYS.items())
def test_s2_31_each_kind_of_object_has_its_prefix(prefix: str, key: str) -> None:
    assert prefix_of(key) == prefix


@pytest.mark.parametrize("key", ["topics/readme.txt", "wal-shared/x", "somebody/else"])
def test_s2_31_objects_that_are_none_of_ours_are_other(key: str) -> None:
    assert prefix_of(key) == "other"


async def test_s2_31_every_object_is_counted_once_with_its_bytes() -> None:
    store = MemoryStore(clock=ManualClock())
    for size, key in enumerate(KEYS.values(), start=1):
        await store.put(key, b"x" * size)
    await store.put("topics/readme.txt", b"x" * 100)
    seen: list[str] = []
    found = await usage_by_prefix(store, on_object=lambda info: seen.append(info.key))
    assert list(found) == list(PREFIXES)
    assert [found[prefix] for prefix in KEYS] == [
        *(PrefixUsage(objects=1, bytes=size) for size in range(1, 7)),
        PrefixUsage(objects=2, bytes=107),
    ]
    assert len(seen) == 8
