"""Frames that are written again as new records after another agent has led (R4): once, in order, many at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from node import Gate, Stage, Wrapper, acked, batch, left_behind, set_horizon, settle, stored, values_of

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import (
    MetadataUnavailable,
    NotLeader,
)
from streamhouse.log.leased import commit, resubmission
from streamhouse.log.leased.commit import NOT_YET_TRIES, Committer
from streamhouse.metadata.contract import HeldLease, MetadataStore, SliceOutcome, Verdict


class Overlap(Wrapper):
    """Metadata that takes a while for a commit, and tells how many were under way at once. May stop answering."""

    def __init__(self, inner: MetadataStore, *, stops_after: int = 10**9) -> None:
        super().__init__(inner)
        self.now = self.most = self.commits = 0
        self.stops_after = stops_after

    async def commit_leased(self, *arguments: Any) -> list[SliceOutcome]:
        self.now, self.commits = self.now + 1, self.commits + 1
        number, self.most = self.commits, max(self.most, self.now)
        try:
            await settle(10)
            if number > self.stops_after:
                await asyncio.Event().wait()
            outcomes: list[SliceOutcome] = await self.inner.commit_leased(*arguments)
            return outcomes
        finally:
            self.now -= 1


async def test_r4_what_comes_back_shares_one_object_and_partitions_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=3)
        values = [f"v{number}" for number in range(30)]
        await left_behind(stage, topic, values)
        store, metadata = Gate(stage.cluster.store), Overlap(stage.cluster.metadata)
        node = await stage.node("agent-1", store=store, metadata=metadata)
        await asyncio.gather(*(node.lead(topic, key.partition) for key in topic.partition_keys()))
        assert store.puts == 1
        assert metadata.most == 3
        assert node.log.stats.resubmitted_batches == 90
        for key in topic.partition_keys():
            assert await values_of(stage, key) == ["theirs", *values]
            assert node.log.append(key, batch("next"), acks=1).base_offset == 31
        await node.log.flush()
        assert node.wal.unsettled_bytes == 0
        assert node.log._held._frames == {}


async def test_r4_a_resubmission_cut_short_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        values = [f"v{number}" for number in range(20)]
        await left_behind(stage, topic, values)
        metadata = Overlap(stage.cluster.metadata, stops_after=11)
        node = await stage.node("agent-1", metadata=metadata)
        opening = asyncio.create_task(node.lead(topic))
        await settle(500)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        assert await values_of(stage, key) == ["theirs", *values[:11]]
        metadata.stops_after = 10**9
        await node.crash()
        again = await stage.node("agent-1")
        stage.cluster.clock.advance(40_000)
        await again.lead(topic)
        assert await values_of(stage, key) == ["theirs", *values]
        assert again.log.stats.resubmitted_batches == 9


async def test_r4_frames_of_an_ended_leadership_are_read_back_from_the_wal_and_resubmitted(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node, other = await stage.node("agent-1"), await stage.node("agent-2")
        await node.lead(topic)
        for value in ("a", "b"):
            await acked(node.log.append(key, batch(value), acks=1))
        node.log.drop_partition(key, "the lease ran out")
        stage.cluster.clock.advance(31_000)
        await other.lead(topic)
        await acked(other.log.append(key, batch("c"), acks=-1))
        other.log.drop_partition(key, "the lease ran out")
        stage.cluster.clock.advance(31_000)
        await node.lead(topic)
        assert await values_of(stage, key) == ["c", "a", "b"]
        assert node.wal.unsettled_bytes == 0


class LosesReplies:
    """A metadata store that does what it is asked and then, for the first commits, says that it is not there."""

    def __init__(self, inner: MetadataStore, losses: int) -> None:
        self._inner = inner
        self._losses = losses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit_leased(self, *arguments: Any) -> list[SliceOutcome]:
        outcomes = await self._inner.commit_leased(*arguments)
        if self._losses:
            self._losses -= 1
            raise MetadataUnavailable("the reply was lost")
        return outcomes


async def test_r5_a_resubmission_whose_reply_was_lost_moves_the_next_offset(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        lossy = LosesReplies(stage.cluster.metadata, losses=2)
        node, other = await stage.node("agent-1", metadata=lossy), await stage.node("agent-2")
        await node.lead(topic)
        await acked(node.log.append(key, batch("one"), acks=1), node.log.append(key, batch("two"), acks=1))
        node.log.drop_partition(key, "test")
        stage.cluster.clock.advance(40_000)
        await other.lead(topic)
        await acked(other.log.append(key, batch("theirs"), acks=-1))
        stage.cluster.clock.advance(40_000)
        await node.lead(topic)
        append = node.log.append(key, batch("next"), acks=-1)
        await acked(append)
        assert append.base_offset == 3
        values = [value for _, value in await stored(stage.cluster, key)]
        assert values == ["theirs", "one", "two", "next"]


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


async def test_r4_more_than_a_blob_holds_goes_into_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=4)
        await left_behind(stage, topic, ["v" * 500])
        monkeypatch.setattr(resubmission, "_BLOB_BYTES", 1300)
        store = Gate(stage.cluster.store)
        node = await stage.node("agent-1", store=store)
        await asyncio.gather(*(node.lead(topic, key.partition) for key in topic.partition_keys()))
        assert store.puts == 2
        for key in topic.partition_keys():
            assert await values_of(stage, key) == ["theirs", "v" * 500]


class NotYetFor(Wrapper):
    """Metadata that says, for the first commits, that what comes before has not arrived."""

    def __init__(self, inner: MetadataStore, times: int) -> None:
        super().__init__(inner)
        self.times = times
        self.asked = 0

    async def commit_leased(self, append_id: Any, slices: Any) -> list[SliceOutcome]:
        self.asked += 1
        if self.asked <= self.times:
            return [SliceOutcome(key=piece.key, verdict=Verdict.NOT_YET) for piece in slices]
        outcomes: list[SliceOutcome] = await self.inner.commit_leased(append_id, slices)
        return outcomes


@pytest.mark.parametrize("times", [NOT_YET_TRIES - 1, NOT_YET_TRIES])
async def test_r10_not_yet_is_asked_again_a_few_times_and_the_frames_stay_held_when_that_does_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(commit, "_BACKOFF", Backoff(first_ms=1, longest_ms=1))
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        await left_behind(stage, topic, ["mine"])
        metadata = NotYetFor(stage.cluster.metadata, times)
        node = await stage.node("agent-1", metadata=metadata)
        if times < NOT_YET_TRIES:
            await node.lead(topic)
            assert await values_of(stage, key) == ["theirs", "mine"]
            return
        with pytest.raises(NotLeader, match="resubmitting was not_yet"):
            await node.lead(topic)
        assert node.log.held_batches == 1
        stage.cluster.clock.advance(40_000)
        await node.lead(topic)
        assert await values_of(stage, key) == ["theirs", "mine"]


async def test_an_upload_that_breaks_fails_the_openings_that_share_it_and_none_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        await left_behind(stage, topic, ["mine"])
        node = await stage.node("agent-1")

        async def breaks(*arguments: object, **options: object) -> list[object]:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(Committer, "pack", breaks)
            openings = (node.lead(topic, key.partition) for key in topic.partition_keys())
            outcomes = await asyncio.gather(*openings, return_exceptions=True)
        assert [type(each) for each in outcomes] == [RuntimeError, RuntimeError]
        assert node.log.held_batches == 2
        stage.cluster.clock.advance(40_000)
        for key in topic.partition_keys():
            await node.lead(topic, key.partition)
            assert await values_of(stage, key) == ["theirs", "mine"]
