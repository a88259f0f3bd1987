"""The cache of fetch sessions: its bounds, and who has to go."""

from __future__ import annotations

from streamhouse.core.clock import ManualClock
from streamhouse.gateway.kafka.fetch_sessions import FetchSessions
from streamhouse.gateway.kafka.hot.fetch import FetchPartition, FetchRequest, PartitionAnswer

SOON_MS, LATE_MS = 1_000, 120_001


def request(session_id: int, epoch: int, partitions: int, *, first: int = 0) -> FetchRequest:
    wanted = [FetchPartition(first + number, -1, 0, -1, -1, 1000) for number in range(partitions)]
    return FetchRequest(-1, 0, 1, 1000, 0, session_id, epoch, [("t", wanted)] if wanted else [], [], "")


def open_session(sessions: FetchSessions, partitions: int) -> int:
    context = sessions.begin(12, request(0, 0, partitions))
    answers = [PartitionAnswer(each.partition, 0, 0, 0, 0) for _, each in context.wanted]
    session_id, told = context.tell(answers)
    assert list(told) == list(range(partitions))
    return session_id


def is_known(sessions: FetchSessions, session_id: int, epoch: int = 1) -> bool:
    return sessions.begin(12, request(session_id, epoch, 0)).error_code == 0


def test_a_full_cache_gives_session_id_0() -> None:
    sessions = FetchSessions(clock=ManualClock(), max_sessions=2)
    assert [open_session(sessions, 3) > 0 for _ in range(3)] == [True, True, False]
    assert len(sessions) == 2


def test_no_cache_at_all_is_legal() -> None:
    assert open_session(FetchSessions(clock=ManualClock(), max_sessions=0), 1) == 0


def test_the_least_recently_used_goes_once_it_is_stale() -> None:
    clock = ManualClock()
    sessions = FetchSessions(clock=clock, max_sessions=2)
    first, second = open_session(sessions, 3), open_session(sessions, 3)
    clock.advance(LATE_MS)
    assert is_known(sessions, first)
    assert open_session(sessions, 1) > 0
    assert is_known(sessions, first, 2)
    assert not is_known(sessions, second)


def test_a_smaller_one_that_had_its_time_makes_room_for_a_larger_one() -> None:
    clock = ManualClock()
    sessions = FetchSessions(clock=clock, max_sessions=2)
    small, large = open_session(sessions, 2), open_session(sessions, 9)
    clock.advance(LATE_MS - SOON_MS)
    assert is_known(sessions, small)
    assert is_known(sessions, large)
    assert open_session(sessions, 5) == 0  # no session has had its time yet
    clock.advance(SOON_MS + 1)
    assert open_session(sessions, 2) == 0  # not larger
    assert open_session(sessions, 5) > 0
    assert not is_known(sessions, small, 2)
    assert is_known(sessions, large, 2)


def test_partitions_of_all_sessions_are_bounded() -> None:
    sessions = FetchSessions(clock=ManualClock(), max_sessions=100, max_partitions=10)
    first = open_session(sessions, 6)
    assert open_session(sessions, 5) == 0
    assert open_session(sessions, 4) > 0
    assert sessions.partitions == 10
    grown = sessions.begin(12, request(first, 1, 2, first=100))
    assert grown.error_code == 70
    assert sessions.partitions == 4


def test_a_new_session_in_place_of_an_old_one_closes_that() -> None:
    sessions = FetchSessions(clock=ManualClock(), max_sessions=1)
    first = open_session(sessions, 1)
    context = sessions.begin(12, request(first, 0, 1))
    second, _ = context.tell([PartitionAnswer(0, 0, 0, 0, 0)])
    assert second not in (0, first)
    assert not is_known(sessions, first)


def test_epochs_wrap_past_0() -> None:
    sessions = FetchSessions(clock=ManualClock(), max_sessions=1)
    session_id = open_session(sessions, 1)
    sessions._sessions[session_id].epoch = 2**31 - 1
    assert is_known(sessions, session_id, 2**31 - 1)
    assert is_known(sessions, session_id, 1)


def test_ids_wrap_past_0_and_are_not_given_twice() -> None:
    sessions = FetchSessions(clock=ManualClock(), max_sessions=9, first_id=2**31 - 1)
    assert [open_session(sessions, 1) for _ in range(2)] == [2**31 - 1, 1]
    sessions._next_id = 2**31 - 1
    assert open_session(sessions, 1) == 2
