"""Committed offsets of a group without members, for callers that keep track of their progress themselves.

Goes to the metadata store from any agent: no coordinator is needed, because there is no membership to check. The store
refuses a commit while the group has live members.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamhouse.broker.caller import Caller
from streamhouse.broker.topics import TopicAdmin
from streamhouse.core.errors import PartitionNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import CommittedOffset, MetadataStore, OffsetCommit, Topic

__all__ = ["CommittedOffset", "SimpleOffsets"]


class SimpleOffsets:
    def __init__(self, metadata: MetadataStore, topics: TopicAdmin) -> None:
        self._metadata = metadata
        self._topics = topics

    async def commit(self, group: str, offsets: Mapping[tuple[str, int], int], *, caller: Caller) -> None:
        """``offsets``: by (topic, partition), the next offset to read.

        Raises GroupNotEmpty, TopicNotFound, and PartitionNotFound after the others have been committed.
        """
        topics = {
            name: await self._topics.fresh(name, caller=caller) for name in dict.fromkeys(topic for topic, _ in offsets)
        }
        named = {PartitionKey(topics[each[0]].topic_id, each[1]): each for each in offsets}
        commits = [OffsetCommit(key=key, offset=offsets[each]) for key, each in named.items() if _exists(topics, each)]
        missing = [named[key] for key in await self._metadata.commit_offsets_simple(group, commits)]
        missing += [each for each in offsets if not _exists(topics, each)]
        if missing:
            topic, partition = missing[0]
            raise PartitionNotFound(f"{topic}/{partition} does not exist; offsets of the others were committed")

    async def fetch(self, group: str, topic: str, *, caller: Caller) -> dict[int, CommittedOffset]:
        """Return the committed offset of each partition; those without one are left out. Raises TopicNotFound."""
        found = await self._topics.fresh(topic, caller=caller)
        offsets = await self._metadata.fetch_offsets(group, found.partition_keys())
        return {key.partition: committed for key, committed in offsets.items()}


def _exists(topics: Mapping[str, Topic], place: tuple[str, int]) -> bool:
    return 0 <= place[1] < topics[place[0]].partition_count
