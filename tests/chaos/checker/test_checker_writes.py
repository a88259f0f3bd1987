"""The judge of a partition's log finds what was lost, copied, moved or damaged, and nothing in a good log."""

from __future__ import annotations

from chaos_histories import Tale

from streamhouse.chaos.checker import AnomalyKind
from streamhouse.chaos.checker.anomalies import MAX_EXAMPLES


def test_a_record_that_the_client_gave_up_may_be_in_the_log_or_not_and_late(tale: Tale) -> None:
    tale.sent(4)
    for number, offset in ((0, 0), (3, 1)):
        tale.acknowledged(number, offset)
    tale.failed(1)
    tale.failed(2)
    tale.log(0, 3, 1)
    verdict = tale.verdict()
    assert verdict.findings.total() == 0
    assert (verdict.writes.failed, verdict.writes.unresolved_present) == (2, 1)


def test_copies_of_a_producer_that_retries_without_idempotence_are_counted_only(tale: Tale) -> None:
    tale.producer("q", once=False)
    tale.sent(2, by="q")
    tale.acknowledged(0, 1, by="q")
    tale.acknowledged(1, 2, by="q")
    tale.log("q 0", "q 0", "q 1", "q 0")
    verdict = tale.verdict()
    assert verdict.findings.total() == 0
    assert verdict.writes.permitted_duplicates == 2


def test_disorder_of_a_producer_that_may_reorder_is_no_anomaly(tale: Tale) -> None:
    tale.producer("q", once=False, ordered=False)
    tale.log("q 1", "q 0")
    assert tale.found() == {}


def test_what_acks_1_promised_may_be_lost_or_moved_and_is_counted(tale: Tale) -> None:
    tale.producer("q", once=False, acks="1")
    tale.sent(2, by="q")
    tale.acknowledged(0, 0, by="q")
    tale.acknowledged(1, 7, by="q")
    tale.log("q 1")
    verdict = tale.verdict()
    assert verdict.findings.total() == 0
    assert (verdict.writes.lost_acks_1, verdict.writes.moved_acks_1) == (1, 1)
    assert verdict.writes.acknowledged == {"librdkafka 1": 2}


def test_an_acknowledgement_without_an_offset_is_judged_by_presence_alone(tale: Tale) -> None:
    tale.sent(1)
    tale.acknowledged(0, -1)
    tale.log(0)
    assert tale.found() == {}


def test_two_reads_that_agree_are_no_anomaly(tale: Tale) -> None:
    tale.written(2)
    tale.raw("parts/t/0/final", "V 1 p 1\n")
    assert tale.found() == {}


def test_lost(tale: Tale) -> None:
    tale.sent(2)
    tale.acknowledged(0, 0)
    tale.acknowledged(1, 1, at=2345)
    tale.log(0)
    verdict = tale.verdict()
    assert verdict.findings.counts == {AnomalyKind.LOST: 1}
    (example,) = verdict.findings.examples()
    assert (example.where, example.at_ms) == ("t/0", 2345)
    assert example.what == "record 1 of p, acknowledged at offset 1"


def test_r21_a_first_batch_that_was_answered_46_is_lost(tale: Tale) -> None:
    """The fault of 2026-11-15 looked so: acknowledged without an offset, and the next batch is in the log."""
    tale.sent(2)
    tale.acknowledged(0, -1)
    tale.acknowledged(1, 0)
    tale.log(1)
    assert tale.found() == {AnomalyKind.LOST: 1}


def test_duplicated(tale: Tale) -> None:
    tale.written(2)
    tale.raw("parts/t/0/final", "V 2 p 0\n")
    assert tale.found() == {AnomalyKind.DUPLICATED: 1}


def test_duplicated_by_a_producer_that_never_retries(tale: Tale) -> None:
    tale.producer("q", once=True, ordered=False)
    tale.log("q 0", "q 0")
    assert tale.found() == {AnomalyKind.DUPLICATED: 1}


def test_reordered(tale: Tale) -> None:
    tale.log(0, 2, 1, 3)
    assert tale.found() == {AnomalyKind.REORDERED: 1}


def test_wrong_offset(tale: Tale) -> None:
    tale.sent(2)
    tale.acknowledged(0, 0)
    tale.acknowledged(1, 0)
    tale.log(0, 1)
    assert tale.found() == {AnomalyKind.WRONG_OFFSET: 1}


def test_wrong_offset_beyond_the_end(tale: Tale) -> None:
    tale.sent(1)
    tale.acknowledged(0, 9)
    tale.log(0)
    assert tale.found() == {AnomalyKind.WRONG_OFFSET: 1}


def test_one_partition_is_not_another(tale: Tale) -> None:
    tale.acknowledged(0, 0, partition=0)
    tale.log(partition=0)
    tale.log(0, partition=1)
    assert tale.found() == {AnomalyKind.LOST: 1}


def test_a_damaged_record(tale: Tale) -> None:
    tale.foreign(0)
    tale.log(end=1)
    assert tale.found() == {AnomalyKind.FOREIGN: 1}


