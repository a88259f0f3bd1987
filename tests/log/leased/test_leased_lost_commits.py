"""R23: the metadata store loses commits that it had confirmed. A fail-over is played by taking rows back with SQL."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from node import Cluster, Node, Stage, acked, batch, settle, stored

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import DurabilityMismatch, MetadataUnavailable, NotLeader
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import Durability, HeldLease, Holder, LeaseKey, MetadataStore, Topic
from streamhouse.metadata.sqlite.store import SqliteMetadata


async def lose(cluster: Cluster, key: PartitionKey, *, from_offset: int, from_epoch: int = 1 << 40) -> None:
    """The store falls back: commits from this offset on, and leaderships from this epoch on, never happened."""
    metadata = cluster.metadata
    assert isinstance(metadata, SqliteMetadata)

    def fall_back(tx: Any) -> None:
        where = (key.topic_id.bytes, key.partition)
        tx.run(
            "DELETE FROM entries WHERE topic_id = ? AND partition_id = ? AND base_offset >= ?", (*where, from_offset)
        )
        tx.run(
            "UPDATE partitions SET high_watermark = ?, leader_epoch = min(leader_epoch, ?)"
            " WHERE topic_id = ? AND partition_id = ?",
            (from_offset, from_epoch - 1, *where),
        )
        tx.run("DELETE FROM epoch_history WHERE epoch >= ?", (from_epoch,))
        tx.run("UPDATE partition_leases SET epoch = min(epoch, ?), lease_expires_at = 0", (from_epoch - 1,))
        tx.run("DELETE FROM commits")
        tx.run("DELETE FROM producer_windows")

    await metadata._write(fall_back)


async def lead_again(node: Node, topic: Topic, epoch: int | None = None) -> None:
    """As the membership does: release, acquire, open; and once more when the opening says so."""
    (key,) = topic.partition_keys()
    if epoch is not None:
        await node.cluster.metadata.release_leases(node.holder, [HeldLease(key=key, epoch=epoch)])
    await node.lead(topic)


async def write_six_and_lose_two(stage: Stage, node: Node, topic: Topic) -> None:
    (key,) = topic.partition_keys()
    await node.lead(topic)
    for number in range(6):
        await acked(node.log.append(key, batch(f"{number}"), acks=-1))
    await lose(stage.cluster, key, from_offset=4)


async def given_up(node: Node) -> None:
    for _ in range(2_000):
        if node.dropped:
            return
        await settle(5)
    raise AssertionError("the leadership goes on")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamhouse.log.leased.commit._BACKOFF", Backoff(first_ms=1, longest_ms=1))


@pytest.mark.usefixtures("quick")
async def test_r23_a_leader_that_was_alive_opens_its_partition_again_and_says_what_was_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node()
        await write_six_and_lose_two(stage, node, topic)
        await acked(node.log.append(key, batch("one"), acks=1))
        waiting = [
            node.log.append(key, batch("all"), acks=-1),
            node.log.append(key, batch("idempotent", producer=(7, 0, 0)), acks=-1),
        ]
        await given_up(node)
        for each in waiting:
            with pytest.raises(NotLeader):
                await each.done
        with caplog.at_level(logging.ERROR), pytest.raises(NotLeader, match="opened again"):
            await lead_again(node, topic, 1)
        (alarm,) = [record.getMessage() for record in caplog.records if "lost_commits" in record.name]
        assert "orders/0: the metadata store says that the log ends at offset 4" in alarm
        assert "3 records at offsets 6 to 8; offsets 4 to 5 are in neither" in alarm
        assert "synchronous_standby_names" in alarm
        assert "restart the agents one after the other" in alarm
        assert (node.log.stats.stranded_batches, node.alarms) == (3, [alarm.split(" (let a standby")[0]])

        await node.lead(topic)
        assert (node.log.stats.resubmitted_batches, node.log.stats.dropped_batches) == (1, 2)
        assert node.log.held_batches == 0
        # Its window in memory knew this batch; the store's does not, so it is written and no repeat.
        again = node.log.append(key, batch("idempotent", producer=(7, 0, 0)), acks=-1)
        await acked(again)
        assert (again.base_offset, again.duplicate) == (5, False)
        assert [value for _, value in await stored(stage.cluster, key)] == ["0", "1", "2", "3", "one", "idempotent"]


@pytest.mark.usefixtures("quick")
async def test_r23_stranded_frames_do_not_come_back_after_a_restart_when_the_log_has_grown_to_where_they_began(
    tmp_path: Path,
) -> None:
    """The WAL's file still holds them. Records that their producers sent again meanwhile would come twice."""
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node()
        await write_six_and_lose_two(stage, node, topic)
        await acked(node.log.append(key, batch("one"), acks=1))
        node.log.append(key, batch("all"), acks=-1)
        await given_up(node)
        with pytest.raises(NotLeader):
            await lead_again(node, topic, 1)
        await node.lead(topic)  # brings "one" back at offset 4, past the WAL
        await acked(node.log.append(key, batch("all"), acks=-1))  # its producer sends it again: offset 5
        assert await stage.cluster.high_watermark(key) == 6
        await node.crash()

        stage.cluster.clock.advance(40_000)
        again = await stage.node()
        await again.lead(topic)
        await again.log.flush()
        assert again.log.stats.replayed_batches == 0
        assert [value for _, value in await stored(stage.cluster, key)] == ["0", "1", "2", "3", "one", "all"]


