"""Which member of a consumer group gets which partition. Pure functions of the members, what they had, and the topics.

    uniform    as even as possible; a member keeps a partition that it had, if the assignment stays even
    range      each member gets neighbouring partitions of each topic, in the order of the members

Racks are not used: a leased partition has one leader, wherever its readers are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from streamhouse.core.ids import PartitionKey, TopicId

_MAX_PASSES: Final = 20  # of _even_out; each pass improves the assignment, and real groups need two or three


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    member_id: str
    instance_id: str | None
    topics: frozenset[TopicId]
    had: frozenset[PartitionKey]

    @property
    def order(self) -> tuple[bool, str]:
        """Static members come first, by instance id: then a restart does not move partitions of other members."""
        return (self.instance_id is None, self.instance_id or self.member_id)


Assignment: TypeAlias = dict[str, frozenset[PartitionKey]]
Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[TopicId, int]], Assignment]


def assign_range(readers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Assignment:
    given: dict[str, set[PartitionKey]] = {reader.member_id: set() for reader in readers}
    ordered = sorted(readers, key=lambda reader: reader.order)
    for topic_id, count in partitions.items():
        takers = [reader for reader in ordered if topic_id in reader.topics]
        start = 0
        for rank, reader in enumerate(takers):
            end = start + count // len(takers) + (rank < count % len(takers))
            given[reader.member_id].update(PartitionKey(topic_id, partition) for partition in range(start, end))
            start = end
    return {member_id: frozenset(keys) for member_id, keys in given.items()}


def assign_uniform(readers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Assignment:
    ordered = sorted(readers, key=lambda reader: reader.order)
    wanted = {topic_id for reader in ordered for topic_id in reader.topics if topic_id in partitions}
    keys = [PartitionKey(topic, partition) for topic in sorted(wanted) for partition in range(partitions[topic])]
    if not ordered or not keys:
        return {reader.member_id: frozenset() for reader in ordered}
    alike = all(reader.topics & wanted == wanted for reader in ordered)
    given = _for_equals(ordered, keys) if alike else _for_different(ordered, keys)
    return {member_id: frozenset(mine) for member_id, mine in given.items()}


def _for_equals(readers: Sequence[Subscriber], keys: Sequence[PartitionKey]) -> dict[str, list[PartitionKey]]:
    """All members read the same topics: each gets the same number of partitions, and some get one more."""
    least, one_more = divmod(len(keys), len(readers))
    free = dict.fromkeys(keys)
    given: dict[str, list[PartitionKey]] = {}
    kept: dict[str, list[PartitionKey]] = {}
    for reader in readers:
        mine = sorted(key for key in reader.had if key in free)
        for key in mine:
            del free[key]
        kept[reader.member_id] = mine
    # A member that had more keeps the extra one, so that fewer partitions move.
    for reader in sorted(readers, key=lambda reader: -len(kept[reader.member_id])):
        mine = kept[reader.member_id]
        quota = least + 1 if len(mine) > least and one_more else least
        one_more -= quota > least
        given[reader.member_id] = mine[:quota]
        free.update(dict.fromkeys(mine[quota:]))
    rest = sorted(free)
    for reader in readers:
        mine = given[reader.member_id]
        while rest and len(mine) < least:
            mine.append(rest.pop(0))
    for reader in readers:
        if rest and len(given[reader.member_id]) == least:
            given[reader.member_id].append(rest.pop(0))
    return given


def _for_different(readers: Sequence[Subscriber], keys: Sequence[PartitionKey]) -> dict[str, list[PartitionKey]]:
    """Members may read different topics: keep what they had, give each other partition to the member that has the
    fewest, then even out."""
    by_topic = {key.topic_id: [r.member_id for r in readers if key.topic_id in r.topics] for key in keys}
    load = {reader.member_id: 0 for reader in readers}
    owner: dict[PartitionKey, str] = {}
    had = {key: reader.member_id for reader in reversed(readers) for key in reader.had}
    for key in keys:
        before = had.get(key)
        if before is not None and before in by_topic[key.topic_id]:
            owner[key] = before
            load[before] += 1
    for key in sorted((key for key in keys if key not in owner), key=lambda key: len(by_topic[key.topic_id])):
        taker = min(by_topic[key.topic_id], key=load.__getitem__)
        owner[key] = taker
        load[taker] += 1
    for _ in range(_MAX_PASSES):
        if not _even_out(owner, load, by_topic):
            break
    given: dict[str, list[PartitionKey]] = {reader.member_id: [] for reader in readers}
    for key, member_id in owner.items():
        given[member_id].append(key)
    return given


def _even_out(owner: dict[PartitionKey, str], load: dict[str, int], by_topic: Mapping[TopicId, Sequence[str]]) -> bool:
    moved = False
    for key, holder in owner.items():
        taker = min(by_topic[key.topic_id], key=load.__getitem__)
        if load[taker] + 1 < load[holder]:
            owner[key] = taker
            load[holder] -= 1
            load[taker] += 1
            moved = True
    return moved


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""The first is the default."""
