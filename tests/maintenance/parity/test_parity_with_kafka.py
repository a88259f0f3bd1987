"""The same writes, configs and jumps of time leave the same records on Apache Kafka and on StreamHouse.

What is compared after each step: the log's first and next offset, and the offset, key, value, time and headers of every
record that a consumer reads from the beginning; the offset at which each time is found; and the answers to calls that a
broker may refuse.

What may differ, and why:

    the newest batch      neither cleans it: it is Kafka's active segment, and our newest entry. Stories end with one
    the size of a unit    Kafka deletes segments, we delete entries. Batches here fill a segment each, and compaction of
                          small objects, which makes large entries of small ones, does not run
    when it is seen       a StreamHouse agent may answer from memory with records that were compacted away, never
                          with fewer. Where it does, it is started again, and must then have what Kafka has
    the log start         of a log that is cleaned: Kafka's may be higher, with no record between the two. Probably it
                          judges an emptied segment by the age of its file, and files do not go by the moved clock
    a time is not found   in a log that is cleaned, Kafka may find nothing although a later record exists. Probably it
                          looks in one segment, which cleaning has emptied. We find that record
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from parity_brokers import ParityStreamHouse
from parity_client import LogSeen
from parity_stories import STORIES, Story, StoryLog, told


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_same_records_stay_as_on_kafka(
    story: Story, on_kafka: Callable[[Story], StoryLog], streamhouse_broker: ParityStreamHouse
) -> None:
    theirs, ours = on_kafka(story), told(story, streamhouse_broker)
    assert ours.answers == theirs.answers
    assert len(ours.seen) == len(theirs.seen) > 0
    for here, there in zip(ours.seen, theirs.seen, strict=True):
        if ours.is_compacted:
            assert max(here.start_offset, there.start_offset) <= min(here.offsets, default=here.end_offset)
            there = replace(there, start_offset=here.start_offset)
        assert here == there
    for seen, here, there in zip(ours.seen, ours.times_found, theirs.times_found, strict=True):
        assert here == where_times_are(seen, there)
        assert {at: found for at, found in there.items() if found != -1}.items() <= here.items()


def where_times_are(seen: LogSeen, times: Mapping[int, int]) -> dict[int, int]:
    """The first record that is not older, as Kafka's protocol has it."""
    return {at: min((each.offset for each in seen.records if each.at_ms >= at), default=-1) for at in times}