async def test_r23_what_the_wal_still_holds_of_lost_commits_comes_back_at_its_offsets(tmp_path: Path) -> None:
    """A restart finds settled frames too, as long as their file was not used again."""
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node()
        await write_six_and_lose_two(stage, node, topic)
        await node.wal.wait_synced(6)  # a client that waits for the commit does not wait for the WAL
        await node.crash()
        stage.cluster.clock.advance(40_000)
        again = await stage.node()
        await again.lead(topic)
        assert again.log.stats.replayed_batches == 2
        assert [value for _, value in await stored(stage.cluster, key)] == [f"{number}" for number in range(6)]


@pytest.mark.usefixtures("quick")
async def test_r23_a_store_that_lost_leaderships_too_is_led_at_epochs_above_the_frames(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node()
        for epoch in range(1, 6):
            lease = await node.lead(topic)
            assert lease.epoch == epoch
            await stage.cluster.metadata.release_leases(node.holder, [HeldLease(key=key, epoch=epoch)])
            node.log.drop_partition(key, "the test says so")
        await node.lead(topic)  # epoch 6
        await acked(node.log.append(key, batch("lost"), acks=-1))
        await acked(node.log.append(key, batch("one"), acks=1))
        await node.crash()
        await lose(stage.cluster, key, from_offset=0, from_epoch=3)

        again = await stage.node()
        with pytest.raises(NotLeader, match="opened again"):
            await again.lead(topic)
        lease = await again.lead(topic)
        assert lease.epoch > 6
        assert [value for _, value in await stored(stage.cluster, key)] == ["one"]


class LosesARelease:
    """Metadata that never hears of the second release: that of the leadership of no WAL."""

    def __init__(self, inner: MetadataStore) -> None:
        self.inner = inner
        self.releases = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def release_leases(self, holder: Holder, held: Sequence[HeldLease]) -> list[LeaseKey]:
        self.releases += 1
        if self.releases == 2:
            raise MetadataUnavailable("the test says so")
        return await self.inner.release_leases(holder, held)


@pytest.mark.usefixtures("quick")
async def test_r23_a_leadership_of_no_wal_that_could_not_be_released_is_not_led(tmp_path: Path) -> None:
    """Its epoch stands in the history under an id that no WAL has. After a restart, what was committed in it would be
    taken for lost."""
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        metadata = LosesARelease(stage.cluster.metadata)
        node = await stage.node(metadata=metadata)
        await write_six_and_lose_two(stage, node, topic)
        node.log.append(key, batch("stranded"), acks=-1).done.add_done_callback(lambda done: done.exception())
        await given_up(node)
        with pytest.raises(MetadataUnavailable):
            await node.lead(topic)
        lease = await node.lead(topic)
        assert metadata.releases == 2
        last = (await stage.cluster.metadata.epoch_history(key))[-1]
        assert (last.epoch, last.wal_id) == (lease.epoch, node.wal.wal_id)


async def test_r23_where_the_wal_is_the_durability_a_start_is_refused_and_says_what_would_be_lost(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node(durability=Durability.WAL)
        await node.lead(topic)
        large = "x" * 30_000
        for number in range(6):
            await acked(node.log.append(key, batch(f"{number}{large}"), acks=-1))
        await node.log.flush()
        await acked(node.log.append(key, batch("acknowledged"), acks=-1))
        await settle()
        assert min(frame.base_offset for frame in (await reopened(node)).log._held.frames_of(key)) > 0
        await lose(stage.cluster, key, from_offset=0)

        again = await stage.node("agent-1", durability=Durability.WAL)
        with pytest.raises(DurabilityMismatch, match=r"orders/0: .*ends at offset 0, but .* to 6; .*in neither") as no:
            await again.log.check_held_frames()
        assert "older copy" in str(no.value)
        with pytest.raises(DurabilityMismatch):
            await again.lead(topic)
        assert again.log.held_batches > 0, "nothing was given up"


async def reopened(node: Node) -> Node:
    await node.crash()
    again = await Node.start(node.cluster, node.directory, durability=Durability.WAL)
    await again.crash()
    return again
