"""Requests divided between topics: every part of every request once (S2.31)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import ObjectNotFound, StoreUnavailable
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MIB
from streamhouse.core.randomness import SeededRandomness
from streamhouse.objectstore.faults import FaultyStore, ScriptedFaults, StoreFault
from streamhouse.objectstore.keys import CompactedKey, SharedBlobKey
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.metering import Meter, MeteredStore
from streamhouse.objectstore.objects import Operation
from streamhouse.objectstore.topic_requests import (
    OTHER_NAME,
    PARTS_PER_REQUEST,
    SHARED,
    SHARED_NAME,
    TopicRequests,
    caused_by,
    divided,
)

A, B, GONE = (TopicId(UUID(int=number)) for number in (1, 2, 3))
NAMES = {A: "a", B: "b"}
ONE = PARTS_PER_REQUEST


def blob(number: int = 1) -> str:
    return str(SharedBlobKey(created_ms=1, object_id=UUID(int=number)))


def segment(topic_id: TopicId, number: int = 1) -> str:
    log = PartitionKey(topic_id, 0)
    return str(CompactedKey(log=log, base_offset=0, end_offset=9, created_ms=1, object_id=UUID(int=number)))


def metered(*faults: StoreFault) -> MeteredStore:
    """``faults``: one for each of the first calls."""
    clock, meter = ManualClock(), Meter()
    meter.topics.name_of = NAMES.get
    inner = FaultyStore(MemoryStore(clock=clock), plan=ScriptedFaults(faults), randomness=SeededRandomness(1))
    return MeteredStore(inner, meter=meter, clock=clock)


def by_topic(store: MeteredStore) -> dict[str, dict[str, int]]:
    check_sums(store.meter)
    return {
        name: {operation.value: parts for operation, parts in row.items()}
        for name, row in store.meter.topics.read().items()
        if row
    }


def check_sums(meter: Meter, **limit: int) -> None:
    """The parts of all topics are the requests."""
    rows = meter.topics.read(**limit).values()
    for operation, totals in meter.read().totals.items():
        assert sum(row.get(operation, 0) for row in rows) == totals.requests * ONE


async def test_s2_31_a_put_of_a_shared_blob_is_divided_by_bytes() -> None:
    store = metered()
    with caused_by({A: 100, B: 200}):
        await store.put(blob(), bytes(310))
    assert by_topic(store) == {"a": {"put": 333_333}, "b": {"put": 666_667}}


async def test_s2_31_the_folder_of_a_topic_names_it_whatever_the_caller_says() -> None:
    store = metered()
    with caused_by({A: 1}):
        await store.put(segment(B), b"123")
        await store.put("cluster-id", b"x")
    await store.get_range(segment(B), 0, 2)
    await store.get(segment(B))
    await store.head(segment(B))
    await store.head("cluster-id")
    assert by_topic(store) == {
        "b": {"put": ONE, "range_get": ONE, "get": ONE, "head": ONE},
        SHARED_NAME: {"put": ONE, "head": ONE},
    }


async def test_s2_31_a_shared_blob_is_shared_outside_of_a_call_that_says_whose_it_is() -> None:
    store = metered()
    with caused_by({A: 1}):
        pass
    with caused_by({}):
        await store.put(blob(), b"x")
    await store.get(blob())
    await store.put(blob(2), b"x")
    assert by_topic(store) == {SHARED_NAME: {"put": 2 * ONE, "get": ONE}}


async def test_s2_31_tasks_and_nested_calls_have_the_topics_of_their_caller() -> None:
    store = metered()
    with caused_by({A: 1}):
        await store.put(blob(), bytes(9 * MIB))
        await store.get_ranges(blob(), [(0, 1), (4 * MIB, 1), (8 * MIB, 1)])
        with caused_by({B: 5}):
            await asyncio.gather(store.get_range(blob(), 0, 1), store.head(blob()))
        await store.head(blob())
    assert by_topic(store) == {
        "a": {"put": ONE, "range_get": 3 * ONE, "head": ONE},
        "b": {"range_get": ONE, "head": ONE},
    }


async def test_s2_31_failed_requests_are_divided_too() -> None:
    store = metered(StoreFault.UNAVAILABLE)
    with caused_by({A: 1, B: 3}):
        with pytest.raises(StoreUnavailable):
            await store.put(blob(), b"x")
        with pytest.raises(ObjectNotFound):
            await store.get(blob())
    assert by_topic(store) == {"a": {"put": 250_000, "get": 250_000}, "b": {"put": 750_000, "get": 750_000}}


async def test_s2_31_parts_of_an_upload_are_the_topics() -> None:
    store = metered()
    async with await store.open_upload(segment(A)) as upload:
        await upload.write([bytes(10)])
        await upload.complete()
    requests = store.meter.read().totals[Operation.MULTIPART].requests
    assert requests >= 1
    assert by_topic(store) == {"a": {"multipart": requests * ONE}}


async def test_s2_31_deletions_are_divided_by_objects_and_listings_are_shared() -> None:
    store = metered()
    with caused_by({B: 1}):
        await store.delete([segment(A), segment(A, 2), segment(B), blob()])
        assert [info async for info in store.list("topics/")] == []
    assert by_topic(store) == {
        "a": {"delete": 500_000},
        "b": {"delete": 250_000},
        SHARED_NAME: {"delete": 250_000, "list": ONE},
    }


async def test_s2_31_a_request_has_the_name_that_its_topic_has_at_the_time() -> None:
    store, names = metered(), {A: "before"}
    store.meter.topics.name_of = names.get
    await store.put(segment(A), b"x")
    names[A] = "after"
    await store.get(segment(A))
    del names[A]
    await store.head(segment(A))
    await store.head(segment(A))
    assert by_topic(store) == {"before": {"put": ONE}, "after": {"get": ONE}, SHARED_NAME: {"head": 2 * ONE}}


def test_s2_31_topics_beyond_the_limit_are_counted_together_and_counters_only_grow() -> None:
    ids = [TopicId(UUID(int=number)) for number in range(6)]
    topics = TopicRequests(max_topics=4, name_of={each: f"t{each.int}" for each in ids}.get)
    seen: Mapping[str, Mapping[Operation, int]] = {}
    for number, topic_id in enumerate([*ids, *reversed(ids)], start=1):
        topics.count(Operation.PUT, number, {topic_id: 1})
        page = topics.read(max_topics=2)
        assert all(page[name][Operation.PUT] >= row.get(Operation.PUT, 0) for name, row in seen.items() if row)
        assert sum(row.get(Operation.PUT, 0) for row in page.values()) == number * (number + 1) // 2 * ONE
        seen = page
    assert set(seen) == {SHARED_NAME, OTHER_NAME, "t0", "t1"}
    assert set(topics.read()) == {SHARED_NAME, OTHER_NAME, "t0", "t1", "t2", "t3"}
    assert topics.read()[OTHER_NAME] == {Operation.PUT: (5 + 6 + 7 + 8) * ONE}
    assert topics.read(max_topics=0) == {SHARED_NAME: {}, OTHER_NAME: {Operation.PUT: 78 * ONE}}


causes = st.dictionaries(st.sampled_from([A, B, GONE, None]), st.integers(0, 2**40), min_size=1)


@given(st.lists(st.tuples(st.sampled_from(Operation), st.integers(0, 2_000), causes)), st.integers(0, 3))
def test_s2_31_the_parts_of_all_topics_are_the_requests_exactly(
    counted: list[tuple[Operation, int, dict[TopicId | None, int]]], limit: int
) -> None:
    topics = TopicRequests(max_topics=1, name_of=NAMES.get)
    for operation, requests, weights in counted:
        topics.count(operation, requests, weights)
    topics.count(Operation.PUT, 1, SHARED)
    rows = topics.read(max_topics=limit).values()
    for operation in Operation:
        requests = sum(number for each, number, _ in counted if each is operation) + (operation is Operation.PUT)
        assert sum(row.get(operation, 0) for row in rows) == requests * ONE


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_s2_31_parts_add_up_and_are_in_proportion(amount: int, weights: list[int]) -> None:
    parts = divided(amount, dict(enumerate(weights)))
    assert sum(parts.values()) == amount
    if total := sum(weights):
        for number, weight in enumerate(weights):
            assert abs(parts[number] - amount * weight / total) <= 1 + amount * 1e-12
