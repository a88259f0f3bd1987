"""Consumer groups and committed offsets, fenced by their slot's epoch (R1), and the simple commit."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from builders import TTL_MS
from harness import Backend

from streamhouse.core.errors import (
    Conflict,
    GroupNotEmpty,
    GroupNotFound,
    InvalidRequest,
    LimitExceeded,
    StaleEpoch,
)
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import (
    COORDINATOR_SLOTS,
    MAX_GROUP_ID_BYTES,
    MAX_GROUP_STATE_BYTES,
    MAX_OFFSET_METADATA_BYTES,
)
from streamhouse.metadata.contract import CommittedOffset, Group, OffsetCommit, SlotFence, SlotKey, slot_of

GROUP = "payments"


async def coordinate(backend: Backend, group_id: str = GROUP, agent_id: str = "agent-1") -> SlotFence:
    """The fence of an agent that holds the group's slot."""
    slot = slot_of(group_id)
    lease = await backend.lead(slot, backend.holder(agent_id))
    return SlotFence(slot=slot, epoch=lease.epoch)


async def save(
    backend: Backend, fence: SlotFence, *, generation: int = 1, members: int = 1, payload: bytes = b"state"
) -> Group:
    return await backend.store.save_group(GROUP, fence, generation=generation, member_count=members, payload=payload)


def test_slots_are_the_same_in_every_process_and_spread() -> None:
    assert slot_of("payments") == slot_of("payments")
    slots = {slot_of(f"group-{turn}").slot for turn in range(2000)}
    assert slots == set(range(COORDINATOR_SLOTS))


# The group's own state.


async def test_a_saved_group_is_read_back_by_every_process(backend: Backend) -> None:
    fence = await coordinate(backend)
    payload = bytes(range(256))
    saved = await save(backend, fence, generation=3, members=2, payload=payload)
    assert (saved.group_id, saved.slot, saved.slot_epoch) == (GROUP, fence.slot, fence.epoch)
    assert (saved.generation, saved.member_count, saved.payload) == (3, 2, payload)
    assert (saved.updated_at_ms, saved.empty_since_ms, saved.offsets_version) == (backend.now_ms, None, 0)
    other = await backend.open_another()
    assert await other.get_group(GROUP) == saved


async def test_saving_again_replaces_and_may_be_repeated(backend: Backend) -> None:
    fence = await coordinate(backend)
    await save(backend, fence, generation=1)
    second = await save(backend, fence, generation=2, members=5, payload=b"new")
    assert await save(backend, fence, generation=2, members=5, payload=b"new") == second
    assert await backend.store.get_group(GROUP) == second


async def test_a_lower_generation_is_a_conflict(backend: Backend) -> None:
    fence = await coordinate(backend)
    saved = await save(backend, fence, generation=5)
    with pytest.raises(Conflict) as caught:
        await save(backend, fence, generation=4)
    assert not isinstance(caught.value, StaleEpoch)
    assert await backend.store.get_group(GROUP) == saved


async def test_a_group_of_fewer_than_no_members_or_generations_is_refused(backend: Backend) -> None:
    fence = await coordinate(backend)
    for generation, members in ((-1, 0), (0, -1), (-(2**31), 1)):
        with pytest.raises(InvalidRequest):
            await save(backend, fence, generation=generation, members=members)
    assert await backend.store.list_groups() == []
    assert (await save(backend, fence, generation=0, members=0)).generation == 0


async def test_an_unknown_group(backend: Backend) -> None:
    with pytest.raises(GroupNotFound):
        await backend.store.get_group("nobody")
    assert await backend.store.fetch_offsets("nobody") == {}
    assert await backend.store.list_groups() == []


