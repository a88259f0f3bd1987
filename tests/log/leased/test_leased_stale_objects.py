"""R6: objects that the garbage collector's horizon has passed are uploaded again, a few times at most, whatever the
clocks do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from node import Cluster, Stage, acked, batch, stored

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import NotLeader
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.commit import StoreStamps
from streamhouse.metadata.contract import HeldLease
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.memory import MemoryStore


class CountingStore(MemoryStore):
    puts = 0

    async def put(self, *args: Any, **kwargs: Any) -> Any:
        self.puts += 1
        return await super().put(*args, **kwargs)


async def set_horizon(cluster: Cluster, horizon_ms: int) -> None:
    """As if it had been raised before the store's clock was set back."""
    assert isinstance(cluster.metadata, SqliteMetadata)
    await cluster.metadata._write(lambda tx: tx.run("UPDATE partitions SET gc_horizon_ms = ?", (horizon_ms,)))


async def test_r6_a_horizon_ahead_of_the_stores_clock_costs_one_upload_and_no_wait(tmp_path: Path) -> None:
    store = CountingStore(clock=ManualClock())
    async with Stage(tmp_path, store) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node()
        await node.lead(topic)
        await acked(node.log.append(key, batch("before"), acks=-1))
        await set_horizon(stage.cluster, stage.cluster.clock.wall_ms() + 20_000)
        before = store.puts
        await acked(node.log.append(key, batch("first"), acks=-1))
        assert store.puts - before == 2
        await acked(node.log.append(key, batch("second"), acks=-1))
        assert store.puts - before == 3, "later objects are stamped rightly at once"
        assert node.log.health.objects_stale == 1
        assert [value for _, value in await stored(stage.cluster, key)] == ["before", "first", "second"]


async def test_r6_a_horizon_that_moves_on_all_the_time_is_not_run_after_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node()
        await node.lead(topic)
        committer = node.log._committer
        pauses: list[int] = []
        learn = committer.learn_horizon

        async def overtaken(keys: list[PartitionKey]) -> None:
            """The horizon is raised again after it was looked up."""
            await learn(keys)
            if len(pauses) < 3:
                await set_horizon(stage.cluster, committer.stamps._latest_ms + 1_000)

        async def back_off(tries: int) -> None:
            pauses.append(tries)

        monkeypatch.setattr(type(committer), "learn_horizon", lambda self, keys: overtaken(keys))
        monkeypatch.setattr(type(committer), "back_off", lambda self, tries: back_off(tries))
        await set_horizon(stage.cluster, stage.cluster.clock.wall_ms() + 20_000)
        await acked(node.log.append(key, batch("a"), acks=-1))
        assert pauses == [1, 2, 3, 4]
        assert "problem with the stamps of uploaded objects" in caplog.text


async def test_stamps_never_go_back_with_the_stores_clock() -> None:
    clock = ManualClock()

    class Store:
        ahead_ms = 0

        async def now_ms(self) -> int:
            return clock.wall_ms() + self.ahead_ms

    store = Store()
    stamps = StoreStamps(metadata=store, clock=clock)  # type: ignore[arg-type]
    first = await stamps.now_ms()
    store.ahead_ms = -300_000
    clock.advance(1_000)
    assert await stamps.now_ms(fresh=True) == first
    clock.advance(299_001)
    assert await stamps.now_ms() == first + 1
    stamps.rise_to(first + 60_000)
    assert await stamps.now_ms() == first + 60_000


async def test_r6_a_resubmission_whose_object_is_stale_gets_through_at_the_next_opening(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node, other = await stage.node("agent-1"), await stage.node("agent-2")
        await node.lead(topic)
        await acked(node.log.append(key, batch("mine"), acks=1))
        node.log.drop_partition(key, "the test says so")
        stage.cluster.clock.advance(40_000)
        lease = await other.lead(topic)
        await stage.cluster.metadata.release_leases(other.holder, [HeldLease(key=key, epoch=lease.epoch)])
        await set_horizon(stage.cluster, stage.cluster.clock.wall_ms() + 20_000)
        with pytest.raises(NotLeader, match="stale_object"):
            await node.lead(topic)
        stage.cluster.clock.advance(31_000 - 20_000)  # the lease must run out, the horizon stays ahead
        await stage.cluster.metadata.release_leases(node.holder, [HeldLease(key=key, epoch=lease.epoch + 1)])
        await node.lead(topic)
        assert [value for _, value in await stored(stage.cluster, key)] == ["mine"]
