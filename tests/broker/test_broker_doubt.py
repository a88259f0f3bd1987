"""What may have changed: names and keys up to a bound, then everything; and the wake-up of the look that follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from streamhouse.broker.doubt import Doubt
from streamhouse.core.ids import PartitionKey, TopicId

TOPIC = TopicId(UUID(int=1))


def keys(count: int, first: int = 0) -> list[PartitionKey]:
    return [PartitionKey(TOPIC, number) for number in range(first, first + count)]


def is_awake(doubt: Doubt) -> bool:
    """Whether a look would begin now."""
    waiting = doubt.wait()
    try:
        waiting.send(None)
    except StopIteration:
        return True
    waiting.close()
    return False


async def test_it_wakes_for_a_key_for_a_name_and_for_everything_and_not_for_nothing() -> None:
    reasons: list[Callable[[Doubt], None]] = [
        lambda doubt: doubt.add(keys(1)),
        lambda doubt: doubt.add_name("t"),
        lambda doubt: doubt.everything(),
    ]
    for add in reasons:
        doubt = Doubt()
        doubt.add([])
        assert not is_awake(doubt)
        add(doubt)
        assert is_awake(doubt)
        doubt.clear()
        assert not is_awake(doubt)


async def test_what_is_added_twice_is_looked_at_once() -> None:
    doubt = Doubt()
    doubt.add(keys(3))
    doubt.add(keys(3, first=1))
    doubt.add_name("t")
    doubt.add_name("t")
    assert (doubt.keys, doubt.names, doubt.of_everything) == (set(keys(4)), {"t"}, False)


async def test_more_than_16_names_are_everything() -> None:
    doubt = Doubt()
    for number in range(16):
        doubt.add_name(f"t{number}")
    assert (len(doubt.names), doubt.of_everything) == (16, False)
    doubt.add_name("one-more")
    assert (doubt.names, doubt.keys, doubt.of_everything) == (set(), set(), True)


async def test_more_than_5000_keys_are_everything() -> None:
    doubt = Doubt()
    doubt.add(keys(5_000))
    assert (len(doubt.keys), doubt.of_everything) == (5_000, False)
    doubt.add(keys(1, first=5_000))
    assert (doubt.keys, doubt.of_everything) == (set(), True)
    assert is_awake(doubt)


async def test_everything_stays_everything_and_grows_no_more_until_the_look() -> None:
    doubt = Doubt()
    doubt.everything()
    doubt.add(keys(3))
    doubt.add_name("t")
    assert (doubt.names, doubt.keys, doubt.of_everything) == (set(), set(), True)
    doubt.clear()
    doubt.add(keys(3))
    assert (doubt.keys, doubt.of_everything) == (set(keys(3)), False)


async def test_a_look_that_waits_is_woken() -> None:
    doubt = Doubt()
    waiting = asyncio.create_task(doubt.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    doubt.add(keys(1))
    async with asyncio.timeout(30):
        await waiting


@pytest.mark.parametrize("count", [1, 16])
async def test_a_look_may_begin_between_two_changes_without_losing_one(count: int) -> None:
    """The cluster view uses it so: take what is in doubt, clear it, look; what comes meanwhile is for the next look."""
    doubt = Doubt()
    doubt.add(keys(count))
    taken = set(doubt.keys)
    doubt.clear()
    doubt.add(keys(1, first=99))
    assert taken == set(keys(count))
    assert doubt.keys == set(keys(1, first=99))
    assert is_awake(doubt)