async def test_groups_are_listed_by_id_and_by_slot(backend: Backend) -> None:
    key = await backend.partition()
    names = [f"group-{turn}" for turn in range(8)]
    for name in reversed(names):
        await backend.store.commit_offsets_simple(name, [OffsetCommit(key=key, offset=1)])
    everything = [group.group_id for group in await backend.store.list_groups()]
    assert everything == sorted(names)
    slot = slot_of(names[0])
    mine = [group.group_id for group in await backend.store.list_groups(slot)]
    assert mine == [name for name in names if slot_of(name) == slot]


async def test_empty_since_tells_how_long_it_has_had_no_members(backend: Backend) -> None:
    fence = await coordinate(backend)
    await save(backend, fence, generation=1, members=1)
    await backend.advance(10)
    emptied = await save(backend, fence, generation=2, members=0)
    assert emptied.empty_since_ms == backend.now_ms
    await backend.advance(10)
    still = await save(backend, fence, generation=3, members=0)
    assert still.empty_since_ms == backend.now_ms - 10
    joined = await save(backend, fence, generation=4, members=1)
    assert joined.empty_since_ms is None


async def test_deleting_a_group_takes_its_offsets(backend: Backend) -> None:
    key = await backend.partition()
    fence = await coordinate(backend)
    await save(backend, fence, members=0)
    await backend.store.commit_offsets(GROUP, fence, [OffsetCommit(key=key, offset=5)])
    assert await backend.store.delete_group(GROUP, fence) is True
    assert await backend.store.delete_group(GROUP, fence) is False
    with pytest.raises(GroupNotFound):
        await backend.store.get_group(GROUP)
    assert await backend.store.fetch_offsets(GROUP) == {}


async def test_a_group_with_members_is_not_deleted(backend: Backend) -> None:
    fence = await coordinate(backend)
    saved = await save(backend, fence, members=1)
    with pytest.raises(GroupNotEmpty):
        await backend.store.delete_group(GROUP, fence)
    assert await backend.store.get_group(GROUP) == saved


# The fence.


async def test_r1_a_coordinator_that_lost_its_slot_writes_nothing(backend: Backend) -> None:
    key = await backend.partition()
    old = await coordinate(backend, agent_id="agent-1")
    saved = await save(backend, old, generation=1, members=0)
    await backend.store.commit_offsets(GROUP, old, [OffsetCommit(key=key, offset=1)])
    before = await backend.store.get_group(GROUP)
    await backend.advance(TTL_MS)
    new = await coordinate(backend, agent_id="agent-2")
    assert new.epoch == old.epoch + 1
    for fence in (old, dataclasses.replace(new, epoch=new.epoch + 1)):
        with pytest.raises(StaleEpoch) as caught:
            await save(backend, fence, generation=9)
        assert (caught.value.expected, caught.value.actual) == (fence.epoch, new.epoch)
        with pytest.raises(StaleEpoch):
            await backend.store.commit_offsets(GROUP, fence, [OffsetCommit(key=key, offset=9)])
        with pytest.raises(StaleEpoch):
            await backend.store.delete_offsets(GROUP, fence, [key])
        with pytest.raises(StaleEpoch):
            await backend.store.delete_group(GROUP, fence)
    assert await backend.store.get_group(GROUP) == before
    assert (await backend.store.fetch_offsets(GROUP))[key].offset == 1
    taken = await save(backend, new, generation=2)
    assert (saved.slot_epoch, taken.slot_epoch) == (old.epoch, new.epoch)


async def test_r1_a_released_slot_fences_once_it_is_taken(backend: Backend) -> None:
    """An expired lease that no agent took still writes; the epoch decides, not the clock."""
    fence = await coordinate(backend)
    await backend.advance(10 * TTL_MS)
    await save(backend, fence)
    await coordinate(backend, agent_id="agent-2")
    with pytest.raises(StaleEpoch):
        await save(backend, fence)


