"""Answers leave a connection in the order of its requests, and what waits is counted to the byte."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.gateway.kafka.answers import OWN_WRITE_BYTES, Answers, AnswerSlot, coalesce


def opened(answers: Answers) -> AnswerSlot:
    """A request that is under way, in its place."""
    slot = AnswerSlot(api_key=0, correlation_id=0, flexible=False, request_bytes=0)
    answers.slots.append(slot)
    return slot


def test_with_nothing_under_way_an_answer_may_leave_at_once() -> None:
    answers = Answers()
    answers.put([b"ab", b"c"])
    assert not answers.slots
    assert answers.take() == [b"ab", b"c"]
    assert answers.take() == []


def test_answers_that_wait_behind_another_count_as_held_and_still_wait() -> None:
    answers = Answers()
    slow, quick = opened(answers), opened(answers)
    answers.settle(quick, [b"12345"])
    answers.put([b"123"])
    assert answers.take() == []
    assert answers.held_bytes == 8
    answers.settle(slow, [b"1"])
    assert answers.held_bytes == 9
    assert answers.take() == [b"1", b"12345", b"123"]
    assert answers.held_bytes == 0


def test_a_request_without_an_answer_lets_the_next_one_leave() -> None:
    answers = Answers()
    silent, waiting = opened(answers), opened(answers)
    answers.settle(waiting, [b"second"])
    answers.settle(silent, ())
    assert answers.take() == [b"second"]
    assert not answers.slots


def test_an_answer_behind_one_that_is_not_ready_keeps_its_place_until_then() -> None:
    answers = Answers()
    first, second = opened(answers), opened(answers)
    answers.settle(first, [b"first"])
    answers.put([b"third"])
    assert answers.take() == [b"first"]
    assert next(iter(answers.slots)) is second
    answers.settle(second, [b"second"])
    assert answers.take() == [b"second", b"third"]


@given(st.permutations(range(6)))
def test_answers_leave_in_the_order_of_their_requests(order: list[int]) -> None:
    answers = Answers()
    slots = []
    for _ in range(6):
        slots.append(AnswerSlot(api_key=0, correlation_id=0, flexible=False, request_bytes=0))
        answers.slots.append(slots[-1])
    answers.put([b"last"])
    left: list[bytes] = []
    for number in order:
        answers.settle(slots[number], [b"%d" % number] if number != 3 else [])
        left += map(bytes, answers.take())
    assert left == [b"0", b"1", b"2", b"4", b"5", b"last"]
    assert answers.held_bytes == 0


@settings(max_examples=50)
@given(st.lists(st.sampled_from([b"", b"abc", bytes(OWN_WRITE_BYTES), bytes(OWN_WRITE_BYTES - 1)]), min_size=1))
def test_coalescing_changes_no_byte_and_copies_no_large_piece(pieces: list[bytes]) -> None:
    chunks = list(coalesce(list(pieces)))
    assert b"".join(chunks) == b"".join(pieces)
    assert [chunk for chunk in pieces if len(chunk) >= OWN_WRITE_BYTES] == [
        chunk for chunk in chunks if any(chunk is piece for piece in pieces) and len(chunk) >= OWN_WRITE_BYTES
    ]


def test_small_pieces_between_large_ones_are_joined_into_one_write() -> None:
    large = bytes(OWN_WRITE_BYTES)
    chunks = list(coalesce([b"a", b"b", large, b"c", b"d", large]))
    assert [len(chunk) for chunk in chunks] == [2, OWN_WRITE_BYTES, 2, OWN_WRITE_BYTES]
    assert chunks[1] is large
