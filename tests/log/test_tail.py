"""The tail cache against a model: what it holds, what it lets go of, and what it answers at the end of a run."""

from __future__ import annotations

import gc
import uuid
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.log.tail import BATCH_OVERHEAD_BYTES, TailCache
from streamhouse.wire.batch import read_header
from streamhouse.wire.records import Record, build_batch

KEYS = [PartitionKey(TopicId(uuid.UUID(int=7)), number) for number in range(3)]
KEY = KEYS[0]
PLENTY = 1 << 20


def batch(base_offset: int, records: int = 1, size: int = 20) -> bytes:
    made = [Record(value=b"v" * size, timestamp_ms=0) for _ in range(records)]
    return build_batch(made, base_offset=base_offset)


def run(count: int, *, base_offset: int = 0, records: int = 2) -> list[bytes]:
    return [batch(base_offset + number * records, records) for number in range(count)]


def test_s2_18_a_reader_that_keeps_up_finds_everything_here() -> None:
    cache = TailCache(PLENTY)
    made = run(10)
    cache.publish(KEY, 0, made[:4])
    cache.publish(KEY, 8, made[4:])
    read = cache.read(KEY, 0, PLENTY)
    assert read is not None
    assert (list(map(bytes, read.batches)), read.next_offset) == (made, 20)
    assert read.size_bytes == sum(map(len, made))
    for offset in range(20):
        first = cache.read(KEY, offset, 1)
        assert first is not None
        assert [read_header(each).base_offset for each in first.batches] == [offset - offset % 2]


