"""Groups that change their protocol, on a real store: what is saved, committed and taken over."""

from __future__ import annotations

from group_stage import CALLER, GROUP, Agent, Stage, code

from streamhouse.broker.groups.consumer_protocol import read_assignment, write_assignment
from streamhouse.broker.groups.contract import GroupState, JoinResult, MemberRef
from streamhouse.core.ids import PartitionKey


async def classic_member(agent: Agent, *partitions: int) -> JoinResult:
    """A group with one member of the classic protocol, which reads these partitions."""
    joined = await agent.join()
    mine = write_assignment(0, [("orders", partition) for partition in partitions])
    await agent.sync(joined.member_id, joined.generation, (joined.member_id, mine))
    return joined


async def catch_up(agent: Agent, member_id: str) -> tuple[int, set[int]]:
    """A classic member joins again. Returns its generation and its partitions."""
    joined = await agent.join(member_id)
    synced = await agent.sync(joined.member_id, joined.generation)
    return joined.generation, {partition for _, partition in read_assignment(synced.assignment).partitions}


def partitions(keys: frozenset[PartitionKey] | None) -> set[int]:
    return {key.partition for key in keys or ()}


async def test_an_upgrade_and_a_downgrade_with_a_take_over_in_each(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    lease = await stage.first.lead()
    old = await classic_member(stage.first, 0, 1, 2, 3)
    assert await stage.first.commit(5, key, member_id=old.member_id, generation=old.generation) == 0

    joined = await stage.first.consumer("new", 0)
    assert partitions(joined.assignment) == set()  # the classic member still reads everything
    lease = await stage.take_over(lease)
    agent = stage.second
    assert await agent.fetch(key) == 5
    assert await agent.heartbeat(old.member_id, old.generation) == 27
    assert await agent.commit(6, key, member_id=old.member_id, generation=old.generation) == 0

    generation, kept = await catch_up(agent, old.member_id)
    assert generation > old.generation
    assert len(kept) == 2
    given = await agent.consumer("new", joined.member_epoch)
    assert partitions(given.assignment) == {0, 1, 2, 3} - kept
    assert await code(agent.commit(7, key, member_id=old.member_id, generation=old.generation)) == 22
    assert await agent.commit(7, key, member_id=old.member_id, generation=generation) == 0
    described = await agent.groups.inspection.describe_consumer(GROUP, caller=CALLER)
    assert {member.member_id: member.is_classic for member in described.members} == {"new": False, old.member_id: True}

    await agent.consumer("new", -1)
    assert await code(agent.groups.inspection.describe_consumer(GROUP, caller=CALLER)) == 69
    assert (
        await agent.groups.inspection.describe_classic(GROUP, caller=CALLER)
    ).state is GroupState.PREPARING_REBALANCE
    assert await agent.commit(8, key, member_id=old.member_id, generation=generation) == 0

    await agent.release(lease)
    await stage.first.lead()
    assert await stage.first.heartbeat(old.member_id, generation) == 27
    assert await stage.first.fetch(key) == 8
    last = await stage.first.join(old.member_id)
    assert last.generation > generation
    assert last.leader == old.member_id


async def test_a_classic_member_that_joins_a_consumer_group_is_in_it_after_a_take_over(stage: Stage) -> None:
    await stage.topic()
    lease = await stage.first.lead()
    first = await stage.first.consumer("new", 0)
    joined = await stage.first.join()
    assert joined.leader == ""
    await stage.take_over(lease)
    assert await stage.second.heartbeat(joined.member_id, joined.generation) == 0
    told = await stage.second.consumer("new", first.member_epoch)
    assert len(partitions(told.assignment)) == 2
    outcomes = await stage.second.groups.members.leave(GROUP, [MemberRef(member_id=joined.member_id)], caller=CALLER)
    assert [outcome.error for outcome in outcomes] == [None]
    assert await stage.second.heartbeat(joined.member_id, joined.generation) == 25


async def test_a_topic_that_was_just_created_counts_for_a_classic_member(stage: Stage) -> None:
    await stage.topic()
    await stage.first.lead()
    await stage.first.consumer("new", 0)
    await stage.topic("bills", 2)
    stage.pass_time(1_000)
    subscription = b"\0\0\0\0\0\1\0\5bills\0\0\0\0"
    joined = await stage.first.join(protocols=(("range", subscription),))
    synced = await stage.first.sync(joined.member_id, joined.generation)
    assert read_assignment(synced.assignment).partitions == (("bills", 0), ("bills", 1))


async def test_a_member_that_the_group_no_longer_has_is_told_to_join_again(stage: Stage) -> None:
    await stage.topic()
    await stage.first.lead()
    await classic_member(stage.first, 0, 1, 2, 3)
    assert await code(stage.first.consumer("gone", 7)) == 25
    assert await code(stage.first.consumer("gone", -1)) == 25


async def test_a_group_of_another_protocol_type_is_not_converted(stage: Stage) -> None:
    await stage.topic()
    await stage.first.lead()
    joined = await stage.first.join(protocol_type="connect")
    assert await code(stage.first.consumer("new", 0)) == 69
    assert await stage.first.heartbeat(joined.member_id, joined.generation) == 0


async def test_an_empty_group_changes_its_kind_and_never_its_generation_back(stage: Stage) -> None:
    await stage.topic()
    lease = await stage.first.lead()
    joined = await stage.first.stable_member()
    assert await code(stage.first.consumer("m", 0)) == 69  # an assignment that only its leader understands
    await stage.first.groups.members.leave(GROUP, [MemberRef(member_id=joined.member_id)], caller=CALLER)
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


async def test_an_unknown_consumer_group_is_not_there(stage: Stage) -> None:
    await stage.first.lead()
    assert await code(stage.first.consumer("m", 4)) == 69
    assert await code(stage.first.consumer("m", 0, topic_pattern="(")) == 128
    joined = await stage.first.stable_member()
    assert await code(stage.first.consumer("m", 4)) == 25, "69 is fatal to clients; it joins again"
    await stage.first.groups.members.leave(GROUP, [MemberRef(member_id=joined.member_id)], caller=CALLER)
    assert await code(stage.first.consumer("m", 4)) == 69


async def test_an_operator_removes_members_of_either_kind(stage: Stage) -> None:
    await stage.topic()
    await stage.first.lead()
    await stage.first.consumer("m", 0)
    refs = [MemberRef(member_id="m"), MemberRef(member_id="x")]
    outcomes = await stage.first.groups.members.leave(GROUP, refs, caller=CALLER)
    assert [outcome.error and outcome.error.kafka_code for outcome in outcomes] == [None, 25]
    await stage.first.groups.inspection.delete(GROUP, caller=CALLER)
    outcomes = await stage.first.groups.members.leave(GROUP, refs, caller=CALLER)
    assert [outcome.error and outcome.error.kafka_code for outcome in outcomes] == [25, 25]
