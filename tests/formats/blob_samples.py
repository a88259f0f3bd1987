"""Shared blobs for the tests of the format and of its writer."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from format_samples import START_MS, TOPIC, batch_run, make_batch

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.formats.shared_blob_v1_writer import BlobWriter, FinishedBlob
from streamhouse.wire import batch as wire

GOLDEN = Path(__file__).parent / "golden" / "shared_blob_v1.lls1"


OTHER_TOPIC = TopicId(UUID("11111111-2222-4333-8444-555555555555"))


def pack(groups: dict[tuple[str, PartitionKey], list[bytes]]) -> tuple[bytes, FinishedBlob]:
    writer = BlobWriter(created_at_ms=START_MS)
    for (topic, key), contents in groups.items():
        body = writer.add(topic, key)
        for content in contents:
            body.append(content, wire.validate(content))
    blob = writer.finish()
    return b"".join(blob.buffers), blob


def sample() -> tuple[bytes, FinishedBlob]:
    return pack(
        {
            ("orders", PartitionKey(TOPIC, 0)): batch_run(count=3, seed=1, leader_epoch=-1),
            ("orders", PartitionKey(TOPIC, 7)): [make_batch(count=2, producer_id=9, producer_epoch=1, base_sequence=4)],
            ("user-events", PartitionKey(OTHER_TOPIC, 1)): batch_run(count=4, seed=2, base_offset=50, leader_epoch=3),
        }
    )
