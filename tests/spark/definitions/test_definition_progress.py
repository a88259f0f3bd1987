"""Which batch counts: written where the target stands, skipped when it is there, refused otherwise (R8)."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from streamhouse.core.errors import BatchRegressed, CorruptDocument
from streamhouse.core.ids import TopicId
from streamhouse.spark.definitions.checkpoints import batch_of, parse_offset_log
from streamhouse.spark.definitions.progress import (
    Batch,
    BatchCheck,
    Position,
    Progress,
    SourcePosition,
    decide,
    read_progress,
    starts_by_topic,
)
from streamhouse.spark.offsets import INITIAL, StreamOffset, TopicPartition
from streamhouse.spark.pipelines.target_topic import TopicWritePlan, next_plan, read_plan

ORDERS = TopicId(uuid.UUID(int=1 << 80))
ANEW = TopicId(uuid.UUID(int=2 << 80))


def at(*offsets: int, topic_id: TopicId = ORDERS) -> Position:
    numbered = {TopicPartition("orders", number): offset for number, offset in enumerate(offsets)}
    return (SourcePosition(offsets=numbered, topic_ids={"orders": topic_id}),)


def batch(number: int, start: Position, end: Position, *, query: str = "q", generation: int = 0) -> Batch:
    return Batch(owner="p", generation=generation, query_id=query, batch_id=number, start=start, end=end)


STORED = Progress(generation=0, query_id="q", batch_id=7, position=at(120, 5))


@pytest.mark.parametrize(
    "arriving",
    [
        batch(8, at(120, 5), at(150, 5)),
        batch(8, at(120, 5), at(120, 5)),
        batch(0, at(120, 5), at(150, 9), query="after the checkpoint was lost"),
        batch(8, at(120, 5, 0), at(120, 5, 3)),
        batch(0, at(), at(10), generation=1),
    ],
    ids=["the next", "one without data", "a fresh checkpoint", "a partition that is new", "after a reset"],
)
def test_r8_a_batch_that_begins_where_the_target_stands_is_written(arriving: Batch) -> None:
    assert decide(STORED, arriving) is BatchCheck.WRITE


def test_r8_the_batch_that_was_written_last_is_skipped() -> None:
    assert decide(STORED, batch(7, at(100, 5), at(120, 5))) is BatchCheck.SKIP


def test_r8_another_batch_of_the_last_ones_number_is_refused() -> None:
    """A restored checkpoint makes one: the same query and number, over other records."""
    with pytest.raises(BatchRegressed, match="another batch of that number"):
        decide(STORED, batch(7, at(100, 5), at(180, 5)))


@pytest.mark.parametrize(
    "arriving",
    [
        batch(6, at(80, 5), at(100, 5)),
        batch(9, at(150, 5), at(160, 5)),
        batch(8, at(119, 5), at(150, 5)),
        batch(6, at(120, 5), at(150, 5)),
        batch(0, at(0, 0), at(120, 5), query="other"),
        batch(8, at(120, 5, topic_id=ANEW), at(150, 5, topic_id=ANEW)),
        batch(3, at(30), at(40), generation=1),
    ],
    ids=["older", "a gap", "an overlap", "numbers go back", "from the start", "another topic", "reset in the middle"],
)
def test_r8_anything_else_is_refused(arriving: Batch) -> None:
    with pytest.raises(BatchRegressed):
        decide(STORED, arriving)


def test_a_target_that_knows_nothing_takes_only_a_first_batch() -> None:
    assert decide(None, batch(0, at(), at(3))) is BatchCheck.WRITE
    with pytest.raises(BatchRegressed, match="does not have the batches before"):
        decide(None, batch(1, at(3), at(4)))
    with pytest.raises(BatchRegressed, match="was reset meanwhile"):
        decide(replace(STORED, generation=2), batch(8, at(120, 5), at(150, 5)))


def test_progress_survives_being_written_down() -> None:
    assert read_progress(STORED.to_json()) == STORED
    for broken in ("", "{}", "[]", STORED.to_json().replace("120", "-1"), STORED.to_json().replace('"0":', '"x":')):
        with pytest.raises(CorruptDocument):
            read_progress(broken)


def test_two_sources_of_one_topic_must_agree_on_where_to_go_on() -> None:
    assert starts_by_topic((*at(3), *at(3))) == {"orders": at(3)[0]}
    assert starts_by_topic((*at(3), *at(4))) is None


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


def log(*offsets: dict[str, Any] | None) -> str:
    lines = ["-" if each is None else json.dumps(each) for each in offsets]
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *lines])


def offset(*numbers: int, began: tuple[int, ...] | None = None) -> dict[str, Any]:
    (position,) = at(*numbers)
    began_at = None if began is None else at(*began)[0].offsets
    return StreamOffset(offsets=position.offsets, topic_ids=position.topic_ids, query="x", began_at=began_at).to_json()


def test_what_a_batch_reads_is_in_sparks_checkpoint() -> None:
    files = {
        "c/metadata": '{"id":"q"}',
        "c/offsets/0": log(offset(5, began=(2,))),
        "c/offsets/1": log(offset(9)),
    }
    assert batch_of("p", 3, "c", 0, files.get) == batch(0, at(2), at(5), generation=3)
    assert batch_of("p", 3, "c", 1, files.get) == batch(1, at(5), at(9), generation=3)
    with pytest.raises(CorruptDocument, match="batch 2 is not in the checkpoint"):
        batch_of("p", 3, "c", 2, files.get)
    del files["c/offsets/0"]
    with pytest.raises(CorruptDocument, match="batch 0 is not in the checkpoint"):
        batch_of("p", 3, "c", 1, files.get)


def test_a_source_that_has_not_been_read_yet() -> None:
    assert parse_offset_log(log(None, dict(INITIAL))) == [None, None]
    files = {
        "c/metadata": '{"id":"q"}',
        "c/offsets/0": log(offset(5, began=(2,)), None),
        "c/offsets/1": log(offset(5), offset(7, began=(1,))),
    }
    found = batch_of("p", 0, "c", 1, files.get)
    assert (found.start, found.end) == ((*at(5), *at(1)), (*at(5), *at(7)))
    for broken in ("", "v2\n{}\n-", "v1\n{}\n{", "v1\n{}"):
        with pytest.raises(CorruptDocument):
            parse_offset_log(broken)
