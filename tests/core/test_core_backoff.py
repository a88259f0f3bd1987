"""Pauses between tries: they double up to a bound, jitter stays inside its range, and a success resets them."""

from __future__ import annotations

import pytest

from streamhouse.core.backoff import Backoff, KeyedBackoff
from streamhouse.core.randomness import SeededRandomness


def test_steps_double_up_to_the_bound() -> None:
    backoff = Backoff(first_ms=100, longest_ms=350)
    assert [backoff.step_ms(failures) for failures in (0, 1, 2, 3, 10**9)] == [0, 100, 200, 350, 350]


def test_a_first_step_above_the_bound_is_cut() -> None:
    assert Backoff(first_ms=500, longest_ms=200).step_ms(1) == 200


@pytest.mark.parametrize("least_share", [0.0, 0.5, 1.0])
def test_jitter_stays_between_the_least_share_and_the_whole_step(least_share: float) -> None:
    backoff, randomness = Backoff(first_ms=100, longest_ms=400, least_share=least_share), SeededRandomness(1)
    for failures in (1, 2, 3, 4):
        step_s = backoff.step_ms(failures) / 1000
        pauses = {backoff.pause_s(failures, randomness) for _ in range(200)}
        assert all(least_share * step_s <= pause_s <= step_s for pause_s in pauses)
        assert (len(pauses) > 1) == (least_share < 1)


def test_the_same_randomness_gives_the_same_pauses() -> None:
    backoff = Backoff(first_ms=100, longest_ms=400)
    one, other = SeededRandomness(7), SeededRandomness(7)
    assert [backoff.pause_s(n, one) for n in range(9)] == [backoff.pause_s(n, other) for n in range(9)]


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Backoff(first_ms=0, longest_ms=10)
    with pytest.raises(ValueError, match="least_share"):
        Backoff(first_ms=1, longest_ms=10, least_share=1.5)


def test_each_key_has_its_own_pause_and_a_success_resets_it() -> None:
    keys: KeyedBackoff[str] = KeyedBackoff(Backoff(first_ms=100, longest_ms=350))
    assert keys.may_try("x", now_ms=0)
    pauses = []
    now_ms = 0
    for _ in range(4):
        keys.failed("x", now_ms=now_ms)
        until_ms = keys.next_ms(now_ms=now_ms)
        assert until_ms is not None
        assert not keys.may_try("x", now_ms=until_ms - 1)
        assert keys.may_try("y", now_ms=until_ms - 1)
        assert keys.waiting(now_ms=until_ms - 1) == ["x"]
        assert keys.may_try("x", now_ms=until_ms)
        assert keys.waiting(now_ms=until_ms) == []
        pauses.append(until_ms - now_ms)
        now_ms = until_ms
    assert pauses == [100, 200, 350, 350]
    keys.worked("x")
    assert len(keys) == 0
    keys.failed("x", now_ms=now_ms)
    assert keys.next_ms(now_ms=now_ms) == now_ms + 100
    keys.forget_except([])
    assert keys.next_ms(now_ms=now_ms) is None
