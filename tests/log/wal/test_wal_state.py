"""What goes where and what may go, decided without a disk."""

from __future__ import annotations

from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import BackPressureRejected, InvalidRequest, InvalidSetting, LimitExceeded
from streamhouse.core.limits import KIB
from streamhouse.formats.wal_frame_v1 import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from streamhouse.log.wal.options import WalOptions
from streamhouse.log.wal.state import NewFile, PrepareSpare, RemoveSpare, Retire, WalState

OPTIONS = WalOptions(file_bytes=16 * KIB, max_bytes=128 * KIB, max_spare_files=2)
ROOM = OPTIONS.file_bytes - FILE_HEADER_BYTES - FRAME_HEADER_BYTES


def fresh(options: WalOptions = OPTIONS, *, spares: tuple[int, ...] = (1,)) -> WalState:
    state = WalState(options, next_lsn=1, next_generation=1, spares=spares, next_spare=2)
    begin(state)
    state.synced(0, generation=1)
    return state


def begin(state: WalState) -> NewFile:
    new = state.plan_first_file()
    state.open_file(new)
    return new


def put(state: WalState, frame_bytes: int) -> int:
    lsn = state.next_lsn
    new = state.plan_file(frame_bytes)
    if new is not None:
        state.open_file(new)
    state.assign(frame_bytes)
    return lsn


def sync(state: WalState) -> None:
    state.synced(state.next_lsn - 1, generation=state.generation)


def retired(state: WalState) -> list[int]:
    return [chore.generation for chore in state.chores() if isinstance(chore, Retire)]


def test_frames_lie_end_to_end_behind_the_header() -> None:
    state = fresh()
    assert [state.assign(size) for size in (100, 250, 104)] == [4096, 4196, 4446]
    assert state.next_lsn == 4


def test_a_frame_that_does_not_fit_opens_the_next_file() -> None:
    state = fresh()
    put(state, ROOM)
    new = state.plan_file(104)
    assert new == NewFile(generation=2, first_lsn=2, size_bytes=OPTIONS.file_bytes, spare=None)
    assert state.plan_file(104) == new, "planning changes nothing"
    state.open_file(new)
    assert state.assign(104) == FILE_HEADER_BYTES


def test_every_file_keeps_room_for_the_frame_of_a_clean_stop() -> None:
    state = fresh()
    assert state.plan_file(ROOM + 1) is not None
    assert state.plan_file(ROOM) is None
    put(state, ROOM)
    assert state.assign(FRAME_HEADER_BYTES, needed=False) + FRAME_HEADER_BYTES == OPTIONS.file_bytes


def test_a_frame_larger_than_a_file_gets_a_larger_file_that_is_not_recycled() -> None:
    state = fresh()
    large = put(state, 40 * KIB)
    new_size = 40 * KIB + FILE_HEADER_BYTES + FRAME_HEADER_BYTES
    assert state.size_bytes == OPTIONS.file_bytes + new_size
    small = put(state, 200)
    sync(state)
    state.settle([large, small])
    assert Retire(generation=2, becomes_spare=None) in state.chores()


def test_a_frame_that_can_never_fit_is_told_so() -> None:
    state = fresh()
    with pytest.raises(LimitExceeded, match=r"wal\.max_bytes = 128KiB it takes up to 61232"):
        state.plan_file(65 * KIB)
    assert state.next_lsn == 1


