"""Flush requests, and claims, which are scheduling and not safety (S2.13)."""

from __future__ import annotations

import asyncio

import pytest
from harness import Backend

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_KEYS_PER_CALL, MAX_NAME_BYTES, MAX_TTL_MS

# Flush requests.


async def test_a_flush_is_asked_seen_answered_and_done(backend: Backend) -> None:
    topic = await backend.topic(partitions=2)
    one, two = topic.partition_keys()
    request = backend.uuid()
    asked = await backend.store.request_flush(request, [two, one], ttl_ms=5000)
    assert {(flush.key, flush.request_id) for flush in asked} == {(one, request), (two, request)}
    assert {(flush.requested_at_ms, flush.expires_at_ms) for flush in asked} == {
        (backend.now_ms, backend.now_ms + 5000)
    }
    leader = await backend.open_another()
    assert sorted(flush.key for flush in await leader.list_flush_requests()) == [one, two]
    assert [flush.key for flush in await leader.list_flush_requests([one])] == [one]
    assert await leader.complete_flushes([(request, one)]) == 1
    assert await leader.complete_flushes([(request, one)]) == 0
    assert await backend.store.pending_flush(request) == [two]
    assert await leader.complete_flushes([(request, two), (request, one), (backend.uuid(), two)]) == 1
    assert await backend.store.pending_flush(request) == []
    assert await backend.store.list_flush_requests() == []


async def test_asking_again_is_a_repeat(backend: Backend) -> None:
    key = await backend.partition()
    request = backend.uuid()
    first = await backend.store.request_flush(request, [key], ttl_ms=5000)
    assert await backend.store.request_flush(request, [key], ttl_ms=5000) == first
    assert len(await backend.store.list_flush_requests()) == 1
    await backend.store.complete_flushes([(request, key)])
    await backend.store.request_flush(request, [key], ttl_ms=5000)
    assert await backend.store.pending_flush(request) == []


async def test_partitions_that_do_not_exist_are_left_out(backend: Backend) -> None:
    key = await backend.partition()
    request = backend.uuid()
    missing = [PartitionKey(key.topic_id, 9), PartitionKey(TopicId(backend.uuid()), 0)]
    asked = await backend.store.request_flush(request, [missing[0], key, missing[1]], ttl_ms=5000)
    assert [flush.key for flush in asked] == [key]
    assert await backend.store.pending_flush(request) == [key]
    assert await backend.store.pending_flush(backend.uuid()) == []


async def test_an_expired_flush_is_neither_listed_nor_waited_for(backend: Backend) -> None:
    key = await backend.partition()
    short, long = backend.uuid(), backend.uuid()
    await backend.store.request_flush(short, [key], ttl_ms=1000)
    await backend.advance(10)
    await backend.store.request_flush(long, [key], ttl_ms=5000)
    assert [flush.request_id for flush in await backend.store.list_flush_requests([key])] == [short, long]
    await backend.advance(990)
    assert await backend.store.pending_flush(short) == []
    assert [flush.request_id for flush in await backend.store.list_flush_requests()] == [long]
    assert await backend.store.list_flush_requests([]) == []


async def test_a_malformed_flush_is_refused(backend: Backend) -> None:
    key = await backend.partition()
    for ttl_ms in (0, -5, MAX_TTL_MS + 1):
        with pytest.raises(InvalidRequest):
            await backend.store.request_flush(backend.uuid(), [key], ttl_ms=ttl_ms)
    with pytest.raises(LimitExceeded):
        await backend.store.request_flush(backend.uuid(), [key] * (MAX_KEYS_PER_CALL + 1), ttl_ms=1000)


