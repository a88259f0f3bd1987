"""The flush policy: its rules one by one, and what it means for models of real clients (flush_clients.py)."""

from __future__ import annotations

import pytest
from flush_clients import (
    IDEMPOTENT_WINDOW,
    Client,
    Result,
    Stores,
    World,
    franz_go,
    irregular,
    java_defaults,
    librdkafka_large,
    paced,
)

from streamhouse.core.limits import KIB, MIB
from streamhouse.log.flush_policy import FlushPace, PutBudget, RoundTime, Waiting, affordable_ms, due_ms

CHEAP = FlushPace(puts_per_second=4, longest_wait_ms=250)
DEFAULT = FlushPace(puts_per_second=20, longest_wait_ms=250)
FAST = FlushPace(puts_per_second=200, longest_wait_ms=250)
NEAR = Stores()
S3_STANDARD = Stores(put_ms=33)
FAR = Stores(put_ms=253)
ROUND_MS = NEAR.put_ms + NEAR.commit_ms


def due(
    waiting: Waiting, *, now_ms: float = 100.0, round_ms: float = 10.0, last_start_ms: float | None = None
) -> float | None:
    return due_ms(waiting, DEFAULT, round_ms=round_ms, last_start_ms=last_start_ms, now_ms=now_ms)


class TestRules:
    def test_without_a_waiting_client_no_flush_is_due(self) -> None:
        assert due(Waiting(size_bytes=DEFAULT.enough_bytes - 1)) is None

    def test_enough_bytes_are_due_although_no_client_waits(self) -> None:
        assert due(Waiting(size_bytes=DEFAULT.enough_bytes), last_start_ms=99.0) == 100.0

    def test_full_windows_are_due_at_once(self) -> None:
        assert due(Waiting(size_bytes=1, oldest_ms=99.9, newest_ms=100.0, windows_full=True)) == 99.9

    def test_clients_that_stop_sending_are_due_after_the_quiet_time(self) -> None:
        assert due(Waiting(size_bytes=1, oldest_ms=99.0, newest_ms=100.0)) == 100.0 + DEFAULT.quiet_ms

    def test_clients_that_never_stop_are_due_when_the_oldest_has_waited_for_a_round(self) -> None:
        assert due(Waiting(size_bytes=1, oldest_ms=91.0, newest_ms=100.0)) == pytest.approx(101.0)

    def test_the_more_bytes_wait_the_shorter_is_the_wait(self) -> None:
        half = Waiting(size_bytes=DEFAULT.enough_bytes // 2, oldest_ms=99.0, newest_ms=103.0)
        assert due(half, round_ms=10) == pytest.approx(104.0)

    def test_no_batch_waits_for_more_than_the_longest_wait_however_long_a_flush_takes(self) -> None:
        now_ms = 1000.0
        waiting = Waiting(size_bytes=1, oldest_ms=now_ms - 249, newest_ms=now_ms)
        assert due(waiting, now_ms=now_ms, round_ms=60_000) == pytest.approx(now_ms + 1, abs=0.01)

    def test_while_a_flush_is_under_way_the_next_waits_for_half_a_round(self) -> None:
        waiting = Waiting(size_bytes=1, oldest_ms=90.0, newest_ms=90.0)
        assert due(waiting, round_ms=40, last_start_ms=95.0) == pytest.approx(115.0)
        assert due(waiting, round_ms=40, last_start_ms=None) == 92.0

    def test_a_segment_s_worth_does_not_wait_for_the_budget(self) -> None:
        budget = PutBudget(20)
        for _ in range(100):
            budget.spend(100.0)
        assert affordable_ms(100.0, MIB - 1, DEFAULT, budget=budget, now_ms=100.0) > 1000
        assert affordable_ms(100.0, MIB, DEFAULT, budget=budget, now_ms=100.0) == 100.0


class TestBudget:
    def test_a_second_s_worth_is_a_burst_and_then_tokens_come_at_the_rate(self) -> None:
        budget = PutBudget(20)
        for _ in range(20):
            budget.spend(0.0)
        assert budget.ready_ms(0.0) == pytest.approx(50.0)
        assert budget.ready_ms(60.0) == 60.0
        budget.spend(60.0)
        assert budget.ready_ms(60.0) == pytest.approx(100.0)

    def test_idle_time_saves_no_more_than_a_second_s_worth(self) -> None:
        budget = PutBudget(20)
        assert budget.available(3_600_000.0) == 20

    def test_the_debt_of_urgent_flushes_is_at_most_what_a_second_brings(self) -> None:
        budget = PutBudget(20)
        for _ in range(10_000):
            budget.spend(0.0)
        assert budget.ready_ms(0.0) <= 1_050.0

    def test_a_rate_below_one_per_second_still_lets_flushes_through(self) -> None:
        budget = PutBudget(0.5)
        assert budget.ready_ms(0.0) == 0.0
        budget.spend(0.0)
        assert budget.ready_ms(0.0) == pytest.approx(2000.0)

    def test_a_clock_that_stands_still_or_goes_back_brings_no_tokens(self) -> None:
        budget = PutBudget(20)
        for _ in range(20):
            budget.spend(1000.0)
        assert budget.available(500.0) == 0
        assert budget.available(1000.0) == 0


class TestRoundTime:
    def test_the_estimate_follows_what_flushes_take(self) -> None:
        rounds = RoundTime()
        for _ in range(50):
            rounds.observe(40.0)
        assert rounds.estimate_ms == pytest.approx(40.0, rel=0.05)

    def test_one_very_slow_flush_does_not_spoil_it(self) -> None:
        rounds = RoundTime()
        for _ in range(50):
            rounds.observe(6.0)
        rounds.observe(15_000.0)
        assert rounds.estimate_ms < 10.0


def run(clients: list[Client], pace: FlushPace, stores: Stores) -> Result:
    return World(clients, pace, stores).run()


class TestThroughput:
    """The targets are those of ``make bench-s3``."""

    def test_java_s_defaults_on_a_near_store(self) -> None:
        assert run([java_defaults()], FAST, NEAR).mb_per_s >= 5
        assert run([java_defaults() for _ in range(4)], FAST, NEAR).mb_per_s >= 15

    def test_java_s_defaults_on_s3_standard(self) -> None:
        assert run([java_defaults()], FAST, S3_STANDARD).mb_per_s >= 1

    @pytest.mark.parametrize("pace", [CHEAP, DEFAULT, FAST])
    @pytest.mark.parametrize("window", [IDEMPOTENT_WINDOW, None])
    def test_large_batches_get_the_rate_of_the_store_whatever_the_budget(
        self, pace: FlushPace, window: int | None
    ) -> None:
        result = run([librdkafka_large(window=window) for _ in range(4)], pace, NEAR)
        assert result.mb_per_s >= 0.8 * NEAR.bytes_per_ms * 1000 / 1e6

    def test_large_batches_do_not_take_more_puts_than_their_bytes_are_worth(self) -> None:
        result = run([librdkafka_large() for _ in range(4)], CHEAP, NEAR)
        assert result.puts <= result.acknowledged_bytes / (4 * MIB) + CHEAP.puts_per_second * result.seconds

    def test_franz_go(self) -> None:
        assert run([franz_go()], FAST, NEAR).mb_per_s >= 15

    def test_a_far_store_slows_clients_down_no_more_than_its_round_does(self) -> None:
        one_window_a_round = IDEMPOTENT_WINDOW * 16 * KIB / (FAR.put_ms + FAR.commit_ms)  # KB/s: bytes per ms
        assert run([java_defaults()], FAST, FAR).mb_per_s * 1000 >= 0.7 * one_window_a_round


@pytest.mark.parametrize("window", [IDEMPOTENT_WINDOW, None])
@pytest.mark.parametrize("linger_ms", [0, 1, 5, 100])
@pytest.mark.parametrize("per_second", [100, 5000])
class TestLatency:
    def test_in_the_fast_profile_it_is_a_few_rounds(self, per_second: int, linger_ms: int, window: int | None) -> None:
        result = run([paced(per_second=per_second, linger_ms=linger_ms, window=window)], FAST, NEAR)
        assert result.latency_ms(0.5) <= linger_ms + 3 * ROUND_MS
        assert result.latency_ms(0.99) <= linger_ms + 5 * ROUND_MS
        assert result.puts_per_s <= FAST.puts_per_second + 1

    def test_in_the_default_profile_the_budget_holds(self, per_second: int, linger_ms: int, window: int | None) -> None:
        result = run([paced(per_second=per_second, linger_ms=linger_ms, window=window)], DEFAULT, NEAR)
        assert result.puts_per_s <= DEFAULT.puts_per_second + 1
        assert result.latency_ms(0.5) <= linger_ms + 100

    def test_in_the_cheap_profile_the_budget_holds(self, per_second: int, linger_ms: int, window: int | None) -> None:
        result = run([paced(per_second=per_second, linger_ms=linger_ms, window=window)], CHEAP, NEAR)
        assert result.puts_per_s <= CHEAP.puts_per_second + 0.5


class TestManyProducers:
    def test_a_thousand_small_producers_share_flushes(self) -> None:
        result = run([irregular(per_second=10) for _ in range(1000)], FAST, NEAR)
        assert result.latency_ms(0.5) <= 3 * ROUND_MS
        assert result.puts_per_s <= FAST.puts_per_second + 1

    def test_a_thousand_small_producers_keep_to_the_default_budget(self) -> None:
        result = run([irregular(per_second=10) for _ in range(1000)], DEFAULT, NEAR)
        assert result.puts_per_s <= DEFAULT.puts_per_second + 1
        assert result.latency_ms(0.5) <= 100

    def test_small_producers_beside_a_large_one_wait_no_longer_than_its_uploads(self) -> None:
        small = [irregular(per_second=10) for _ in range(100)]
        alone = run([librdkafka_large()], FAST, NEAR)
        beside = run([*small, librdkafka_large()], FAST, NEAR)
        assert beside.latency_ms(0.5) <= 2 * alone.latency_ms(0.99)
        assert beside.mb_per_s >= 0.8 * alone.mb_per_s
