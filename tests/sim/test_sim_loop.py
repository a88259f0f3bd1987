"""The loop of the simulator: virtual time, lanes that pause and die, the same steps for the same seed everywhere."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import NoReturn

import pytest

from simulator.dice import Dice
from simulator.loop import SimLoop, SimulationStuck
from simulator.run import run_seed


def loop(seed: int = 1) -> SimLoop:
    return SimLoop(Dice(seed))


def test_time_jumps_to_the_next_timer() -> None:
    sim = loop()

    async def main() -> list[float]:
        seen = []
        for pause_s in (3600, 0.25, 0):
            await asyncio.sleep(pause_s)
            seen.append(asyncio.get_running_loop().time())
        return seen

    assert sim.simulate(main()) == [3600, 3600.25, 3600.25]


def test_a_lane_keeps_its_order_and_lanes_are_interleaved_by_the_dice() -> None:
    def order(seed: int) -> list[tuple[str, int]]:
        sim = loop(seed)
        ran: list[tuple[str, int]] = []

        async def work(name: str) -> None:
            for number in range(5):
                ran.append((name, number))
                await asyncio.sleep(0)

        async def main() -> None:
            await asyncio.gather(*(sim.lane(name).spawn(work(name)) for name in "abc"))

        sim.simulate(main())
        return ran

    orders = [order(seed) for seed in range(20)]
    for ran in orders:
        for name in "abc":
            assert [number for lane, number in ran if lane == name] == list(range(5))
    assert len({tuple(ran) for ran in orders}) > 10, "other seeds, other interleavings"
    assert order(7) == order(7)


def test_a_paused_lane_does_nothing_and_then_hears_what_arrived_before_its_timers() -> None:
    """It is as after SIGCONT: requests that waited in the socket come before timers that are long overdue (R20)."""
    sim = loop()
    ran: list[tuple[str, float]] = []

    async def process() -> None:
        asyncio.get_running_loop().call_later(1, lambda: ran.append(("timer", sim.time())))
        await asyncio.sleep(100)

    async def request() -> None:
        ran.append(("request", sim.time()))

    async def main() -> None:
        lane = sim.lane("process")
        lane.spawn(process())
        await asyncio.sleep(0.5)
        lane.pause()
        await asyncio.sleep(2)
        lane.spawn(request())
        await asyncio.sleep(2)
        assert ran == []
        lane.resume()
        await asyncio.sleep(1)

    sim.simulate(main())
    assert ran == [("request", 4.5), ("timer", 4.5)]


def test_a_lane_runs_again_when_each_of_its_pauses_has_ended() -> None:
    sim = loop()
    ran: list[float] = []

    async def process() -> None:
        while True:
            await asyncio.sleep(1)
            ran.append(sim.time())

    async def main() -> None:
        lane = sim.lane("process")
        lane.spawn(process())
        await asyncio.sleep(0.5)
        lane.pause()
        lane.pause()
        await asyncio.sleep(2)
        lane.resume()
        await asyncio.sleep(2)
        assert ran == []
        lane.resume()
        lane.resume()  # of a pause that has ended otherwise: no effect
        await asyncio.sleep(1.2)
        lane.pause()
        lane.pause()
        lane.resume(all_pauses=True)
        await asyncio.sleep(1)

    sim.simulate(main())
    assert ran == [4.5, 5.5, 6.5]


def test_a_starved_lane_finds_in_one_round_what_was_due_meanwhile() -> None:
    """Timers that are apart on an idle machine: the second runs before what the first has scheduled."""
    sim = loop()
    ran: list[str] = []
    starve = iter([0.0, 5.0])

    async def process() -> None:
        running = asyncio.get_running_loop()
        running.call_later(1, lambda: running.call_soon(lambda: running.call_soon(ran.append, "follows the first")))
        running.call_later(2, lambda: ran.append("second"))
        await asyncio.sleep(100)

    async def main(starved: bool) -> None:
        ran.clear()
        lane = sim.lane("process")
        if starved:
            lane.starved_for = lambda: next(starve, 0.0)
        lane.spawn(process())
        await asyncio.sleep(20)

    sim.simulate(main(starved=False))
    assert ran == ["follows the first", "second"]
    sim = loop()
    sim.simulate(main(starved=True))
    assert ran == ["second", "follows the first"]


def test_nothing_of_a_killed_lane_runs_not_even_its_finally() -> None:
    sim = loop()
    ran: list[str] = []
    before_the_end: list[str] = []

    async def process() -> None:
        try:
            asyncio.create_task(child())  # noqa: RUF006 - the lane keeps it
            await asyncio.sleep(1)
            ran.append("process")
        finally:
            ran.append("finally")

    async def child() -> None:
        await asyncio.sleep(1)
        ran.append("child")

    async def main() -> None:
        lane = sim.lane("process")
        lane.spawn(process())
        await asyncio.sleep(0.5)
        lane.kill()
        await asyncio.sleep(5)
        before_the_end.extend(ran)

    sim.simulate(main())
    assert before_the_end == []


def test_a_deadlock_is_reported() -> None:
    sim = loop()

    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimulationStuck, match="every task waits, and no timer is set: \\['world'\\]"):
        sim.simulate(main())


def test_work_that_never_lets_time_pass_is_reported() -> None:
    sim = loop()

    async def main() -> NoReturn:
        while True:  # noqa: ASYNC110 - that is the point
            await asyncio.sleep(0)

    with pytest.raises(SimulationStuck, match=r"runs on and on at 0\.000 s"):
        sim.simulate(main())


def test_threads_are_refused() -> None:
    sim = loop()

    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(AssertionError, match="the simulation has no threads"):
        sim.simulate(main())


def test_an_exception_nobody_caught_is_kept_for_the_judge() -> None:
    sim = loop()

    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    sim.simulate(main())
    assert len(sim.uncaught) == 1
    assert "ZeroDivisionError" in sim.uncaught[0]


def test_sets_of_tasks_are_walked_in_the_order_of_their_making() -> None:
    sim = loop()

    async def main() -> None:
        tasks = [asyncio.create_task(asyncio.sleep(0), name=str(number)) for number in range(6)]
        assert [task.get_name() for task in set(tasks)] == [task.get_name() for task in tasks]
        await asyncio.gather(*tasks)

    sim.simulate(main())


_SEEDS = (1, 2, 4, 6, 9)
_PRINT = "from simulator.run import run_seed; print(*(run_seed(seed).trace for seed in {seeds}))"


def test_a_seed_replays_bit_for_bit_in_any_process() -> None:
    """Another process has other addresses and other string hashes; neither may matter."""
    here = [run_seed(seed).trace for seed in _SEEDS]
    for hash_seed in ("1", "4711"):
        there = subprocess.run(
            [sys.executable, "-c", _PRINT.format(seeds=_SEEDS)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert there.split() == here
    assert len(set(here)) == len(here)


def test_notes_do_not_change_what_happens() -> None:
    plain, noted = run_seed(3), run_seed(3, keep_notes=True)
    assert (plain.trace, plain.steps) == (noted.trace, noted.steps)
    assert noted.notes
    assert not plain.notes
