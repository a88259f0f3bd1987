"""The queue of tasks: first come first served, and no partition twice (S2.12)."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.maintenance.service.task_queue import TaskQueue

A, B = (PartitionKey(TopicId(UUID(int=1)), partition) for partition in range(2))


def test_s2_12_a_partition_that_waits_or_is_worked_on_is_not_taken_in_again() -> None:
    queue = TaskQueue()
    assert queue.offer(A, now_ms=0)
    assert not queue.offer(A, now_ms=1)
    task = queue.take(now_ms=5)
    assert task is not None
    assert (task.key, task.waited_ms) == (A, 5)
    assert not queue.offer(A, now_ms=6)
    assert queue.take(now_ms=6) is None
    queue.done(A)
    assert queue.offer(A, now_ms=7)


def test_who_came_first_is_served_first() -> None:
    queue = TaskQueue()
    for key in (B, A):
        queue.offer(key, now_ms=0)
    assert [queue.take(now_ms=0).key for _ in range(2)] == [B, A]  # type: ignore[union-attr]


@given(st.lists(st.tuples(st.sampled_from(["offer", "take", "done"]), st.integers(0, 4)), max_size=60))
def test_s2_12_no_partition_is_ever_taken_twice_at_a_time(steps: list[tuple[str, int]]) -> None:
    queue, running = TaskQueue(), set[PartitionKey]()
    for what, number in steps:
        key = PartitionKey(TopicId(UUID(int=1)), number)
        if what == "offer":
            queue.offer(key, now_ms=0)
        elif what == "done":
            queue.done(key)
            running.discard(key)
        elif (task := queue.take(now_ms=0)) is not None:
            assert task.key not in running
            running.add(task.key)
        assert queue.running == running
        assert queue.waiting + len(running) <= 5
