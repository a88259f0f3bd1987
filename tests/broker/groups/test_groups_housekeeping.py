"""The periodic work of a coordinator, on a real store."""

from __future__ import annotations

import pytest
from group_stage import Stage

from streamhouse.broker.groups.options import GroupOptions
from streamhouse.metadata.contract import SlotKey


async def test_a_topic_that_grows_or_comes_is_noticed(stage: Stage) -> None:
    topic = await stage.topic()
    await stage.first.lead()
    epoch = (await stage.first.consumer("m", 0, topic_names=None, topic_pattern="^(orders|new).*")).member_epoch
    grown = await stage.first.store.grow_topic(topic.topic_id, 5)
    new = await stage.topic("new-orders", 1)
    await stage.first.groups.housekeeping.look_at_topics()
    told = await stage.first.consumer("m", epoch)
    assert told.assignment == frozenset(grown.partition_keys() + new.partition_keys())


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
