"""Positions in one topic, and batches between them."""

from __future__ import annotations

import uuid

from streamhouse.core.ids import TopicId
from streamhouse.spark.definitions.progress import (
    Batch,
    Position,
    SourcePosition,
)
from streamhouse.spark.offsets import TopicPartition

ORDERS = TopicId(uuid.UUID(int=1 << 80))
ANEW = TopicId(uuid.UUID(int=2 << 80))


def at(*offsets: int, topic_id: TopicId = ORDERS) -> Position:
    numbered = {TopicPartition("orders", number): offset for number, offset in enumerate(offsets)}
    return (SourcePosition(offsets=numbered, topic_ids={"orders": topic_id}),)


def batch(number: int, start: Position, end: Position, *, query: str = "q", generation: int = 0) -> Batch:
    return Batch(owner="p", generation=generation, query_id=query, batch_id=number, start=start, end=end)
