"""What a leadership leaves in the WAL, and what becomes of it: R2, R3, R4, with real crashes and take-overs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from node import Stage, acked, batch, settle, stored

from streamhouse.core.errors import NotLeader
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.leased.recovery import HeldFrame, SortedFrames, never_again, sort_frames, stranded_words
from streamhouse.log.wal.task_pump import TaskPump
from streamhouse.metadata.contract import Durability, EpochStart
from streamhouse.objectstore.faults import FaultyStore, ScriptedFaults, StoreFault
from streamhouse.wire.batch import read_header

MINE, OTHER = UUID(int=1), UUID(int=2)


def frame(
    lsn: int, offset: int, *, epoch: int = 1, acks: int = 1, producer: bool = False, at_ms: int = 1_000
) -> HeldFrame:
    data = batch("v", producer=(5, 0, lsn) if producer else None)
    return HeldFrame(
        lsn=lsn, epoch=epoch, base_offset=offset, acks=acks, timestamp_ms=at_ms, batch=data, header=read_header(data)
    )


def led(epoch: int, start_offset: int, wal_id: UUID) -> EpochStart:
    return EpochStart(epoch=epoch, start_offset=start_offset, agent_id="a", wal_id=wal_id, started_at_ms=0)


def lsns(frames: list[HeldFrame]) -> list[int]:
    return [each.lsn for each in frames]


def test_r3_without_a_foreign_epoch_frames_above_the_watermark_are_replayed() -> None:
    history = [led(1, 0, MINE), led(2, 4, MINE)]
    sorted_ = sort_frames(
        [frame(1, 3), frame(2, 4), frame(3, 5, epoch=2, acks=-1), frame(4, 6, epoch=2, producer=True)],
        wal_id=MINE, history=history, high_watermark=4, compacted=True, now_ms=10**12, max_age_ms=1,
    )  # fmt: skip
    assert (lsns(sorted_.committed), lsns(sorted_.replay)) == ([1], [2, 3, 4])
    assert (sorted_.resubmit, sorted_.dropped) == ([], [])


def test_r3_a_foreign_epoch_bounds_what_was_committed_even_below_the_watermark() -> None:
    """The other leader wrote over our offset 4: our frame there was never committed, whatever the watermark says."""
    history = [led(1, 0, MINE), led(2, 4, OTHER), led(3, 9, MINE)]
    sorted_ = sort_frames(
        [frame(1, 3), frame(2, 4)],
        wal_id=MINE, history=history, high_watermark=9, compacted=False, now_ms=1_500, max_age_ms=1_000,
    )  # fmt: skip
    assert (lsns(sorted_.committed), lsns(sorted_.replay), lsns(sorted_.resubmit)) == ([1], [], [2])


@pytest.mark.parametrize(
    ("held", "compacted"),
    [
        (frame(2, 4, acks=-1), False),
        (frame(2, 4, acks=0), False),
        (frame(2, 4, producer=True), False),
        (frame(2, 4), True),
        (frame(2, 4, at_ms=499), False),
    ],
    ids=["acks=all", "acks=0", "producer id", "compacted topic", "too old"],
)
def test_r4_what_may_not_come_back_is_dropped(held: HeldFrame, compacted: bool) -> None:
    history = [led(1, 0, MINE), led(2, 4, OTHER), led(3, 9, MINE)]
    sorted_ = sort_frames(
        [held],
        wal_id=MINE, history=history, high_watermark=9, compacted=compacted, now_ms=1_500, max_age_ms=1_000,
    )  # fmt: skip
    assert (lsns(sorted_.dropped), sorted_.resubmit) == ([2], [])


def sort_above_a_gap(frames: list[HeldFrame], *, wal_is_durable: bool = False) -> SortedFrames:
    return sort_frames(
        frames,
        wal_id=MINE, history=[led(1, 0, MINE), led(2, 4, MINE), led(3, 4, MINE)], high_watermark=4,
        compacted=False, now_ms=1_500, max_age_ms=1_000, epoch=3, wal_is_durable=wal_is_durable,
    )  # fmt: skip


@pytest.mark.parametrize("wal_is_durable", [False, True])
def test_r23_frames_behind_a_gap_are_stranded_and_those_before_it_are_replayed(wal_is_durable: bool) -> None:
    frames = [frame(1, 3), frame(2, 4), frame(3, 5), frame(4, 7), frame(5, 8, acks=-1)]
    sorted_ = sort_above_a_gap(frames, wal_is_durable=wal_is_durable)
    assert (lsns(sorted_.committed), lsns(sorted_.replay), lsns(sorted_.stranded)) == ([1], [2, 3], [4, 5])
    assert (sorted_.end_offset, sorted_.resubmit, sorted_.dropped) == (6, [], [])
    words = stranded_words("orders/0", sorted_)
    assert "orders/0: the metadata store says that the log ends at offset 6" in words
    assert "holds 2 records at offsets 7 to 8; offsets 6 to 6 are in neither" in words


@pytest.mark.parametrize(
    "held",
    [frame(1, 4, epoch=3), frame(1, 4, epoch=5), frame(1, 3, epoch=2)],
    ids=["the epoch just acquired", "a later epoch", "an offset below the start of its epoch"],
)
def test_r23_frames_of_a_leadership_that_the_store_has_lost_are_stranded(held: HeldFrame) -> None:
    """Its epochs are given once more, and frames of both leaderships carry the same number."""
    assert lsns(sort_above_a_gap([held]).stranded) == [1]


def test_r23_frames_of_an_epoch_that_was_given_to_another_wal_are_not_taken_for_committed() -> None:
    history = [led(1, 0, MINE), led(2, 4, OTHER), led(3, 9, OTHER), led(4, 9, MINE)]
    sorted_ = sort_frames(
        [frame(1, 5, epoch=2), frame(2, 6, epoch=2, acks=-1)],
        wal_id=MINE, history=history, high_watermark=9,
        compacted=False, now_ms=1_500, max_age_ms=1_000, epoch=4,
    )  # fmt: skip
    assert (lsns(sorted_.resubmit), lsns(sorted_.dropped), sorted_.committed) == ([1], [2], [])


def test_r4_frames_that_no_other_wal_has_led_over_are_kept_for_ever() -> None:
    old = frame(1, 4, at_ms=0)
    mine, other = [led(1, 0, MINE)], [led(1, 0, MINE), led(2, 4, OTHER)]
    assert never_again([old], wal_id=MINE, history=mine, compacted=True, oldest_ms=10**12) == []
    assert never_again([old], wal_id=MINE, history=other, compacted=False, oldest_ms=10**12) == [old]
    assert never_again([old], wal_id=MINE, history=[], compacted=False, oldest_ms=0) == [old], "the topic is gone"


def test_r4_frames_of_a_compacted_topic_that_another_wal_has_led_over_are_let_go_whatever_their_age() -> None:
    young, other = frame(1, 4), [led(1, 0, MINE), led(2, 4, OTHER)]
    assert never_again([young], wal_id=MINE, history=other, compacted=False, oldest_ms=0) == []
    assert never_again([young], wal_id=MINE, history=other, compacted=True, oldest_ms=0) == [young]


@pytest.mark.parametrize("durability", list(Durability))
async def test_r3_after_a_crash_everything_synced_comes_back_at_the_same_offsets(
    tmp_path: Path, durability: Durability
) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node(durability=durability)
        await node.lead(topic)
        await acked(node.log.append(key, batch("a", "b"), acks=-1))
        await node.log.flush()
        await acked(node.log.append(key, batch("c"), acks=1), node.log.append(key, batch("d", "e"), acks=1))
        await node.crash()

        again = await stage.node(durability=durability)
        await again.lead(topic)
        partition = again.log.partition(key)
        assert partition is not None
        assert partition.next_offset == partition.visible_end == 5
        assert again.log.append(key, batch("f"), acks=1).base_offset == 5
        await again.log.flush()
        assert await stored(stage.cluster, key) == [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e"), (5, "f")]
        assert again.wal.unsettled_bytes == 0


async def test_r4_after_a_take_over_acks_1_comes_back_as_new_records_once(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        down = FaultyStore(
            stage.cluster.store, plan=ScriptedFaults([StoreFault.UNAVAILABLE] * 10_000), randomness=SeededRandomness(1)
        )
        node, other = await stage.node("agent-1", store=down), await stage.node("agent-2")
        await node.lead(topic)
        await acked(node.log.append(key, batch("mine"), acks=1))
        node.log.append(key, batch("unacknowledged"), acks=-1)
        await node.wal.wait_synced(node.wal._state.next_lsn - 1)
        await node.crash()
        stage.cluster.clock.advance(40_000)
        await other.lead(topic)
        await acked(other.log.append(key, batch("theirs"), acks=-1))
        stage.cluster.clock.advance(40_000)

        again = await stage.node("agent-1")
        await again.lead(topic)
        assert again.log.stats.resubmitted_batches == 1
        assert again.log.append(key, batch("next"), acks=1).base_offset == 2
        await again.log.flush()
        assert await stored(stage.cluster, key) == [(0, "theirs"), (1, "mine"), (2, "next")]
        await again.crash()

        third = await stage.node("agent-1")
        stage.cluster.clock.advance(40_000)
        await third.lead(topic)
        await third.log.flush()
        assert [value for _, value in await stored(stage.cluster, key)] == ["theirs", "mine", "next"]


async def test_r3_an_ended_leadership_in_the_same_process_replays_what_it_acknowledged(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("a"), acks=1))
        waiting = node.log.append(key, batch("b"), acks=-1)
        node.log.drop_partition(key, "the lease ran out")
        with pytest.raises(NotLeader, match="the lease ran out"):
            await waiting.done
        stage.cluster.clock.advance(40_000)
        await node.lead(topic)
        assert await stored(stage.cluster, key) == [(0, "a"), (1, "b")]
        assert node.log.append(key, batch("c"), acks=1).base_offset == 2


async def test_r4_what_its_producer_was_refused_does_not_come_back_after_another_leader(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node, other = await stage.node("agent-1"), await stage.node("agent-2")
        await node.lead(topic)
        await acked(node.log.append(key, batch("acknowledged"), acks=1))
        refused = node.log.append(key, batch("refused"), acks=1)
        node.log.drop_partition(key, "the lease ran out")
        with pytest.raises(NotLeader):
            await refused.done
        stage.cluster.clock.advance(40_000)
        await other.lead(topic)
        await acked(other.log.append(key, batch("refused"), acks=-1))
        stage.cluster.clock.advance(40_000)
        await node.lead(topic)
        assert [value for _, value in await stored(stage.cluster, key)] == ["refused", "acknowledged"]


async def test_r4_a_replay_that_is_cut_short_does_not_count_as_a_refusal(tmp_path: Path) -> None:
    """Acknowledged from the WAL, crashed, replayed, fenced before the replay was committed: it still comes back."""
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        down = FaultyStore(
            stage.cluster.store, plan=ScriptedFaults([StoreFault.UNAVAILABLE] * 10_000), randomness=SeededRandomness(1)
        )
        node, other = await stage.node("agent-1", store=down), await stage.node("agent-2")
        await node.lead(topic)
        await acked(node.log.append(key, batch("mine"), acks=1))
        await node.crash()
        again = await stage.node("agent-1", store=down)
        opening = asyncio.create_task(again.lead(topic))
        await settle()
        again.log.drop_partition(key, "the lease ran out")
        with pytest.raises(NotLeader):
            await opening
        await again.crash()
        third = await stage.node("agent-1")
        stage.cluster.clock.advance(40_000)
        await other.lead(topic)
        await acked(other.log.append(key, batch("theirs"), acks=-1))
        stage.cluster.clock.advance(40_000)
        await third.lead(topic)
        assert [value for _, value in await stored(stage.cluster, key)] == ["theirs", "mine"]


async def test_r4_the_same_in_one_process(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        plan = ScriptedFaults([StoreFault.UNAVAILABLE] * 40)
        flaky = FaultyStore(stage.cluster.store, plan=plan, randomness=SeededRandomness(1))
        node, other = await stage.node("agent-1", store=flaky), await stage.node("agent-2")
        await node.lead(topic)
        await acked(node.log.append(key, batch("mine"), acks=1))
        node.log.drop_partition(key, "the lease ran out")
        stage.cluster.clock.advance(40_000)
        opening = asyncio.create_task(node.lead(topic))
        await settle()
        node.log.drop_partition(key, "and again")
        with pytest.raises(NotLeader):
            await opening
        stage.cluster.clock.advance(40_000)
        await other.lead(topic)
        await acked(other.log.append(key, batch("theirs"), acks=-1))
        stage.cluster.clock.advance(40_000)
        plan._script.clear()
        await node.lead(topic)
        assert [value for _, value in await stored(stage.cluster, key)] == ["theirs", "mine"]


async def test_r3_a_replay_waits_for_frames_that_no_sync_has_reached(tmp_path: Path) -> None:
    """The same process leads again before its disk has caught up: nothing may be shown or acknowledged by then."""
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node(durability=Durability.WAL)
        await node.lead(topic)
        pump = node.wal._pump
        assert isinstance(pump, TaskPump)
        disk_answers = asyncio.Event()
        pump._pause = disk_answers.wait  # type: ignore[assignment]
        node.log.append(key, batch("a"), acks=-1)
        await settle()
        node.log.drop_partition(key, "refused")
        stage.cluster.clock.advance(40_000)
        opening = asyncio.create_task(node.lead(topic))
        await settle()
        assert node.wal.synced_lsn == 0
        assert node.log.partition(key) is None
        disk_answers.set()
        await opening
        assert node.log.partition(key) is not None
        assert node.wal.synced_lsn >= 1


async def test_r9_a_replayed_producer_batch_is_known_to_its_producers_retry(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node(durability=Durability.WAL)
        await node.lead(topic)
        await acked(node.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1))
        await node.crash()
        again = await stage.node(durability=Durability.WAL)
        await again.lead(topic)
        retry = again.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1)
        assert (retry.duplicate, retry.base_offset) == (True, 0)
        await acked(retry)


async def test_a_deleted_topic_drops_its_partition(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await stage.cluster.metadata.delete_topic(topic.topic_id)
        doomed = node.log.append(key, batch("a"), acks=-1)
        with pytest.raises(NotLeader):
            await acked(doomed)
        await settle()
        assert await node.log.sweep_held() == 1
