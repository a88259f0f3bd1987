"""Looking at groups, deleting them, and what happens unasked."""

from __future__ import annotations

import asyncio

from group_stage import CALLER, GROUP, Stage, code

from streamhouse.broker.groups.contract import GroupState, GroupType, MemberRef
from streamhouse.metadata.contract import OffsetCommit


async def test_groups_are_listed_by_state_and_type(stage: Stage) -> None:
    await stage.first.lead()
    listing = stage.first.groups.inspection.list_groups
    assert await listing(caller=CALLER) == []
    await stage.first.stable_member()
    (group,) = await listing(caller=CALLER)
    assert (group.group_id, group.protocol_type, group.state, group.type) == (
        GROUP,
        "consumer",
        GroupState.STABLE,
        GroupType.CLASSIC,
    )
    assert await listing(states=["stable"], types=["Classic"], caller=CALLER) == [group]
    assert await listing(states=["Empty"], caller=CALLER) == []
    assert await listing(types=["consumer"], caller=CALLER) == []


async def test_a_stable_group_is_described_with_its_assignment(stage: Stage) -> None:
    await stage.first.lead()
    joined = await stage.first.join()
    view = await stage.first.groups.inspection.describe_classic(GROUP, caller=CALLER)
    assert (view.state, view.protocol_name, view.members[0].metadata) == (GroupState.COMPLETING_REBALANCE, "", b"")
    await stage.first.sync(joined.member_id, 1, (joined.member_id, b"all"))
    view = await stage.first.groups.inspection.describe_classic(GROUP, caller=CALLER)
    (member,) = view.members
    assert (view.state, view.protocol_name, member.assignment) == (GroupState.STABLE, "range", b"all")
    assert (member.client_id, member.client_host) == ("c", "/h")


async def test_describing_the_other_kind_or_nothing(stage: Stage) -> None:
    await stage.topic()
    await stage.first.lead()
    inspection = stage.first.groups.inspection
    assert await code(inspection.describe_classic(GROUP, caller=CALLER)) == 69
    assert await code(inspection.describe_consumer(GROUP, caller=CALLER)) == 69
    await stage.first.consumer("m", 0)
    assert await code(inspection.describe_classic(GROUP, caller=CALLER)) == 69
    assert (await inspection.describe_consumer(GROUP, caller=CALLER)).state is GroupState.STABLE
    await stage.first.consumer("m", -1)
    await stage.first.stable_member()
    assert await code(inspection.describe_consumer(GROUP, caller=CALLER)) == 69


async def test_a_group_goes_with_its_offsets_once_it_is_empty(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    delete = stage.first.groups.inspection.delete
    assert await code(delete(GROUP, caller=CALLER)) == 69
    joined = await stage.first.stable_member()
    assert await stage.first.commit(5, key, member_id=joined.member_id, generation=1) == 0
    assert await code(delete(GROUP, caller=CALLER)) == 68
    await stage.first.groups.members.leave(GROUP, [MemberRef(member_id=joined.member_id)], caller=CALLER)
    assert await code(delete(GROUP, caller=CALLER)) == 0
    assert await stage.first.fetch(key) == -1
    assert await stage.first.groups.inspection.list_groups(caller=CALLER) == []
    assert await code(delete(GROUP, caller=CALLER)) == 69


async def test_groups_of_simple_commits_are_seen_and_deleted(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    stage.first.groups.start()
    await asyncio.sleep(0)
    await stage.second.store.commit_offsets_simple(GROUP, [OffsetCommit(key=key, offset=3)])
    assert (await stage.first.groups.inspection.describe_classic(GROUP, caller=CALLER)).state is GroupState.EMPTY
    for _ in range(1_000):  # the notice comes from another process
        if await stage.first.groups.inspection.list_groups(caller=CALLER):
            break
        await asyncio.sleep(0.01)
    assert [group.group_id for group in await stage.first.groups.inspection.list_groups(caller=CALLER)] == [GROUP]
    assert await stage.first.fetch(key) == 3
    assert await code(stage.first.groups.inspection.delete(GROUP, caller=CALLER)) == 0
