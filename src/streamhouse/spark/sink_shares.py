"""What a task tells the commit: which of a topic's rows lie where. Plain data that travels from executor to driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamhouse.core.ids import TopicId
from streamhouse.metadata.contract import IntentSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShare:
    topic: str
    topic_id: TopicId
    leaderless: bool
    slices: tuple[IntentSlice, ...]


def merged(shares: Iterable[TopicShare]) -> list[TopicShare]:
    """One for each topic, slices in the order of the tasks; topics in the order of their ids, the same each time."""
    slices: dict[TopicId, list[IntentSlice]] = {}
    first: dict[TopicId, TopicShare] = {}
    for share in shares:
        first.setdefault(share.topic_id, share)
        slices.setdefault(share.topic_id, []).extend(share.slices)
    return [
        TopicShare(
            topic=first[topic_id].topic,
            topic_id=topic_id,
            leaderless=first[topic_id].leaderless,
            slices=tuple(slices[topic_id]),
        )
        for topic_id in sorted(first)
    ]
