from __future__ import annotations

import pytest

from streamhouse.cluster.allowance import Allowance


def new(*, longest_s: float = 30.0) -> Allowance:
    return Allowance(share=0.1, purse_s=1.0, longest_s=longest_s)


def test_a_burst_is_free_until_the_purse_is_empty() -> None:
    allowance = new()
    for _ in range(10):
        assert allowance.wait_s(now_s=5.0) == 0
        allowance.spent(0.1, now_s=5.0)
    assert allowance.wait_s(now_s=5.0) == pytest.approx(0.0, abs=1e-9)
    allowance.spent(0.1, now_s=5.0)
    assert allowance.wait_s(now_s=5.0) == pytest.approx(1.0)


def test_in_the_long_run_it_is_a_share_of_the_time() -> None:
    allowance, now_s, spent_s = new(), 0.0, 0.0
    while now_s < 1000:
        now_s += allowance.wait_s(now_s=now_s) + 0.1
        allowance.spent(0.1, now_s=now_s)
        spent_s += 0.1
    assert 90 < spent_s < 103


def test_what_is_not_used_is_not_saved_beyond_the_purse() -> None:
    allowance = new()
    allowance.spent(0.0, now_s=0.0)
    allowance.spent(1.5, now_s=10_000.0)
    assert allowance.wait_s(now_s=10_000.0) == pytest.approx(5.0)
    assert allowance.wait_s(now_s=10_003.0) == pytest.approx(2.0)


def test_nobody_waits_longer_than_the_longest() -> None:
    allowance = new(longest_s=2.0)
    allowance.spent(500.0, now_s=0.0)
    assert allowance.wait_s(now_s=0.0) == pytest.approx(2.0)
    assert allowance.wait_s(now_s=2.0) == pytest.approx(0.0, abs=1e-9)