async def test_r1_of_racing_take_over_and_commit_the_offsets_are_never_half_written(backend: Backend) -> None:
    topic = await backend.topic(partitions=10)
    other = await backend.open_another()
    for turn in range(1, 9):
        fence = await coordinate(backend, agent_id=f"old-{turn}")
        await backend.advance(TTL_MS)
        commits = [OffsetCommit(key=key, offset=turn) for key in topic.partition_keys()]
        taken, written = await asyncio.gather(
            other.acquire_leases(backend.holder(f"new-{turn}"), [fence.slot], ttl_ms=TTL_MS),
            backend.store.commit_offsets(GROUP, fence, commits),
            return_exceptions=True,
        )
        assert not isinstance(taken, BaseException)
        found = {one.offset for one in (await backend.store.fetch_offsets(GROUP)).values()}
        if isinstance(written, StaleEpoch):
            assert turn not in found
        else:
            assert written == []
            assert found == {turn}
        await backend.advance(TTL_MS)


async def test_r1_a_fence_that_nobody_could_fence_off_is_refused(backend: Backend) -> None:
    """Another slot than the group's own, or the epoch 0 of a slot that was never taken."""
    key = await backend.partition()
    wrong = SlotKey((slot_of(GROUP).slot + 1) % COORDINATOR_SLOTS)
    lease = await backend.lead(wrong)
    for fence in (SlotFence(slot=wrong, epoch=lease.epoch), SlotFence(slot=slot_of(GROUP), epoch=0)):
        with pytest.raises(InvalidRequest):
            await save(backend, fence)
        with pytest.raises(InvalidRequest):
            await backend.store.commit_offsets(GROUP, fence, [OffsetCommit(key=key, offset=1)])
        with pytest.raises(InvalidRequest):
            await backend.store.delete_group(GROUP, fence)
        with pytest.raises(InvalidRequest):
            await backend.store.delete_offsets(GROUP, fence, [key])


# Offsets.


async def test_committed_offsets_are_read_back(backend: Backend) -> None:
    topic = await backend.topic(partitions=3)
    one, two, three = topic.partition_keys()
    fence = await coordinate(backend)
    commits = [
        OffsetCommit(key=two, offset=7, leader_epoch=4, metadata="naïve"),
        OffsetCommit(key=one, offset=2**63 - 1),
    ]
    assert await backend.store.commit_offsets(GROUP, fence, commits) == []
    found = await backend.store.fetch_offsets(GROUP)
    assert found[two] == CommittedOffset(
        key=two, offset=7, leader_epoch=4, metadata="naïve", committed_at_ms=backend.now_ms
    )
    assert (found[one].offset, found[one].leader_epoch, found[one].metadata) == (2**63 - 1, -1, "")
    assert await backend.store.fetch_offsets(GROUP, [two, three]) == {two: found[two]}
    assert await backend.store.fetch_offsets(GROUP, []) == {}
    assert await backend.store.fetch_offsets("other") == {}


async def test_a_commit_replaces_even_with_a_lower_offset(backend: Backend) -> None:
    key = await backend.partition()
    fence = await coordinate(backend)
    for offset in (10, 3):
        await backend.store.commit_offsets(GROUP, fence, [OffsetCommit(key=key, offset=offset)])
    assert (await backend.store.fetch_offsets(GROUP))[key].offset == 3


async def test_a_commit_creates_the_group_and_repeats_safely(backend: Backend) -> None:
    key = await backend.partition()
    fence = await coordinate(backend)
    for _ in range(2):
        assert await backend.store.commit_offsets(GROUP, fence, [OffsetCommit(key=key, offset=5)]) == []
    group = await backend.store.get_group(GROUP)
    assert (group.slot, group.slot_epoch, group.member_count) == (fence.slot, fence.epoch, 0)
    assert (await backend.store.fetch_offsets(GROUP))[key].offset == 5


async def test_offsets_of_missing_partitions_are_named_and_the_rest_written(backend: Backend) -> None:
    key = await backend.partition()
    missing = [PartitionKey(key.topic_id, 9), PartitionKey(TopicId(backend.uuid()), 0)]
    fence = await coordinate(backend)
    commits = [OffsetCommit(key=one, offset=5) for one in (missing[0], key, missing[1])]
    assert set(await backend.store.commit_offsets(GROUP, fence, commits)) == set(missing)
    assert set(await backend.store.commit_offsets_simple("simple", commits)) == set(missing)
    for group_id in (GROUP, "simple"):
        assert set(await backend.store.fetch_offsets(group_id)) == {key}


