"""Lease transfers (S3.19): the steps, their repeats, their ends."""

from __future__ import annotations

import asyncio
import dataclasses
from uuid import UUID

import pytest
from builders import TTL_MS, batch, leased_slice
from harness import Backend
from stories import LIVENESS_MS, TIMEOUT_MS, Handover, handover

from streamhouse.core.errors import (
    AgentNotFound,
    InvalidRequest,
    NotLeader,
    TransferConflict,
    TransferNotFound,
)
from streamhouse.metadata.contract import HeldLease, SlotKey, Transfer, TransferState, Verdict


async def test_s3_19_pending_accepted_completed(backend: Backend) -> None:
    led = await backend.led(holder=backend.holder("agent-1"))
    await led.append(batch(5))
    story = await handover(backend, led)
    pending = await story.initiate()
    assert (pending.state, pending.key, pending.epoch) == (TransferState.PENDING, led.key, 1)
    assert (pending.from_agent, pending.to_agent) == ("agent-1", "target")
    assert (pending.created_at_ms, pending.deadline_ms) == (backend.now_ms, backend.now_ms + TIMEOUT_MS)
    accepted = await story.accept()
    assert accepted == dataclasses.replace(pending, state=TransferState.ACCEPTED)
    lease = await story.complete(next_offset=5)
    assert (lease.key, lease.agent_id, lease.incarnation) == (led.key, "target", story.target.incarnation)
    assert (lease.epoch, lease.high_watermark, lease.expired) == (2, 5, False)
    assert lease.expires_at_ms == backend.now_ms + TTL_MS
    assert await story.state() is TransferState.COMPLETED
    last = (await backend.store.epoch_history(led.key))[-1]
    assert (last.epoch, last.start_offset, last.agent_id, last.wal_id) == (2, 5, "target", story.target.wal_id)


async def test_r20_after_completion_only_the_target_commits_and_renews(backend: Backend) -> None:
    story = await handover(backend)
    assert not isinstance(story.key, SlotKey)
    await story.initiate()
    await story.accept()
    lease = await story.complete()
    outcomes = [
        (
            await backend.store.commit_leased(
                backend.append_id(), [leased_slice(story.key, backend.object(), epoch=epoch, base=0)]
            )
        )[0].verdict
        for epoch in (story.epoch, lease.epoch)
    ]
    assert outcomes == [Verdict.FENCED, Verdict.COMMITTED]
    held = [HeldLease(key=story.key, epoch=story.epoch)]
    assert not (await backend.store.renew_leases(story.sender, held, ttl_ms=TTL_MS))[0].renewed
    assert await backend.store.release_leases(story.sender, held) == []
    held = [HeldLease(key=story.key, epoch=lease.epoch)]
    assert (await backend.store.renew_leases(story.target, held, ttl_ms=TTL_MS))[0].renewed


async def test_a_slot_is_transferred_whatever_the_next_offset(backend: Backend) -> None:
    story = await handover(backend, SlotKey(4))
    await story.initiate()
    await story.accept()
    lease = await story.complete(next_offset=12345)
    assert (lease.key, lease.agent_id, lease.epoch, lease.high_watermark) == (SlotKey(4), "target", 2, -1)


# Repeats.


async def test_r20_every_step_may_be_sent_again_after_a_lost_reply(backend: Backend) -> None:
    story = await handover(backend)
    assert await story.initiate() == await story.initiate()
    accepted = await story.accept()
    assert await story.accept() == accepted
    assert await story.initiate() == accepted
    lease = await story.complete()
    assert await story.complete() == lease
    assert (await story.initiate()).state is TransferState.COMPLETED
    assert (await backend.store.list_leases(keys=[story.key]))[0].epoch == 2


