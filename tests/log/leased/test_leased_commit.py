"""One flush: uploads and commits are repeated until there is a verdict, commits keep their order, and each verdict has
its own consequence. R6: objects that the garbage collector's horizon has passed are uploaded again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from node import Stage, Wrapper, acked, batch, set_horizon, settle, stored

from streamhouse.core.backoff import Backoff
from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import NotLeader
from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.leased import commit
from streamhouse.log.leased.commit import StoreStamps
from streamhouse.metadata.contract import (
    LeasedSlice,
    MetadataStore,
    SliceOutcome,
    Verdict,
)
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.faults import FaultTimes, FaultyStore, ScriptedFaults, StoreFault
from streamhouse.objectstore.memory import MemoryStore


class CountingStore(MemoryStore):
    puts = 0

    async def put(self, *args: Any, **kwargs: Any) -> Any:
        self.puts += 1
        return await super().put(*args, **kwargs)


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


async def test_several_flushes_in_flight_commit_in_order(tmp_path: Path) -> None:
    store = FaultyStore(
        MemoryStore(clock=Stage(tmp_path).cluster.clock),
        plan=ScriptedFaults([StoreFault.LATENCY, None, StoreFault.LATENCY, None] * 5),
        randomness=SeededRandomness(3),
        times=FaultTimes(latency_ms=20),
    )
    async with Stage(tmp_path, store) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        appends = []
        for number in range(12):
            appends.append(node.log.append(key, batch(f"v{number}"), acks=-1))
            await settle(3)
        await acked(*appends)
        assert [append.base_offset for append in appends] == list(range(12))
        entries = await stage.cluster.entries(key)
        assert [entry.base_offset for entry in entries] == [0, *(entry.end_offset + 1 for entry in entries[:-1])]
        assert entries[-1].end_offset == 11


async def test_r10_one_lost_lease_does_not_fail_the_others(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=3)
        old, new = await stage.node("agent-1"), await stage.node("agent-2")
        for key in topic.partition_keys():
            await old.lead(topic, key.partition)
        stage.cluster.clock.advance(40_000)
        await new.lead(topic, 1)
        appends = [old.log.append(key, batch("v"), acks=-1) for key in topic.partition_keys()]
        results = await asyncio.gather(*(append.done for append in appends), return_exceptions=True)
        assert [isinstance(result, NotLeader) for result in results] == [False, True, False]
        assert [await stage.cluster.high_watermark(key) for key in topic.partition_keys()] == [1, 0, 1]


async def test_r11_stale_object_uploads_the_same_batches_again_at_the_same_offsets(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("a"), acks=-1))
        stage.cluster.clock.jump_wall(5_000)  # the store's clock leaps ahead of what this node has measured
        await stage.cluster.metadata.raise_gc_horizon(await stage.cluster.metadata.now_ms())
        append = node.log.append(key, batch("b"), acks=-1)
        await acked(append)
        assert append.base_offset == 1
        assert len([info.key async for info in stage.cluster.store.list()]) == 3  # one of them refused
        assert [entry.base_offset for entry in await stage.cluster.entries(key)] == [0, 1]


class NotYet:
    """Metadata that says of one partition, for the first commits, that what comes before has not arrived."""

    def __init__(self, inner: MetadataStore, times: int) -> None:
        self._inner = inner
        self.key: PartitionKey | None = None
        self.times = times
        self.sent: list[AppendId] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit_leased(self, append_id: AppendId, slices: Sequence[LeasedSlice]) -> list[SliceOutcome]:
        self.sent.append(append_id)
        if len(self.sent) > self.times:
            return await self._inner.commit_leased(append_id, slices)
        now = await self._inner.commit_leased(append_id, [piece for piece in slices if piece.key != self.key])
        answers = {outcome.key: outcome for outcome in now}
        return [answers.get(piece.key) or SliceOutcome(key=piece.key, verdict=Verdict.NOT_YET) for piece in slices]


async def test_r10_not_yet_sends_the_identical_commit_again_and_keeps_the_leadership(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        metadata = NotYet(stage.cluster.metadata, times=2)
        node = await stage.node(metadata=metadata)
        metadata.key, other = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        await acked(node.log.append(metadata.key, batch("a"), acks=-1), node.log.append(other, batch("b"), acks=-1))
        assert len(metadata.sent) == 3
        assert len(set(metadata.sent)) == 1
        assert node.dropped == []
        assert [await stage.cluster.high_watermark(key) for key in topic.partition_keys()] == [1, 1]


async def test_r10_not_yet_for_long_ends_the_leadership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log ends elsewhere than this leader believes; waiting for ever would stop every other partition's flushes."""
    monkeypatch.setattr(commit, "_BACKOFF", Backoff(first_ms=1, longest_ms=64))
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        metadata = NotYet(stage.cluster.metadata, times=10**9)
        node = await stage.node(metadata=metadata)
        metadata.key, other = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        doomed, fine = (node.log.append(key, batch("a"), acks=-1) for key in (metadata.key, other))
        with pytest.raises(NotLeader, match="not_yet"):
            await acked(doomed)
        await acked(fine)
        assert [key for key, _ in node.dropped] == [metadata.key]


