"""The judge of a chaos run finds every kind of anomaly in hand-made histories, and nothing in good ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos_histories import Tale

from streamhouse.chaos.checker import AnomalyKind, Span
from streamhouse.chaos.checker.anomalies import MAX_EXAMPLES, MEANINGS


@pytest.fixture
def tale(tmp_path: Path) -> Tale:
    return Tale(tmp_path)


class TestGoodHistories:
    def test_everything_in_its_place_is_no_anomaly(self, tale: Tale) -> None:
        tale.written(5, group=True)
        verdict = tale.verdict()
        assert verdict.findings.total() == 0
        assert verdict.writes.acknowledged == {"librdkafka all": 5}
        assert (verdict.writes.log_end, verdict.writes.deliveries) == (5, 5)

    def test_an_empty_partition_is_no_anomaly(self, tale: Tale) -> None:
        tale.log()
        assert tale.found() == {}

    def test_a_record_that_the_client_gave_up_may_be_in_the_log_or_not_and_late(self, tale: Tale) -> None:
        tale.sent(4)
        for number, offset in ((0, 0), (3, 1)):
            tale.acknowledged(number, offset)
        tale.failed(1)
        tale.failed(2)
        tale.log(0, 3, 1)
        verdict = tale.verdict()
        assert verdict.findings.total() == 0
        assert (verdict.writes.failed, verdict.writes.unresolved_present) == (2, 1)

    def test_copies_of_a_producer_that_retries_without_idempotence_are_counted_only(self, tale: Tale) -> None:
        tale.producer("q", once=False)
        tale.sent(2, by="q")
        tale.acknowledged(0, 1, by="q")
        tale.acknowledged(1, 2, by="q")
        tale.log("q 0", "q 0", "q 1", "q 0")
        verdict = tale.verdict()
        assert verdict.findings.total() == 0
        assert verdict.writes.permitted_duplicates == 2

    def test_disorder_of_a_producer_that_may_reorder_is_no_anomaly(self, tale: Tale) -> None:
        tale.producer("q", once=False, ordered=False)
        tale.log("q 1", "q 0")
        assert tale.found() == {}

    def test_what_acks_1_promised_may_be_lost_or_moved_and_is_counted(self, tale: Tale) -> None:
        tale.producer("q", once=False, acks="1")
        tale.sent(2, by="q")
        tale.acknowledged(0, 0, by="q")
        tale.acknowledged(1, 7, by="q")
        tale.log("q 1")
        verdict = tale.verdict()
        assert verdict.findings.total() == 0
        assert (verdict.writes.lost_acks_1, verdict.writes.moved_acks_1) == (1, 1)
        assert verdict.writes.acknowledged == {"librdkafka 1": 2}

    def test_an_acknowledgement_without_an_offset_is_judged_by_presence_alone(self, tale: Tale) -> None:
        tale.sent(1)
        tale.acknowledged(0, -1)
        tale.log(0)
        assert tale.found() == {}

    def test_a_record_delivered_again_after_a_rebalance_is_no_anomaly(self, tale: Tale) -> None:
        tale.written(3, group=True)
        tale.taken(at=3550, member="n", process="other")
        tale.read(1, 1, at=3700, member="n", process="other")
        tale.read(2, 2, at=3700, member="n", process="other")
        assert tale.found() == {}

    def test_a_commit_and_a_fetch_at_the_same_time_may_come_in_either_order(self, tale: Tale) -> None:
        tale.written(3, group=True)
        tale.observed(0, begun=3590, ended=3700)
        assert tale.found() == {}

    def test_a_line_that_a_killed_client_cut_off_is_left_out(self, tale: Tale) -> None:
        tale.written(2)
        tale.raw("parts/t/0/made.produce", "A 9000 p 17")
        assert tale.found() == {}

    def test_two_reads_that_agree_are_no_anomaly(self, tale: Tale) -> None:
        tale.written(2)
        tale.raw("parts/t/0/final", "V 1 p 1\n")
        assert tale.found() == {}


class TestWrites:
    def test_lost(self, tale: Tale) -> None:
        tale.sent(2)
        tale.acknowledged(0, 0)
        tale.acknowledged(1, 1, at=2345)
        tale.log(0)
        verdict = tale.verdict()
        assert verdict.findings.counts == {AnomalyKind.LOST: 1}
        (example,) = verdict.findings.examples()
        assert (example.where, example.at_ms) == ("t/0", 2345)
        assert example.what == "record 1 of p, acknowledged at offset 1"

    def test_r21_a_first_batch_that_was_answered_46_is_lost(self, tale: Tale) -> None:
        """As the fault of 2026-11-15 looked: acknowledged without an offset, and the next batch is in the log."""
        tale.sent(2)
        tale.acknowledged(0, -1)
        tale.acknowledged(1, 0)
        tale.log(1)
        assert tale.found() == {AnomalyKind.LOST: 1}

    def test_duplicated(self, tale: Tale) -> None:
        tale.written(2)
        tale.raw("parts/t/0/final", "V 2 p 0\n")
        assert tale.found() == {AnomalyKind.DUPLICATED: 1}

    def test_duplicated_by_a_producer_that_never_retries(self, tale: Tale) -> None:
        tale.producer("q", once=True, ordered=False)
        tale.log("q 0", "q 0")
        assert tale.found() == {AnomalyKind.DUPLICATED: 1}

    def test_reordered(self, tale: Tale) -> None:
        tale.log(0, 2, 1, 3)
        assert tale.found() == {AnomalyKind.REORDERED: 1}

    def test_wrong_offset(self, tale: Tale) -> None:
        tale.sent(2)
        tale.acknowledged(0, 0)
        tale.acknowledged(1, 0)
        tale.log(0, 1)
        assert tale.found() == {AnomalyKind.WRONG_OFFSET: 1}

    def test_wrong_offset_beyond_the_end(self, tale: Tale) -> None:
        tale.sent(1)
        tale.acknowledged(0, 9)
        tale.log(0)
        assert tale.found() == {AnomalyKind.WRONG_OFFSET: 1}

    def test_one_partition_is_not_another(self, tale: Tale) -> None:
        tale.acknowledged(0, 0, partition=0)
        tale.log(partition=0)
        tale.log(0, partition=1)
        assert tale.found() == {AnomalyKind.LOST: 1}

    def test_a_damaged_record(self, tale: Tale) -> None:
        tale.foreign(0)
        tale.log(end=1)
        assert tale.found() == {AnomalyKind.FOREIGN: 1}

    def test_a_record_of_a_producer_that_never_was(self, tale: Tale) -> None:
        tale.log("stranger 0")
        assert tale.found() == {AnomalyKind.FOREIGN: 1}

    def test_a_hole(self, tale: Tale) -> None:
        tale.log(0, "", 1)
        assert tale.found() == {AnomalyKind.HOLE: 1}

    def test_a_hole_at_the_end(self, tale: Tale) -> None:
        tale.log(0, end=3)
        assert tale.found() == {AnomalyKind.HOLE: 1}

    def test_a_last_read_that_broke_off_is_unreadable_and_hides_no_loss_before_its_end(self, tale: Tale) -> None:
        tale.sent(3)
        tale.acknowledged(0, 0)
        tale.acknowledged(1, 1)
        tale.acknowledged(2, 2)
        tale.log(0, "p 5", complete=False)
        assert tale.found() == {AnomalyKind.UNREADABLE: 1, AnomalyKind.LOST: 1}

    def test_a_thousand_losses_are_counted_and_a_few_are_told(self, tale: Tale) -> None:
        tale.sent(1000)
        for number in range(1000):
            tale.acknowledged(number, number)
        tale.log()
        verdict = tale.verdict()
        assert verdict.findings.counts == {AnomalyKind.LOST: 1000}
        assert len(verdict.findings.examples()) == MAX_EXAMPLES


class TestInterruptedRuns:
    def test_a_last_read_that_the_run_cut_short_is_not_unreadable(self, tale: Tale) -> None:
        tale.sent(3)
        for number, offset in ((0, 0), (1, 1), (2, -1)):
            tale.acknowledged(number, offset)
        tale.log(0, complete=False)
        assert tale.found(cut_short=True) == {}

    def test_a_partition_that_the_last_read_did_not_reach_is_not_judged(self, tale: Tale) -> None:
        tale.sent(2)
        tale.acknowledged(0, 0)
        tale.acknowledged(1, -1)
        assert tale.found(cut_short=True) == {}

    def test_a_loss_before_the_end_of_a_read_that_was_cut_short_is_found(self, tale: Tale) -> None:
        tale.sent(2)
        tale.acknowledged(0, 0)
        tale.log(1, complete=False)
        assert tale.found(cut_short=True) == {AnomalyKind.LOST: 1}

    def test_records_that_may_be_of_a_killed_client_are_not_foreign(self, tale: Tale) -> None:
        tale.log("java-0-7 3", "aiokafka-0-7 3")
        tale.raw("parts/t/0/made.produce", "A 2000 java-0-7 3 0\n")
        assert tale.found(killed=["java"]) == {AnomalyKind.FOREIGN: 1}
        assert tale.found() == {AnomalyKind.FOREIGN: 3}

    def test_the_order_of_a_killed_client_is_not_judged_as_its_failures_are_not_known(self, tale: Tale) -> None:
        tale.producer("java-0-1")
        tale.log("java-0-1 1", "java-0-1 0")
        assert tale.found(killed=["java"]) == {}
        assert tale.found() == {AnomalyKind.REORDERED: 1}


class TestReads:
    def test_two_reads_of_one_unknown_record_agree(self, tale: Tale) -> None:
        tale.log("java-0-7 3", "java-0-7 4")
        tale.raw("parts/t/0/final", "V 0 java-0-7 3\n")
        tale.raw("parts/t/0/made.group", "R 3000 g m 1 0 java-0-7 3\nR 3000 g m 1 1 java-0-7 5\n")
        assert tale.found(drained=False, killed=["java"]) == {AnomalyKind.UNSTABLE_READ: 1}

    def test_a_damaged_record_that_was_delivered_damaged_is_one_anomaly(self, tale: Tale) -> None:
        tale.foreign(0)
        tale.log(end=1)
        tale.raw("parts/t/0/made.group", "R 3000 g m 1 0 ! 0\n")
        assert tale.found(drained=False) == {AnomalyKind.FOREIGN: 1}

    def test_unstable_read(self, tale: Tale) -> None:
        tale.written(2, group=True)
        tale.taken(at=3550, member="n", process="other")
        tale.read(1, 0, at=3700, member="n", process="other")
        assert tale.found() == {AnomalyKind.UNSTABLE_READ: 1}

    def test_a_record_that_was_read_and_is_no_longer_there(self, tale: Tale) -> None:
        tale.written(2, group=True)
        tale.read(2, 7)
        assert tale.found() == {AnomalyKind.UNSTABLE_READ: 1}

    def test_the_last_read_gave_one_offset_twice_and_differently(self, tale: Tale) -> None:
        tale.written(2)
        tale.raw("parts/t/0/final", "V 1 p 0\n")
        assert tale.found() == {AnomalyKind.UNSTABLE_READ: 1}

    def test_a_damaged_delivery(self, tale: Tale) -> None:
        tale.written(1)
        tale.raw("parts/t/0/made.group", "R 3000 g m 1 0 ! 0\n")
        assert tale.found(drained=False) == {AnomalyKind.UNSTABLE_READ: 1}


class TestGroups:
    def test_committed_offset_went_back_as_another_client_fetched_it(self, tale: Tale) -> None:
        tale.written(3, group=True)
        tale.observed(2, begun=3700, ended=3800)
        assert tale.found() == {AnomalyKind.COMMIT_WENT_BACK: 1}

    def test_committed_offset_went_back_as_the_next_owner_began_to_read(self, tale: Tale) -> None:
        tale.written(3, group=True)
        tale.taken(at=3700, member="n", process="other")
        tale.read(1, 1, at=3800, member="n", process="other")
        assert tale.found() == {AnomalyKind.COMMIT_WENT_BACK: 1}

    def test_a_lower_commit_after_a_higher_one(self, tale: Tale) -> None:
        tale.written(3, group=True)
        tale.committed(1, begun=3700, ended=3800, member="n", process="other")
        assert tale.found() == {AnomalyKind.COMMIT_WENT_BACK: 1}

    def test_records_below_the_committed_offset_that_reached_no_member(self, tale: Tale) -> None:
        tale.written(5)
        for number in (0, 1, 4):
            tale.taken(at=2500)
            tale.read(number, number)
        tale.committed(5, begun=3500, ended=3600)
        verdict = tale.verdict()
        assert verdict.findings.counts == {AnomalyKind.SKIPPED: 1}
        assert verdict.findings.examples()[0].what == "offsets 2 to 3 reached no member; 5 is committed"

    def test_a_member_that_jumped_though_another_read_what_lies_between(self, tale: Tale) -> None:
        tale.written(3, group=True)
        tale.taken(at=3550, member="n", process="other")
        tale.read(0, 0, at=3700, member="n", process="other")
        tale.read(2, 2, at=3700, member="n", process="other")
        assert tale.found() == {AnomalyKind.SKIPPED: 1}

    def test_a_group_that_did_not_reach_the_end_though_it_had_its_time(self, tale: Tale) -> None:
        tale.written(5)
        tale.observed(0, begun=3000, ended=3100)
        assert tale.found() == {AnomalyKind.UNAVAILABLE: 1}
        assert tale.found(drained=False) == {}

    def test_a_group_is_not_behind_by_records_that_came_after_it_had_ended(self, tale: Tale) -> None:
        tale.written(3, group=True)
        tale.end_seen(2, at=3000)
        tale.end_seen(3, at=4000)
        tale.sent(1, at=1000, first=3)
        tale.raw("parts/t/0/final", "V 3 p 3\nE 4\n")
        verdict = tale.verdict()
        assert verdict.findings.counts == {}
        assert [facts.behind for facts in verdict.partitions[0].groups] == [0]

    def test_a_group_that_ended_before_the_end_it_had_seen_is_behind(self, tale: Tale) -> None:
        tale.written(5)
        tale.observed(0, begun=3000, ended=3100)
        tale.end_seen(4, at=3100)
        assert tale.found() == {AnomalyKind.UNAVAILABLE: 1}


class TestAvailability:
    def test_a_silence_longer_than_the_limit(self, tale: Tale) -> None:
        tale.sent(1, at=1000)
        tale.acknowledged(0, 0, at=62_000)
        tale.log(0)
        verdict = tale.verdict()
        assert verdict.findings.counts == {AnomalyKind.UNAVAILABLE: 1}
        assert verdict.partitions[0].longest_gap_ms == 61_000

    def test_time_in_which_nothing_was_asked_for_does_not_count(self, tale: Tale) -> None:
        tale.sent(1, at=1000)
        tale.acknowledged(0, 0, at=2000)
        tale.sent(1, at=90_000, first=1)
        tale.acknowledged(1, 1, at=91_500)
        tale.log(0, 1)
        verdict = tale.verdict()
        assert verdict.findings.total() == 0
        assert verdict.partitions[0].longest_gap_ms == 1500

    def test_refusals_do_not_hide_a_silence(self, tale: Tale) -> None:
        for step in range(7):
            tale.sent(1, at=1000 + step * 10_000, first=step)
            tale.failed(step, at=11_000 + step * 10_000)
        tale.log()
        assert tale.found() == {AnomalyKind.UNAVAILABLE: 1}

    def test_time_without_any_agent_does_not_count(self, tale: Tale) -> None:
        tale.sent(1, at=1000)
        tale.acknowledged(0, 0, at=62_000)
        tale.log(0)
        spans = [Span(begin_ms=5_000, end_ms=9_000), Span(begin_ms=8_000, end_ms=12_000)]
        verdict = tale.verdict(without_agents=spans)
        assert verdict.findings.total() == 0
        assert verdict.partitions[0].longest_gap_ms == 54_000

    def test_outages_of_the_stores_are_told_apart(self, tale: Tale) -> None:
        tale.sent(1, at=1000)
        tale.acknowledged(0, 0, at=62_000)
        tale.log(0)
        verdict = tale.verdict(outages=[Span(begin_ms=2_000, end_ms=12_000)])
        (partition,) = verdict.partitions
        assert verdict.findings.total() == 0
        assert (partition.longest_gap_ms, partition.longest_gap_outside_outages_ms) == (61_000, 51_000)

    def test_a_record_that_is_never_answered_counts_to_the_end(self, tale: Tale) -> None:
        tale.sent(1, at=1000)
        tale.failed(0, at=80_000)
        tale.log()
        assert tale.found() == {AnomalyKind.UNAVAILABLE: 1}


def test_every_kind_of_anomaly_is_explained() -> None:
    assert set(MEANINGS) == set(AnomalyKind)
