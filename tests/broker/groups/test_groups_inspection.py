"""Looking at groups, deleting them, and what happens unasked."""

from __future__ import annotations

import asyncio

import pytest
from group_stage import GROUP, Stage, code

from streamhouse.broker.groups.contract import GroupState, GroupType, MemberRef
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.metadata.contract import OffsetCommit, SlotKey


async def test_groups_are_listed_by_state_and_type(stage: Stage) -> None:
    await stage.first.lead()
    listing = stage.first.groups.inspection.list_groups
    assert await listing() == []
    await stage.first.stable_member()
    (group,) = await listing()
    assert (group.group_id, group.protocol_type, group.state, group.type) == (
        GROUP,
        "consumer",
        GroupState.STABLE,
        GroupType.CLASSIC,
    )
    assert await listing(states=["stable"], types=["Classic"]) == [group]
    assert await listing(states=["Empty"]) == []
    assert await listing(types=["consumer"]) == []


async def test_a_stable_group_is_described_with_its_assignment(stage: Stage) -> None:
    await stage.first.lead()
    joined = await stage.first.join()
    view = await stage.first.groups.inspection.describe_classic(GROUP)
    assert (view.state, view.protocol_name, view.members[0].metadata) == (GroupState.COMPLETING_REBALANCE, "", b"")
    await stage.first.sync(joined.member_id, 1, (joined.member_id, b"all"))
    view = await stage.first.groups.inspection.describe_classic(GROUP)
    (member,) = view.members
    assert (view.state, view.protocol_name, member.assignment) == (GroupState.STABLE, "range", b"all")
    assert (member.client_id, member.client_host) == ("c", "/h")


async def test_describing_the_other_kind_or_nothing(stage: Stage) -> None:
    await stage.topic()
    await stage.first.lead()
    inspection = stage.first.groups.inspection
    assert await code(inspection.describe_classic(GROUP)) == 69
    assert await code(inspection.describe_consumer(GROUP)) == 69
    await stage.first.consumer("m", 0)
    assert await code(inspection.describe_classic(GROUP)) == 69
    assert (await inspection.describe_consumer(GROUP)).state is GroupState.STABLE
    await stage.first.consumer("m", -1)
    await stage.first.stable_member()
    assert await code(inspection.describe_consumer(GROUP)) == 69


