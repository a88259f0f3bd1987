"""Groups on a real store, whose slots are gained and lost in the middle of requests."""

from __future__ import annotations

import asyncio

import pytest
from group_stage import CALLER, GROUP, SLOT, Stage, code

from streamhouse.broker.groups.contract import MemberRef
from streamhouse.core.errors import NotCoordinator, UnknownMember
from streamhouse.metadata.contract import Group, OffsetCommit, SlotFence, slot_of


async def test_who_does_not_hold_the_slot_says_so(stage: Stage) -> None:
    assert await code(stage.first.join()) == 16
    assert (
        await code(stage.first.groups.offsets.fetch(GROUP, keys=None, member_id="m", member_epoch=1, caller=CALLER))
        == 16
    )
    await stage.first.lead()
    other = next(name for name in map(str, range(100)) if slot_of(name) != SLOT)
    assert await code(stage.first.join(group=other)) == 16


async def test_while_a_slot_is_read_clients_are_told_to_wait(stage: Stage) -> None:
    lease = await stage.first.lease()
    asked, go_on = asyncio.Event(), asyncio.Event()
    list_groups = stage.first.store.list_groups

    async def slowly(slot: object = None) -> list[Group]:
        asked.set()
        await go_on.wait()
        return await list_groups(SLOT)

    stage.first.store.list_groups = slowly  # type: ignore[method-assign, assignment]
    gaining = asyncio.create_task(stage.first.groups.slots.gained(lease, guard=stage.first.guard))
    await asked.wait()
    assert await code(stage.first.join()) == 14
    assert await code(stage.first.groups.offsets.fetch(GROUP, keys=None, caller=CALLER)) == 14
    go_on.set()
    await gaining
    assert (await stage.first.join()).generation == 1


async def test_a_take_over_needs_no_rebalance_and_keeps_the_generation(stage: Stage) -> None:
    lease = await stage.first.lead()
    joined = await stage.first.stable_member()
    await stage.take_over(lease)
    assert await stage.second.heartbeat(joined.member_id, joined.generation) == 0
    again = await stage.second.sync(joined.member_id, joined.generation)
    assert again.assignment == b"all"


async def test_a_take_over_before_the_assignment_goes_on_with_the_same_generation(stage: Stage) -> None:
    lease = await stage.first.lead()
    joined = await stage.first.join()
    await stage.take_over(lease)
    synced = await stage.second.sync(joined.member_id, joined.generation, (joined.member_id, b"mine"))
    assert synced.assignment == b"mine"


async def test_a_generation_is_never_given_twice(stage: Stage) -> None:
    lease = await stage.first.lead()
    joined = await stage.first.stable_member()
    await stage.first.groups.members.leave(GROUP, [_ref(joined.member_id)], caller=CALLER)
    await _saved(stage)
    await stage.take_over(lease)
    later = await stage.second.join()
    assert later.generation > joined.generation + 1  # the group that became empty was a generation, too


