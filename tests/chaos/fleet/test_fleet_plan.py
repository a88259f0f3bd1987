"""Which faults a seed plans: the same each time, of the kinds asked for, and of lengths that matter to a lease."""

from __future__ import annotations

from streamhouse.chaos.fleet.plan import FaultSchedule
from streamhouse.chaos.fleet.proxy import ProxyMode
from streamhouse.chaos.options import FaultKind
from streamhouse.core.randomness import SeededRandomness


def planned(seed: int, kinds: tuple[FaultKind, ...] = tuple(FaultKind)) -> FaultSchedule:
    return FaultSchedule(SeededRandomness(seed), kinds=kinds, agents=3, every_s=5, lease_s=6)


def test_one_seed_gives_one_plan() -> None:
    one, other = planned(5), planned(5)
    first = [(one.pause_s(), one.next()) for _ in range(100)]
    assert first == [(other.pause_s(), other.next()) for _ in range(100)]
    assert first != [(another.pause_s(), another.next()) for another in [planned(6)] for _ in range(100)]


def test_every_kind_comes_and_only_those_that_were_asked_for() -> None:
    plan = planned(1)
    faults = [plan.next() for _ in range(1000)]
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert {fault.agent for fault in faults if fault.hits_agent} == {0, 1, 2}
    assert {fault.mode for fault in faults if not fault.hits_agent} == {
        ProxyMode.CUT,
        ProxyMode.REFUSE,
        ProxyMode.HOLD,
    }
    few = planned(1, (FaultKind.PAUSE, FaultKind.S3))
    assert {few.next().kind for _ in range(200)} == {FaultKind.PAUSE, FaultKind.S3}


def test_pauses_end_before_the_lease_and_beyond_it() -> None:
    plan = planned(2, (FaultKind.PAUSE,))
    lasts = [plan.next().lasts_s for _ in range(200)]
    assert min(lasts) < 4.2 < 6.6 < max(lasts)


def test_only_an_agents_fault_names_an_agent_and_only_a_clock_is_set() -> None:
    plan = planned(4)
    for fault in [plan.next() for _ in range(500)]:
        assert (fault.agent is None) == (fault.mode is not None) == (not fault.hits_agent)
        assert (fault.step_s != 0) == (fault.kind is FaultKind.CLOCK)


def test_a_cut_is_over_at_once_and_an_outage_lasts() -> None:
    plan = planned(5, (FaultKind.S3, FaultKind.DATABASE))
    lasts: dict[ProxyMode, list[float]] = {mode: [] for mode in ProxyMode}
    for _ in range(300):
        fault = plan.next()
        assert fault.mode is not None
        lasts[fault.mode].append(fault.lasts_s)
    assert set(lasts[ProxyMode.CUT]) == {0.2}
    assert min(lasts[ProxyMode.HOLD] + lasts[ProxyMode.REFUSE]) >= 0.5


def test_the_time_between_faults_keeps_near_what_was_asked_for() -> None:
    plan = planned(6)
    pauses = [plan.pause_s() for _ in range(500)]
    assert min(pauses) >= 2.0
    assert max(pauses) <= 8.0


def test_the_only_agent_is_the_one_that_is_hit() -> None:
    plan = FaultSchedule(SeededRandomness(7), kinds=[FaultKind.KILL], agents=1, every_s=5, lease_s=6)
    assert {plan.next().agent for _ in range(50)} == {0}