async def test_a_group_goes_with_its_offsets_once_it_is_empty(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    delete = stage.first.groups.inspection.delete
    assert await code(delete(GROUP)) == 69
    joined = await stage.first.stable_member()
    assert await stage.first.commit(5, key, member_id=joined.member_id, generation=1) == 0
    assert await code(delete(GROUP)) == 68
    await stage.first.groups.members.leave(GROUP, [MemberRef(member_id=joined.member_id)])
    assert await code(delete(GROUP)) == 0
    assert await stage.first.fetch(key) == -1
    assert await stage.first.groups.inspection.list_groups() == []
    assert await code(delete(GROUP)) == 69


async def test_groups_of_simple_commits_are_seen_and_deleted(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    stage.first.groups.start()
    await asyncio.sleep(0)
    await stage.second.store.commit_offsets_simple(GROUP, [OffsetCommit(key=key, offset=3)])
    assert (await stage.first.groups.inspection.describe_classic(GROUP)).state is GroupState.EMPTY
    for _ in range(1_000):  # the notice comes from another process
        if await stage.first.groups.inspection.list_groups():
            break
        await asyncio.sleep(0.01)
    assert [group.group_id for group in await stage.first.groups.inspection.list_groups()] == [GROUP]
    assert await stage.first.fetch(key) == 3
    assert await code(stage.first.groups.inspection.delete(GROUP)) == 0


async def test_an_empty_group_changes_its_kind_and_never_its_generation_back(stage: Stage) -> None:
    await stage.topic()
    lease = await stage.first.lead()
    joined = await stage.first.stable_member()
    assert await code(stage.first.consumer("m", 0)) == 69  # an assignment that only its leader understands
    await stage.first.groups.members.leave(GROUP, [MemberRef(member_id=joined.member_id)])
    epoch = (await stage.first.consumer("m", 0)).member_epoch
    assert epoch > joined.generation + 1
    await stage.take_over(lease)
    assert (await stage.second.consumer("m", epoch)).assignment is None
    await stage.second.consumer("m", -1)
    assert (await stage.second.join()).generation > epoch


async def test_consumer_members_go_on_after_a_take_over(stage: Stage) -> None:
    topic = await stage.topic()
    lease = await stage.first.lead()
    first = await stage.first.consumer("m", 0)
    assert first.assignment == frozenset(topic.partition_keys())
    await stage.take_over(lease)
    assert (await stage.second.consumer("m", first.member_epoch)).member_epoch == first.member_epoch
    assert await code(stage.second.consumer("stranger", 3)) == 25


async def test_a_topic_that_grows_or_comes_is_noticed(stage: Stage) -> None:
    topic = await stage.topic()
    await stage.first.lead()
    epoch = (await stage.first.consumer("m", 0, topic_names=None, topic_pattern="^(orders|new).*")).member_epoch
    grown = await stage.first.store.grow_topic(topic.topic_id, 5)
    new = await stage.topic("new-orders", 1)
    await stage.first.groups.housekeeping.look_at_topics()
    told = await stage.first.consumer("m", epoch)
    assert told.assignment == frozenset(grown.partition_keys() + new.partition_keys())


async def test_an_unknown_consumer_group_is_not_there(stage: Stage) -> None:
    await stage.first.lead()
    assert await code(stage.first.consumer("m", 4)) == 69
    assert await code(stage.first.consumer("m", 0, topic_pattern="(")) == 128
    joined = await stage.first.stable_member()
    assert await code(stage.first.consumer("m", 4)) == 25, "69 is fatal to clients; it joins again"
    await stage.first.groups.members.leave(GROUP, [MemberRef(member_id=joined.member_id)])
    assert await code(stage.first.consumer("m", 4)) == 69


async def test_an_operator_removes_members_of_either_kind(stage: Stage) -> None:
    await stage.topic()
    await stage.first.lead()
    await stage.first.consumer("m", 0)
    refs = [MemberRef(member_id="m"), MemberRef(member_id="x")]
    outcomes = await stage.first.groups.members.leave(GROUP, refs)
    assert [outcome.error and outcome.error.kafka_code for outcome in outcomes] == [None, 25]
    await stage.first.groups.inspection.delete(GROUP)
    outcomes = await stage.first.groups.members.leave(GROUP, refs)
    assert [outcome.error and outcome.error.kafka_code for outcome in outcomes] == [25, 25]


class TestExpiry:
    @pytest.fixture
    def group_options(self) -> GroupOptions:
        return GroupOptions(offsets_retention_ms=0)

    async def test_groups_empty_for_long_go_with_their_offsets(self, stage: Stage) -> None:
        key = (await stage.topic()).partition_keys()[0]
        await stage.first.lead()
        await stage.first.lead(SlotKey(0))
        assert await stage.first.commit(5, key) == 0
        await stage.first.groups.housekeeping.expire()
        assert await stage.first.fetch(key) == -1
        assert stage.first.groups.registry.group_count == 0

    async def test_groups_with_members_stay(self, stage: Stage) -> None:
        key = (await stage.topic()).partition_keys()[0]
        await stage.first.lead()
        await stage.first.lead(SlotKey(0))
        joined = await stage.first.stable_member()
        assert await stage.first.commit(5, key, member_id=joined.member_id, generation=1) == 0
        await stage.first.groups.housekeeping.expire()
        assert await stage.first.fetch(key) == 5

    async def test_one_agent_expires_and_the_others_forget(self, stage: Stage) -> None:
        key = (await stage.topic()).partition_keys()[0]
        await stage.first.lead()
        await stage.second.lead(SlotKey(0))
        assert await stage.first.commit(5, key) == 0
        await stage.first.groups.housekeeping.expire()
        assert await stage.first.fetch(key) == 5
        await stage.second.groups.housekeeping.expire()
        await stage.first.groups.housekeeping.expire()
        assert await stage.first.fetch(key) == -1
        assert stage.first.groups.registry.group_count == 0
