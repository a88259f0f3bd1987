"""Shared calls, questions asked together, and the gate: nobody's cancellation is anybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from reading import at_once, settle

from streamhouse.core.errors import StoreUnavailable
from streamhouse.log.reader.sharing import Batched, ByteGate, ByteLru, SharedCalls


@at_once
async def test_a_failed_call_fails_all_who_waited_and_is_tried_anew_by_the_next() -> None:
    calls: SharedCalls[str, int] = SharedCalls()
    asked = 0

    async def failing() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(1)
        if asked == 1:
            raise StoreUnavailable("away")
        return asked

    waiting = [asyncio.create_task(calls.get("a", failing)) for _ in range(3)]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in outcomes] == [StoreUnavailable] * 3
    assert await calls.get("a", failing) == 2
    assert "a" not in calls


@at_once
async def test_one_call_may_answer_for_several_keys() -> None:
    calls: SharedCalls[int, str] = SharedCalls()

    async def run() -> Sequence[str]:
        await asyncio.sleep(1)
        return ["one", "two"]

    async def never() -> str:
        raise AssertionError("it is under way already")

    task = calls.start([1, 2], run)
    assert await asyncio.gather(calls.get(2, never), calls.get(1, never)) == ["two", "one"]
    await task
    assert 1 not in calls


@at_once
async def test_an_error_nobody_waits_for_is_nobodys() -> None:
    calls: SharedCalls[int, str] = SharedCalls()

    async def failing() -> Sequence[str]:
        raise StoreUnavailable("away")

    await calls.start([1], failing)
    assert 1 not in calls  # and no warning about an exception never retrieved, which would fail this test


@at_once
async def test_questions_of_one_moment_go_together_and_later_ones_wait_for_a_free_call() -> None:
    asked: list[list[int]] = []

    async def call(keys: Sequence[int]) -> Mapping[int, int]:
        asked.append(list(keys))
        await asyncio.sleep(1)
        return {key: key * key for key in keys}

    batched = Batched(call, max_keys=3, max_calls=2)
    first = [asyncio.create_task(batched.get(key)) for key in (1, 2, 3, 2, 1)]
    await settle()
    more = [asyncio.create_task(batched.get(key)) for key in (1, 2, 4, 5)]
    await settle()
    rest = [asyncio.create_task(batched.get(key)) for key in (6, 5)]
    assert await asyncio.gather(*first) == [1, 4, 9, 4, 1]
    assert await asyncio.gather(*more) == [1, 4, 16, 25]
    assert await asyncio.gather(*rest) == [36, 25]
    assert asked == [[1, 2, 3], [1, 2, 4], [5, 6]]


@at_once
async def test_a_cancelled_question_is_still_answered_to_others_and_errors_reach_each() -> None:
    async def call(keys: Sequence[int]) -> Mapping[int, int]:
        await asyncio.sleep(1)
        if 13 in keys:
            raise StoreUnavailable("away")
        return {key: key for key in keys}

    batched = Batched(call)
    one, two = asyncio.create_task(batched.get(1)), asyncio.create_task(batched.get(1))
    await settle()
    one.cancel()
    assert await two == 1
    bad = [asyncio.create_task(batched.get(key)) for key in (13, 1)]
    assert [type(each) for each in await asyncio.gather(*bad, return_exceptions=True)] == [StoreUnavailable] * 2
    closing = asyncio.create_task(batched.get(7))
    await settle()
    await batched.close()
    with pytest.raises(StoreUnavailable, match="closing"):
        await closing


@at_once
async def test_the_gate_keeps_number_and_bytes_and_the_order_of_arrival() -> None:
    gate = ByteGate(max_bytes=100, max_calls=3)
    entered: list[str] = []
    most_bytes = most_calls = 0

    async def one(name: str, size: int, seconds: float = 1) -> None:
        nonlocal most_bytes, most_calls
        async with gate.admit(size):
            entered.append(name)
            if size <= 100:
                most_bytes = max(most_bytes, gate.bytes_under_way)
            most_calls = max(most_calls, gate.calls_under_way)
            await asyncio.sleep(seconds)

    jobs = {"a": 60, "b": 60, "c": 10, "huge": 1000, "d": 10, "e": 10, "f": 10, "g": 10}
    tasks = {name: asyncio.create_task(one(name, size)) for name, size in jobs.items()}
    await settle()
    assert entered == ["a"], "b does not fit, and those behind it do not overtake"
    await asyncio.gather(*tasks.values())
    assert entered == list(jobs)
    assert (most_bytes, most_calls) == (70, 3)
    assert (gate.bytes_under_way, gate.calls_under_way) == (0, 0)


@at_once
async def test_who_is_cancelled_at_the_gate_leaves_no_trace() -> None:
    gate = ByteGate(max_bytes=100, max_calls=1)

    async def one() -> None:
        async with gate.admit(10):
            await asyncio.sleep(1)

    holding = gate.admit(10)
    await holding.__aenter__()
    first, second, third = (asyncio.create_task(one()) for _ in range(3))
    await settle()
    first.cancel()
    await settle()
    await holding.__aexit__(None, None, None)  # lets in the second, which has not run yet
    second.cancel()
    await third
    assert first.cancelled()
    assert second.cancelled()
    assert (gate.bytes_under_way, gate.calls_under_way) == (0, 0)


def test_the_least_used_goes_first_and_what_is_too_large_is_not_kept() -> None:
    cache: ByteLru[str, int] = ByteLru(100)
    for number, name in enumerate("abcd"):
        cache.put(name, number, 30)
    assert "a" not in cache
    assert cache.get("b") == 1
    cache.put("e", 4, 30)
    assert [name for name in "abcde" if name in cache] == ["b", "d", "e"]
    cache.put("huge", 9, 101)
    assert "huge" not in cache
    assert len(cache) == 3
    cache.put("b", 10, 50)
    assert (cache.get("b"), cache.size_bytes) == (10, 80)
    cache.drop("b")
    cache.drop("b")
    assert cache.size_bytes == 30
