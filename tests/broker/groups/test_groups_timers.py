"""One heap for all timers."""

from __future__ import annotations

import asyncio

from streamhouse.broker.groups.timers import Timers
from streamhouse.core.clock import ManualClock, SystemClock


async def test_timers_fire_in_order_and_only_at_their_last_time() -> None:
    clock, fired = ManualClock(), []
    timers: Timers[str] = Timers(clock=clock, fire=fired.append)
    timers.set("late", 300)
    timers.set("moved back", 100)
    timers.set("moved back", 200)
    timers.set("moved forward", 500)
    timers.set("moved forward", 50)
    timers.set("taken back", 60)
    timers.set("taken back", None)
    clock.advance(100)
    timers.run_due()
    assert fired == ["moved forward"]
    clock.advance(400)
    timers.run_due()
    assert fired == ["moved forward", "moved back", "late"]
    assert len(timers) == 0
    timers.close()


async def test_a_timer_may_set_the_next_one() -> None:
    clock, fired = ManualClock(), []
    timers: Timers[int] = Timers(clock=clock, fire=lambda key: (fired.append(key), timers.set(key + 1, 10))[0])
    timers.set(0, 10)
    clock.advance(9)
    timers.run_due()
    assert fired == []
    timers.close()


async def test_heartbeats_do_not_make_the_heap_grow() -> None:
    clock = ManualClock()
    timers: Timers[int] = Timers(clock=clock, fire=lambda key: None)
    for beat in range(50):
        for member in range(100):
            timers.set(member, 1_000 + beat)
    assert len(timers._heap) == 100
    for member in range(100, 20_000):
        timers.set(member, 10**9)
        timers.set(member, None)
    assert len(timers._heap) < 3_000
    timers.close()


async def test_the_event_loop_wakes_it() -> None:
    fired = asyncio.Event()
    clock = SystemClock()
    timers: Timers[str] = Timers(clock=clock, fire=lambda key: fired.set())
    timers.set("never", clock.boot_ms() + 3_600_000)
    timers.set("soon", clock.boot_ms() + 5)
    async with asyncio.timeout(10):
        await fired.wait()
    timers.close()
