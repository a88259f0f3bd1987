"""What is counted, and what it would cost on S3 (S2.31)."""

from __future__ import annotations

import json

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import ObjectExists, ObjectNotFound, StoreUnavailable
from streamhouse.core.limits import GIB, MIB
from streamhouse.core.randomness import SeededRandomness
from streamhouse.objectstore.faults import FaultyStore, ScriptedFaults, StoreFault
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.metering import (
    Meter,
    MeteredStore,
    MeterReading,
    StoredUsage,
    Totals,
    UsageScan,
    merge,
    request_cost_usd,
    storage_cost_usd_month,
)
from streamhouse.objectstore.objects import Operation
from streamhouse.objectstore.retries import RetryingStore
from virtual_time import LoopClock, run_virtually


def metered() -> MeteredStore:
    clock = ManualClock()
    return MeteredStore(MemoryStore(clock=clock), meter=Meter(), clock=clock)


def counted(store: MeteredStore) -> dict[str, tuple[int, int, int]]:
    """Requests, errors and bytes of each operation that happened."""
    return {
        operation.value: (totals.requests, totals.errors, totals.bytes)
        for operation, totals in store.meter.read().totals.items()
        if totals.requests
    }


async def test_s2_31_every_kind_of_request_is_counted() -> None:
    store = metered()
    await store.put("a/1", [b"12", b"345"])
    await store.put("a/2", b"6")
    with pytest.raises(ObjectExists):
        await store.put("a/1", b"x")
    await store.get("a/1")
    with pytest.raises(ObjectNotFound):
        await store.get("none")
    await store.get_range("a/1", 1, 3)
    await store.head("a/1")
    with pytest.raises(ObjectNotFound):
        await store.head("none")
    assert len([info async for info in store.list("a/")]) == 2
    await store.delete(["a/1", "none"])
    assert counted(store) == {
        "put": (3, 1, 6),
        "get": (2, 1, 5),
        "range_get": (1, 0, 3),
        "head": (2, 0, 0),
        "list": (1, 0, 0),
        "delete": (1, 0, 0),
    }
    assert store.meter.latency[Operation.GET].count == 2


async def test_s2_31_ranges_that_share_a_request_count_once() -> None:
    store = metered()
    await store.put("a", bytes(3 * MIB))
    await store.get_ranges("a", [(0, 10), (100, 10), (2 * MIB, 5)])
    assert counted(store)["range_get"] == (2, 0, 115)


