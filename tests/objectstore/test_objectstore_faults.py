"""Injected faults: through the retries they end in success or a clear error, never in wrong bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.core.errors import ObjectExists, StoreUnavailable, StreamHouseError
from streamhouse.core.limits import KIB
from streamhouse.core.randomness import SeededRandomness
from streamhouse.objectstore.faults import FaultTimes, FaultyStore, ScriptedFaults, SeededFaults, StoreFault
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.objects import Operation
from streamhouse.objectstore.retries import RetryingStore, RetryPolicy
from virtual_time import LoopClock, run_virtually

BODY = bytes(range(256)) * 16
EFFECTLESS = [StoreFault.UNAVAILABLE, StoreFault.SERVER_ERROR, StoreFault.TIMEOUT_BEFORE]
EFFECTFUL = [StoreFault.ERROR_AFTER, StoreFault.TIMEOUT_AFTER]


def faulty(script: list[StoreFault | None], memory: MemoryStore | None = None) -> tuple[FaultyStore, MemoryStore]:
    memory = memory or MemoryStore(clock=LoopClock())
    return FaultyStore(memory, plan=ScriptedFaults(script), randomness=SeededRandomness(1)), memory


@pytest.mark.parametrize("fault", EFFECTLESS)
def test_a_fault_without_effect(fault: StoreFault) -> None:
    async def story() -> None:
        store, memory = faulty([fault])
        with pytest.raises(StoreUnavailable, match="injected"):
            await store.put("a", BODY)
        assert [info async for info in memory.list()] == []
        store, _ = faulty([fault, fault], memory)
        await memory.put("b", b"")
        with pytest.raises(StoreUnavailable):
            await store.delete(["b"])
        assert [info.key async for info in memory.list()] == ["b"]

    run_virtually(story())


@pytest.mark.parametrize("fault", EFFECTFUL)
def test_a_fault_with_effect(fault: StoreFault) -> None:
    async def story() -> None:
        store, memory = faulty([fault, None, None, fault])
        with pytest.raises(StoreUnavailable, match="after the effect"):
            await store.put("a", BODY)
        assert await memory.get("a") == BODY
        async with await store.open_upload("b") as up:
            await up.write(b"12")
            await up.write(b"34")
            with pytest.raises(StoreUnavailable):
                await up.complete()
        assert await memory.get("b") == b"1234"

    run_virtually(story())


def test_a_truncated_body_is_found_by_its_length() -> None:
    async def story() -> None:
        store, memory = faulty([StoreFault.TRUNCATED] * 3)
        await memory.put("a", BODY)
        with pytest.raises(StoreUnavailable, match=rf"sent \d+ of {len(BODY)} bytes of a"):
            await store.get("a")
        with pytest.raises(StoreUnavailable, match=r"sent \d+ of 100 bytes of a"):
            await store.get_range("a", 50, 100)
        with pytest.raises(StoreUnavailable):
            await store.get_ranges("a", [(0, 5), (10, 20)])

    run_virtually(story())


def test_a_corrupted_body_is_found_by_its_checksum_only() -> None:
    async def story() -> None:
        store, memory = faulty([StoreFault.CORRUPTED, StoreFault.CORRUPTED])
        await memory.put("a", BODY)
        for body, sent in ((await store.get("a"), BODY), (await store.get_range("a", 7, 90), BODY[7:97])):
            assert len(body) == len(sent)
            assert sum((got ^ want).bit_count() for got, want in zip(body, sent, strict=True)) == 1
            assert crc32c(body) != crc32c(sent)

    run_virtually(story())


def test_slow_answers_take_their_time() -> None:
    async def story() -> None:
        store, memory = faulty([StoreFault.LATENCY, StoreFault.SLOW_DRIP, None])
        await memory.put("a", bytes(64 * KIB))
        loop = asyncio.get_running_loop()
        for seconds in (2, 1, 0):
            before = loop.time()
            await store.get("a")
            assert loop.time() - before == pytest.approx(seconds)

    run_virtually(story())


def test_a_fault_of_bodies_passes_calls_without_one() -> None:
    async def story() -> None:
        store, _ = faulty([StoreFault.TRUNCATED, StoreFault.CORRUPTED, StoreFault.SLOW_DRIP, StoreFault.TRUNCATED])
        await store.put("a", BODY)
        assert (await store.head("a")).size_bytes == len(BODY)
        assert len((await store.list_page()).objects) == 1
        await store.delete(["a"])

    run_virtually(story())


def test_a_script_may_be_aimed() -> None:
    async def story() -> None:
        plan = ScriptedFaults([StoreFault.UNAVAILABLE], only=[Operation.DELETE])
        store = FaultyStore(MemoryStore(clock=LoopClock()), plan=plan, randomness=SeededRandomness(1))
        await store.put("a", BODY)
        assert await store.get("a") == BODY
        with pytest.raises(StoreUnavailable):
            await store.delete(["a"])
        await store.delete(["a"])

    run_virtually(story())


def drawn(seed: int, rates: dict[StoreFault, float], calls: int = 400) -> list[StoreFault | None]:
    plan = SeededFaults(SeededRandomness(seed), rates, longest_burst=6)
    return [plan.next_fault(Operation.GET, "k") for _ in range(calls)]


def test_the_same_seed_gives_the_same_faults() -> None:
    rates = dict.fromkeys(StoreFault, 0.05)
    assert drawn(7, rates) == drawn(7, rates)
    assert drawn(7, rates) != drawn(8, rates)
    assert set(drawn(7, rates)) == {None, *StoreFault}


def test_503_come_in_bursts() -> None:
    faults = drawn(7, {StoreFault.UNAVAILABLE: 0.02})
    runs = [len(run) for run in "".join("x" if fault else " " for fault in faults).split()]
    assert 1 < max(runs) <= 12
    assert None in faults


def test_rates_that_are_no_probabilities_are_refused() -> None:
    for rates in ({StoreFault.LATENCY: -0.1}, {StoreFault.LATENCY: 0.6, StoreFault.TRUNCATED: 0.6}):
        with pytest.raises(ValueError, match="probabilities"):
            SeededFaults(SeededRandomness(1), rates)


def retrying(memory: MemoryStore, plan: ScriptedFaults | SeededFaults, seed: int = 1) -> RetryingStore:
    store = FaultyStore(
        memory, plan=plan, randomness=SeededRandomness(seed), times=FaultTimes(silence_ms=2_500, latency_ms=300)
    )
    policy = RetryPolicy(deadline_ms=30_000, attempt_timeout_ms=1_000)
    return RetryingStore(store, clock=LoopClock(), randomness=SeededRandomness(seed + 1), policy=policy)


@pytest.mark.parametrize("fault", [fault for fault in StoreFault if fault is not StoreFault.CORRUPTED])
def test_every_fault_is_outlived_by_the_retries(fault: StoreFault) -> None:
    """Each of a day's calls, met by the fault three times over; the bytes are right every time."""

    async def story() -> None:
        memory = MemoryStore(clock=LoopClock())

        def store() -> RetryingStore:
            return retrying(memory, ScriptedFaults([fault] * 3))

        await store().put("a/1", BODY)
        assert await store().get("a/1") == BODY
        assert await store().get_range("a/1", 100, 50) == BODY[100:150]
        assert [bytes(view) for view in await store().get_ranges("a/1", [(9, 3), (0, 2)])] == [BODY[9:12], BODY[:2]]
        assert (await store().head("a/1")).size_bytes == len(BODY)
        assert [info.key async for info in store().list()] == ["a/1"]
        async with await retrying(memory, ScriptedFaults([None, fault, fault])).open_upload("a/2") as up:
            await up.write(BODY)
            await up.complete()
        assert await memory.get("a/2") == BODY
        await store().delete(["a/1"])
        assert [info.key async for info in memory.list()] == ["a/2"]

    run_virtually(story())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_under_any_seed_calls_succeed_rightly_or_fail_clearly(seed: int) -> None:
    """Several clients on one store: the client that is told that its put succeeded owns the bytes, for ever."""

    async def client(store: RetryingStore, number: int, outcome: Callable[[str, bytes, bool | None], None]) -> None:
        for round_number in range(6):
            key, body = f"k/{round_number}", bytes([number]) * (100 + round_number)
            try:
                await store.put(key, body)
            except ObjectExists:
                outcome(key, body, False)
            except StoreUnavailable:
                outcome(key, body, None)
            else:
                outcome(key, body, True)

    async def story() -> None:
        memory = MemoryStore(clock=LoopClock())
        rates = {fault: 0.06 for fault in StoreFault if fault is not StoreFault.CORRUPTED}
        outcomes: list[tuple[str, bytes, bool | None]] = []
        stores = [retrying(memory, SeededFaults(SeededRandomness(seed + n), rates), seed + n) for n in range(3)]
        await asyncio.gather(
            *(client(store, n, lambda *outcome: outcomes.append(outcome)) for n, store in enumerate(stores))
        )
        for key in sorted({key for key, _, _ in outcomes}):
            tried = [(body, success) for name, body, success in outcomes if name == key]
            winners = [body for body, success in tried if success]
            assert len(winners) <= 1
            try:
                held = bytes(await stores[0].get(key))
            except StreamHouseError as error:
                assert isinstance(error, StoreUnavailable) or not winners  # noqa: PT017
                continue
            assert held in ([winners[0]] if winners else [body for body, success in tried if success is None])

    run_virtually(story())
