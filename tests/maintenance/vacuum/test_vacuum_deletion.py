"""Deletes: bounded requests, one bad object does not keep the others, a store that is away is not asked for each."""

from __future__ import annotations

import pytest
from vacuum_stage import RefusingStore

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import StoreDenied, StoreUnavailable
from streamhouse.maintenance.vacuum.deletion import KEYS_PER_REQUEST, MAX_FAILURES, PARALLEL_REQUESTS, Deletion
from streamhouse.objectstore.memory import MemoryStore

DENIED = StoreDenied("a legal hold")


async def filled(count: int) -> tuple[MemoryStore, list[str]]:
    store = MemoryStore(clock=ManualClock())
    keys = [f"object-{number:06d}" for number in range(count)]
    for key in keys:
        store.create(key, b"")
    return store, keys


async def left(store: MemoryStore) -> set[str]:
    return {info.key async for info in store.list()}


async def test_requests_are_bounded_in_size_and_in_number() -> None:
    store, keys = await filled(10 * KEYS_PER_REQUEST + 1)
    watched = RefusingStore(store, DENIED, refused=[])
    assert await Deletion(watched).delete(keys) == {}
    assert await left(store) == set()
    assert sorted(watched.requests) == [1] + [KEYS_PER_REQUEST] * 10
    assert watched.most_at_once == PARALLEL_REQUESTS


async def test_nothing_to_delete_is_no_request_and_missing_objects_are_fine() -> None:
    store, _ = await filled(0)
    watched = RefusingStore(store, DENIED, refused=[])
    assert await Deletion(watched).delete([]) == {}
    assert await Deletion(watched).delete(["gone-before"]) == {}
    assert watched.requests == [1]


async def test_an_object_that_may_not_be_deleted_does_not_keep_the_others() -> None:
    store, keys = await filled(KEYS_PER_REQUEST)
    held = [keys[0], keys[100]]
    watched = RefusingStore(store, DENIED, refused=held)
    failed = await Deletion(watched).delete(keys)
    assert sorted(failed) == held
    assert await left(store) == set(held)
    assert len(watched.requests) < 40, "found by halving"


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OSError("a broken connection")])
async def test_a_store_that_is_away_is_asked_once_for_each_request(error: StoreUnavailable | OSError) -> None:
    store, keys = await filled(2 * KEYS_PER_REQUEST)
    watched = RefusingStore(store, error)
    deletion = Deletion(watched)
    assert set(await deletion.delete(keys)) == set(keys)
    assert len(watched.requests) == 2
    assert not deletion.is_hopeless


async def test_a_store_that_refuses_every_delete_is_not_asked_for_every_object() -> None:
    store, keys = await filled(40 * KEYS_PER_REQUEST)
    watched = RefusingStore(store, DENIED)
    deletion = Deletion(watched)
    assert set(await deletion.delete(keys)) == set(keys)
    assert deletion.is_hopeless
    assert len(watched.requests) < 3 * MAX_FAILURES