@pytest.mark.parametrize("page", [1000, 10_000], ids=["s3-pages", "larger-pages"])
async def test_s2_31_pages_of_a_listing_and_of_a_delete_are_counted_as_on_s3(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamhouse.objectstore.memory.MAX_LIST_PAGE", page)
    store = metered()
    names = [f"k/{n:05d}" for n in range(2500)]
    for name in names:
        await store.put(name, b"")
    assert len([info async for info in store.list("k/")]) == 2500
    await store.delete(names)
    assert counted(store)["list"] == (3, 0, 0)
    assert counted(store)["delete"] == (3, 0, 0)


@pytest.mark.parametrize(
    ("size", "requests"),
    [(5, 1), (16 * MIB - 1, 1), (16 * MIB, 7), (20 * MIB, 8)],  # open, parts, complete; then three to publish
)
async def test_s2_31_an_upload_counts_its_parts(size: int, requests: int) -> None:
    store = metered()
    async with await store.open_upload("up") as up:
        for start in range(0, size, 3 * MIB):
            await up.write(bytes(min(3 * MIB, size - start)))
        await up.complete()
    assert counted(store) == {"multipart": (requests, 0, size)}


async def test_s2_31_an_aborted_upload_counts_what_it_sent() -> None:
    store = metered()
    async with await store.open_upload("up") as up:
        await up.write(bytes(17 * MIB))
    assert counted(store) == {"multipart": (3, 0, 17 * MIB)}


def test_s2_31_inside_the_retries_every_try_counts_and_time_is_summed() -> None:
    async def story() -> None:
        faulty = FaultyStore(
            MemoryStore(clock=LoopClock()),
            plan=ScriptedFaults([StoreFault.UNAVAILABLE, StoreFault.LATENCY]),
            randomness=SeededRandomness(1),
        )
        inner = MeteredStore(faulty, meter=Meter(), clock=LoopClock())
        store = RetryingStore(inner, clock=LoopClock(), randomness=SeededRandomness(1))
        await store.put("a", b"12345")
        assert counted(inner) == {"put": (2, 1, 5)}
        assert inner.meter.read().totals[Operation.PUT].latency_ms == 2000

    run_virtually(story())


def test_s2_31_prices_are_s3_standard_us_east_1() -> None:
    for operation, usd in {
        Operation.PUT: 5.0,
        Operation.MULTIPART: 5.0,
        Operation.LIST: 5.0,
        Operation.GET: 0.4,
        Operation.RANGE_GET: 0.4,
        Operation.HEAD: 0.4,
        Operation.DELETE: 0.0,
    }.items():
        assert request_cost_usd({operation: 1_000_000}) == pytest.approx(usd)
    assert request_cost_usd({Operation.PUT: 1000, Operation.GET: 1000}) == pytest.approx(0.0054)
    assert storage_cost_usd_month(1000 * GIB) == pytest.approx(23.0)


async def test_s2_31_a_reading_knows_its_cost() -> None:
    store = metered()
    for n in range(10):
        await store.put(f"a/{n}", bytes(100))
    reading = store.meter.read()
    assert reading.request_cost_usd == pytest.approx(0.00005)
    assert reading.storage_cost_usd_month == 0
    await UsageScan(store, clock=ManualClock()).refresh()
    assert store.meter.read().storage_cost_usd_month == pytest.approx(1000 / GIB * 0.023)
    assert reading.stored is None, "a reading does not change"


async def test_s2_31_the_scan_is_cached_and_counted() -> None:
    clock = ManualClock()
    store = MeteredStore(MemoryStore(clock=clock), meter=Meter(), clock=clock)
    scan = UsageScan(store, clock=clock, prefix="a/", max_age_ms=1000)
    await store.put("a/1", b"12345")
    await store.put("b/1", b"not ours")
    assert await scan.refresh() == StoredUsage(objects=1, bytes=5, scanned_at_ms=clock.wall_ms())
    assert store.meter.read().stored == await scan.refresh()
    await store.put("a/2", b"678")
    clock.advance(999)
    assert (await scan.refresh()).objects == 1
    assert counted(store)["list"] == (1, 0, 0)
    clock.advance(1)
    assert await scan.refresh() == StoredUsage(objects=2, bytes=8, scanned_at_ms=clock.wall_ms())
    assert counted(store)["list"] == (2, 0, 0)


async def test_a_scan_that_fails_leaves_the_last_one() -> None:
    clock = ManualClock()
    plan = ScriptedFaults([None, StoreFault.UNAVAILABLE], only=[Operation.LIST])
    faulty = FaultyStore(MemoryStore(clock=clock), plan=plan, randomness=SeededRandomness(1))
    store = MeteredStore(faulty, meter=Meter(), clock=clock)
    scan = UsageScan(store, clock=clock, max_age_ms=1000)
    usage = await scan.refresh()
    clock.advance(2000)
    with pytest.raises(StoreUnavailable):
        await scan.refresh()
    assert store.meter.read().stored == usage


def test_s2_31_processes_are_merged_counters_summed_and_gauges_at_their_largest() -> None:
    one = MeterReading(
        totals={Operation.PUT: Totals(requests=1000, errors=1, bytes=10, latency_ms=5)},
        stored=StoredUsage(objects=7, bytes=100, scanned_at_ms=1),
    )
    two = MeterReading(
        totals={
            Operation.PUT: Totals(requests=2000, errors=2, bytes=20, latency_ms=7),
            Operation.GET: Totals(requests=5),
        },
        stored=StoredUsage(objects=5, bytes=200, scanned_at_ms=2),
    )
    both = merge([one, two, MeterReading(totals={})])
    assert both.totals[Operation.PUT] == Totals(requests=3000, errors=3, bytes=30, latency_ms=12)
    assert both.totals[Operation.GET] == Totals(requests=5)
    assert both.totals[Operation.LIST] == Totals()
    assert both.stored == StoredUsage(objects=7, bytes=200, scanned_at_ms=2)
    assert both.request_cost_usd == pytest.approx(one.request_cost_usd + two.request_cost_usd)
    assert merge([]).stored is None


async def test_a_reading_travels_as_json() -> None:
    store = metered()
    await store.put("a", b"1")
    await UsageScan(store, clock=ManualClock()).refresh()
    for reading in (store.meter.read(), metered().meter.read()):
        assert MeterReading.from_json(json.loads(json.dumps(reading.as_json()))) == reading
    assert MeterReading.from_json({"stored": None, "teleport": {"requests": 3}}) == Meter().read()