def test_s3_14_a_file_goes_only_when_all_its_frames_are_settled() -> None:
    state = fresh()
    first = [put(state, ROOM // 4) for _ in range(4)]
    put(state, 200)
    sync(state)
    for lsn in (first[2], first[0], first[3]):
        state.settle([lsn])
        assert retired(state) == []
    state.settle([first[1]])
    assert retired(state) == [1]
    assert retired(state) == [], "an order is given once"


def test_r12_files_leave_oldest_first_whatever_order_their_frames_settle_in() -> None:
    state = fresh()
    lsns = [put(state, ROOM) for _ in range(4)]
    sync(state)
    state.settle([lsns[2], lsns[1]])
    assert retired(state) == []
    assert state.oldest_unsettled_lsn == lsns[0]
    state.settle([lsns[0]])
    assert retired(state) == [1, 2, 3]
    assert state.oldest_unsettled_lsn == lsns[3]


def test_r12_a_file_stays_until_the_header_of_a_later_one_is_durable() -> None:
    state = fresh()
    put(state, ROOM)
    put(state, ROOM)
    state.settle([1])
    assert retired(state) == [], "the second file is still on its way to the disk"
    state.synced(1, generation=1)
    assert retired(state) == []
    state.synced(2, generation=2)
    assert retired(state) == [1]


def test_the_file_in_use_never_goes() -> None:
    state = fresh()
    put(state, 200)
    sync(state)
    state.settle([1])
    assert retired(state) == []
    assert state.unsettled_bytes == 0


def test_settling_twice_or_long_ago_is_harmless_and_the_future_is_refused() -> None:
    state = fresh()
    for _ in range(3):
        put(state, ROOM)
    sync(state)
    state.settle([1, 1, 1])
    assert state.unsettled_bytes == 2 * ROOM
    assert retired(state) == [1]
    state.settle([1, 0, -5])
    assert state.unsettled_bytes == 2 * ROOM
    with pytest.raises(InvalidRequest, match="LSN 4 was never assigned"):
        state.settle([4])


def test_emptied_files_become_spares_up_to_a_bound_and_the_rest_is_removed() -> None:
    state = fresh()
    lsns = [put(state, ROOM) for _ in range(5)]
    sync(state)
    state.settle(lsns)
    assert state.chores() == [
        Retire(generation=1, becomes_spare=2),
        Retire(generation=2, becomes_spare=3),
        Retire(generation=3, becomes_spare=None),
        Retire(generation=4, becomes_spare=None),
    ]
    new = state.plan_file(ROOM)
    assert new is not None
    assert new.spare == 2


def test_a_spare_is_prepared_ahead_when_there_is_none() -> None:
    state = fresh(spares=())
    assert state.chores() == [PrepareSpare(number=2, size_bytes=OPTIONS.file_bytes)]
    assert state.chores() == []
    put(state, ROOM)
    put(state, ROOM)
    assert state.chores() == [PrepareSpare(number=3, size_bytes=OPTIONS.file_bytes)]


def test_spares_give_way_to_a_large_frame() -> None:
    options = WalOptions(file_bytes=16 * KIB, max_bytes=64 * KIB, max_spare_files=2)
    state = fresh(options, spares=(1, 2, 3))
    put(state, 20 * KIB)
    assert RemoveSpare(number=3) in state.chores()
    assert state.size_bytes <= options.max_bytes


def test_r11_a_full_log_refuses_before_anything_is_assigned_and_takes_more_once_settled() -> None:
    state = fresh()
    lsns = [put(state, ROOM) for _ in range(8)]
    sync(state)
    with pytest.raises(BackPressureRejected, match=r"the oldest since LSN 1; wal\.max_bytes is 128KiB") as refused:
        state.plan_file(ROOM)
    assert (refused.value.kafka_code, refused.value.http_status, refused.value.retriable) == (19, 503, True)
    assert (state.next_lsn, state.generation) == (9, 8)
    state.settle(lsns[:1])
    state.chores()
    assert put(state, ROOM) == 9


def test_a_recovered_file_is_never_written_to_and_never_recycled() -> None:
    state = WalState(OPTIONS, next_lsn=4, next_generation=8, spares=(), next_spare=1)
    state.recovered_file(
        generation=7, first_lsn=1, size_bytes=OPTIONS.file_bytes, frame_bytes=array("I", [300, 0, 400])
    )
    new = begin(state)
    assert (new.generation, new.first_lsn) == (8, 4)
    state.synced(3, generation=8)
    assert (state.unsettled_bytes, state.oldest_unsettled_lsn) == (700, 1)
    assert put(state, 200) == 4
    state.settle([1, 3])
    assert Retire(generation=7, becomes_spare=None) in state.chores()


def test_a_recovered_file_without_batches_goes_at_once() -> None:
    state = WalState(OPTIONS, next_lsn=2, next_generation=8, spares=(), next_spare=1)
    state.recovered_file(generation=7, first_lsn=1, size_bytes=OPTIONS.file_bytes, frame_bytes=array("I", [0]))
    begin(state)
    state.synced(1, generation=8)
    assert retired(state) == [7]


@pytest.mark.parametrize(
    "options", [{"file_bytes": 4200, "max_bytes": 1 << 20}, {"file_bytes": 8192, "max_bytes": 16383}]
)
def test_sizes_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting, match=r"wal\.(file|max)_bytes"):
        WalOptions(**options)


@given(st.lists(st.tuples(st.integers(104, 70 * KIB), st.booleans(), st.integers(0, 40)), max_size=60))
def test_the_bound_holds_and_room_always_comes_back(story: list[tuple[int, bool, int]]) -> None:
    state = fresh()
    unsettled: dict[int, int] = {}
    for frame_bytes, synced, settle in story:
        with suppress(BackPressureRejected, LimitExceeded):
            unsettled[put(state, frame_bytes)] = frame_bytes
        if synced:
            sync(state)
        for lsn in list(unsettled)[settle:]:
            state.settle([lsn])
            del unsettled[lsn]
        state.chores()
        assert state.size_bytes <= OPTIONS.max_bytes
        assert state.unsettled_bytes == sum(unsettled.values())
        assert state.oldest_unsettled_lsn == min(unsettled, default=None)
    sync(state)
    state.settle(unsettled)
    state.chores()
    assert state.file_count == 1
    put(state, 59 * KIB)
