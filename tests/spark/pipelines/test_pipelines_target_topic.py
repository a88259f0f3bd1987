"""What a target topic plans next: batches are numbered, and not the tries of one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from positions import at, batch

from streamhouse.core.errors import CorruptDocument
from streamhouse.spark.pipelines.target_topic import TopicWritePlan, next_plan, read_plan


def test_a_topics_plan_numbers_batches_and_not_tries() -> None:
    first = next_plan(None, None, batch(0, at(), at(3)))
    assert (first.number, first.before, first.finished) == (0, None, False)
    again = next_plan(first, None, batch(0, at(), at(3)))
    second = next_plan(replace(first, finished=True), first.planned, batch(1, at(3), at(9)))
    other = next_plan(second, first.planned, batch(0, at(3), at(7), query="fresh"))
    anew = next_plan(second, None, batch(0, at(), at(7), generation=1))
    assert [plan.number for plan in (again, second, other, anew)] == [0, 1, 2, 0]
    assert read_plan(second.to_json()) == second
    assert read_plan(first.to_json()) == TopicWritePlan(number=0, before=None, planned=first.planned, finished=False)
    with pytest.raises(CorruptDocument):
        read_plan("{}")
