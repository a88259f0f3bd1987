"""The database judges batches exactly as metadata/dedup.py does, and answers exactly as the SQLite backend does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from builders import batch, leaderless_slice, leased_slice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenes import IDS, append_id, holder, uploaded

from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import (
    BatchOutcome,
    BatchRun,
    BatchVerdict,
    Entry,
    MetadataStore,
    NewTopic,
    ProducerState,
    ScanRange,
    SliceOutcome,
    WriteMode,
)
from streamhouse.metadata.dedup import SEQUENCE_MODULUS, ProducerWindow
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.testing.services import PostgresService

EXAMPLES = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Few values, and close to each other and to the wrap, so that repeats, gaps and steps back are common.
sequences = st.one_of(st.integers(0, 8), st.integers(SEQUENCE_MODULUS - 4, SEQUENCE_MODULUS - 1), st.just(2**30))
batches = st.builds(
    batch,
    st.integers(1, 3),
    producer=st.sampled_from([None, 1, 2]),
    epoch=st.integers(0, 2),
    sequence=sequences,
    at_ms=st.integers(0, 50),
)


@st.composite
def honest_runs(draw: st.DrawFn) -> list[BatchRun]:
    """A producer that goes on where it stopped, repeating itself now and then."""
    runs: list[BatchRun] = []
    sequence = 0
    if draw(st.booleans()):  # near the wrap
        sequence = SEQUENCE_MODULUS - 3
        runs.append(batch(sequence, producer=7, epoch=1, sequence=0))
    for _ in range(draw(st.integers(1, 9))):
        if runs and draw(st.booleans()):
            runs.append(draw(st.sampled_from(runs)))
        else:
            count = draw(st.integers(1, 2))
            runs.append(batch(count, producer=7, epoch=1, sequence=sequence))
            sequence = (sequence + count) % SEQUENCE_MODULUS
    return runs


# Each commit is one slice of batches.
commits = st.lists(st.lists(batches, min_size=1, max_size=6) | honest_runs(), min_size=1, max_size=5)


class Judge:
    """What the pure rules say: windows by producer, and the watermark."""

    def __init__(self) -> None:
        self.windows: dict[int, ProducerWindow] = {}
        self.watermark = 0

    def append(self, runs: list[BatchRun]) -> list[BatchOutcome]:
        return [self._append(run) for run in runs]

    def _append(self, run: BatchRun) -> BatchOutcome:
        if run.producer_id >= 0:
            window = self.windows.setdefault(run.producer_id, ProducerWindow())
            refused = window.judge(run)
            if refused is not None:
                return refused
            window.record(run, self.watermark)
        self.watermark += run.record_count
        return BatchOutcome(verdict=BatchVerdict.APPENDED, base_offset=self.watermark - run.record_count)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def postgres(
    postgres_service: PostgresService, migrated_template: str, runner: asyncio.Runner
) -> Iterator[PostgresMetadata]:
    dsn = postgres_service.create_database(template=migrated_template)
    store = PostgresMetadata(dsn, randomness=SeededRandomness(1))
    runner.run(store.open())
    yield store
    runner.run(store.close())
    postgres_service.drop_database(dsn)


async def partition(store: MetadataStore, topic_id: TopicId, *, leaderless: bool) -> PartitionKey:
    mode = WriteMode.LEADERLESS if leaderless else WriteMode.LEASED
    new = NewTopic(topic_id=topic_id, name=f"t-{topic_id}", partition_count=1, configs={}, write_mode=mode)
    return (await store.create_topic(new)).partition_keys()[0]


async def windows(store: MetadataStore, key: PartitionKey) -> dict[int, tuple[int, list[object]]]:
    states: tuple[ProducerState, ...] = (await store.load_producers([key]))[key].states
    return {state.producer_id: (state.producer_epoch, list(state.batches)) for state in states}


def known(judge: Judge) -> dict[int, tuple[int, list[object]]]:
    return {
        producer: (window.producer_epoch, list(window.batches))
        for producer, window in judge.windows.items()
        if window.batches
    }


@EXAMPLES
@given(slices=commits)
def test_r14_the_database_judges_as_the_pure_rules_do(
    postgres: PostgresMetadata, runner: asyncio.Runner, slices: list[list[BatchRun]]
) -> None:
    async def compare() -> None:
        key = await partition(postgres, TopicId(IDS.uuid()), leaderless=True)
        judge = Judge()
        for runs in slices:
            identity, blob, piece = append_id(), uploaded(), leaderless_slice(key, *runs)
            found = judge.watermark
            (outcome,) = await postgres.commit_leaderless(identity, blob, [piece])
            assert list(outcome.batches) == judge.append(runs)
            assert outcome.high_watermark == judge.watermark
            appended = (found, judge.watermark - 1) if judge.watermark > found else (-1, -1)
            assert (outcome.base_offset, outcome.end_offset) == appended
            # The identical commit again changes nothing and says the same.
            (repeat,) = await postgres.commit_leaderless(identity, blob, [piece])
            assert repeat == replace(outcome, repeated=True)
        assert await windows(postgres, key) == known(judge)

    runner.run(compare())


@EXAMPLES
@given(slices=commits)
def test_r9_a_leased_commit_records_windows_as_told(
    postgres: PostgresMetadata, runner: asyncio.Runner, slices: list[list[BatchRun]]
) -> None:
    async def compare() -> None:
        key = await partition(postgres, TopicId(IDS.uuid()), leaderless=False)
        await postgres.acquire_leases(holder(), [key], ttl_ms=30_000)
        judge = Judge()
        for runs in slices:
            base = judge.watermark
            for run in runs:
                if run.producer_id >= 0:
                    judge.windows.setdefault(run.producer_id, ProducerWindow()).record(run, judge.watermark)
                judge.watermark += run.record_count
            await postgres.commit_leased(append_id(), [leased_slice(key, uploaded(), *runs, epoch=1, base=base)])
        assert await windows(postgres, key) == known(judge)

    runner.run(compare())


@EXAMPLES
@given(slices=commits)
def test_both_backends_answer_alike(
    postgres: PostgresMetadata, runner: asyncio.Runner, slices: list[list[BatchRun]]
) -> None:
    async def write(store: MetadataStore, topic_id: TopicId) -> tuple[list[SliceOutcome], list[Entry]]:
        ids = SeededRandomness(topic_id.int)
        key = await partition(store, topic_id, leaderless=True)
        outcomes: list[SliceOutcome] = []
        for runs in slices:
            blob = replace(uploaded(), key=f"objects/{ids.uuid()}")
            outcomes += await store.commit_leaderless(append_id(), blob, [leaderless_slice(key, *runs)])
        (page,) = await store.scan_entries([ScanRange(key=key, from_offset=0)], limit=1000)
        return outcomes, [replace(entry, created_at_ms=0) for entry in page.entries]

    async def compare() -> None:
        topic_id = TopicId(IDS.uuid())
        sqlite = SqliteMetadata(":memory:", clock=ManualClock(), randomness=SeededRandomness(1), threads=False)
        async with sqlite:
            assert await write(postgres, topic_id) == await write(sqlite, topic_id)

    runner.run(compare())
