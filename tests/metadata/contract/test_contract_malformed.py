"""Calls that make no sense, where no other file tests them: leases, transfers, groups' keys, and long lists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from builders import TTL_MS
from harness import Backend, LedPartition

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_KEYS_PER_CALL, MAX_LEASE_TTL_MS, MAX_LEASES_PER_CALL, MAX_NAME_BYTES, MAX_TTL_MS
from streamhouse.metadata.contract import HeldLease, Holder, LeaseKey, SlotFence, slot_of


async def test_leases_of_no_or_too_long_a_time_are_refused(backend: Backend) -> None:
    led = await backend.led()
    held = [HeldLease(key=led.key, epoch=led.epoch)]
    for ttl_ms in (0, -1, MAX_LEASE_TTL_MS + 1):
        with pytest.raises(InvalidRequest):
            await backend.store.acquire_leases(led.holder, [led.key], ttl_ms=ttl_ms)
        with pytest.raises(InvalidRequest):
            await backend.store.renew_leases(led.holder, held, ttl_ms=ttl_ms)
    (lease,) = await backend.store.list_leases()
    assert lease.expires_at_ms == backend.now_ms + TTL_MS


async def test_a_lease_asked_for_twice_in_one_call_is_refused(backend: Backend) -> None:
    led = await backend.led()
    held = [HeldLease(key=led.key, epoch=led.epoch)] * 2
    with pytest.raises(InvalidRequest):
        await backend.store.acquire_leases(led.holder, [led.key, led.key], ttl_ms=TTL_MS)
    with pytest.raises(InvalidRequest):
        await backend.store.renew_leases(led.holder, held, ttl_ms=TTL_MS)
    with pytest.raises(InvalidRequest):
        await backend.store.release_leases(led.holder, held)


async def test_too_many_leases_in_one_call_are_refused(backend: Backend) -> None:
    led = await backend.led()
    keys: list[LeaseKey] = [PartitionKey(led.key.topic_id, number) for number in range(MAX_LEASES_PER_CALL + 1)]
    held = [HeldLease(key=key, epoch=1) for key in keys]
    with pytest.raises(LimitExceeded):
        await backend.store.acquire_leases(led.holder, keys, ttl_ms=TTL_MS)
    with pytest.raises(LimitExceeded):
        await backend.store.renew_leases(led.holder, held, ttl_ms=TTL_MS)
    with pytest.raises(LimitExceeded):
        await backend.store.release_leases(led.holder, held)


@pytest.mark.parametrize("agent_id", ["", "a\0b", "a\ud800"])
async def test_an_agent_without_a_proper_name_gets_no_lease(backend: Backend, agent_id: str) -> None:
    key = await backend.partition()
    holder = Holder(agent_id=agent_id, incarnation=backend.uuid(), wal_id=backend.uuid())
    with pytest.raises(InvalidRequest):
        await backend.store.acquire_leases(holder, [key], ttl_ms=TTL_MS)
    assert await backend.store.list_leases() == []


async def test_a_malformed_transfer_is_refused(backend: Backend) -> None:
    led = await backend.led()
    target = backend.holder("target")
    await backend.register(target)
    held = HeldLease(key=led.key, epoch=led.epoch)
    for timeout_ms in (0, -1, MAX_TTL_MS + 1):
        with pytest.raises(InvalidRequest):
            await backend.store.initiate_transfer(
                backend.uuid(), held, holder=led.holder, to_agent="target", timeout_ms=timeout_ms
            )
    transfer = backend.uuid()
    await backend.store.initiate_transfer(transfer, held, holder=led.holder, to_agent="target", timeout_ms=1000)
    with pytest.raises(InvalidRequest):
        await backend.store.reject_transfer(transfer, agent_id="target", reason="a\0b")
    with pytest.raises(LimitExceeded):
        await backend.store.reject_transfer(transfer, agent_id="target", reason="x" * (MAX_NAME_BYTES + 1))
    await backend.store.accept_transfer(transfer, target=target)
    for ttl_ms in (0, MAX_LEASE_TTL_MS + 1):
        with pytest.raises(InvalidRequest):
            await backend.store.complete_transfer(
                transfer, holder=led.holder, next_offset=0, ttl_ms=ttl_ms, liveness_timeout_ms=1000
            )
    with pytest.raises(InvalidRequest):
        await backend.store.complete_transfer(
            transfer, holder=led.holder, next_offset=0, ttl_ms=TTL_MS, liveness_timeout_ms=-1
        )
    with pytest.raises(InvalidRequest):
        await backend.store.expire_transfers(keep_ms=-1)


Call = Callable[[Backend, LedPartition, list[PartitionKey]], Awaitable[object]]
LONG_LISTS: dict[str, Call] = {
    "get_partitions": lambda backend, led, keys: backend.store.get_partitions(keys),
    "load_producers": lambda backend, led, keys: backend.store.load_producers(keys),
    "fetch_offsets": lambda backend, led, keys: backend.store.fetch_offsets("group", keys),
    "delete_offsets": lambda backend, led, keys: backend.store.delete_offsets(
        "group", SlotFence(slot=slot_of("group"), epoch=1), keys
    ),
    "list_unadopted": lambda backend, led, keys: backend.store.list_unadopted(keys),
    "list_flush_requests": lambda backend, led, keys: backend.store.list_flush_requests(keys),
    "complete_flushes": lambda backend, led, keys: backend.store.complete_flushes(
        [(backend.ids.uuid(), key) for key in keys]
    ),
    "release_pins": lambda backend, led, keys: backend.store.release_pins([key.topic_id for key in keys]),
    "renew_pins": lambda backend, led, keys: backend.store.renew_pins([key.topic_id for key in keys], ttl_ms=1000),
}


@pytest.mark.parametrize("method", LONG_LISTS)
async def test_too_many_keys_in_one_call_are_refused(backend: Backend, method: str) -> None:
    led = await backend.led()
    with pytest.raises(LimitExceeded):
        await LONG_LISTS[method](backend, led, [led.key] * (MAX_KEYS_PER_CALL + 1))


async def test_durations_below_zero_are_refused(backend: Backend) -> None:
    with pytest.raises(InvalidRequest):
        await backend.store.expire_producers(idle_ms=-1, limit=1)
    with pytest.raises(InvalidRequest):
        await backend.store.expire_commits(keep_ms=-1, limit=1)
    with pytest.raises(InvalidRequest):
        await backend.store.expire_groups(empty_for_ms=-1, limit=1)
