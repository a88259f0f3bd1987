"""Committed offsets on a real store."""

from __future__ import annotations

import asyncio

import pytest
from group_stage import CALLER, GROUP, SLOT, Stage, code, soon

from streamhouse.broker.groups.contract import MemberRef
from streamhouse.broker.groups.offsets import CommitRequest
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import OffsetCommit, SlotFence


async def test_a_commit_is_read_back_with_epoch_and_metadata(stage: Stage) -> None:
    first, second = (await stage.topic()).partition_keys()[:2]
    await stage.first.lead()
    commit = OffsetCommit(key=first, offset=5, leader_epoch=3, metadata="here")
    assert await stage.first.commit_all([commit]) == {first: None}
    found = await stage.first.groups.offsets.fetch(GROUP, keys=[first, second], caller=CALLER)
    assert (found[first].offset, found[first].leader_epoch, found[first].metadata) == (5, 3, "here")
    assert second not in found
    assert list(await stage.first.groups.offsets.fetch(GROUP, keys=None, caller=CALLER)) == [first]


async def test_each_partition_has_its_own_error(stage: Stage) -> None:
    topic = await stage.topic()
    good, long, broken, _ = topic.partition_keys()
    missing = PartitionKey(TopicId(stage.uuid()), 0)
    await stage.first.lead()
    outcomes = await stage.first.commit_all(
        [
            OffsetCommit(key=good, offset=1),
            OffsetCommit(key=long, offset=1, metadata="x" * 4_097),
            OffsetCommit(key=broken, offset=1, metadata="\ud800"),
            OffsetCommit(key=missing, offset=1),
        ]
    )
    codes = {key: 0 if error is None else error.kafka_code for key, error in outcomes.items()}
    assert codes == {good: 0, long: 12, broken: 42, missing: 3}
    assert await stage.first.fetch(good) == 1


async def test_only_members_of_this_generation_commit(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    joined = await stage.first.join()
    assert await code(stage.first.commit(1, key, member_id=joined.member_id, generation=1)) == 27
    await stage.first.sync(joined.member_id, 1)
    assert await stage.first.commit(1, key, member_id=joined.member_id, generation=1) == 0
    assert await code(stage.first.commit(2, key, member_id=joined.member_id, generation=2)) == 22
    assert await code(stage.first.commit(2, key, member_id="stranger", generation=1)) == 25
    assert await code(stage.first.commit(2, key)) == 25
    assert await stage.first.fetch(key) == 1


async def test_a_group_nobody_knows(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    assert await stage.first.fetch(key) == -1
    assert await code(stage.first.commit(1, key, member_id="m", generation=1)) == 69
    older = CommitRequest(group_id=GROUP, member_id="m", instance_id=None, generation=1, offsets=[], knows_epochs=False)
    assert await code(stage.first.groups.offsets.commit(older, caller=CALLER)) == 22
    assert await stage.first.commit(1, key) == 0  # without membership: any client may begin one


async def test_who_takes_a_partition_over_sees_what_was_committed_before(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    began, go_on = asyncio.Event(), asyncio.Event()
    commit_offsets = stage.first.store.commit_offsets

    async def slowly(group_id: str, fence: SlotFence, offsets: list[OffsetCommit]) -> list[PartitionKey]:
        began.set()
        await go_on.wait()
        return await commit_offsets(group_id, fence, offsets)

    stage.first.store.commit_offsets = slowly  # type: ignore[method-assign, assignment]
    committing = asyncio.create_task(stage.first.commit(8, key))
    await began.wait()
    fetching = asyncio.create_task(stage.first.fetch(key))
    await asyncio.sleep(0)
    go_on.set()
    assert await committing == 0
    assert await soon(fetching) == 8


async def test_a_commit_that_waited_behind_a_rebalance_is_judged_by_what_is_then(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    joined = await stage.first.stable_member()
    group = stage.first.groups.registry.find(GROUP)
    assert group is not None
    async with group.offsets_lock:
        late = asyncio.create_task(stage.first.commit(3, key, member_id=joined.member_id, generation=1))
        await asyncio.sleep(0)
        await stage.first.groups.members.leave(GROUP, [MemberRef(member_id=joined.member_id)], caller=CALLER)
    assert await code(late) == 25
    assert await stage.first.fetch(key) == -1


async def test_offsets_of_topics_that_are_read_stay(stage: Stage) -> None:
    orders, bills = await stage.topic("orders"), await stage.topic("bills")
    read, unread = orders.partition_keys()[0], bills.partition_keys()[0]
    await stage.first.lead()
    joined = await stage.first.stable_member()
    for key in (read, unread):
        assert await stage.first.commit(4, key, member_id=joined.member_id, generation=1) == 0
    outcomes = await stage.first.groups.offsets.delete(GROUP, {read: "orders", unread: "bills"}, caller=CALLER)
    assert {key: error and error.kafka_code for key, error in outcomes.items()} == {read: 86, unread: None}
    assert await stage.first.fetch(read) == 4
    assert await stage.first.fetch(unread) == -1


async def test_deleting_offsets_of_other_groups(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    assert await code(stage.first.groups.offsets.delete(GROUP, {key: "orders"}, caller=CALLER)) == 69
    assert await code(stage.first.join(protocol_type="connect")) == 0
    assert await code(stage.first.groups.offsets.delete(GROUP, {key: "orders"}, caller=CALLER)) == 68


async def test_consumer_members_commit_and_fetch_with_their_epoch(stage: Stage) -> None:
    key = (await stage.topic()).partition_keys()[0]
    await stage.first.lead()
    epoch = (await stage.first.consumer("m", 0)).member_epoch
    assert await stage.first.commit(6, key, member_id="m", generation=epoch) == 0
    assert await code(stage.first.commit(6, key, member_id="m", generation=epoch + 1)) == 113
    fetch = stage.first.groups.offsets.fetch
    assert (await fetch(GROUP, keys=[key], member_id="m", member_epoch=epoch, caller=CALLER))[key].offset == 6
    assert await code(fetch(GROUP, keys=[key], member_id="m", member_epoch=epoch + 1, caller=CALLER)) == 113
    assert await code(fetch(GROUP, keys=[key], member_id="x", member_epoch=epoch, caller=CALLER)) == 25
    assert (await fetch(GROUP, keys=[key], caller=CALLER))[key].offset == 6
    outcomes = await stage.first.groups.offsets.delete(GROUP, {key: "orders"}, caller=CALLER)
    assert outcomes[key] is not None
    older = CommitRequest(group_id=GROUP, member_id="m", instance_id=None, generation=9, offsets=[], knows_epochs=False)
    assert await code(stage.first.groups.offsets.commit(older, caller=CALLER)) == 22


@pytest.mark.parametrize("group", ["x" * 1_025, "a\0b"])
async def test_group_ids_that_are_none(stage: Stage, group: str) -> None:
    await stage.first.lead()
    assert await code(stage.first.join(group=group)) == 24


class TestSlowStore:
    @pytest.fixture
    def slot_options(self) -> dict[str, int]:
        return {"store_timeout_ms": 50}

    async def test_a_slow_store_is_said_to_be_one(self, stage: Stage) -> None:
        await stage.first.lead()

        async def for_ever(*args: object) -> object:
            return await asyncio.Event().wait()

        stage.first.store.fetch_offsets = for_ever  # type: ignore[method-assign, assignment]
        assert await code(stage.first.groups.offsets.fetch(GROUP, keys=None, caller=CALLER)) == 14, (
            "librdkafka does not repeat a 15"
        )
        assert stage.first.slots.get(SLOT) is not None