class NotYetAndStale:
    """Metadata where nothing can be committed, and vacuum passes the object at every third commit."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.said: list[Verdict] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit_leased(self, append_id: AppendId, slices: Sequence[LeasedSlice]) -> list[SliceOutcome]:
        number = len(self.said) + 1
        verdict = Verdict.FENCED if number > 30 else Verdict.NOT_YET if number % 3 else Verdict.STALE_OBJECT
        self.said.append(verdict)
        return [SliceOutcome(key=piece.key, verdict=verdict) for piece in slices]


async def test_r10_not_yet_counts_on_when_the_object_is_uploaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "_BACKOFF", Backoff(first_ms=1, longest_ms=1))
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        metadata = NotYetAndStale(stage.cluster.metadata)
        node = await stage.node(metadata=metadata)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        with pytest.raises(NotLeader, match="not_yet"):
            await acked(node.log.append(key, batch("a"), acks=-1))
        assert metadata.said.count(Verdict.NOT_YET) == commit.NOT_YET_TRIES + 1
        assert metadata.said.count(Verdict.STALE_OBJECT) == 3
        assert [dropped for dropped, _ in node.dropped] == [key]


async def test_uploads_are_retried_and_keep_their_data(tmp_path: Path) -> None:
    faulty = FaultyStore(
        MemoryStore(clock=Stage(tmp_path).cluster.clock),
        plan=ScriptedFaults([StoreFault.UNAVAILABLE, StoreFault.SERVER_ERROR, StoreFault.ERROR_AFTER]),
        randomness=SeededRandomness(3),
    )
    async with Stage(tmp_path, faulty) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        append = node.log.append(key, batch("a"), acks=-1)
        await acked(append)
        assert node.log.health.uploads_retried == 3
        assert node.log.health.store_problem == ""
        (entry,) = await stage.cluster.entries(key)
        assert (await stage.cluster.store.head(entry.object_key)).key == entry.object_key


class BareErrors:
    """A store whose client lets errors of the operating system through, some without a text."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._errors = [ConnectionResetError(104, "connection reset by peer"), TimeoutError()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, *arguments: Any, **options: Any) -> Any:
        if self._errors:
            raise self._errors.pop()
        return await self._inner.put(*arguments, **options)


async def test_an_upload_that_fails_in_the_operating_system_is_retried_too(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        node = await stage.node(store=BareErrors(stage.cluster.store))
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("a"), acks=-1))
        assert node.log.health.uploads_retried == 2
        assert node.dropped == []


class FirstIsSlow(Wrapper):
    """A store whose first put waits until it is let go."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.let_go = asyncio.Event()
        self.puts = 0

    async def put(self, *arguments: Any, **options: Any) -> Any:
        self.puts += 1
        if self.puts == 1:
            await self.let_go.wait()
        return await self.inner.put(*arguments, **options)


class Commits(Wrapper):
    """Metadata that notes the first offset of each commit it is sent."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.sent: list[int] = []

    async def commit_leased(self, append_id: AppendId, slices: Sequence[LeasedSlice]) -> list[SliceOutcome]:
        self.sent += [piece.base_offset for piece in slices]
        outcomes: list[SliceOutcome] = await self.inner.commit_leased(append_id, slices)
        return outcomes


async def test_a_flush_that_uploads_faster_than_the_one_before_it_commits_behind_it(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        store, metadata = FirstIsSlow(stage.cluster.store), Commits(stage.cluster.metadata)
        node = await stage.node(store=store, metadata=metadata)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        first = node.log.append(key, batch("a"), acks=-1)
        await settle()
        second = node.log.append(key, batch("b"), acks=-1)
        await settle()
        assert (store.puts, metadata.sent) == (2, []), "both are uploaded at a time"
        store.let_go.set()
        await acked(first, second)
        assert metadata.sent == [0, 1]


async def test_a_turn_that_is_passed_on_early_still_waits_for_the_one_before_it(tmp_path: Path) -> None:
    """A flush was cancelled before its turn came: the next one must not overtake the one before."""
    async with Stage(tmp_path) as stage:
        committer = (await stage.node()).log._committer
        keys = (await stage.cluster.topic()).partition_keys()
        first, second, third = committer.next_turn(keys), committer.next_turn(keys), committer.next_turn(keys)
        await first.wait()
        second.pass_on()
        waiting = asyncio.create_task(third.wait())
        await settle()
        assert not waiting.done()
        first.pass_on()
        await settle()
        assert waiting.done()


async def test_r10_a_turn_waits_for_the_flushes_of_all_its_partitions_and_for_no_others(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        committer = (await stage.node()).log._committer
        a, b, c = (await stage.cluster.topic(partitions=3)).partition_keys()
        of_a, of_b, of_both, of_c = (committer.next_turn(keys) for keys in ([a], [b], [a, b], [c]))
        await of_c.wait()
        waiting = asyncio.create_task(of_both.wait())
        for first, second in ((of_a, of_b),):
            first.pass_on()
            await settle()
            assert not waiting.done()
            second.pass_on()
            await settle()
        assert waiting.done()
        for turn in (of_both, of_c):
            turn.pass_on()
        await settle()
        assert committer._last == {}, "nothing is kept of flushes that have ended"


async def test_a_cancelled_flush_does_not_take_the_turn_before_it_along(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        committer = (await stage.node()).log._committer
        keys = (await stage.cluster.topic()).partition_keys()
        first, second = committer.next_turn(keys), committer.next_turn(keys)
        waiting = asyncio.create_task(second.wait())
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not first.done.cancelled()
        first.pass_on()
        await second.wait()


async def test_health_shows_what_flushes_wait_for_until_it_works_again(tmp_path: Path) -> None:
    store_away = ScriptedFaults([StoreFault.UNAVAILABLE] * 10_000)
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        node = await stage.node(store=FaultyStore(stage.cluster.store, plan=store_away, randomness=SeededRandomness(3)))
        (key,) = topic.partition_keys()
        await node.lead(topic)
        append = node.log.append(key, batch("a"), acks=-1)
        await settle()
        committer = node.log._committer
        assert committer.failing.is_set()
        assert node.log.health.store_problem
        assert [outage.active for outage in node.log.outages()] == [True]
        store_away._script.clear()
        await acked(append)
        assert not committer.failing.is_set()
        assert node.log.health.store_problem == ""
