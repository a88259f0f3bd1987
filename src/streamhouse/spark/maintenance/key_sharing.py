"""What the driver and the tasks of a shared key compaction tell each other, and how many buckets its keys take. Pure.

It is apart from key_shuffle.py because the driver also makes plans, on machines without the libraries of Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.compaction.plan import CompactionItem
from streamhouse.maintenance.compaction.rewrite import RewrittenItem
from streamhouse.maintenance.key_compaction.thinning import RecordCounts
from streamhouse.spark.maintenance.tasks import TaskAnswer, TaskCluster

_ROOM: Final = 65_536
"""Keys that a bucket has room for beyond a quarter more than its share: few keys are not spread evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShuffle:
    """What all tasks know that share one partition."""

    cluster: TaskCluster
    key: PartitionKey
    secret: bytes = field(repr=False)
    """Under it keys are hashed."""
    buckets: int
    record_count: int
    item_ends: tuple[int, ...]
    """The last offset of each item, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapReport:
    """What a task of the first two stages has done, on its way to the driver in one item's answer."""

    answer: TaskAnswer
    """The requests that it cost."""
    read_bytes: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemOrder:
    """What a task is to write of an item; the shuffle brings it what stays."""

    doing: ClassVar[str] = "rewriting with the newest of all keys"
    item: CompactionItem
    needed: bool
    now_ms: int
    delete_retention_ms: int
    buckets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenItem:
    rewritten: RewrittenItem | None
    """None when the entries should stay as they are."""
    counts: RecordCounts
    read_bytes: int
    """With those of the mapping, in the answer of one item."""
    keys: int


def buckets_for(record_count: int, *, max_keys: int) -> int:
    """So many that each should hold ``max_keys`` at most."""
    return -(-record_count * 5 // (max_keys * 4)) or 1


def bucket_size(record_count: int, buckets: int) -> int:
    """The keys that a bucket has room for, when each of the records may have a key of its own."""
    return record_count * 5 // (buckets * 4) + _ROOM
