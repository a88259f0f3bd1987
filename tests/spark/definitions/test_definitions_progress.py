"""Which batch counts: written where the target stands, skipped when it is there, refused otherwise (R8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from positions import ANEW, at, batch

from streamhouse.core.errors import BatchRegressed, CorruptDocument
from streamhouse.spark.definitions.progress import (
    Batch,
    BatchCheck,
    Progress,
    decide,
    read_progress,
    starts_by_topic,
)

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
