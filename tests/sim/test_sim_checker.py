"""The judge is judged: a good history passes, and each anomaly has a history made by hand that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from simulator.anomalies import Kind
from simulator.checker import check
from simulator.history import (
    Committed,
    DiskLost,
    GivenUp,
    Key,
    Led,
    Leftovers,
    RawEntry,
    RawPartition,
    Read,
    SimHistory,
    TakenBatch,
    Undone,
    Write,
)
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.formats.segment_v1_writer import write_segment
from streamhouse.wire.batch import patch, read_header
from streamhouse.wire.records import Record, build_batch

TOPIC = UUID(int=7)
KEY: Key = (TOPIC.hex, 0)


class Story:
    """A log of three entries: a slice of a blob by A, a segment by A, and a slice by B, who led from offset 4 on.

    0 a   1 b   2 c   3 d   |   4 e   5 f
    """

    def __init__(self) -> None:
        self.history = SimHistory(every_agent_led_last=True)
        self.entries: list[RawEntry] = []
        self.objects: dict[str, bytes] = {}
        self.high_watermark = 6
        self.log_start = 0
        self.history.led += [led(1, "A", 0, 0), led(2, "B", 4, 500)]
        self.blob("blob-1", 0, ["a", "b"], epoch=1)
        self.segment("segment-1", 2, ["c", "d"], epoch=1)
        self.blob("blob-2", 4, ["e", "f"], epoch=2)
        self.history.writes += [
            write("p", ["a", "b"], offset=0, at_ms=100),
            write("p", ["c", "d"], offset=2, at_ms=200),
            write("q", ["e"], offset=4, at_ms=600, by="B", epoch=2, sequence=0),
            write("q", ["f"], offset=5, at_ms=700, by="B", epoch=2, sequence=1),
        ]
        self.history.reads.append(read(0, ["a", "b", "c"]))
        self.history.taken.append(TakenBatch(key=KEY, epoch=1, agent="A", at_ms=100))
        self.history.committed.append(Committed(key=KEY, epoch=1, base_offset=0, end_offset=1, at_ms=110))

    def blob(self, name: str, base_offset: int, values: list[str], *, epoch: int) -> None:
        data = b"".join(batch([value]) for value in values)
        self.objects[name] = b"header" + data
        self.add(name, base_offset, len(values), epoch=epoch, encoding="kafka-batch-v2", start=6, length=len(data))

    def segment(self, name: str, base_offset: int, values: list[str], *, epoch: int) -> None:
        data = bytearray(batch(values))
        patch(data, 0, base_offset=base_offset, leader_epoch=epoch)
        segment = write_segment([(data, read_header(data))], key=PartitionKey(TopicId(TOPIC), 0))
        self.objects[name] = b"".join(segment.buffers)
        self.add(name, base_offset, len(values), epoch=epoch, encoding="strm-v1", start=0, length=segment.size)

    def add(
        self, name: str, base_offset: int, count: int, *, epoch: int, encoding: str, start: int, length: int
    ) -> None:
        self.entries.append(
            RawEntry(
                base_offset=base_offset,
                end_offset=base_offset + count - 1,
                object_key=name,
                byte_offset=start,
                byte_length=length,
                record_count=count,
                encoding=encoding,
                epoch=epoch,
            )
        )

    def kinds(self) -> set[Kind]:
        partition = RawPartition(
            high_watermark=self.high_watermark, log_start=self.log_start, entries=tuple(self.entries)
        )
        return {
            anomaly.kind
            for anomaly in check(self.history, Leftovers(partitions={KEY: partition}, objects=self.objects))
        }


def batch(values: list[str]) -> bytes:
    return build_batch([Record(value=value.encode(), timestamp_ms=1) for value in values])


def led(epoch: int, agent: str, start_offset: int, at_ms: float) -> Led:
    return Led(key=KEY, epoch=epoch, agent=agent, start_offset=start_offset, at_ms=at_ms)


def read(offset: int, values: list[str], *, reader: str = "r") -> Read:
    records = tuple((offset + place, value) for place, value in enumerate(values))
    return Read(reader=reader, key=KEY, from_offset=offset, records=records, at_ms=900)


def write(
    producer: str,
    values: list[str],
    *,
    offset: int | None,
    at_ms: float,
    acks: int = -1,
    by: str = "A",
    epoch: int = 1,
    sequence: int | None = None,
    attempts: int = 1,
) -> Write:
    """Acknowledged at that offset, 10 ms after it began; with no offset, never acknowledged."""
    acked = offset is not None
    return Write(
        producer=producer,
        key=KEY,
        values=tuple(values),
        acks=acks,
        invoked_ms=at_ms,
        sequence=sequence,
        attempts=attempts,
        acked_ms=at_ms + 10 if acked else None,
        base_offset=offset,
        acked_by=by if acked else None,
        taken_ms=at_ms + 5 if acked else None,
        epoch=epoch if acked else None,
    )


# Histories that must pass.


def nothing_special(story: Story) -> None:
    pass


def an_unanswered_write_is_there_or_not(story: Story) -> None:
    story.history.writes.append(write("p", ["lost in the post"], offset=None, at_ms=300))
    story.history.writes[1] = write("p", ["c", "d"], offset=None, at_ms=200)


def a_retried_write_stands_twice(story: Story) -> None:
    story.blob("blob-3", 6, ["a", "b"], epoch=2)
    story.high_watermark = 8
    story.history.writes[0] = write("p", ["a", "b"], offset=0, at_ms=100, attempts=2)


def r4_an_overtaken_acks_1_comes_back_elsewhere(story: Story) -> None:
    story.history.writes.append(write("s", ["late"], offset=4, at_ms=300, acks=1))
    story.blob("blob-3", 6, ["late"], epoch=2)
    story.high_watermark = 7


def an_acks_1_on_a_lost_disk_is_gone(story: Story) -> None:
    story.history.writes.append(write("s", ["gone"], offset=4, at_ms=300, acks=1))
    story.history.disks_lost.append(DiskLost(agent="A", at_ms=400))


def an_overtaken_acks_1_may_still_be_on_its_disk(story: Story) -> None:
    story.history.writes.append(write("s", ["held"], offset=4, at_ms=300, acks=1))
    story.history.every_agent_led_last = False


def r4_an_overtaken_acks_1_is_gone_from_a_compacted_topic(story: Story) -> None:
    story.history.writes.append(write("s", ["old value"], offset=4, at_ms=300, acks=1))
    story.history.overtaken_come_back = False


def an_acks_0_promises_nothing(story: Story) -> None:
    story.history.writes.append(write("s", ["whatever"], offset=None, at_ms=300, acks=0))


def a_trimmed_record_was_there(story: Story) -> None:
    del story.entries[0], story.objects["blob-1"]
    story.log_start = 2
    story.history.trimmed[KEY] = {0: "a", 1: "b"}


def writes_at_the_same_time_are_in_any_order(story: Story) -> None:
    story.history.writes[0] = replace(story.history.writes[0], acked_ms=250)
    story.history.writes[1] = replace(story.history.writes[1], invoked_ms=50, acked_ms=240)


def r20_the_stores_clock_was_set_forward(story: Story) -> None:
    story.history.store_clock_set_ms.append(450)
    story.history.taken.append(TakenBatch(key=KEY, epoch=1, agent="A", at_ms=510))


def undone(base_offset: int, end_offset: int, at_ms: float) -> Undone:
    commit = Committed(key=KEY, epoch=2, base_offset=base_offset, end_offset=end_offset, at_ms=at_ms - 10)
    return Undone(commit=commit, at_ms=at_ms)


def r23_what_a_lossy_failover_has_undone_is_excused(story: Story) -> None:
    story.history.writes.append(write("p", ["lost"], offset=5, at_ms=650, by="B", epoch=2))
    story.history.reads.append(read(5, ["lost"]))
    story.history.undone.append(undone(5, 5, at_ms=680))


def r23_a_resubmitted_acks_1_whose_new_commit_was_lost_is_excused(story: Story) -> None:
    story.history.writes.append(write("s", ["gone"], offset=4, at_ms=300, acks=1))
    story.history.undone.append(replace(undone(6, 6, at_ms=900), values=frozenset({"gone"})))


def r4_an_acks_1_that_was_given_up_for_room_is_excused(story: Story) -> None:
    story.history.writes.append(write("s", ["gone"], offset=4, at_ms=300, acks=1))
    story.history.given_up.append(GivenUp(agent="A", key=KEY, epoch=1, base_offset=4, end_offset=4))


def r4_an_acks_1_that_a_later_leadership_of_its_agent_gave_up_is_excused(story: Story) -> None:
    """The agent led again, took the batch out of its WAL, and lost the partition to another one before the commit."""
    story.history.writes.append(write("s", ["gone"], offset=4, at_ms=300, acks=1))
    story.history.given_up.append(GivenUp(agent="A", key=KEY, epoch=3, base_offset=4, end_offset=4))


def a_batch_stands_once_for_each_epoch_it_was_sent_under(story: Story) -> None:
    story.blob("blob-3", 6, ["f"], epoch=2)
    story.high_watermark = 7
    story.history.writes[3] = write("q", ["f"], offset=5, at_ms=700, by="B", epoch=2, sequence=1, attempts=2)
    story.history.writes[3].identities |= {(1, 0, 1), (1, 1, 0)}


def r21_a_46_for_what_is_written(story: Story) -> None:
    story.history.writes[3].base_offset = None


GOOD = [
    nothing_special,
    an_unanswered_write_is_there_or_not,
    a_retried_write_stands_twice,
    r4_an_overtaken_acks_1_comes_back_elsewhere,
    an_acks_1_on_a_lost_disk_is_gone,
    an_overtaken_acks_1_may_still_be_on_its_disk,
    r4_an_overtaken_acks_1_is_gone_from_a_compacted_topic,
    an_acks_0_promises_nothing,
    a_trimmed_record_was_there,
    writes_at_the_same_time_are_in_any_order,
    r20_the_stores_clock_was_set_forward,
    r23_what_a_lossy_failover_has_undone_is_excused,
    r23_a_resubmitted_acks_1_whose_new_commit_was_lost_is_excused,
    r4_an_acks_1_that_was_given_up_for_room_is_excused,
    r4_an_acks_1_that_a_later_leadership_of_its_agent_gave_up_is_excused,
    a_batch_stands_once_for_each_epoch_it_was_sent_under,
    r21_a_46_for_what_is_written,
]


@pytest.mark.parametrize("change", GOOD, ids=lambda change: change.__name__)
def test_a_good_history_passes(change: Callable[[Story], None]) -> None:
    story = Story()
    change(story)
    assert story.kinds() == set()


# Histories that must not.


def r21_a_46_for_what_is_not_written(story: Story) -> None:
    story.history.writes.append(write("q", ["gone"], offset=6, at_ms=800, by="B", epoch=2, sequence=2))
    story.history.writes[-1].base_offset = None


def r23_a_lossy_failover_excuses_nothing_that_came_after_it(story: Story) -> None:
    story.history.writes.append(write("p", ["gone"], offset=6, at_ms=800, by="B", epoch=2))
    story.history.undone.append(undone(6, 6, at_ms=700))


def r23_a_lossy_failover_excuses_no_other_offset(story: Story) -> None:
    story.history.writes.append(write("p", ["gone"], offset=6, at_ms=800, by="B", epoch=2))
    story.history.undone.append(undone(7, 9, at_ms=900))


def what_one_agent_gave_up_excuses_no_record_of_another(story: Story) -> None:
    story.history.writes.append(write("s", ["gone"], offset=4, at_ms=300, acks=1))
    story.history.given_up.append(GivenUp(agent="B", key=KEY, epoch=1, base_offset=4, end_offset=4))


def r23_a_lossy_failover_excuses_no_acks_1_that_was_not_written_again(story: Story) -> None:
    story.history.writes.append(write("s", ["gone"], offset=4, at_ms=300, acks=1))
    story.history.undone.append(replace(undone(6, 6, at_ms=900), values=frozenset({"another"})))


def an_acks_all_is_gone(story: Story) -> None:
    story.history.writes.append(write("p", ["gone"], offset=6, at_ms=800, by="B", epoch=2))


def an_acks_1_is_gone_though_nobody_else_led(story: Story) -> None:
    story.history.writes.append(write("s", ["gone"], offset=6, at_ms=800, acks=1, by="B", epoch=2))


def r4_an_overtaken_acks_1_never_came_back(story: Story) -> None:
    story.history.writes.append(write("s", ["gone"], offset=4, at_ms=300, acks=1))


def a_lost_disk_excuses_no_acks_all(story: Story) -> None:
    story.history.writes.append(write("s", ["gone"], offset=6, at_ms=800, by="B", epoch=2))
    story.history.disks_lost.append(DiskLost(agent="B", at_ms=900))


def a_disk_lost_before_excuses_nothing(story: Story) -> None:
    story.history.writes.append(write("s", ["gone"], offset=4, at_ms=300, acks=1))
    story.history.disks_lost.append(DiskLost(agent="A", at_ms=200))


def durability_wal_acks_1_is_gone(story: Story) -> None:
    story.history.wal_is_durable = True
    story.history.writes.append(write("s", ["gone"], offset=6, at_ms=800, acks=1, by="B", epoch=2))


def a_write_sent_once_stands_twice(story: Story) -> None:
    story.blob("blob-3", 6, ["a", "b"], epoch=2)
    story.high_watermark = 8


def r9_an_idempotent_write_stands_twice(story: Story) -> None:
    story.blob("blob-3", 6, ["f"], epoch=2)
    story.high_watermark = 7
    story.history.writes[3] = write("q", ["f"], offset=5, at_ms=700, by="B", epoch=2, sequence=1, attempts=3)


def a_later_write_got_an_earlier_offset(story: Story) -> None:
    story.history.writes[0] = replace(story.history.writes[0], invoked_ms=300, acked_ms=310)


def r9_sequences_are_swapped(story: Story) -> None:
    story.history.writes[2] = write("q", ["e"], offset=None, at_ms=600, sequence=1)
    story.history.writes[3] = write("q", ["f"], offset=None, at_ms=600, sequence=0)


def r4_an_old_value_came_back_behind_newer_ones(story: Story) -> None:
    r4_an_overtaken_acks_1_comes_back_elsewhere(story)
    story.history.overtaken_come_back = False


def another_record_is_where_the_acknowledged_was(story: Story) -> None:
    story.history.writes[1] = write("p", ["c", "d"], offset=1, at_ms=200)


def half_of_a_batch_is_missing(story: Story) -> None:
    story.history.writes[2] = write("q", ["e", "x"], offset=4, at_ms=600, by="B", epoch=2, sequence=0)


def r19_a_record_nobody_wrote_here(story: Story) -> None:
    story.history.writes[3] = replace(story.history.writes[3], key=(UUID(int=8).hex, 0))


def a_hole_between_entries(story: Story) -> None:
    del story.entries[1]
    story.history.writes[1] = write("p", ["c", "d"], offset=None, at_ms=200)
    story.history.reads.clear()


def entries_that_overlap(story: Story) -> None:
    story.blob("blob-3", 5, ["f"], epoch=2)


def a_watermark_beyond_the_entries(story: Story) -> None:
    story.high_watermark = 7


def a_read_with_a_hole(story: Story) -> None:
    story.history.reads.append(replace(read(0, ["a"]), records=((0, "a"), (2, "c"))))


def r1_an_older_epoch_behind_a_newer_one(story: Story) -> None:
    story.entries[2] = replace(story.entries[2], epoch=1)
    story.entries[0] = replace(story.entries[0], epoch=2)


def r1_an_entry_of_an_epoch_that_had_ended(story: Story) -> None:
    story.entries[2] = replace(story.entries[2], epoch=1)


def r1_a_commit_after_another_began_to_lead(story: Story) -> None:
    story.history.committed.append(Committed(key=KEY, epoch=1, base_offset=4, end_offset=4, at_ms=501))


def an_epoch_that_comes_again(story: Story) -> None:
    story.history.led.append(led(2, "A", 6, 900))


def r20_a_write_taken_after_another_began_to_lead(story: Story) -> None:
    story.history.taken.append(TakenBatch(key=KEY, epoch=1, agent="A", at_ms=501))


def r6_an_object_that_is_gone(story: Story) -> None:
    del story.objects["segment-1"]


def an_object_with_other_bytes(story: Story) -> None:
    data = bytearray(story.objects["blob-1"])
    data[-1] ^= 1
    story.objects["blob-1"] = bytes(data)


def an_object_cut_short(story: Story) -> None:
    story.objects["blob-2"] = story.objects["blob-2"][:-5]


def a_segment_of_another_place(story: Story) -> None:
    story.segment("segment-1", 12, ["c", "d"], epoch=1)
    story.entries.pop()


def two_readers_see_two_things(story: Story) -> None:
    story.history.reads += [read(9, ["x"], reader="r"), read(9, ["y"], reader="s")]


def what_was_read_is_gone(story: Story) -> None:
    story.history.reads.append(read(6, ["g"]))


def what_was_read_is_another_record(story: Story) -> None:
    story.history.reads.append(read(5, ["g"]))


def something_never_ended(story: Story) -> None:
    story.history.problems.append("agent-1 does not flush")


BAD = [
    (an_acks_all_is_gone, Kind.LOST),
    (r21_a_46_for_what_is_not_written, Kind.LOST),
    (r23_a_lossy_failover_excuses_nothing_that_came_after_it, Kind.LOST),
    (r23_a_lossy_failover_excuses_no_other_offset, Kind.LOST),
    (what_one_agent_gave_up_excuses_no_record_of_another, Kind.LOST),
    (r23_a_lossy_failover_excuses_no_acks_1_that_was_not_written_again, Kind.LOST),
    (an_acks_1_is_gone_though_nobody_else_led, Kind.LOST),
    (r4_an_overtaken_acks_1_never_came_back, Kind.LOST),
    (a_lost_disk_excuses_no_acks_all, Kind.LOST),
    (a_disk_lost_before_excuses_nothing, Kind.LOST),
    (durability_wal_acks_1_is_gone, Kind.LOST),
    (a_write_sent_once_stands_twice, Kind.DUPLICATED),
    (r9_an_idempotent_write_stands_twice, Kind.DUPLICATED),
    (a_later_write_got_an_earlier_offset, Kind.REORDERED),
    (r9_sequences_are_swapped, Kind.REORDERED),
    (r4_an_old_value_came_back_behind_newer_ones, Kind.REORDERED),
    (another_record_is_where_the_acknowledged_was, Kind.WRONG_OFFSET),
    (half_of_a_batch_is_missing, Kind.TORN),
    (r19_a_record_nobody_wrote_here, Kind.PHANTOM),
    (a_hole_between_entries, Kind.NOT_DENSE),
    (entries_that_overlap, Kind.NOT_DENSE),
    (a_watermark_beyond_the_entries, Kind.NOT_DENSE),
    (a_read_with_a_hole, Kind.NOT_DENSE),
    (r1_an_older_epoch_behind_a_newer_one, Kind.STALE_EPOCH),
    (r1_an_entry_of_an_epoch_that_had_ended, Kind.STALE_EPOCH),
    (r1_a_commit_after_another_began_to_lead, Kind.STALE_EPOCH),
    (an_epoch_that_comes_again, Kind.STALE_EPOCH),
    (r20_a_write_taken_after_another_began_to_lead, Kind.STALE_LEADER),
    (r6_an_object_that_is_gone, Kind.MISSING_OBJECT),
    (an_object_with_other_bytes, Kind.BAD_OBJECT),
    (an_object_cut_short, Kind.BAD_OBJECT),
    (a_segment_of_another_place, Kind.BAD_OBJECT),
    (two_readers_see_two_things, Kind.UNSTABLE_READ),
    (what_was_read_is_gone, Kind.VANISHED),
    (what_was_read_is_another_record, Kind.VANISHED),
    (something_never_ended, Kind.PROBLEM),
]


@pytest.mark.parametrize(("change", "kind"), BAD, ids=[change.__name__ for change, _ in BAD])
def test_a_bad_history_is_found(change: Callable[[Story], None], kind: Kind) -> None:
    story = Story()
    change(story)
    assert kind in story.kinds()


def test_every_kind_of_anomaly_has_a_history_that_shows_it() -> None:
    of_maintenance = {Kind.CHANGED, Kind.GARBAGE, Kind.TAKEN_EARLY, Kind.WENT_BACK}  # test_sim_checker_removals.py
    assert {kind for _, kind in BAD} == set(Kind) - of_maintenance
