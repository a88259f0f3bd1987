"""How often a call goes to the server and back, counted on the wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from builders import batch
from lossy_proxy import lossy_proxy
from scenes import Opener, append_id, blob_slices, flush_slices, holder, topic, uploaded

from streamhouse.metadata.contract import HeldLease, Verdict


async def test_a_commit_of_100_partitions_is_one_round_trip(dsn: str, open_store: Opener) -> None:
    async with lossy_proxy(dsn) as proxy:
        store = await open_store(proxy.dsn, max_connections=1)
        free = await topic(store, "blobs", 100, leaderless=True)
        led = await topic(store, "orders", 100)
        leader = holder()
        await store.acquire_leases(leader, led, ttl_ms=30_000)
        held = [HeldLease(key=key, epoch=1) for key in led]

        async def round_trips(call: Callable[[int], Awaitable[object]]) -> int:
            # The first time a connection prepares the statement and asks for its types.
            await call(0)
            before = proxy.syncs
            await call(1)
            return proxy.syncs - before

        async def blob(n: int) -> None:
            outcomes = await store.commit_leaderless(append_id(), uploaded(), blob_slices(free))
            assert [one.base_offset for one in outcomes] == [n] * 100

        async def idempotent(n: int) -> None:
            slices = blob_slices(free, batch(producer=1, sequence=n), batch())
            outcomes = await store.commit_leaderless(append_id(), uploaded(), slices)
            assert {one.verdict for one in outcomes} == {Verdict.COMMITTED}

        async def flush(n: int) -> None:
            outcomes = await store.commit_leased(append_id(), flush_slices(led, uploaded(), base=n))
            assert {one.verdict for one in outcomes} == {Verdict.COMMITTED}

        async def renewal(_n: int) -> None:
            assert all(one.renewed for one in await store.renew_leases(leader, held, ttl_ms=30_000))

        assert await round_trips(blob) == 1
        assert await round_trips(idempotent) == 1
        assert await round_trips(flush) == 1
        assert await round_trips(renewal) == 1
        assert await round_trips(lambda _n: store.acquire_leases(leader, led, ttl_ms=30_000)) == 1
        assert await round_trips(lambda n: store.find_entry(led[0], n)) == 1


@pytest.mark.parametrize("partitions", [1, 700])
async def test_a_commit_survives_a_table_that_grew_since_its_plan_was_made(open_store: Opener, partitions: int) -> None:
    """The same prepared statement serves the first commit into an empty store and the thousandth."""
    store = await open_store(max_connections=1)
    keys = await topic(store, "first", 1, leaderless=True)
    await store.commit_leaderless(append_id(), uploaded(), blob_slices(keys))
    more = await topic(store, "second", partitions, leaderless=True)
    outcomes = await store.commit_leaderless(append_id(), uploaded(), blob_slices([*keys, *more]))
    assert [one.base_offset for one in outcomes] == [1] + [0] * partitions
