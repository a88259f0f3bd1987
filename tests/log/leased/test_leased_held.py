"""The frames that an ended leadership left in the WAL: how they are held, found again, and let go (R3, R4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from node import Stage, Wrapper, a_partition, acked, batch, pending, settle

from streamhouse.core.errors import BackPressureRejected, MetadataUnavailable
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased import held as module
from streamhouse.log.leased.held import in_parts
from streamhouse.log.leased.recovery import HeldFrame
from streamhouse.wire.batch import read_header


async def test_frames_of_an_ended_leadership_take_memory_only_until_they_are_synced(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        first, second = topic.partition_keys()
        node, other = await stage.node("agent-1", max_buffer_bytes=4000), await stage.node("agent-2")
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        append = node.log.append(first, batch("x" * 2500), acks=1)
        node.log.drop_partition(first, "the lease ran out")
        assert node.log.buffer_bytes > 2500
        with pytest.raises(BackPressureRejected, match="held for a new leadership"):
            node.log.append(second, batch("y" * 2500), acks=1)
        await node.wal.wait_synced(node.wal._state.next_lsn - 1)
        assert node.log.buffer_bytes == 0
        await acked(node.log.append(second, batch("y" * 2500), acks=1))
        assert append.base_offset == 0
        stage.cluster.clock.advance(700_000)
        await other.lead(topic, 0)
        await node.log.sweep_held()
        assert node.log._held._frames == {}


async def test_r4_given_up_frames_are_told_although_the_metadata_store_is_away_for_the_next_partition(
    tmp_path: Path,
) -> None:
    """Found by the simulator: the frames were dropped, and the error for another partition hid that from everyone."""
    given_up: list[PartitionKey] = []
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        store = AwayAfter(stage.cluster.metadata)
        node, other = await stage.node("agent-1", metadata=store), await stage.node("agent-2")
        node.log._on_given_up = lambda key, frames: given_up.append(key)
        for number, key in enumerate(topic.partition_keys()):
            await node.lead(topic, number)
            await acked(node.log.append(key, batch("x"), acks=1))
            node.log.drop_partition(key, "the lease ran out")
        stage.cluster.clock.advance(31_000)
        for number in range(2):
            await other.lead(topic, number)
        node.log._urge()
        store.answers_left = 1
        with pytest.raises(MetadataUnavailable):
            await node.log.sweep_held()
        assert given_up == topic.partition_keys()[:1]
        assert (node.log.stats.given_up_batches, node.log.held_batches) == (1, 1)


class AwayAfter(Wrapper):
    """A metadata store that is away after some answers about the history of leaders."""

    answers_left = 1_000_000

    async def epoch_history(self, key: PartitionKey) -> object:
        if not self.answers_left:
            raise MetadataUnavailable("epoch_history: no answer")
        self.answers_left -= 1
        return await self.inner.epoch_history(key)


async def test_r4_acks_1_frames_that_take_all_room_are_given_up_after_half_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They keep every later file of the WAL, which is full before this agent leads their partition again."""
    given_up: list[tuple[PartitionKey, list[int]]] = []
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        first, _ = topic.partition_keys()
        node, other = await stage.node("agent-1"), await stage.node("agent-2")
        node.log._on_given_up = lambda key, frames: given_up.append((key, [frame.base_offset for frame in frames]))
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        await acked(node.log.append(first, batch("x"), acks=1))
        node.log.drop_partition(first, "the lease ran out")
        stage.cluster.clock.advance(31_000)
        node.log._urge()
        assert await node.log.sweep_held() == 0, "no other agent has led since: it may be all there is (R3)"
        await other.lead(topic, 0)
        assert await node.log.sweep_held() == 0, "there is room: it may come back for ten minutes"
        assert node.log.stats.given_up_batches == 0
        node.log._urge()
        assert node.log.held_is_in_the_way
        assert await node.log.sweep_held() == 1
        assert given_up == [(first, [0])]
        (warning,) = [record.getMessage() for record in caplog.records if "gave up" in record.getMessage()]
        assert warning.startswith(f"{topic.name}/0: gave up 1 batches"), "an operator knows topics by their names"
        assert (node.log.stats.given_up_batches, node.log.stats.dropped_batches) == (1, 0)
        assert node.wal.unsettled_bytes == 0


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
async def test_r4_held_frames_of_a_compacted_topic_led_elsewhere_do_not_pin_the_wal(
    tmp_path: Path, policy: str
) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(cleanup_policy=policy)
        (key,) = topic.partition_keys()
        node, other = await stage.node("agent-1"), await stage.node("agent-2")
        await node.lead(topic)
        await acked(node.log.append(key, batch("x"), acks=1))
        node.log.drop_partition(key, "the lease ran out")
        assert await node.log.sweep_held() == 0, "no other agent has led since: the frame is replayed (R3)"
        stage.cluster.clock.advance(31_000)
        await other.lead(topic)
        comes_back = policy == "delete"
        assert await node.log.sweep_held() == (0 if comes_back else 1)
        assert (node.wal.unsettled_bytes > 0) == comes_back


