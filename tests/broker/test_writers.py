"""What a client may write, whatever the mode and the protocol; and what each kind of writer answers."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.writers import LeaderlessWriter, Writer, check_batch
from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    LimitExceeded,
    StreamHouseError,
    TransactionsUnsupported,
)
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.topic_config import effective
from streamhouse.metadata.contract import Topic, WriteMode
from streamhouse.wire.records import ControlType, Record, build_batch, build_control_batch

KEY = PartitionKey(TopicId(UUID(int=1)), 0)
CLOCK = ManualClock()


def batch(*values: bytes, at_ms: int | None = None, **more: Any) -> bytes:
    time_ms = CLOCK.wall_ms() if at_ms is None else at_ms
    return build_batch([Record(value=value, timestamp_ms=time_ms) for value in values], **more)


def changed(data: bytes, at: int, shape: str, value: int) -> bytes:
    out = bytearray(data)
    struct.pack_into(shape, out, at, value)
    return bytes(out)


MARKER = build_control_batch(ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1)


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", InvalidRecord, "needs one batch"),
        (b"short", CorruptBatch, "5 bytes are no record batch"),
        (changed(batch(b"v"), 16, ">b", 1), InvalidRecord, "magic 2, not 1"),
        (batch(b"v")[:-1], CorruptBatch, "says that it has"),
        (changed(batch(b"v"), 8, ">i", 3), CorruptBatch, "says that it has 15 bytes"),
        (batch(b"v") + batch(b"w"), InvalidRecord, "bytes follow the first"),
        (changed(batch(b"v"), 57, ">i", 2), InvalidRecord, "2 records for 1 offsets"),
        (MARKER, InvalidRecord, "no control batches"),
        (changed(batch(b"v"), 21, ">h", 0x10), TransactionsUnsupported, "transactional"),
        (batch(b"v", producer_id=7, producer_epoch=0, base_sequence=-1), InvalidRecord, "without a sequence number"),
        (batch(b"x" * 1000), LimitExceeded, r"max\.message\.bytes allows 500"),
        (batch(b"v", at_ms=CLOCK.wall_ms() + 1_001), InvalidTimestamp, r"1001 ms ahead, message\.timestamp\.after"),
        (batch(b"v", at_ms=CLOCK.wall_ms() - 2_001), InvalidTimestamp, r"2001 ms ago, message\.timestamp\.before"),
        (changed(batch(b"v"), 21, ">h", 0x08), InvalidTimestamp, "only the broker stamps"),
    ],
)
def test_what_a_client_may_not_write(data: bytes, error: type[StreamHouseError], says: str) -> None:
    config = effective(
        {
            "max.message.bytes": "500",
            "message.timestamp.after.max.ms": "1000",
            "message.timestamp.before.max.ms": "2000",
        }
    )
    with pytest.raises(error, match=f"^orders/0: .*{says}"):
        check_batch("orders/0", config, data, CLOCK)


@pytest.mark.parametrize("off_ms", [1_000, 0, -2_000])
def test_times_at_the_edge_are_allowed(off_ms: int) -> None:
    config = effective({"message.timestamp.after.max.ms": "1000", "message.timestamp.before.max.ms": "2000"})
    check_batch("orders/0", config, batch(b"v", at_ms=CLOCK.wall_ms() + off_ms), CLOCK)


def test_a_topic_with_log_append_time_takes_any_time() -> None:
    config = effective({"message.timestamp.type": "LogAppendTime", "message.timestamp.after.max.ms": "1000"})
    check_batch("orders/0", config, batch(b"v", at_ms=CLOCK.wall_ms() + 10**12), CLOCK)


def test_a_process_without_an_agent_answers_for_no_partition() -> None:
    writer = Writer()
    assert writer.append(KEY, batch(b"v"), acks=-1) is None
    assert writer.epoch(KEY) is None
    assert not writer.is_changing(KEY)


def test_a_leaderless_partition_can_be_read_anywhere_and_not_be_written_yet() -> None:
    metadata: Any = None
    view = ClusterView(metadata=metadata, agent_id="a", liveness_timeout_ms=1, heartbeat_interval_ms=1)
    view.learned(
        Topic(
            topic_id=KEY.topic_id,
            name="cheap",
            partition_count=1,
            configs={},
            write_mode=WriteMode.LEADERLESS,
            version=1,
            created_at_ms=0,
        )
    )
    writer = LeaderlessWriter(view)
    assert writer.epoch(KEY) == 0
    with pytest.raises(InvalidRequest, match=r"cheap/0 is leaderless"):
        writer.append(KEY, batch(b"v"), acks=-1)