def test_a_record_of_a_producer_that_never_was(tale: Tale) -> None:
    tale.log("stranger 0")
    assert tale.found() == {AnomalyKind.FOREIGN: 1}


def test_a_hole(tale: Tale) -> None:
    tale.log(0, "", 1)
    assert tale.found() == {AnomalyKind.HOLE: 1}


def test_a_hole_at_the_end(tale: Tale) -> None:
    tale.log(0, end=3)
    assert tale.found() == {AnomalyKind.HOLE: 1}


def test_a_last_read_that_broke_off_is_unreadable_and_hides_no_loss_before_its_end(tale: Tale) -> None:
    tale.sent(3)
    tale.acknowledged(0, 0)
    tale.acknowledged(1, 1)
    tale.acknowledged(2, 2)
    tale.log(0, "p 5", complete=False)
    assert tale.found() == {AnomalyKind.UNREADABLE: 1, AnomalyKind.LOST: 1}


def test_a_thousand_losses_are_counted_and_a_few_are_told(tale: Tale) -> None:
    tale.sent(1000)
    for number in range(1000):
        tale.acknowledged(number, number)
    tale.log()
    verdict = tale.verdict()
    assert verdict.findings.counts == {AnomalyKind.LOST: 1000}
    assert len(verdict.findings.examples()) == MAX_EXAMPLES


def test_a_last_read_that_the_run_cut_short_is_not_unreadable(tale: Tale) -> None:
    tale.sent(3)
    for number, offset in ((0, 0), (1, 1), (2, -1)):
        tale.acknowledged(number, offset)
    tale.log(0, complete=False)
    assert tale.found(cut_short=True) == {}


def test_a_partition_that_the_last_read_did_not_reach_is_not_judged(tale: Tale) -> None:
    tale.sent(2)
    tale.acknowledged(0, 0)
    tale.acknowledged(1, -1)
    assert tale.found(cut_short=True) == {}


def test_a_loss_before_the_end_of_a_read_that_was_cut_short_is_found(tale: Tale) -> None:
    tale.sent(2)
    tale.acknowledged(0, 0)
    tale.log(1, complete=False)
    assert tale.found(cut_short=True) == {AnomalyKind.LOST: 1}


def test_records_that_may_be_of_a_killed_client_are_not_foreign(tale: Tale) -> None:
    tale.log("java-0-7 3", "aiokafka-0-7 3")
    tale.raw("parts/t/0/made.produce", "A 2000 java-0-7 3 0\n")
    assert tale.found(killed=["java"]) == {AnomalyKind.FOREIGN: 1}
    assert tale.found() == {AnomalyKind.FOREIGN: 3}


def test_the_order_of_a_killed_client_is_not_judged_as_its_failures_are_not_known(tale: Tale) -> None:
    tale.producer("java-0-1")
    tale.log("java-0-1 1", "java-0-1 0")
    assert tale.found(killed=["java"]) == {}
    assert tale.found() == {AnomalyKind.REORDERED: 1}


def test_two_reads_of_one_unknown_record_agree(tale: Tale) -> None:
    tale.log("java-0-7 3", "java-0-7 4")
    tale.raw("parts/t/0/final", "V 0 java-0-7 3\n")
    tale.raw("parts/t/0/made.group", "R 3000 g m 1 0 java-0-7 3\nR 3000 g m 1 1 java-0-7 5\n")
    assert tale.found(drained=False, killed=["java"]) == {AnomalyKind.UNSTABLE_READ: 1}


def test_a_damaged_record_that_was_delivered_damaged_is_one_anomaly(tale: Tale) -> None:
    tale.foreign(0)
    tale.log(end=1)
    tale.raw("parts/t/0/made.group", "R 3000 g m 1 0 ! 0\n")
    assert tale.found(drained=False) == {AnomalyKind.FOREIGN: 1}


def test_unstable_read(tale: Tale) -> None:
    tale.written(2, group=True)
    tale.taken(at=3550, member="n", process="other")
    tale.read(1, 0, at=3700, member="n", process="other")
    assert tale.found() == {AnomalyKind.UNSTABLE_READ: 1}


def test_a_record_that_was_read_and_is_no_longer_there(tale: Tale) -> None:
    tale.written(2, group=True)
    tale.read(2, 7)
    assert tale.found() == {AnomalyKind.UNSTABLE_READ: 1}


def test_the_last_read_gave_one_offset_twice_and_differently(tale: Tale) -> None:
    tale.written(2)
    tale.raw("parts/t/0/final", "V 1 p 0\n")
    assert tale.found() == {AnomalyKind.UNSTABLE_READ: 1}


def test_a_damaged_delivery(tale: Tale) -> None:
    tale.written(1)
    tale.raw("parts/t/0/made.group", "R 3000 g m 1 0 ! 0\n")
    assert tale.found(drained=False) == {AnomalyKind.UNSTABLE_READ: 1}