async def test_the_offsets_version_grows_with_every_change_by_anybody(backend: Backend) -> None:
    key = await backend.partition()
    fence = await coordinate(backend)
    versions = [(await save(backend, fence, members=0)).offsets_version]

    async def note() -> None:
        versions.append((await backend.store.get_group(GROUP)).offsets_version)

    await backend.store.commit_offsets(GROUP, fence, [OffsetCommit(key=key, offset=1)])
    await note()
    await backend.store.commit_offsets_simple(GROUP, [OffsetCommit(key=key, offset=2)])
    await note()
    await backend.store.delete_offsets(GROUP, fence, [key])
    await note()
    assert versions == sorted(set(versions))
    assert (await save(backend, fence, generation=2)).offsets_version == versions[-1]


async def test_deleting_offsets_names_those_that_were_there(backend: Backend) -> None:
    topic = await backend.topic(partitions=3)
    one, two, three = topic.partition_keys()
    fence = await coordinate(backend)
    with pytest.raises(GroupNotFound):
        await backend.store.delete_offsets(GROUP, fence, [one])
    await backend.store.commit_offsets(GROUP, fence, [OffsetCommit(key=key, offset=1) for key in (one, two)])
    assert await backend.store.delete_offsets(GROUP, fence, [three, one]) == [one]
    assert await backend.store.delete_offsets(GROUP, fence, [three, one]) == []
    assert set(await backend.store.fetch_offsets(GROUP)) == {two}


# The simple commit.


async def test_the_simple_commit_needs_no_coordinator(backend: Backend) -> None:
    key = await backend.partition()
    for _ in range(2):
        assert await backend.store.commit_offsets_simple(GROUP, [OffsetCommit(key=key, offset=4)]) == []
    group = await backend.store.get_group(GROUP)
    assert (group.slot, group.slot_epoch, group.member_count) == (slot_of(GROUP), 0, 0)
    assert group.empty_since_ms == backend.now_ms
    assert (await backend.store.fetch_offsets(GROUP))[key].offset == 4


async def test_the_simple_commit_leaves_a_coordinator_s_epoch_and_state(backend: Backend) -> None:
    key = await backend.partition()
    fence = await coordinate(backend)
    saved = await save(backend, fence, generation=6, members=0, payload=b"kept")
    await backend.store.commit_offsets_simple(GROUP, [OffsetCommit(key=key, offset=4)])
    group = await backend.store.get_group(GROUP)
    assert (group.slot_epoch, group.generation, group.payload) == (saved.slot_epoch, 6, b"kept")


async def test_the_simple_commit_is_refused_while_the_group_has_members(backend: Backend) -> None:
    key = await backend.partition()
    fence = await coordinate(backend)
    await save(backend, fence, generation=1, members=2)
    with pytest.raises(GroupNotEmpty):
        await backend.store.commit_offsets_simple(GROUP, [OffsetCommit(key=key, offset=4)])
    assert await backend.store.fetch_offsets(GROUP) == {}
    await save(backend, fence, generation=2, members=0)
    assert await backend.store.commit_offsets_simple(GROUP, [OffsetCommit(key=key, offset=4)]) == []


# Expiry.


async def test_empty_groups_expire_with_their_offsets(backend: Backend) -> None:
    key = await backend.partition()
    fence = await coordinate(backend)
    await save(backend, fence, members=1)
    await backend.store.commit_offsets(GROUP, fence, [OffsetCommit(key=key, offset=1)])
    await backend.store.commit_offsets_simple("idle", [OffsetCommit(key=key, offset=1)])
    await backend.advance(1001)
    await backend.store.commit_offsets_simple("young", [OffsetCommit(key=key, offset=1)])
    assert await backend.store.expire_groups(empty_for_ms=1000, limit=10) == ["idle"]
    assert await backend.store.expire_groups(empty_for_ms=1000, limit=10) == []
    assert [group.group_id for group in await backend.store.list_groups()] == [GROUP, "young"]
    assert await backend.store.fetch_offsets("idle") == {}


