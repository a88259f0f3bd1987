"""What a producer does in its life, drawn from a seed: bounded bursts, and enough batches in flight at its start."""

from __future__ import annotations

from streamhouse.chaos.load.shape import (
    LARGE_RECORD_BYTES,
    MAX_OUTSTANDING,
    MAX_OUTSTANDING_BYTES,
    Burst,
    Life,
    pick,
    some,
    whole,
)
from streamhouse.core.randomness import SeededRandomness


def test_a_life_begins_with_enough_batches_for_five_in_flight() -> None:
    randomness = SeededRandomness(3)
    for _ in range(200):
        life = Life(randomness, [("t", 0), ("t", 1)])
        burst = life.burst(0)
        assert burst.count <= MAX_OUTSTANDING
        if burst.padding_bytes < 1000 and life.batch_records < 20:
            assert burst.count >= 5 * life.batch_records


def test_a_burst_stays_within_its_bounds_whatever_the_seed() -> None:
    places = [("t", partition) for partition in range(9)]
    randomness = SeededRandomness(5)
    sizes = set()
    for _ in range(300):
        life = Life(randomness, places)
        assert 1 <= life.bursts <= 25
        for number in range(3):
            burst = life.burst(number)
            assert 1 <= len(burst.places) == len(set(burst.places)) <= 4
            assert 1 <= burst.count <= 60
            assert burst.count * burst.padding_bytes * len(burst.places) <= MAX_OUTSTANDING_BYTES
            sizes.add(burst.padding_bytes > 400)
    assert sizes == {True, False}, "large and small records are mixed"


def test_one_seed_gives_one_life() -> None:
    one, other = (Life(SeededRandomness(9), [("t", 0)]) for _ in range(2))
    assert [one.burst(number) for number in range(20)] == [other.burst(number) for number in range(20)]


def test_a_large_record_weighs_as_much_as_several_small_ones() -> None:
    places = [("t", 0), ("t", 1)]
    small = Burst(places=places, count=3, padding_bytes=0)
    large = Burst(places=places, count=3, padding_bytes=LARGE_RECORD_BYTES)
    assert small.weight == 6
    assert large.weight > 20 * small.weight


def test_both_ends_of_a_range_are_drawn_and_nothing_beyond() -> None:
    randomness = SeededRandomness(1)
    assert {whole(randomness, 2, 4) for _ in range(200)} == {2, 3, 4}
    assert {pick(randomness, "abc") for _ in range(200)} == set("abc")
    assert sorted(some(randomness, [1, 2, 3], 5, 9)) == [1, 2, 3]