def test_the_first_batch_is_whole_and_the_others_must_fit() -> None:
    cache = TailCache(PLENTY)
    made = run(5)
    cache.publish(KEY, 0, made)
    size = len(made[0])
    for max_bytes, expected in [(0, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (5 * size, 5), (PLENTY, 5)]:
        read = cache.read(KEY, 0, max_bytes)
        assert read is not None
        assert len(read.batches) == expected


def test_s2_18_the_end_of_a_run_is_known_to_be_empty() -> None:
    cache = TailCache(PLENTY)
    assert cache.read(KEY, 0, 100) is None
    cache.publish(KEY, 7, [batch(7)])
    read = cache.read(KEY, 8, 100)
    assert read is not None
    assert (read.batches, read.next_offset) == ((), 8)
    assert cache.read(KEY, 9, 100) is None
    assert cache.read(KEY, 6, 100) is None
    assert (cache.start_offset(KEY), cache.end_offset(KEY), cache.end_offset(KEYS[1])) == (7, 8, None)
    assert (cache.hits, cache.misses) == (1, 3)


def test_a_run_whose_batches_are_all_evicted_still_knows_its_end() -> None:
    cache = TailCache(0)
    cache.publish(KEY, 0, run(3))
    assert cache.size_bytes == 0
    read = cache.read(KEY, 6, 100)
    assert read is not None
    assert read.batches == ()
    assert cache.read(KEY, 5, 100) is None
    cache.publish(KEY, 6, [batch(6)])
    assert cache.end_offset(KEY) == 7


def test_a_gap_or_a_step_back_starts_the_run_anew() -> None:
    for base_offset in (20, 4):
        cache = TailCache(PLENTY)
        cache.publish(KEY, 0, run(5))
        cache.publish(KEY, base_offset, [batch(base_offset)])
        assert (cache.start_offset(KEY), cache.end_offset(KEY)) == (base_offset, base_offset + 1)
        assert cache.read(KEY, 0, 100) is None
        assert cache.size_bytes == len(batch(0)) + BATCH_OVERHEAD_BYTES


def test_batches_that_do_not_follow_each_other_are_refused_and_change_nothing() -> None:
    cache = TailCache(PLENTY)
    cache.publish(KEY, 0, run(2))
    before = cache.size_bytes
    for base_offset, made in [(4, [batch(4), batch(6)]), (4, [batch(5)]), (4, [batch(4), b"short"])]:
        with pytest.raises(ValueError):
            cache.publish(KEY, base_offset, made)
    assert (cache.end_offset(KEY), cache.size_bytes) == (4, before)


def test_the_oldest_batch_of_all_partitions_goes_first() -> None:
    each = len(batch(0)) + BATCH_OVERHEAD_BYTES
    cache = TailCache(4 * each)
    cache.publish(KEYS[1], 0, [batch(0)])
    for offset in range(3):
        cache.publish(KEYS[0], offset, [batch(offset)])
    cache.publish(KEYS[0], 3, [batch(3)])
    assert cache.start_offset(KEYS[1]) == 1  # its batch was the oldest
    assert cache.start_offset(KEYS[0]) == 0
    cache.publish(KEYS[1], 1, [batch(1)])
    assert cache.start_offset(KEYS[0]) == 1
    assert cache.size_bytes == 4 * each


def test_a_long_run_stays_right_while_its_beginning_goes() -> None:
    each = len(batch(0)) + BATCH_OVERHEAD_BYTES
    cache = TailCache(20 * each)
    for offset in range(300):
        cache.publish(KEY, offset, [batch(offset)])
        oldest = max(0, offset - 19)
        read = cache.read(KEY, oldest, 3 * len(batch(0)))
        assert read is not None
        assert [read_header(one).base_offset for one in read.batches] == list(
            range(oldest, min(oldest + 3, offset + 1))
        )
        assert read.size_bytes == len(read.batches) * len(batch(0))
        assert cache.start_offset(KEY) == oldest
    cache.drop(KEY)
    assert cache.size_bytes == 0


def test_a_batch_larger_than_the_cache_goes_at_once() -> None:
    cache = TailCache(1000)
    cache.publish(KEY, 0, [batch(0, size=5000)])
    assert (cache.size_bytes, cache.start_offset(KEY), cache.end_offset(KEY)) == (0, 1, 1)


def test_readers_cannot_change_what_they_are_given() -> None:
    cache = TailCache(PLENTY)
    own = bytearray(batch(0))
    cache.publish(KEY, 0, [own])
    read = cache.read(KEY, 0, PLENTY)
    assert read is not None
    (view,) = read.batches
    assert view.readonly
    assert view.obj is own, "by reference, not a copy"


def test_a_view_of_something_larger_is_copied_so_that_the_rest_can_go() -> None:
    class Arena(bytearray):
        pass

    arena = Arena(batch(0) + bytes(10_000))
    cache = TailCache(PLENTY)
    cache.publish(KEY, 0, [memoryview(arena)[: len(batch(0))]])
    gone = weakref.ref(arena)
    del arena
    gc.collect()
    assert gone() is None
    read = cache.read(KEY, 0, 100)
    assert read is not None
    assert bytes(read.batches[0]) == batch(0)


def test_what_is_dropped_or_evicted_is_let_go_of() -> None:
    class Buffer(bytearray):
        pass

    each = len(batch(0)) + BATCH_OVERHEAD_BYTES
    cache = TailCache(14 * each)
    cache.publish(KEYS[1], 0, [batch(offset) for offset in range(10)])
    cache.read(KEYS[1], 0, PLENTY)
    buffers = [Buffer(batch(offset)) for offset in range(6)]
    watched = [weakref.ref(buffer) for buffer in buffers]
    cache.publish(KEY, 0, buffers)
    del buffers
    cache.publish(KEYS[1], 10, [batch(offset) for offset in range(10, 20)])
    gc.collect()
    assert [ref() is None for ref in watched] == [True, True, False, False, False, False]
    cache.drop(KEY)
    assert len(cache._order) == 14, "the queue still mentions what was dropped"
    gc.collect()
    assert all(ref() is None for ref in watched)
    assert cache.size_bytes == 10 * each


def test_dropping_again_and_again_does_not_grow_the_queue() -> None:
    cache = TailCache(PLENTY)
    cache.publish(KEYS[1], 0, run(50))
    for number in range(1000):
        cache.publish(KEYS[0], 10 * number, run(3, base_offset=10 * number))
    assert len(cache._order) <= 2 * (50 + 3) + 3


class TailModel(RuleBasedStateMachine):
    """The model: every batch ever published, oldest first; those of dropped runs and the oldest over budget are out."""

    cache: TailCache

    @initialize(max_batches=st.integers(0, 12))
    def start(self, max_batches: int) -> None:
        self.max_bytes = max_batches * (60 + BATCH_OVERHEAD_BYTES + 40)
        self.cache = TailCache(self.max_bytes)
        self.held: list[tuple[PartitionKey, int, int, bytes]] = []
        self.ends: dict[PartitionKey, int] = {}

    @rule(
        key=st.sampled_from(KEYS),
        shapes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 80)), min_size=1, max_size=80),
        jump=st.sampled_from([0, 0, 0, 0, 0, 1, 17, -1]),
    )
    def publish(self, key: PartitionKey, shapes: list[tuple[int, int]], jump: int) -> None:
        offset = base_offset = max(0, self.ends.get(key, 3) + jump)
        made = []
        for records, size in shapes:
            made.append(batch(offset, records, size))
            offset += records
        if self.ends.get(key) != base_offset:
            self.held = [each for each in self.held if each[0] != key]
        for each in made:
            header = read_header(each)
            self.held.append((key, header.base_offset, header.next_offset, each))
        self.ends[key] = offset
        while self.held and self.size() > self.max_bytes:
            self.held.pop(0)
        self.cache.publish(key, base_offset, made)

    @rule(key=st.sampled_from(KEYS))
    def drop(self, key: PartitionKey) -> None:
        self.held = [each for each in self.held if each[0] != key]
        self.ends.pop(key, None)
        self.cache.drop(key)

    @rule(key=st.sampled_from(KEYS), back=st.integers(-2, 200), max_bytes=st.integers(0, 1000))
    def read(self, key: PartitionKey, back: int, max_bytes: int) -> None:
        offset = self.ends.get(key, 0) - back
        held = [each for each in self.held if each[0] == key]
        start = held[0][1] if held else self.ends.get(key)
        found = self.cache.read(key, offset, max_bytes)
        if start is None or not start <= offset <= self.ends[key]:
            assert found is None
            return
        expected: list[bytes] = []
        for _, _, end, data in held:
            if end > offset and (not expected or sum(map(len, expected)) + len(data) <= max_bytes):
                expected.append(data)
            elif expected:
                break
        assert found is not None
        assert list(map(bytes, found.batches)) == expected
        assert found.size_bytes == sum(map(len, expected))
        assert found.next_offset == (read_header(expected[-1]).next_offset if expected else offset)

    @invariant()
    def the_budget_is_kept(self) -> None:
        if hasattr(self, "cache"):
            assert self.cache.size_bytes == self.size() <= self.max_bytes
            for key in KEYS:
                assert self.cache.end_offset(key) == self.ends.get(key)

    def size(self) -> int:
        return sum(len(each[3]) + BATCH_OVERHEAD_BYTES for each in self.held)


TestTailModel = TailModel.TestCase
TestTailModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
