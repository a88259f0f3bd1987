"""Healthy logs of random shape give no finding, whatever happens beside the verification (Hypothesis)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from verify_world import START_MS, World, Written

from streamhouse.core.clock import ManualClock
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.segment_v1_reader import verify_segment
from streamhouse.formats.shared_blob_v1 import verify_blob
from streamhouse.maintenance.verify import VerifyDepth
from streamhouse.metadata.contract import EntryKind
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.wire.batch import TimestampType
from streamhouse.wire.codecs import Codec

PARTITIONS = 3
SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    clock = ManualClock(wall_ms=START_MS)

    async def set_clock(now_ms: int) -> None:
        clock.advance(now_ms - clock.wall_ms())

    async with SqliteMetadata(":memory:", clock=clock, randomness=SeededRandomness(1), threads=False) as metadata:
        yield World(metadata, set_clock=set_clock)


# What may happen to logs. A step is data, so that Hypothesis can shrink a story.

counts = st.lists(st.integers(1, 6), min_size=1, max_size=8)
partition = st.integers(0, PARTITIONS - 1)
times = st.integers(-(2**40), 2**40)
codec = st.sampled_from(list(Codec))
stamped = st.sampled_from(list(TimestampType))
share = st.floats(0, 1)
Step = tuple[object, ...]
steps = st.one_of(
    st.tuples(st.just("segment"), partition, counts, times, codec, stamped, st.integers(61, 1000)),
    st.tuples(st.just("blob"), st.sets(partition, min_size=1), counts, times, codec, stamped),
    st.tuples(st.just("leaderless"), counts, st.integers(0, 3)),
    st.tuples(st.just("take over"), partition),
    st.tuples(st.just("compact"), partition, share, share, st.none() | st.sets(st.integers(0, 60), max_size=20)),
    st.tuples(st.just("trim"), partition, share),
    st.tuples(st.just("vacuum")),
    st.tuples(st.just("lose pins")),
)


class Story:
    def __init__(self, world: World, logs: list[Written], clicks: Written) -> None:
        self.world, self.logs, self.clicks = world, logs, clicks
        self.sequence = 0

    @classmethod
    async def begin(cls, world: World) -> Story:
        (clicks,) = await world.topic("clicks", leaderless=True)
        return cls(world, await world.topic("orders", PARTITIONS), clicks)

    async def act(self, step: Step) -> None:
        name, *how = step
        await getattr(self, str(name).replace(" ", "_"))(*how)

    async def segment(
        self, number: int, counts: list[int], ms: int, codec: Codec, kind: TimestampType, block: int
    ) -> None:
        log = self.logs[number]
        made = log.batches(*counts, first_ms=ms, codec=codec, timestamp_type=kind)
        await self.world.segment(log, made, block_bytes=block)

    async def blob(self, numbers: set[int], counts: list[int], ms: int, codec: Codec, kind: TimestampType) -> None:
        logs = [self.logs[number] for number in sorted(numbers)]
        parts = [(log, log.batches(*counts, first_ms=ms, codec=codec, timestamp_type=kind)) for log in logs]
        await self.world.blob(*parts)

    async def leaderless(self, counts: list[int], repeat: int) -> None:
        """Batches of an idempotent producer, of which one is sent twice."""
        made = []
        for count in counts:
            fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": self.sequence}
            made.append(self.clicks.batch(count, at=0, **fields))
            self.sequence += count
        made.insert(min(repeat, len(made)), made[0]) if repeat else None
        await self.world.leaderless(self.clicks, made)

    async def take_over(self, number: int) -> None:
        await self.world.take_over(self.logs[number])

    async def compact(self, number: int, first: float, last: float, kept: set[int] | None) -> None:
        log = self.logs[number]
        entries = (await self.world.entries(log))[:-1]  # the newest entry is never key-compacted (R18)
        low, high = sorted((first, last))
        sources = entries[int(low * len(entries)) : int(high * len(entries)) + 1]
        if sources:
            await self.world.compact(log, sources, keep=None if kept is None else lambda offset: offset % 61 in kept)

    async def trim(self, number: int, part: float) -> None:
        log = self.logs[number]
        await self.world.metadata.advance_log_start(log.key, int(part * log.next_offset))

    async def vacuum(self) -> None:
        await self.world.vacuum()

    async def lose_pins(self) -> None:
        pins = await self.world.metadata.list_pins()
        await self.world.metadata.release_pins([pin.pin_id for pin in pins])


def run(story: Callable[[World], Awaitable[None]]) -> None:
    async def play() -> None:
        async with open_world() as world:
            await story(world)

    asyncio.run(play())


EMPTIED_BATCH_OF_1969: list[Step] = [
    ("segment", 0, [1], -2, Codec.NONE, TimestampType.CREATE_TIME, 61),
    ("segment", 0, [1], 0, Codec.NONE, TimestampType.CREATE_TIME, 61),
    ("compact", 0, 0.0, 0.0, set()),
]


@SETTINGS
@example(past=EMPTIED_BATCH_OF_1969, page=2, window=1024)
@given(past=st.lists(steps, max_size=14), page=st.integers(2, 6), window=st.integers(1024, 4000))
def test_i2_i3_i5_a_healthy_log_of_any_shape_has_no_findings(past: list[Step], page: int, window: int) -> None:
    async def story(world: World) -> None:
        told = await Story.begin(world)
        for step in past:
            await told.act(step)
        for depth in VerifyDepth:
            heard = await world.verify(depth, page_entries=page, run_bytes=window)
            assert heard.findings == [], "\n".join(map(str, heard.findings))
        logs = [*told.logs, told.clicks]
        assert heard.summary.entries == sum([len(await world.entries(log)) for log in logs])

    run(story)


@SETTINGS
@given(
    past=st.lists(steps, min_size=2, max_size=8),
    beside=st.lists(st.tuples(st.integers(0, 5), steps), min_size=1, max_size=12),
    page=st.integers(2, 4),
)
def test_r7_a_healthy_log_that_changes_while_it_is_read_has_no_findings(
    past: list[Step], beside: list[tuple[int, Step]], page: int
) -> None:
    """A step of the story happens before a request, after as many other requests as the story says."""

    async def story(world: World) -> None:
        told = await Story.begin(world)
        for step in past:
            await told.act(step)
        left = list(beside)
        waits = left[0][0]

        async def happen() -> None:
            nonlocal waits
            while left and waits <= 0:
                await told.act(left.pop(0)[1])
                waits = left[0][0] if left else 0
            waits -= 1

        world.store.before = happen
        heard = await world.verify(VerifyDepth.BYTES, page_entries=page)
        assert heard.findings == [], "\n".join(map(str, heard.findings))
        assert heard.summary.unsettled_entries == 0
        world.store.before = None
        assert (await world.verify(page_entries=page)).findings == []

    run(story)


@SETTINGS
@given(
    counts=counts,
    kind=st.sampled_from(list(EntryKind)),
    position=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_i5_any_flipped_bit_that_the_formats_see_is_found(
    counts: list[int], kind: EntryKind, position: float, bit: int
) -> None:
    """The formats' own whole-object checks say which flips are damage: every one, in these objects."""

    async def story(world: World) -> None:
        (log,) = await world.topic()
        if kind is EntryKind.WAL:
            (entry,) = await world.blob((log, log.batches(*counts)))
        else:
            entry = await world.segment(log, log.batches(*counts))
        if kind is EntryKind.COMPACTED:
            entry = await world.compact(log, [entry])
        size = len(await world.store.get(entry.object_key))
        await world.flip(entry.object_key, int(position * size), 1 << bit)
        told = await world.verify(VerifyDepth.BYTES)
        assert {finding.object_key for finding in told.findings} == {entry.object_key}
        check = verify_blob if kind is EntryKind.WAL else verify_segment
        try:
            check(await world.store.get(entry.object_key))
        except Exception:
            return
        raise AssertionError("the format does not see it")

    run(story)