async def test_r22_expired_flush_requests_go_after_a_time_answered_or_not(backend: Backend) -> None:
    """A request about many partitions adds more rows than the next request deletes."""
    keys = (await backend.topic(partitions=5)).partition_keys()
    answered, open_one, late = (backend.uuid() for _ in range(3))
    await backend.store.request_flush(answered, keys[:2], ttl_ms=1000)
    await backend.store.complete_flushes([(answered, keys[0]), (answered, keys[1])])
    await backend.store.request_flush(open_one, keys[:3], ttl_ms=1000)
    await backend.advance(500)
    await backend.store.request_flush(late, keys, ttl_ms=1000)
    await backend.advance(999)
    assert await backend.store.expire_flush_requests(keep_ms=499, limit=100) == 0
    await backend.advance(1)
    assert [await backend.store.expire_flush_requests(keep_ms=499, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert await backend.store.expire_flush_requests(keep_ms=0, limit=100) == 0, "this one expires now"
    await backend.advance(1)
    assert await backend.store.expire_flush_requests(keep_ms=0, limit=100) == 5


async def test_r22_expiring_flush_requests_at_the_same_time_shares_the_work(backend: Backend) -> None:
    keys = (await backend.topic(partitions=20)).partition_keys()
    for _ in range(3):
        await backend.store.request_flush(backend.uuid(), keys, ttl_ms=1)
    await backend.advance(10)
    stores = [backend.store, await backend.open_another(), await backend.open_another()]
    gone = 0
    while counts := await asyncio.gather(*(store.expire_flush_requests(keep_ms=1, limit=7) for store in stores)):
        gone += sum(counts)
        if not any(counts):
            break
    assert gone == 60


async def test_a_malformed_expiry_of_flush_requests_is_refused(backend: Backend) -> None:
    for limit in (0, -1):
        with pytest.raises(InvalidRequest):
            await backend.store.expire_flush_requests(keep_ms=1, limit=limit)
    with pytest.raises(InvalidRequest):
        await backend.store.expire_flush_requests(keep_ms=-1, limit=1)


# Claims.


async def test_s2_13_a_free_claim_is_mine_and_a_held_one_is_the_other_s(backend: Backend) -> None:
    mine = await backend.store.acquire_claim("compact/orders/0", owner="c-1", ttl_ms=1000)
    assert (mine.name, mine.owner) == ("compact/orders/0", "c-1")
    assert (mine.claimed_at_ms, mine.expires_at_ms) == (backend.now_ms, backend.now_ms + 1000)
    other = await backend.open_another()
    await backend.advance(500)
    assert await other.acquire_claim("compact/orders/0", owner="c-2", ttl_ms=9000) == mine
    assert (await other.acquire_claim("compact/orders/1", owner="c-2", ttl_ms=9000)).owner == "c-2"


async def test_s2_13_mine_is_extended_and_keeps_when_it_began(backend: Backend) -> None:
    first = await backend.store.acquire_claim("job", owner="c-1", ttl_ms=1000)
    await backend.advance(900)
    again = await backend.store.acquire_claim("job", owner="c-1", ttl_ms=1000)
    assert (again.claimed_at_ms, again.expires_at_ms) == (first.claimed_at_ms, backend.now_ms + 1000)


async def test_s2_13_expiry_frees_a_claim(backend: Backend) -> None:
    await backend.store.acquire_claim("job", owner="c-1", ttl_ms=1000)
    await backend.advance(999)
    assert (await backend.store.acquire_claim("job", owner="c-2", ttl_ms=1000)).owner == "c-1"
    await backend.advance(1)
    taken = await backend.store.acquire_claim("job", owner="c-2", ttl_ms=1000)
    assert (taken.owner, taken.claimed_at_ms) == ("c-2", backend.now_ms)
    assert await backend.store.release_claim("job", owner="c-1") is False


async def test_a_claim_is_released_by_its_owner(backend: Backend) -> None:
    await backend.store.acquire_claim("job", owner="c-1", ttl_ms=1000)
    assert await backend.store.release_claim("job", owner="c-2") is False
    assert await backend.store.release_claim("job", owner="c-1") is True
    assert await backend.store.release_claim("job", owner="c-1") is False
    assert await backend.store.release_claim("never", owner="c-1") is False
    assert (await backend.store.acquire_claim("job", owner="c-2", ttl_ms=1000)).owner == "c-2"


async def test_of_concurrent_claimants_one_owns_it(backend: Backend) -> None:
    other = await backend.open_another()
    for turn in range(10):
        claims = await asyncio.gather(
            *(
                (backend.store, other)[index % 2].acquire_claim(f"job-{turn}", owner=f"c-{index}", ttl_ms=1000)
                for index in range(6)
            )
        )
        assert len({claim.owner for claim in claims}) == 1


async def test_live_claims_are_listed_by_name_and_prefix(backend: Backend) -> None:
    for name in ("b", "a/1", "a_2", "ab", "a%", "A", "a"):
        await backend.store.acquire_claim(name, owner="c-1", ttl_ms=1000)

    async def names(prefix: str = "") -> list[str]:
        return [claim.name for claim in await backend.store.list_claims(prefix)]

    assert await names() == sorted(["b", "a/1", "a_2", "ab", "a%", "A", "a"])
    assert await names("a/") == ["a/1"]
    assert await names("a_") == ["a_2"]
    assert await names("a%") == ["a%"]
    assert await names("A") == ["A"]
    assert await names("z") == []
    await backend.advance(1000)
    assert await names() == []


async def test_a_malformed_claim_is_refused(backend: Backend) -> None:
    for name, owner in (("", "c-1"), ("job", ""), ("a\0b", "c-1"), ("job", "a\ud800")):
        with pytest.raises(InvalidRequest):
            await backend.store.acquire_claim(name, owner=owner, ttl_ms=1000)
    for ttl_ms in (0, -1, MAX_TTL_MS + 1):
        with pytest.raises(InvalidRequest):
            await backend.store.acquire_claim("job", owner="c-1", ttl_ms=ttl_ms)
    with pytest.raises(LimitExceeded):
        await backend.store.acquire_claim("x" * (MAX_NAME_BYTES + 1), owner="c-1", ttl_ms=1000)
    assert await backend.store.list_claims() == []


async def test_r22_a_claim_that_expired_is_deleted_when_another_is_acquired(backend: Backend) -> None:
    await backend.store.acquire_claim("old", owner="a", ttl_ms=1000)
    await backend.store.acquire_claim("kept", owner="a", ttl_ms=10_000)
    await backend.advance(1000)
    await backend.store.acquire_claim("new", owner="b", ttl_ms=1000)
    assert [claim.name for claim in await backend.store.list_claims()] == ["kept", "new"]
    assert not await backend.store.release_claim("old", owner="a")
