"""The judge of consumer groups: committed offsets that go back, records that reached no member, groups left behind."""

from __future__ import annotations

from chaos_histories import Tale

from streamhouse.chaos.checker import AnomalyKind


def test_a_record_delivered_again_after_a_rebalance_is_no_anomaly(tale: Tale) -> None:
    tale.written(3, group=True)
    tale.taken(at=3550, member="n", process="other")
    tale.read(1, 1, at=3700, member="n", process="other")
    tale.read(2, 2, at=3700, member="n", process="other")
    assert tale.found() == {}


def test_a_commit_and_a_fetch_at_the_same_time_may_come_in_either_order(tale: Tale) -> None:
    tale.written(3, group=True)
    tale.observed(0, begun=3590, ended=3700)
    assert tale.found() == {}


def test_committed_offset_went_back_as_another_client_fetched_it(tale: Tale) -> None:
    tale.written(3, group=True)
    tale.observed(2, begun=3700, ended=3800)
    assert tale.found() == {AnomalyKind.COMMIT_WENT_BACK: 1}


def test_committed_offset_went_back_as_the_next_owner_began_to_read(tale: Tale) -> None:
    tale.written(3, group=True)
    tale.taken(at=3700, member="n", process="other")
    tale.read(1, 1, at=3800, member="n", process="other")
    assert tale.found() == {AnomalyKind.COMMIT_WENT_BACK: 1}


def test_a_lower_commit_after_a_higher_one(tale: Tale) -> None:
    tale.written(3, group=True)
    tale.committed(1, begun=3700, ended=3800, member="n", process="other")
    assert tale.found() == {AnomalyKind.COMMIT_WENT_BACK: 1}


def test_records_below_the_committed_offset_that_reached_no_member(tale: Tale) -> None:
    tale.written(5)
    for number in (0, 1, 4):
        tale.taken(at=2500)
        tale.read(number, number)
    tale.committed(5, begun=3500, ended=3600)
    verdict = tale.verdict()
    assert verdict.findings.counts == {AnomalyKind.SKIPPED: 1}
    assert verdict.findings.examples()[0].what == "offsets 2 to 3 reached no member; 5 is committed"


def test_a_member_that_jumped_though_another_read_what_lies_between(tale: Tale) -> None:
    tale.written(3, group=True)
    tale.taken(at=3550, member="n", process="other")
    tale.read(0, 0, at=3700, member="n", process="other")
    tale.read(2, 2, at=3700, member="n", process="other")
    assert tale.found() == {AnomalyKind.SKIPPED: 1}


def test_a_group_that_did_not_reach_the_end_though_it_had_its_time(tale: Tale) -> None:
    tale.written(5)
    tale.observed(0, begun=3000, ended=3100)
    assert tale.found() == {AnomalyKind.UNAVAILABLE: 1}
    assert tale.found(drained=False) == {}


def test_a_group_is_not_behind_by_records_that_came_after_it_had_ended(tale: Tale) -> None:
    tale.written(3, group=True)
    tale.end_seen(2, at=3000)
    tale.end_seen(3, at=4000)
    tale.sent(1, at=1000, first=3)
    tale.raw("parts/t/0/final", "V 3 p 3\nE 4\n")
    verdict = tale.verdict()
    assert verdict.findings.counts == {}
    assert [facts.behind for facts in verdict.partitions[0].groups] == [0]


def test_a_group_that_ended_before_the_end_it_had_seen_is_behind(tale: Tale) -> None:
    tale.written(5)
    tale.observed(0, begun=3000, ended=3100)
    tale.end_seen(4, at=3100)
    assert tale.found() == {AnomalyKind.UNAVAILABLE: 1}


def test_what_was_only_read_is_not_committed(tale: Tale) -> None:
    tale.written(3)
    tale.taken(at=2500)
    for number in range(3):
        tale.read(number, number)
    (facts,) = tale.verdict(drained=False).partitions[0].groups
    assert (facts.deliveries, facts.members, facts.committed, facts.behind) == (3, 1, 0, 3)


def test_a_commit_beyond_all_that_was_delivered_skips_the_rest(tale: Tale) -> None:
    tale.written(2, group=True)
    tale.committed(9, begun=3700, ended=3800)
    verdict = tale.verdict()
    assert verdict.findings.counts == {AnomalyKind.SKIPPED: 1}
    assert verdict.findings.examples()[0].what == "offsets 2 to 8 reached no member; 9 is committed"
