"""One partition of a read: what fits, what is taken all the same, and what an error leaves of it."""

from __future__ import annotations

from reading import batches

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.reader.cursor import Allowance, Cursor, ReadRequest, ReadResult

KEY = PartitionKey(TopicId(SeededRandomness(1).uuid()), 0)
AWAY = MetadataUnavailable("no answer")


def cursor(allowance: Allowance, *, max_bytes: int = 1 << 20, offset: int = 0) -> Cursor:
    return Cursor(ReadRequest(key=KEY, offset=offset, max_bytes=max_bytes), allowance)


def take(into: Cursor, size_bytes: int, *, next_offset: int = 5) -> bool:
    return into.take([memoryview(bytes(size_bytes))], size_bytes, next_offset)


def test_the_first_batch_of_an_answer_is_taken_whatever_its_size() -> None:
    """Else a reader could never get past it."""
    first = cursor(Allowance(100), max_bytes=10)
    assert take(first, 5_000)
    assert (first.offset, first.full, first.room) == (5, True, 0)


def test_every_other_batch_must_fit() -> None:
    allowance = Allowance(1000)
    first, second = cursor(allowance), cursor(allowance)
    assert take(first, 400)
    assert not first.full
    assert not take(second, 601)
    assert (second.full, second.batches, second.offset) == (True, [], 0), "nothing of it was taken"
    assert take(first, 600)
    assert (first.full, allowance.left, allowance.taken) == (True, 0, 1000)


def test_room_is_what_both_the_partition_and_the_answer_have_left() -> None:
    allowance = Allowance(1000)
    narrow, wide = cursor(allowance, max_bytes=300), cursor(allowance, max_bytes=5000)
    assert (narrow.room, wide.room) == (300, 1000)
    take(wide, 900)
    assert (narrow.room, wide.room) == (100, 100)
    take(narrow, 100)
    assert narrow.full
    allowance.take(50)
    assert wide.room == 0, "not below zero after a first batch that was too large"


def test_a_partition_that_asked_for_few_bytes_is_full_before_the_answer_is() -> None:
    allowance = Allowance(1000)
    narrow = cursor(allowance, max_bytes=100)
    take(narrow, 100)
    assert (narrow.full, narrow.is_crowded_out(), allowance.left) == (True, False, 900)


def test_a_partition_is_crowded_out_by_others_and_never_by_an_answer_of_no_bytes() -> None:
    allowance = Allowance(0)
    first = cursor(allowance)
    assert not first.is_crowded_out(), "its first batch is taken all the same"
    take(first, 10)
    assert cursor(allowance).is_crowded_out()


def test_an_error_is_told_unless_there_is_something_to_give_out_first() -> None:
    empty, served = cursor(Allowance(1000)), cursor(Allowance(1000))
    take(served, 10)
    for each in (empty, served):
        assert not each.is_done()
        each.fail(AWAY)
        assert each.is_done()
    assert (empty.error, empty.full) == (AWAY, False)
    assert (served.error, served.full, len(served.batches)) == (None, True, 1)


def test_the_size_of_a_result_is_that_of_its_batches() -> None:
    made = [memoryview(each) for each in batches(3)]
    result = ReadResult(batches=made, next_offset=6, high_watermark=6, log_start_offset=0, last_stable_offset=6)
    assert result.size_bytes == sum(map(len, made))
