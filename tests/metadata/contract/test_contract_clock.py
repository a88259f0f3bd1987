"""R20, R23: the store's clock never goes back, and it goes on while the machine's clock is behind."""

from __future__ import annotations

from builders import TTL_MS, leased_slice
from harness import Backend

from streamhouse.metadata.contract import AcquireVerdict, HeldLease, Verdict

STEP_MS = 300_000
TICK_MS = 2000
LATE_MS = TTL_MS // 15 + TICK_MS + 100
"""How much later than on time a deadline may come while the clock is behind: it runs at 15/16 of full speed, and on
PostgreSQL it stands still until the first tick after the step."""


async def pass_time(backend: Backend, ms: int) -> None:
    """Time passes while some process looks at the clock, as agents do."""
    while ms > 0:
        await backend.advance(min(ms, TICK_MS))
        await backend.store.now_ms()
        ms -= TICK_MS


async def test_r20_set_back_the_clock_goes_on_from_where_it_stood(backend: Backend) -> None:
    before = await backend.store.now_ms()
    await backend.step_clock(-STEP_MS)
    assert await backend.store.now_ms() == before
    seen = []
    for _ in range(15):
        await pass_time(backend, 2000)
        seen.append(await backend.store.now_ms())
    assert seen == sorted(seen)
    assert before + 28_000 <= seen[-1] <= before + 30_000


async def test_r20_another_process_does_not_see_it_go_back_either(backend: Backend) -> None:
    before = await backend.store.now_ms()
    await backend.step_clock(-STEP_MS)
    other = await backend.open_another()
    assert await other.now_ms() == before
    await pass_time(backend, 16_000)
    assert await other.now_ms() == await backend.store.now_ms() >= before + 14_900


async def test_r20_the_machines_clock_catches_up_and_is_followed_again(backend: Backend) -> None:
    before = await backend.store.now_ms()
    await backend.step_clock(-1000)
    await pass_time(backend, 20_000)
    assert await backend.store.now_ms() == backend.now_ms == before + 19_000
    await backend.advance(1)
    assert await backend.store.now_ms() == backend.now_ms


async def test_r20_a_clock_set_back_twice(backend: Backend) -> None:
    before = await backend.store.now_ms()
    for _ in range(2):
        await backend.step_clock(-STEP_MS)
        await pass_time(backend, 16_000)
    assert before + 30_000 - 2 * TICK_MS <= await backend.store.now_ms() <= before + 32_000


async def test_r20_a_clock_put_right_again_does_not_leap(backend: Backend) -> None:
    """Five minutes back, then the same five forward: leases that were renewed all the time must not end."""
    before = await backend.store.now_ms()
    await backend.step_clock(-STEP_MS)
    await pass_time(backend, 16_000)
    await backend.step_clock(STEP_MS)
    assert await backend.store.now_ms() <= before + 16_000 + 10_000


async def test_r20_a_dead_agents_lease_ends_on_time_after_a_step_back(backend: Backend) -> None:
    dead, alive = backend.holder("dead"), backend.holder("alive")
    key = await backend.partition()
    await backend.register(alive)
    await backend.lead(key, dead)
    await backend.step_clock(-STEP_MS)
    await pass_time(backend, TTL_MS - 1)
    (held,) = await backend.store.acquire_leases(alive, [key], ttl_ms=TTL_MS)
    assert held.verdict is AcquireVerdict.HELD
    await pass_time(backend, LATE_MS)
    (taken,) = await backend.store.acquire_leases(alive, [key], ttl_ms=TTL_MS)
    assert taken.verdict is AcquireVerdict.ACQUIRED


async def test_r20_leases_end_on_time_where_only_lease_calls_are_made(backend: Backend) -> None:
    """No process asks for the time: the calls that give out deadlines keep the clock going by themselves."""
    dead, alive = backend.holder("dead"), backend.holder("alive")
    key, mine = (await backend.topic(partitions=2)).partition_keys()
    lease = await backend.lead(mine, alive)
    await backend.lead(key, dead)
    await backend.step_clock(-STEP_MS)
    held = [HeldLease(key=mine, epoch=lease.epoch)]
    verdicts = []
    for _ in range((TTL_MS + LATE_MS) // TICK_MS + 1):
        (renewed,) = await backend.store.renew_leases(alive, held, ttl_ms=TTL_MS)
        assert renewed.renewed
        await backend.advance(TICK_MS)
        (outcome,) = await backend.store.acquire_leases(alive, [key], ttl_ms=TTL_MS)
        verdicts.append(outcome.verdict)
    assert verdicts[0] is AcquireVerdict.HELD
    assert AcquireVerdict.ACQUIRED in verdicts


async def test_r20_a_dead_agent_is_not_alive_for_the_length_of_the_step(backend: Backend) -> None:
    dead, alive = backend.holder("dead"), backend.holder("alive")
    await backend.register(dead)
    await backend.register(alive)
    await backend.step_clock(-STEP_MS)
    for _ in range(10):
        await backend.advance(2000)
        await backend.store.heartbeat("alive", alive.incarnation)
    living = await backend.store.list_agents(alive_within_ms=10_000)
    assert [agent.agent_id for agent in living] == ["alive"]


async def test_r23_writes_go_on_after_a_step_back_behind_the_horizon(backend: Backend) -> None:
    """An object that is stamped by the store's clock is never older than the horizon of that clock."""
    led = await backend.led()
    await backend.store.raise_gc_horizon(await backend.store.now_ms())
    await backend.step_clock(-STEP_MS)
    restarted = await backend.open_another()
    for base in range(3):
        ref = backend.object(created_at_ms=await restarted.now_ms())
        piece = leased_slice(led.key, ref, epoch=led.epoch, base=base)
        (outcome,) = await backend.store.commit_leased(backend.append_id(), [piece])
        assert outcome.verdict is Verdict.COMMITTED


async def test_r7_a_pin_made_before_a_step_back_still_holds_what_goes_after_it(backend: Backend) -> None:
    led = await backend.led()
    await led.append()
    await backend.advance(400)  # less than the store lets pass between two stored readings
    await backend.store.create_pin(backend.uuid(), owner="reader", ttl_ms=600_000)
    await backend.step_clock(-STEP_MS)
    await backend.store.advance_log_start(led.key, 1)
    await pass_time(backend, 60_000)
    await backend.store.raise_gc_horizon(await backend.store.now_ms())
    assert await backend.store.list_dereferenced(grace_ms=0, limit=10) == []
