"""Completing a transfer is one compare-and-swap; each of its conditions refuses on its own (R20)."""

from __future__ import annotations

import dataclasses

import pytest
from builders import TTL_MS, batch
from harness import Backend
from stories import LIVENESS_MS, TIMEOUT_MS, handover

from streamhouse.core.errors import (
    Conflict,
    NotLeader,
    TransferConflict,
    TransferNotFound,
)
from streamhouse.metadata.contract import HeldLease, SlotKey, TransferState


async def test_r20_completion_needs_an_acceptance(backend: Backend) -> None:
    story = await handover(backend)
    with pytest.raises(TransferNotFound):
        await story.complete()
    await story.initiate()
    with pytest.raises(TransferConflict):
        await story.complete()
    assert await story.state() is TransferState.PENDING


async def test_r20_completion_must_come_within_the_deadline(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    await story.accept()
    await backend.advance(TIMEOUT_MS)
    with pytest.raises(TransferConflict):
        await story.complete()
    (lease,) = await backend.store.list_leases(keys=[story.key])
    assert (lease.agent_id, lease.epoch) == ("sender", 1)


async def test_r20_completion_needs_the_watermark_where_the_sender_stopped(backend: Backend) -> None:
    led = await backend.led(holder=backend.holder("agent-1"))
    await led.append(batch(5))
    story = await handover(backend, led)
    await story.initiate()
    await story.accept()
    for wrong in (0, 4, 6):
        with pytest.raises(TransferConflict):
            await story.complete(next_offset=wrong)
    await led.append(batch(1))
    with pytest.raises(TransferConflict):
        await story.complete(next_offset=5)
    assert (await story.complete(next_offset=6)).agent_id == "target"


async def test_r20_completion_needs_the_sender_s_epoch(backend: Backend) -> None:
    story = await handover(backend)
    await backend.store.initiate_transfer(
        story.transfer_id,
        HeldLease(key=story.key, epoch=story.epoch),
        holder=story.sender,
        to_agent="target",
        timeout_ms=10 * TTL_MS,
    )
    await story.accept()
    await backend.advance(TTL_MS)
    taken = await backend.lead(story.key, backend.holder("third"))
    with pytest.raises(NotLeader):
        await story.complete()
    (lease,) = await backend.store.list_leases(keys=[story.key])
    assert (lease.agent_id, lease.epoch) == ("third", taken.epoch)


async def test_r20_a_sender_that_lost_and_regained_its_lease_completes_nothing(backend: Backend) -> None:
    """Another agent may have led in between; the transfer belongs to the leadership that offered it."""
    story = await handover(backend, SlotKey(4))
    await backend.store.initiate_transfer(
        story.transfer_id,
        HeldLease(key=story.key, epoch=story.epoch),
        holder=story.sender,
        to_agent="target",
        timeout_ms=10 * TTL_MS,
    )
    await story.accept()
    await backend.advance(TTL_MS)
    assert (await backend.lead(story.key, story.sender)).epoch == story.epoch + 1
    with pytest.raises(NotLeader):
        await story.complete()


async def test_an_acceptance_belongs_to_one_incarnation(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    await story.accept()
    with pytest.raises(TransferConflict):
        await backend.store.accept_transfer(story.transfer_id, target=backend.holder("target"))
    assert (await story.complete()).incarnation == story.target.incarnation


async def test_r20_only_the_sender_completes(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    await story.accept()
    for stranger in (story.target, backend.holder("third"), backend.holder("sender")):
        with pytest.raises(Conflict):
            await story.complete(holder=stranger)
    assert (await backend.store.list_leases(keys=[story.key]))[0].agent_id == "sender"


async def test_r20_completion_needs_a_target_that_lives(backend: Backend) -> None:
    story = await handover(backend, SlotKey(4))
    await backend.advance(LIVENESS_MS)
    await backend.lead(SlotKey(4), story.sender)
    fresh = dataclasses.replace(story, epoch=2)
    await fresh.initiate()
    await fresh.accept()
    await backend.advance(1)
    with pytest.raises(TransferConflict):
        await fresh.complete()
    await backend.store.heartbeat("target", story.target.incarnation)
    assert (await fresh.complete()).agent_id == "target"


async def test_r20_completion_needs_the_incarnation_that_accepted(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    await story.accept()
    await backend.register(backend.holder("target"))
    with pytest.raises(TransferConflict):
        await story.complete()


async def test_r20_completion_needs_a_target_that_is_still_registered(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    await story.accept()
    await backend.store.deregister_agent("target", story.target.incarnation)
    with pytest.raises(TransferConflict):
        await story.complete()
    assert (await backend.store.list_leases(keys=[story.key]))[0].agent_id == "sender"


@pytest.mark.parametrize("kind", ["partition", "slot"])
async def test_r2_completion_gives_no_endless_lease_where_the_store_is_not_bound_to_a_wal(
    backend: Backend, kind: str
) -> None:
    story = await handover(backend, SlotKey(3) if kind == "slot" else None)
    await story.initiate()
    await story.accept()
    with pytest.raises(TransferConflict):
        await backend.store.complete_transfer(
            story.transfer_id, holder=story.sender, next_offset=0, ttl_ms=None, liveness_timeout_ms=LIVENESS_MS
        )
    (lease,) = await backend.store.list_leases(keys=[story.key])
    assert lease.agent_id == story.sender.agent_id
    assert (await story.complete()).expires_at_ms == backend.now_ms + TTL_MS