async def test_r20_a_repeated_completion_returns_the_lease_as_it_stands(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    await story.accept()
    lease = await story.complete()
    await backend.advance(TTL_MS - 1)
    await backend.store.renew_leases(story.target, [HeldLease(key=story.key, epoch=lease.epoch)], ttl_ms=TTL_MS)
    again = await story.complete()
    assert (again.epoch, again.agent_id, again.expires_at_ms) == (2, "target", backend.now_ms + TTL_MS)


async def test_r20_concurrent_completions_hand_over_once(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    await story.accept()
    other = await backend.open_another()
    leases = await asyncio.gather(
        *(
            store.complete_transfer(
                story.transfer_id, holder=story.sender, next_offset=0, ttl_ms=TTL_MS, liveness_timeout_ms=LIVENESS_MS
            )
            for store in (backend.store, other) * 3
        )
    )
    assert {lease.epoch for lease in leases} == {2}


# Initiation.


async def test_only_the_holder_at_its_epoch_with_time_left_may_initiate(backend: Backend) -> None:
    story = await handover(backend)
    for changed in (
        dataclasses.replace(story, sender=story.target, target=story.sender),
        dataclasses.replace(story, sender=dataclasses.replace(story.sender, incarnation=backend.uuid())),
        dataclasses.replace(story, epoch=story.epoch + 1),
    ):
        with pytest.raises(NotLeader):
            await changed.initiate()
    await backend.advance(TTL_MS)
    with pytest.raises(NotLeader):
        await story.initiate()
    assert await backend.store.list_transfers(open_only=False) == []


async def test_a_transfer_goes_to_another_registered_agent(backend: Backend) -> None:
    story = await handover(backend)
    with pytest.raises(AgentNotFound):
        await dataclasses.replace(story, target=backend.holder("nobody")).initiate()
    with pytest.raises(InvalidRequest):
        await dataclasses.replace(story, target=story.sender).initiate()


async def test_one_open_transfer_per_lease(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    with pytest.raises(TransferConflict):
        await story.initiate(backend.uuid())
    await story.accept()
    with pytest.raises(TransferConflict):
        await story.initiate(backend.uuid())
    await backend.store.reject_transfer(story.transfer_id, agent_id="target", reason="full")
    assert (await story.initiate(backend.uuid())).state is TransferState.PENDING


async def test_a_transfer_past_its_deadline_does_not_stand_in_the_way(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    await backend.advance(TIMEOUT_MS)
    second = await story.initiate(backend.uuid())
    assert second.state is TransferState.PENDING
    with pytest.raises(TransferConflict):
        await story.accept()


async def test_of_concurrent_initiations_one_is_open(backend: Backend) -> None:
    story = await handover(backend)
    answers = await asyncio.gather(*(story.initiate(backend.uuid()) for _ in range(6)), return_exceptions=True)
    assert len([one for one in answers if isinstance(one, Transfer)]) == 1
    assert len([one for one in answers if isinstance(one, TransferConflict)]) == 5


# Acceptance and rejection.


async def test_only_the_target_accepts_and_only_in_time(backend: Backend) -> None:
    story = await handover(backend)
    with pytest.raises(TransferNotFound):
        await story.accept()
    await story.initiate()
    for stranger in (story.sender, backend.holder("third")):
        with pytest.raises(TransferConflict):
            await backend.store.accept_transfer(story.transfer_id, target=stranger)
    await backend.advance(TIMEOUT_MS)
    with pytest.raises(TransferConflict):
        await story.accept()


@pytest.mark.parametrize("side", ["sender", "target"])
@pytest.mark.parametrize("accepted", [False, True])
async def test_either_side_rejects_while_it_is_open(backend: Backend, side: str, accepted: bool) -> None:
    story = await handover(backend)
    await story.initiate()
    if accepted:
        await story.accept()
    rejected = await backend.store.reject_transfer(story.transfer_id, agent_id=side, reason="draining")
    assert (rejected.state, rejected.reason) == (TransferState.REJECTED, "draining")
    assert await backend.store.reject_transfer(story.transfer_id, agent_id=side, reason="draining") == rejected
    with pytest.raises(TransferConflict):
        await story.accept()
    with pytest.raises(TransferConflict):
        await story.complete()
    (lease,) = await backend.store.list_leases(keys=[story.key])
    assert (lease.agent_id, lease.epoch) == ("sender", 1)


async def test_what_cannot_be_rejected(backend: Backend) -> None:
    story = await handover(backend)
    with pytest.raises(TransferNotFound):
        await backend.store.reject_transfer(story.transfer_id, agent_id="target", reason="")
    await story.initiate()
    with pytest.raises(TransferConflict):
        await backend.store.reject_transfer(story.transfer_id, agent_id="third", reason="")
    await story.accept()
    await story.complete()
    with pytest.raises(TransferConflict):
        await backend.store.reject_transfer(story.transfer_id, agent_id="target", reason="")


# Listing and expiry.


async def test_transfers_are_listed_oldest_first_for_either_side(backend: Backend) -> None:
    sender, target, third = (backend.holder(name) for name in ("sender", "target", "third"))
    for one in (sender, target, third):
        await backend.register(one)
    topic = await backend.topic(partitions=3)
    stories = []
    for key, to in zip(topic.partition_keys(), (target, third, target), strict=True):
        lease = await backend.lead(key, sender)
        story = Handover(
            backend=backend, key=key, epoch=lease.epoch, sender=sender, target=to, transfer_id=backend.uuid()
        )
        await story.initiate()
        stories.append(story)
        await backend.advance(1)
    ids = [story.transfer_id for story in stories]

    async def listed(agent_id: str | None = None, *, open_only: bool = True) -> list[UUID]:
        found = await backend.store.list_transfers(agent_id=agent_id, open_only=open_only)
        return [one.transfer_id for one in found]

    assert await listed() == ids
    assert await listed("sender") == ids
    assert await listed("third") == [ids[1]]
    await backend.store.reject_transfer(ids[0], agent_id="target", reason="full")
    assert await listed("target") == [ids[2]]
    assert await listed("target", open_only=False) == [ids[0], ids[2]]
    assert await listed("nobody") == []


async def test_past_its_deadline_an_open_transfer_counts_as_failed(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    await backend.advance(TIMEOUT_MS)
    assert await story.state() is TransferState.FAILED
    assert await backend.store.list_transfers() == []


async def test_expiry_fails_what_is_late_and_drops_what_is_old(backend: Backend) -> None:
    story = await handover(backend)
    await story.initiate()
    assert await backend.store.expire_transfers(keep_ms=60_000) == []
    await backend.advance(TIMEOUT_MS)
    (failed,) = await backend.store.expire_transfers(keep_ms=60_000)
    assert (failed.transfer_id, failed.state) == (story.transfer_id, TransferState.FAILED)
    assert await backend.store.expire_transfers(keep_ms=60_000) == []
    assert await story.state() is TransferState.FAILED
    await backend.advance(60_001)
    assert await backend.store.expire_transfers(keep_ms=60_000) == []
    assert await backend.store.list_transfers(open_only=False) == []