async def test_a_simple_commit_keeps_its_group_alive(backend: Backend) -> None:
    key = await backend.partition()
    for offset in range(5):
        await backend.store.commit_offsets_simple(GROUP, [OffsetCommit(key=key, offset=offset)])
        await backend.advance(900)
        assert await backend.store.expire_groups(empty_for_ms=1000, limit=10) == []
    assert (await backend.store.get_group(GROUP)).empty_since_ms == backend.now_ms - 900


async def test_a_consumer_without_a_group_s_members_keeps_its_offsets_by_committing(backend: Backend) -> None:
    """Kafka's standalone consumers commit through the coordinator into a group that never has members."""
    key = await backend.partition()
    fence = await coordinate(backend)
    for offset in range(4):
        await backend.store.commit_offsets(GROUP, fence, [OffsetCommit(key=key, offset=offset)])
        await backend.advance(900)
        assert await backend.store.expire_groups(empty_for_ms=1000, limit=10) == []
    await backend.advance(101)
    assert await backend.store.expire_groups(empty_for_ms=1000, limit=10) == [GROUP]


async def test_expiry_stops_at_its_limit(backend: Backend) -> None:
    key = await backend.partition()
    for turn in range(5):
        await backend.store.commit_offsets_simple(f"group-{turn}", [OffsetCommit(key=key, offset=1)])
    await backend.advance(1001)
    gone = [await backend.store.expire_groups(empty_for_ms=1000, limit=2) for _ in range(4)]
    assert [len(batch) for batch in gone] == [2, 2, 1, 0]
    assert len({group_id for batch in gone for group_id in batch}) == 5


# Limits.


async def test_what_is_too_large_or_makes_no_sense_is_refused(backend: Backend) -> None:
    key = await backend.partition()
    fence = await coordinate(backend)
    with pytest.raises(LimitExceeded):
        await save(backend, fence, payload=bytes(MAX_GROUP_STATE_BYTES + 1))
    long_id = "x" * (MAX_GROUP_ID_BYTES + 1)
    with pytest.raises(LimitExceeded):
        await backend.store.commit_offsets_simple(long_id, [])
    with pytest.raises(LimitExceeded):
        await backend.store.save_group(
            long_id, SlotFence(slot=slot_of(long_id), epoch=1), generation=1, member_count=0, payload=b""
        )
    long_note = OffsetCommit(key=key, offset=1, metadata="x" * (MAX_OFFSET_METADATA_BYTES + 1))
    with pytest.raises(LimitExceeded):
        await backend.store.commit_offsets(GROUP, fence, [long_note])
    for commits in (
        [OffsetCommit(key=key, offset=-(2**63) - 1)],
        [OffsetCommit(key=key, offset=2**63)],
        [OffsetCommit(key=key, offset=1), OffsetCommit(key=key, offset=2)],
        [OffsetCommit(key=key, offset=1, metadata="a\ud800b")],
    ):
        with pytest.raises(InvalidRequest):
            await backend.store.commit_offsets(GROUP, fence, commits)
        with pytest.raises(InvalidRequest):
            await backend.store.commit_offsets_simple(GROUP, commits)
    with pytest.raises(InvalidRequest):
        await backend.store.commit_offsets_simple("a\0b", [])
    assert await backend.store.list_groups() == []


async def test_a_largest_payload_is_kept(backend: Backend) -> None:
    fence = await coordinate(backend)
    payload = b"\0\xff" * (MAX_GROUP_STATE_BYTES // 2)
    await save(backend, fence, payload=payload)
    assert (await backend.store.get_group(GROUP)).payload == payload
