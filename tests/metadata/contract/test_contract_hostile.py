"""Whatever is asked, a store answers or raises an error of the tree: never a database's own, never a wrong row.

Texts that no database stores, numbers that fit no column, names that look like SQL or like a pattern.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable

import pytest
from builders import batch, intent, intent_slice, leaderless_slice, leased_slice
from harness import Backend, LedPartition

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_KEYS_PER_CALL
from streamhouse.metadata.contract import (
    HeldLease,
    HistoryPlace,
    IntentKey,
    LogState,
    OffsetCommit,
    ScanRange,
    SlotFence,
    SlotKey,
    slot_of,
)

TEXTS = ["\0", "a\0b", "\ud800", "", "x" * 5000, "'; DROP TABLE topics; --", "%", "_", "\\", "$1", ":agent", "😀"]
NUMBERS = [-(2**63) - 1, -(2**63), -(2**31) - 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30]

WithText = Callable[[Backend, LedPartition, str], Awaitable[object]]
ASKING_BY_TEXT: dict[str, WithText] = {
    "get_topic": lambda b, led, text: b.store.get_topic(text),
    "create_topic": lambda b, led, text: b.topic(text),
    "create_topic with config": lambda b, led, text: b.topic("new", configs={text: text}),
    "alter_topic_configs": lambda b, led, text: b.store.alter_topic_configs(
        led.key.topic_id, set_configs={"a": text}, delete_configs=[text]
    ),
    "list_leases": lambda b, led, text: b.store.list_leases(agent_id=text),
    "acquire_leases": lambda b, led, text: b.store.acquire_leases(b.holder(text), [led.key], ttl_ms=1000),
    "renew_leases": lambda b, led, text: b.store.renew_leases(
        b.holder(text), [HeldLease(key=led.key, epoch=1)], ttl_ms=1000
    ),
    "release_leases": lambda b, led, text: b.store.release_leases(b.holder(text), [HeldLease(key=led.key, epoch=1)]),
    "initiate_transfer": lambda b, led, text: b.store.initiate_transfer(
        b.uuid(), HeldLease(key=led.key, epoch=1), holder=led.holder, to_agent=text, timeout_ms=1000
    ),
    "accept_transfer": lambda b, led, text: b.store.accept_transfer(b.uuid(), target=b.holder(text)),
    "reject_transfer": lambda b, led, text: b.store.reject_transfer(b.uuid(), agent_id=text, reason=text),
    "list_transfers": lambda b, led, text: b.store.list_transfers(agent_id=text),
    "register_agent": lambda b, led, text: b.register(b.holder(text)),
    "heartbeat": lambda b, led, text: b.store.heartbeat(text, b.uuid()),
    "deregister_agent": lambda b, led, text: b.store.deregister_agent(text, b.uuid()),
    "list_agents": lambda b, led, text: b.store.list_agents(agent_group=text),
    "get_group": lambda b, led, text: b.store.get_group(text),
    "fetch_offsets": lambda b, led, text: b.store.fetch_offsets(text, [led.key]),
    "commit_offsets_simple": lambda b, led, text: b.store.commit_offsets_simple(
        text, [OffsetCommit(key=led.key, offset=1, metadata=text)]
    ),
    "find_unreferenced": lambda b, led, text: b.store.find_unreferenced({text: 0}),
    "forget_objects": lambda b, led, text: b.store.forget_objects([text]),
    "create_pin": lambda b, led, text: b.store.create_pin(b.uuid(), owner=text, ttl_ms=1000),
    "acquire_claim": lambda b, led, text: b.store.acquire_claim(text, owner=text, ttl_ms=1000),
    "release_claim": lambda b, led, text: b.store.release_claim(text, owner=text),
    "list_claims": lambda b, led, text: b.store.list_claims(text),
    "get_intent": lambda b, led, text: b.store.get_intent(
        IntentKey(query_id=text, topic_id=led.key.topic_id, batch_id=0)
    ),
    "last_batch": lambda b, led, text: b.store.last_batch(text, led.key.topic_id),
    "adopt_intent": lambda b, led, text: b.store.adopt_intent(
        IntentKey(query_id=text, topic_id=led.key.topic_id, batch_id=0), 0, epoch=1, base_offset=0
    ),
    "register_intent": lambda b, led, text: b.store.register_intent(
        intent(IntentKey(query_id=text, topic_id=led.key.topic_id, batch_id=0))
    ),
}

WithNumber = Callable[[Backend, LedPartition, int], Awaitable[object]]
ASKING_BY_NUMBER: dict[str, WithNumber] = {
    "get_partitions": lambda b, led, n: b.store.get_partitions([PartitionKey(led.key.topic_id, n)]),
    "grow_topic": lambda b, led, n: b.store.grow_topic(led.key.topic_id, n),
    "set_log_state": lambda b, led, n: b.store.set_log_state(PartitionKey(led.key.topic_id, n), LogState.OPEN),
    "alter_topic_configs": lambda b, led, n: b.store.alter_topic_configs(
        led.key.topic_id, set_configs={"a": "1"}, expected_version=n
    ),
    "find_entry": lambda b, led, n: b.store.find_entry(led.key, n),
    "find_entry_by_timestamp": lambda b, led, n: b.store.find_entry_by_timestamp(led.key, n),
    "scan_entries": lambda b, led, n: b.store.scan_entries(
        [ScanRange(key=led.key, from_offset=n), ScanRange(key=led.key, from_offset=0, to_offset=n)], limit=10
    ),
    "epoch_history": lambda b, led, n: b.store.epoch_history(PartitionKey(led.key.topic_id, n)),
    "load_producers": lambda b, led, n: b.store.load_producers([PartitionKey(led.key.topic_id, n)]),
    "acquire_leases": lambda b, led, n: b.store.acquire_leases(
        b.holder(), [PartitionKey(led.key.topic_id, n), SlotKey(n)], ttl_ms=1000
    ),
    "acquire_leases for": lambda b, led, n: b.store.acquire_leases(led.holder, [led.key], ttl_ms=n),
    "renew_leases": lambda b, led, n: b.store.renew_leases(
        led.holder, [HeldLease(key=led.key, epoch=n), HeldLease(key=SlotKey(n), epoch=n)], ttl_ms=1000
    ),
    "release_leases": lambda b, led, n: b.store.release_leases(
        led.holder, [HeldLease(key=PartitionKey(led.key.topic_id, n), epoch=n)]
    ),
    "list_leases": lambda b, led, n: b.store.list_leases(keys=[PartitionKey(led.key.topic_id, n), SlotKey(n)]),
    "initiate_transfer": lambda b, led, n: b.store.initiate_transfer(
        b.uuid(), HeldLease(key=led.key, epoch=n), holder=led.holder, to_agent="target", timeout_ms=1000
    ),
    "complete_transfer": lambda b, led, n: b.store.complete_transfer(
        b.uuid(), holder=led.holder, next_offset=n, ttl_ms=1000, liveness_timeout_ms=n
    ),
    "expire_transfers": lambda b, led, n: b.store.expire_transfers(keep_ms=n),
    "list_agents": lambda b, led, n: b.store.list_agents(alive_within_ms=n),
    "save_group": lambda b, led, n: b.store.save_group(
        "g", SlotFence(slot=slot_of("g"), epoch=n), generation=n, member_count=n, payload=b""
    ),
    "list_groups": lambda b, led, n: b.store.list_groups(SlotKey(n)),
    "commit_offsets_simple": lambda b, led, n: b.store.commit_offsets_simple(
        "g", [OffsetCommit(key=led.key, offset=n, leader_epoch=n)]
    ),
    "commit_offsets_simple to": lambda b, led, n: b.store.commit_offsets_simple(
        "g", [OffsetCommit(key=PartitionKey(led.key.topic_id, n), offset=1)]
    ),
    "fetch_offsets": lambda b, led, n: b.store.fetch_offsets("g", [PartitionKey(led.key.topic_id, n)]),
    "expire_groups": lambda b, led, n: b.store.expire_groups(empty_for_ms=n, limit=1),
    "expire_producers": lambda b, led, n: b.store.expire_producers(idle_ms=n, limit=1),
    "expire_commits": lambda b, led, n: b.store.expire_commits(keep_ms=n, limit=1),
    "expire_epochs": lambda b, led, n: b.store.expire_epochs(
        keep_ms=n, limit=1, after=HistoryPlace(key=PartitionKey(led.key.topic_id, n), epoch=n)
    ),
    "expire_agents": lambda b, led, n: b.store.expire_agents(silent_ms=n, limit=1),
    "expire_flush_requests": lambda b, led, n: b.store.expire_flush_requests(keep_ms=n, limit=1),
    "allocate_producer_ids": lambda b, led, n: b.store.allocate_producer_ids(n),
    "advance_log_start": lambda b, led, n: b.store.advance_log_start(led.key, n),
    "raise_gc_horizon": lambda b, led, n: b.store.raise_gc_horizon(n),
    "list_dereferenced": lambda b, led, n: b.store.list_dereferenced(grace_ms=n, limit=1),
    "sum_waiting_objects": lambda b, led, n: b.store.sum_waiting_objects(writer_grace_ms=n, reader_grace_ms=n, limit=1),
    "purge_deleted_topics": lambda b, led, n: b.store.purge_deleted_topics(limit=n),
    "create_pin": lambda b, led, n: b.store.create_pin(b.uuid(), owner="o", ttl_ms=n),
    "acquire_claim": lambda b, led, n: b.store.acquire_claim("c", owner="o", ttl_ms=n),
    "request_flush": lambda b, led, n: b.store.request_flush(
        b.uuid(), [PartitionKey(led.key.topic_id, n)], ttl_ms=1000
    ),
    "complete_flushes": lambda b, led, n: b.store.complete_flushes([(b.uuid(), PartitionKey(led.key.topic_id, n))]),
    "list_unadopted": lambda b, led, n: b.store.list_unadopted([PartitionKey(led.key.topic_id, n)]),
    "register_intent": lambda b, led, n: b.store.register_intent(
        intent(IntentKey(query_id="q", topic_id=led.key.topic_id, batch_id=n), intent_slice(0, b.object()))
    ),
    "register_intent in": lambda b, led, n: b.store.register_intent(
        intent(IntentKey(query_id="q", topic_id=led.key.topic_id, batch_id=0), intent_slice(n, b.object()))
    ),
    "register_intent of": lambda b, led, n: b.store.register_intent(
        intent(
            IntentKey(query_id="q", topic_id=led.key.topic_id, batch_id=0),
            dataclasses.replace(
                intent_slice(0, b.object()),
                record_count=n,
                byte_length=n,
                byte_offset=n,
                min_timestamp_ms=n,
                max_timestamp_ms=n,
            ),
        )
    ),
    "adopt_intent": lambda b, led, n: b.store.adopt_intent(
        IntentKey(query_id="q", topic_id=led.key.topic_id, batch_id=n), n, epoch=n, base_offset=n
    ),
    "commit_leased": lambda b, led, n: b.store.commit_leased(
        b.append_id(), [leased_slice(led.key, b.object(), epoch=n, base=n)]
    ),
    "commit_leased to": lambda b, led, n: b.store.commit_leased(
        b.append_id(), [leased_slice(PartitionKey(led.key.topic_id, n), b.object(), epoch=1, base=0)]
    ),
    "commit_leased of": lambda b, led, n: b.store.commit_leased(
        b.append_id(),
        [
            leased_slice(
                led.key,
                b.object(size=n, created_at_ms=n),
                batch(1, size=n, at_ms=n, producer=n, epoch=n, sequence=n),
                epoch=1,
                base=0,
                byte_offset=n,
            )
        ],
    ),
    "commit_leased many": lambda b, led, n: b.store.commit_leased(
        b.append_id(), [leased_slice(led.key, b.object(), batch(n, size=1), epoch=1, base=0)]
    ),
    "commit_leaderless": lambda b, led, n: b.store.commit_leaderless(
        b.append_id(), b.object(size=n), [leaderless_slice(PartitionKey(led.key.topic_id, n), byte_offset=n)]
    ),
}


async def answer_or_refusal(call: Awaitable[object]) -> None:
    with contextlib.suppress(StreamHouseError):
        await call


@pytest.mark.parametrize("method", ASKING_BY_TEXT)
async def test_any_text_is_answered_or_refused(backend: Backend, method: str) -> None:
    led = await backend.led("orders")
    for text in TEXTS:
        await answer_or_refusal(ASKING_BY_TEXT[method](backend, led, text))
    assert (await backend.store.get_topic("orders")).topic_id == led.key.topic_id


@pytest.mark.parametrize("method", ASKING_BY_NUMBER)
async def test_any_number_is_answered_or_refused(backend: Backend, method: str) -> None:
    led = await backend.led("orders")
    for number in NUMBERS:
        await answer_or_refusal(ASKING_BY_NUMBER[method](backend, led, number))
    assert (await backend.store.get_topic("orders")).topic_id == led.key.topic_id


async def test_a_leaderless_commit_past_the_last_offset_is_refused(backend: Backend) -> None:
    """Two commits of 2⁶² records each would pass the largest offset there is."""
    key = await backend.partition("blobs", leaderless=True)
    for _ in range(3):
        piece = leaderless_slice(key, batch(2**62, size=100))
        await answer_or_refusal(backend.store.commit_leaderless(backend.append_id(), backend.object(), [piece]))
    assert 0 <= await backend.watermark(key) < 2**63


async def test_scans_and_leases_have_a_longest_list(backend: Backend) -> None:
    led = await backend.led()
    ranges = [ScanRange(key=led.key, from_offset=0)] * (MAX_KEYS_PER_CALL + 1)
    with pytest.raises(StreamHouseError):
        await backend.store.scan_entries(ranges, limit=1)
    with pytest.raises(StreamHouseError):
        await backend.store.list_leases(keys=[led.key] * (MAX_KEYS_PER_CALL + 1))


async def test_a_key_asked_for_twice_is_answered_twice(backend: Backend) -> None:
    led = await backend.led()
    states = await backend.store.get_partitions([led.key, led.key])
    assert [state.key for state in states] == [led.key, led.key]
    pages = await backend.store.scan_entries([ScanRange(key=led.key, from_offset=0)] * 2, limit=1)
    assert len(pages) == 2
    assert len(await backend.store.list_leases(keys=[led.key, led.key])) == 1