async def test_r4_held_frames_of_a_partition_led_elsewhere_are_let_go_in_the_end(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node, other = await stage.node("agent-1"), await stage.node("agent-2")
        await node.lead(topic)
        await acked(node.log.append(key, batch("a"), acks=1))
        node.log.drop_partition(key, "test")
        assert await node.log.sweep_held() == 0, "no other agent has led since: it may be the only copy"
        stage.cluster.clock.advance(40_000)
        await other.lead(topic)
        assert await node.log.sweep_held() == 0, "it may come back if this agent leads again soon"
        stage.cluster.clock.advance(700_000)
        assert await node.log.sweep_held() == 1
        assert node.wal.unsettled_bytes == 0


@pytest.mark.parametrize("when", ["before it is held", "while it is held"])
async def test_r4_a_machines_clock_that_is_set_back_does_not_hold_frames_for_longer(tmp_path: Path, when: str) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node, other = await stage.node("agent-1"), await stage.node("agent-2")
        await node.lead(topic)
        await acked(node.log.append(key, batch("a"), acks=1))
        if when == "before it is held":
            stage.cluster.clock.jump_wall(-86_400_000)
        node.log.drop_partition(key, "test")
        if when == "while it is held":
            stage.cluster.clock.jump_wall(-86_400_000)
        stage.cluster.clock.advance(40_000)
        await other.lead(topic)
        assert await node.log.sweep_held() == 0
        stage.cluster.clock.advance(700_000)
        assert await node.log.sweep_held() == 1


def frame(lsn: int, data: bytes, *, in_memory: bool = False) -> HeldFrame:
    return HeldFrame(
        lsn=lsn,
        epoch=1,
        base_offset=lsn,
        acks=1,
        timestamp_ms=0,
        batch=data,
        header=read_header(data),
        in_memory=in_memory,
    )


def test_frames_come_back_in_parts_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = batch("v"), batch("v" * 5000)
    monkeypatch.setattr(module, "_PART_BYTES", 2 * len(small))
    frames = [frame(lsn, large if lsn == 3 else small) for lsn in range(6)]
    assert [[each.lsn for each in part] for part in in_parts(frames)] == [[0, 1], [2], [3], [4, 5]]
    assert list(in_parts([])) == []


async def test_only_frames_that_are_kept_in_memory_count_as_memory(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        node = await stage.node()
        held, key = node.log._held, PartitionKey(stage.cluster.randomness.uuid(), 0)  # type: ignore[arg-type]
        mapped, kept = frame(1, batch("a")), frame(2, batch("b"), in_memory=True)
        held.add(key, [mapped])
        assert node.log.buffer_bytes == 0, "what recovery found is a view of a file"
        held.add(key, [kept])
        assert node.log.buffer_bytes > 0
        for each in (kept, mapped, kept):
            held.take_out(key, each)
        assert (node.log.buffer_bytes, node.log.held_batches, held._frames) == (0, 0, {})


async def test_frames_that_are_not_synced_yet_are_kept_in_memory_and_the_others_read_back(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("synced"), acks=1))
        node.log.append(key, batch("not yet"), acks=1)
        node.log.drop_partition(key, "the lease ran out")
        held = node.log._held
        first, second = held.frames_of(key)
        assert (first.batch is None, second.batch is None) == (True, False)
        loaded = await held.load([first, second])
        assert [each.lsn for each in loaded] == [1, 2]
        assert [read_header(each.batch).base_offset for each in loaded if each.batch is not None] == [0, 1]
        await node.wal.wait_synced(2)
        await settle()
        assert [each.batch for each in held.frames_of(key)] == [None, None]


async def test_r4_a_batch_whose_producer_was_refused_is_held_as_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        node = await stage.node()
        partition = a_partition()
        told, untold = pending(batch("a"), lsn=1), pending(batch("b"), at=1, lsn=2)
        told.refused = True
        node.log._held.add_left(partition, [told, untold])
        assert [each.refused for each in node.log._held.frames_of(partition.key)] == [True, False]
