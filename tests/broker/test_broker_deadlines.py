"""One timer for many deadlines: those that pass are told once, the others never, and it stops when none is left."""

from __future__ import annotations

import asyncio

from streamhouse.broker.deadlines import Deadlines


class Call:
    def __init__(self) -> None:
        self.late = asyncio.Event()
        self.times = 0

    def overdue(self) -> None:
        self.times += 1
        self.late.set()


async def test_only_what_is_late_is_told_and_once() -> None:
    deadlines = Deadlines()
    late, early, met = Call(), Call(), Call()
    deadlines.add(late, 0)
    deadlines.add(early, 3600)
    deadlines.add(met, 0)
    deadlines.remove(met)
    await asyncio.wait_for(late.late.wait(), 10)
    assert (late.times, early.times, met.times) == (1, 0, 0)
    assert len(deadlines) == 1
    deadlines.remove(early)
    deadlines.remove(early)
    assert len(deadlines) == 0


async def test_the_timer_runs_only_while_somebody_waits() -> None:
    deadlines = Deadlines()
    assert deadlines._timer is None
    call = Call()
    deadlines.add(call, 0)
    assert deadlines._timer is not None
    await asyncio.wait_for(call.late.wait(), 10)
    assert deadlines._timer is None
    again = Call()
    deadlines.add(again, 0)
    await asyncio.wait_for(again.late.wait(), 10)


async def test_a_call_that_fails_does_not_keep_the_others_from_being_told() -> None:
    class Broken(Call):
        def overdue(self) -> None:
            super().overdue()
            raise RuntimeError("a bug")

    deadlines = Deadlines()
    calls = [Call(), Broken(), Call()]
    for call in calls:
        deadlines.add(call, 0)
    for call in calls:
        await asyncio.wait_for(call.late.wait(), 10)
    assert [call.times for call in calls] == [1, 1, 1]
    assert len(deadlines) == 0


async def test_a_call_that_ends_with_another_one_is_not_told() -> None:
    deadlines = Deadlines()
    other = Call()

    class Ends(Call):
        def overdue(self) -> None:
            super().overdue()
            deadlines.remove(other)

    first = Ends()
    deadlines.add(first, 0)
    deadlines.add(other, 0)
    await asyncio.wait_for(first.late.wait(), 10)
    assert (first.times, other.times) == (1, 0)