async def test_r1_one_who_lost_the_slot_without_noticing_commits_nothing(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    lease = await stage.first.lead()
    joined = await stage.first.stable_member()
    assert await stage.first.commit(7, key, member_id=joined.member_id, generation=joined.generation) == 0
    await stage.take_over(lease)
    late = stage.first.commit(9, key, member_id=joined.member_id, generation=joined.generation)
    assert await code(late) == 16
    assert stage.first.dropped == [SLOT]
    assert await stage.second.fetch(key) == 7
    assert await stage.second.commit(8, key, member_id=joined.member_id, generation=joined.generation) == 0
    assert await stage.first.fetch(key) == 8, "what it tells is the store's word, not its own"


async def test_r1_one_who_lost_the_slot_without_noticing_begins_no_generation(stage: Stage) -> None:
    lease = await stage.first.lead()
    await stage.first.stable_member()
    await stage.take_over(lease)
    joining = asyncio.create_task(stage.first.join())
    await asyncio.sleep(0)
    stage.pass_time(10_000)  # the silent member is out, and the generation begins
    assert await code(joining) == 16
    assert stage.first.dropped == [SLOT]


async def test_r20_no_answer_once_the_lease_may_have_run_out(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    joined = await stage.first.stable_member()
    waiting = asyncio.create_task(stage.first.join())
    await asyncio.sleep(0)
    stage.first.guard.held = False
    assert await stage.first.heartbeat(joined.member_id, joined.generation) == 16
    late = stage.first.commit(5, key, member_id=joined.member_id, generation=joined.generation)
    assert await code(late) == 16
    assert await code(stage.first.groups.inspection.describe_classic(GROUP, caller=CALLER)) == 16
    stage.first.groups.slots.lost(SLOT)
    assert await code(waiting) == 16


async def test_r20_a_lease_that_ends_during_a_commit_ends_its_answer(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    commit_offsets = stage.first.store.commit_offsets

    async def then_expire(group_id: str, fence: SlotFence, offsets: list[OffsetCommit]) -> object:
        missing = await commit_offsets(group_id, fence, offsets)
        stage.first.guard.held = False
        return missing

    stage.first.store.commit_offsets = then_expire  # type: ignore[method-assign, assignment]
    assert await code(stage.first.commit(3, key)) == 16


async def test_handing_a_slot_over_sends_those_who_wait_on_and_saves_the_rest(stage: Stage) -> None:
    lease = await stage.first.lead()
    joined = await stage.first.stable_member()
    waiting = asyncio.create_task(stage.first.join())
    await asyncio.sleep(0)
    await stage.first.groups.slots.losing(SLOT)
    with pytest.raises(NotCoordinator):
        await waiting
    assert await stage.first.heartbeat(joined.member_id, joined.generation) == 16
    await stage.take_over(lease)
    assert await stage.second.heartbeat(joined.member_id, joined.generation) == 0


async def test_a_lost_slot_ends_every_wait(stage: Stage) -> None:
    await stage.first.lead()
    leader = await stage.first.stable_member()
    waiting = [asyncio.create_task(stage.first.join()) for _ in range(3)]
    await asyncio.sleep(0)
    stage.first.groups.slots.lost(SLOT)
    assert [await code(task) for task in waiting] == [16, 16, 16]
    assert stage.first.groups.registry.group_count == 0
    assert await stage.first.heartbeat(leader.member_id, leader.generation) == 16


@pytest.mark.parametrize("payload", [b"\x04\xc1 damaged", b"\x05 of a newer build"])
async def test_a_group_that_cannot_be_read_keeps_its_generation_and_offsets(stage: Stage, payload: bytes) -> None:
    key = (await stage.topic()).partition_keys()[0]
    lease = await stage.first.lead()
    joined = await stage.first.stable_member()
    assert await stage.first.commit(5, key, member_id=joined.member_id, generation=joined.generation) == 0
    await stage.first.store.save_group(
        GROUP, SlotFence(slot=SLOT, epoch=lease.epoch), generation=41, member_count=1, payload=payload
    )
    await stage.take_over(lease)
    assert await stage.second.heartbeat(joined.member_id, 41) == 25
    with pytest.raises(UnknownMember):
        await stage.second.commit(6, key, member_id=joined.member_id, generation=41)
    assert await stage.second.fetch(key) == 5
    assert (await stage.second.join()).generation == 42


async def test_members_expire_by_the_clock_alone(stage: Stage) -> None:
    await stage.first.lead()
    joined = await stage.first.stable_member()
    stage.pass_time(9_999)
    assert await stage.first.heartbeat(joined.member_id, joined.generation) == 0
    stage.pass_time(10_000)
    assert await stage.first.heartbeat(joined.member_id, joined.generation) == 25


async def test_a_member_has_its_whole_session_after_a_take_over(stage: Stage) -> None:
    lease = await stage.first.lead()
    joined = await stage.first.stable_member()
    stage.pass_time(9_000)
    await stage.take_over(lease)
    stage.pass_time(9_000)
    assert await stage.second.heartbeat(joined.member_id, joined.generation) == 0


async def test_made_up_groups_leave_nothing_behind(stage: Stage) -> None:
    await stage.first.lead()
    assert await code(stage.first.join(protocols=())) == 23
    assert await code(stage.first.join(known_id_required=True)) == 79
    assert stage.first.groups.registry.group_count == 1
    stage.pass_time(10_000)
    assert stage.first.groups.registry.group_count == 0


def _ref(member_id: str) -> MemberRef:
    return MemberRef(member_id=member_id)


async def _saved(stage: Stage) -> None:
    group = stage.first.groups.registry.find(GROUP)
    while group is not None and group.saving is not None:
        await asyncio.wait({group.saving})
