"""Retries under virtual time: what is repeated, for how long, and what a lost put turns out to be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import (
    InvalidRequest,
    ObjectExists,
    ObjectNotFound,
    ReadPastEnd,
    StoreDenied,
    StoreUnavailable,
)
from streamhouse.core.limits import MAX_STORE_ATTEMPTS, MIB
from streamhouse.core.randomness import SeededRandomness
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.faults import FaultTimes, FaultyStore, ScriptedFaults, StoreFault
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.objects import Operation
from streamhouse.objectstore.retries import RetryingStore, RetryPolicy
from virtual_time import LoopClock, run_virtually

POLICY = RetryPolicy(deadline_ms=10_000, attempt_timeout_ms=1_000, first_pause_ms=100, longest_pause_ms=1_000)


class Pauses(SeededRandomness):
    """The longest pause each time, and a note of it."""

    def __init__(self) -> None:
        super().__init__(0)
        self.drawn: list[tuple[float, float]] = []

    def uniform(self, low: float, high: float) -> float:
        self.drawn.append((low, high))
        return high


def stack(
    script: list[StoreFault | None], *, only: list[Operation] | None = None, policy: RetryPolicy = POLICY
) -> tuple[RetryingStore, MemoryStore, Pauses]:
    memory, pauses = MemoryStore(clock=LoopClock()), Pauses()
    faulty = FaultyStore(
        memory,
        plan=ScriptedFaults(script, only=only or Operation),
        randomness=SeededRandomness(1),
        times=FaultTimes(silence_ms=3_000, latency_ms=500),
    )
    return RetryingStore(faulty, clock=LoopClock(), randomness=pauses, policy=policy), memory, pauses


def test_pauses_grow_from_nothing_to_the_whole_step_and_stop_growing() -> None:
    async def story() -> None:
        store, _, pauses = stack([StoreFault.UNAVAILABLE] * 6)
        await store.put("a", b"1")
        assert pauses.drawn == [(0, step_s) for step_s in (0.1, 0.2, 0.4, 0.8, 1, 1)]
        assert asyncio.get_running_loop().time() == pytest.approx(3.5)

    run_virtually(story())


def test_the_deadline_ends_it_with_the_last_error_told() -> None:
    async def story() -> None:
        store, memory, _ = stack([StoreFault.UNAVAILABLE] * 1000)
        with pytest.raises(StoreUnavailable, match=r"gave up after 13 tries in 9500 ms: .*injected 503") as caught:
            await store.head("a")
        assert isinstance(caught.value.__cause__, StoreUnavailable)
        assert asyncio.get_running_loop().time() < 10
        assert memory.url in str(caught.value)

    run_virtually(story())


def test_a_silent_store_is_given_up_on_in_time() -> None:
    async def story() -> None:
        policy = RetryPolicy(deadline_ms=5_000, attempt_timeout_ms=2_000, first_pause_ms=10, longest_pause_ms=10)
        store, _, _ = stack([StoreFault.TIMEOUT_BEFORE] * 1000, policy=policy)
        with pytest.raises(StoreUnavailable, match="took more than 2000 ms"):
            await store.head("a")
        assert 4.9 < asyncio.get_running_loop().time() <= 5.1

    run_virtually(story())


def test_a_large_body_gets_more_time() -> None:
    async def story() -> None:
        memory = MemoryStore(clock=LoopClock())
        body = bytes(20 * MIB)
        await memory.put("a", body)
        slow = FaultyStore(
            memory,
            plan=ScriptedFaults([StoreFault.SLOW_DRIP] * 10),
            randomness=SeededRandomness(1),
            times=FaultTimes(drip_bytes_per_s=2 * MIB),
        )
        for slowest, succeeds in ((1 * MIB, True), (4 * MIB, False)):
            policy = RetryPolicy(
                deadline_ms=3_000, attempt_timeout_ms=1_000, slowest_bytes_per_s=slowest, first_pause_ms=1
            )
            store = RetryingStore(slow, clock=LoopClock(), randomness=SeededRandomness(1), policy=policy)
            if succeeds:
                assert await store.get_range("a", 0, len(body)) == body
            else:
                with pytest.raises(StoreUnavailable, match="took more"):
                    await store.get_range("a", 0, len(body))

    run_virtually(story())


class Refusing(MemoryStore):
    def __init__(self, error: Exception) -> None:
        super().__init__(clock=ManualClock())
        self.error = error
        self.asked = 0

    async def _get(self, key: str):  # type: ignore[no-untyped-def]
        self.asked += 1
        raise self.error


@pytest.mark.parametrize(
    "error", [ObjectNotFound("x"), StoreDenied("x"), ReadPastEnd("x"), InvalidRequest("x"), ObjectExists("x")]
)
async def test_what_cannot_succeed_is_not_repeated(error: Exception) -> None:
    inner = Refusing(error)
    store = RetryingStore(inner, clock=ManualClock(), randomness=SeededRandomness(1))
    with pytest.raises(type(error)):
        await store.get("a")
    assert inner.asked == 1


def test_a_clock_that_stands_still_does_not_make_it_repeat_for_ever() -> None:
    async def story() -> None:
        inner = Refusing(StoreUnavailable("down"))
        store = RetryingStore(inner, clock=ManualClock(), randomness=SeededRandomness(1))
        with pytest.raises(StoreUnavailable, match=f"{MAX_STORE_ATTEMPTS} tries"):
            await store.get("a")
        assert inner.asked == MAX_STORE_ATTEMPTS

    run_virtually(story())


async def uploaded(store: ObjectStore, data: bytes) -> None:
    async with await store.open_upload("a") as up:
        await up.write(data)
        await up.complete()


async def was_put(store: ObjectStore, data: bytes) -> None:
    await store.put("a", data)


WAYS = pytest.mark.parametrize(
    ("write", "skipped"), [(was_put, []), (uploaded, [None])], ids=["put", "upload"]
)  # an upload's first faulted call is its write
Write = Callable[[ObjectStore, bytes], Awaitable[None]]


@WAYS
@pytest.mark.parametrize("fault", [StoreFault.ERROR_AFTER, StoreFault.TIMEOUT_AFTER])
def test_r11_what_took_effect_before_the_error_is_success(write: Write, skipped: list[None], fault: StoreFault) -> None:
    async def story() -> None:
        store, memory, _ = stack([*skipped, fault])
        await write(store, b"mine")
        assert await memory.get("a") == b"mine"
        assert [info.key async for info in memory.list()] == ["a"]

    run_virtually(story())


@WAYS
@pytest.mark.parametrize("theirs", [b"them", b"longer than mine", b""])
def test_r11_what_another_wrote_in_the_meantime_is_a_refusal(write: Write, skipped: list[None], theirs: bytes) -> None:
    async def story() -> None:
        store, memory, _ = stack([*skipped, StoreFault.UNAVAILABLE])
        await memory.put("a", theirs)
        with pytest.raises(ObjectExists):
            await write(store, b"mine")
        assert await memory.get("a") == theirs

    run_virtually(story())


@WAYS
def test_r11_taken_at_the_first_try_is_a_refusal_even_with_equal_bytes(write: Write, skipped: list[None]) -> None:
    async def story() -> None:
        store, memory, _ = stack([])
        await memory.put("a", b"mine")
        with pytest.raises(ObjectExists):
            await write(store, b"mine")
        await store.put("a", b"mine", accept_equal=True)

    run_virtually(story())


def test_r11_the_comparison_survives_faults_of_its_own() -> None:
    async def story() -> None:
        script = [
            StoreFault.ERROR_AFTER,
            None,
            StoreFault.UNAVAILABLE,
            StoreFault.TIMEOUT_BEFORE,
            None,
            StoreFault.TRUNCATED,
            StoreFault.SERVER_ERROR,
        ]
        store, memory, _ = stack(script)
        await store.put("a", b"mine" * 100)
        assert await memory.get("a") == b"mine" * 100

    run_virtually(story())


def test_a_page_of_a_listing_is_repeated_and_not_the_listing() -> None:
    async def story() -> None:
        store, memory, pauses = stack([None, StoreFault.UNAVAILABLE, StoreFault.TIMEOUT_AFTER], only=[Operation.LIST])
        names = [f"k/{n:05d}" for n in range(2500)]
        for name in names:
            memory.create(name, b"")
        assert [info.key async for info in store.list("k/")] == names
        assert len(pauses.drawn) == 2

    run_virtually(story())


def test_a_cancelled_call_is_not_repeated() -> None:
    async def story() -> None:
        store, memory, _ = stack([StoreFault.TIMEOUT_BEFORE])
        putting = asyncio.ensure_future(store.put("a", b"1"))
        await asyncio.sleep(0.5)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        await asyncio.sleep(60)
        assert [info async for info in memory.list()] == []

    run_virtually(story())


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="deadline_ms"):
        RetryPolicy(deadline_ms=0)


def test_a_store_that_is_away_is_told_of_before_the_deadline_and_again_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        store, _, _ = stack([StoreFault.UNAVAILABLE, None, *[StoreFault.UNAVAILABLE] * 8])
        await store.put("a", b"1")
        assert caplog.messages == [], "one hiccup is no outage"
        await store.put("b", b"1")
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith("problem with the object store memory://: ")
        await asyncio.sleep(2)
        assert caplog.messages[1:] == ["the object store memory:// works again after 5.2 s"]

    run_virtually(story())


def test_a_store_that_says_nothing_is_told_of_long_before_the_try_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        policy = RetryPolicy(attempt_timeout_ms=15_000)
        memory = MemoryStore(clock=LoopClock())
        times = FaultTimes(silence_ms=60_000, latency_ms=12_000)
        plan = ScriptedFaults([StoreFault.LATENCY], only=Operation)
        slow = FaultyStore(memory, plan=plan, randomness=SeededRandomness(1), times=times)
        store = RetryingStore(slow, clock=LoopClock(), randomness=SeededRandomness(1), policy=policy)
        put = asyncio.create_task(store.put("a", b"1"))
        await asyncio.sleep(6)
        assert caplog.messages == ["problem with the object store memory://: no answer to put of a in 5 s"]
        await put
        await asyncio.sleep(2)
        assert caplog.messages[1:] == ["the object store memory:// works again after 7.0 s"]

    run_virtually(story())


def test_a_store_that_is_back_and_says_that_there_is_no_such_object_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        store, _, _ = stack([StoreFault.UNAVAILABLE] * 4)
        with pytest.raises(ObjectNotFound):
            await store.head("none")
        assert store.outage.active
        await asyncio.sleep(2)
        assert not store.outage.active
        assert len(caplog.messages) == 2

    run_virtually(story())
