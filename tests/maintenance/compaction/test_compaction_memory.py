"""What a compactor remembers between passes, and how much of it."""

from __future__ import annotations

from uuid import UUID

import pytest
from compaction_ground import an_item
from test_compaction_plan import entry

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_KNOWN_DAMAGE
from streamhouse.maintenance.compaction import memory
from streamhouse.maintenance.compaction.memory import CompactorMemory

KEYS = [PartitionKey(TopicId(UUID(int=1)), partition) for partition in range(5)]


def test_the_settled_offset_of_a_partition_is_kept_until_it_is_gone() -> None:
    known = CompactorMemory()
    assert known.settled_offset(KEYS[0]) == 0
    known.settle(KEYS[0], 10)
    known.settle(KEYS[1], 20)
    known.settle(KEYS[0], 30)
    known.forget(KEYS[1])
    known.forget(KEYS[2])
    assert [known.settled_offset(key) for key in KEYS[:3]] == [30, 0, 0]


def test_the_partitions_it_knows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MAX_PARTITIONS", 3)
    known = CompactorMemory()
    for number, key in enumerate(KEYS):
        known.settle(key, number + 1)
        known.settle(KEYS[0], 9)
    assert [known.settled_offset(key) for key in KEYS] == [9, 0, 0, 4, 5], "the one settled longest ago goes"


def test_an_unreadable_entry_is_avoided_for_longer_each_time() -> None:
    known = CompactorMemory()
    known.unreadable(KEYS[0], 7, now_ms=0)
    known.unreadable(KEYS[1], 8, now_ms=0)
    assert known.to_avoid(KEYS[0], now_ms=59_999) == {7}
    assert known.to_avoid(KEYS[0], now_ms=60_000) == set()
    known.unreadable(KEYS[0], 7, now_ms=60_000)
    assert known.to_avoid(KEYS[0], now_ms=179_999) == {7}
    for _ in range(20):
        known.unreadable(KEYS[0], 7, now_ms=200_000)
    assert known.to_avoid(KEYS[0], now_ms=200_000 + 3_599_999) == {7}
    assert known.to_avoid(KEYS[0], now_ms=200_000 + 3_600_000) == set(), "a repaired object is met within the hour"


def test_an_entry_that_could_be_read_begins_anew() -> None:
    known = CompactorMemory()
    for _ in range(5):
        known.unreadable(KEYS[0], 2, now_ms=0)
    known.readable(an_item(KEYS[0], [entry(0), entry(2)]))
    assert known.to_avoid(KEYS[0], now_ms=0) == set()
    known.unreadable(KEYS[0], 2, now_ms=0)
    assert known.to_avoid(KEYS[0], now_ms=60_000) == set()


def test_the_damage_it_knows_is_bounded() -> None:
    known = CompactorMemory()
    for base in range(MAX_KNOWN_DAMAGE + 10):
        known.unreadable(KEYS[0], base, now_ms=0)
    assert len(known.to_avoid(KEYS[0], now_ms=0)) == MAX_KNOWN_DAMAGE
    assert MAX_KNOWN_DAMAGE + 9 in known.to_avoid(KEYS[0], now_ms=0)
