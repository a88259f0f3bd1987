"""Random mixes of calls, compared step by step with a model small enough to be believed.

Each example runs in topics of its own on the test's one store, so that many examples cost one database. Invariants 2-4
of the design are checked after every step: dense offsets, one commit per base, no stale epoch.
"""

from __future__ import annotations

import dataclasses
from itertools import count
from uuid import UUID

from builders import TTL_MS, assert_dense, batch, compaction_of, leaderless_slice, leased_slice
from harness import Backend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamhouse.core.errors import CompactionConflict
from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.metadata.contract import (
    BatchOutcome,
    BatchRun,
    BatchVerdict,
    Compaction,
    CompactionVerdict,
    LeaderlessSlice,
    LeasedSlice,
    ObjectRef,
    SliceOutcome,
    Verdict,
)
from streamhouse.metadata.dedup import SEQUENCE_MODULUS, ProducerWindow

MODEST = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_names = count()


# A leased log.


@dataclasses.dataclass(slots=True)
class LeasedModel:
    """What a partition should be: entries as (base, end, object key), and the numbers beside them."""

    backend: Backend
    name: str
    key: PartitionKey
    epoch: int = 0
    led: bool = False
    """Whether an agent has led it since it was created."""
    watermark: int = 0
    log_start: int = 0
    cursor: int = 0
    entries: list[tuple[int, int, str]] = dataclasses.field(default_factory=list)
    pending: Compaction | None = None
    applied: UUID | None = None
    sent: list[tuple[AppendId, LeasedSlice]] = dataclasses.field(default_factory=list)
    committed: dict[AppendId, SliceOutcome] = dataclasses.field(default_factory=dict)
    past: list[tuple[AppendId, LeasedSlice]] = dataclasses.field(default_factory=list)
    """Commits to topics of this name that were deleted since."""
    objects: set[str] = dataclasses.field(default_factory=set)

    async def acquire(self) -> None:
        await self.backend.advance(TTL_MS)
        lease = await self.backend.lead(self.key, self.backend.holder(f"agent-{self.epoch % 3}"))
        self.epoch, self.led = self.epoch + 1, True
        assert (lease.epoch, lease.high_watermark) == (self.epoch, self.watermark)

    async def commit(self, records: int, base_shift: int, epoch_shift: int) -> None:
        base, epoch = max(0, self.watermark + base_shift), max(1, self.epoch + epoch_shift)
        piece = leased_slice(self.key, self.backend.object(), batch(records), epoch=epoch, base=base)
        self.sent.append((self.backend.append_id(), piece))
        await self.send(len(self.sent) - 1)

    async def send(self, index: int) -> None:
        if not self.sent:
            return
        append, piece = self.sent[index % len(self.sent)]
        (outcome,) = await self.backend.store.commit_leased(append, [piece])
        if append in self.committed:
            assert outcome == dataclasses.replace(self.committed[append], repeated=True)
            return
        assert outcome.verdict is self.judge(piece)
        if outcome.verdict is Verdict.COMMITTED:
            assert not outcome.repeated
            self.committed[append] = outcome
            self.entries.append((piece.base_offset, piece.end_offset, piece.object.key))
            self.objects.add(piece.object.key)
            self.watermark = piece.end_offset + 1

    def judge(self, piece: LeasedSlice) -> Verdict:
        if piece.epoch != self.epoch:
            return Verdict.FENCED
        if piece.base_offset > self.watermark:
            return Verdict.NOT_YET
        return Verdict.COMMITTED if piece.base_offset == self.watermark else Verdict.TAKEN

    async def send_to_the_past(self, index: int) -> None:
        if self.past:
            append, piece = self.past[index % len(self.past)]
            if append not in self.committed:
                (outcome,) = await self.backend.store.commit_leased(append, [piece])
                assert outcome.verdict is Verdict.GONE

    async def trim(self, offset: int) -> None:
        state = await self.backend.store.advance_log_start(self.key, offset)
        self.log_start = max(self.log_start, min(offset, self.watermark))
        assert state.log_start_offset == self.log_start
        if self.pending is not None and self.pending.target.base_offset < self.log_start:
            self.pending = None
        self.entries = [entry for entry in self.entries if entry[1] >= self.log_start]
        self.cursor = max(self.cursor, self.entries[0][0] if self.entries else self.watermark)

    async def begin(self, first: int, length: int) -> None:
        entries = await self.backend.entries(self.key)
        chosen = entries[first % len(entries) :][:length] if entries else ()
        if not chosen:
            return
        compaction = compaction_of(self.key, chosen, self.backend.object(), self.backend.ids)
        self.objects.add(compaction.object.key)
        try:
            await self.backend.store.begin_compaction(compaction)
        except CompactionConflict:
            assert self.pending is not None
            self.objects.discard(compaction.object.key)
        else:
            assert self.pending is None
            self.pending = compaction

    async def apply(self) -> None:
        if self.pending is None:
            if self.applied is not None:
                again = await self.backend.store.apply_compaction(self.key, self.applied)
                assert again is CompactionVerdict.ALREADY
            return
        verdict = await self.backend.store.apply_compaction(self.key, self.pending.compaction_id)
        assert verdict is CompactionVerdict.APPLIED
        target = self.pending.target
        kept = [one for one in self.entries if not target.base_offset <= one[0] <= target.end_offset]
        self.entries = sorted([*kept, (target.base_offset, target.end_offset, target.object_key)])
        if target.base_offset <= self.cursor:
            self.cursor = max(self.cursor, target.end_offset + 1)
        self.applied, self.pending = self.pending.compaction_id, None

    async def abort(self) -> None:
        if self.pending is not None:
            assert await self.backend.store.abort_compaction(self.key, self.pending.compaction_id)
            self.pending = None

    async def recreate(self) -> None:
        assert await self.backend.store.delete_topic(self.key.topic_id)
        while await self.backend.store.purge_deleted_topics(limit=3):
            pass
        self.past += self.sent
        self.key = await self.backend.partition(self.name)
        started = (await self.backend.state(self.key)).leader_epoch
        assert started > self.epoch if self.led else started >= self.epoch
        self.epoch, self.watermark, self.log_start, self.cursor, self.led = started, 0, 0, 0, False
        self.entries, self.sent, self.pending, self.applied = [], [], None, None

    async def check(self) -> None:
        state = await self.backend.state(self.key)
        assert (state.high_watermark, state.log_start_offset) == (self.watermark, self.log_start)
        assert (state.leader_epoch, state.compaction_cursor) == (self.epoch, self.cursor)
        found = await self.backend.entries(self.key)
        assert [(one.base_offset, one.end_offset, one.object_key) for one in found] == self.entries
        assert_dense(found, log_start=self.log_start, watermark=self.watermark)
        assert await self.backend.store.get_compaction(self.key) == self.pending

    async def check_references(self) -> None:
        """R7: exactly the objects that something names are kept; all others had their end noted."""
        await self.backend.advance(1)
        gone = set(await self.backend.garbage())
        named = {entry[2] for entry in self.entries}
        if self.pending is not None:
            named.add(self.pending.object.key)
        assert self.objects & gone == self.objects - named
        assert await self.backend.unreferenced(*sorted(self.objects)) == set()


small = st.integers(0, 30)
leased_steps = st.one_of(
    st.tuples(st.just("commit"), st.integers(1, 4), st.sampled_from([0, 0, 0, 0, -1, 1, 3]), st.just(0)),
    st.tuples(st.just("commit"), st.integers(1, 4), st.just(0), st.sampled_from([0, -1, 1])),
    st.tuples(st.just("send"), small),
    st.tuples(st.just("send_to_the_past"), small),
    st.tuples(st.just("acquire")),
    st.tuples(st.just("trim"), small),
    st.tuples(st.just("begin"), small, st.integers(1, 4)),
    st.tuples(st.just("apply")),
    st.tuples(st.just("abort")),
    st.tuples(st.just("recreate")),
)


@MODEST
@given(steps=st.lists(leased_steps, min_size=5, max_size=25))
async def test_a_leased_log_is_what_its_model_says_after_any_mix(
    backend: Backend, steps: list[tuple[object, ...]]
) -> None:
    name = f"model-{next(_names)}"
    model = LeasedModel(backend=backend, name=name, key=await backend.partition(name))
    await model.acquire()
    for step, *arguments in steps:
        await getattr(model, str(step))(*arguments)
        await model.check()
    await model.check_references()


# A leaderless log.


@dataclasses.dataclass(slots=True)
class LeaderlessModel:
    """Two partitions, each with its producers' windows, judged by ``dedup`` itself."""

    backend: Backend
    keys: list[PartitionKey]
    watermarks: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    entries: list[list[tuple[int, int, int, int]]] = dataclasses.field(default_factory=lambda: [[], []])
    windows: dict[tuple[int, int], ProducerWindow] = dataclasses.field(default_factory=dict)
    sent: list[tuple[AppendId, ObjectRef, list[LeaderlessSlice], list[SliceOutcome]]] = dataclasses.field(
        default_factory=list
    )

    async def commit(self, shares: list[list[BatchRun]]) -> None:
        slices = [
            leaderless_slice(self.keys[index], *runs, byte_offset=1000 * index)
            for index, runs in enumerate(shares)
            if runs
        ]
        if not slices:
            return
        append, blob = self.backend.append_id(), self.backend.object()
        outcomes = await self.backend.store.commit_leaderless(append, blob, slices)
        expected = [self.append(piece) for piece in slices]
        assert outcomes == expected
        self.sent.append((append, blob, slices, outcomes))

    async def resend(self, index: int) -> None:
        if self.sent:
            append, blob, slices, outcomes = self.sent[index % len(self.sent)]
            again = await self.backend.store.commit_leaderless(append, blob, slices)
            assert again == [dataclasses.replace(outcome, repeated=True) for outcome in outcomes]

    def append(self, piece: LeaderlessSlice) -> SliceOutcome:
        index = self.keys.index(piece.key)
        start, position = self.watermarks[index], piece.byte_offset
        told: list[BatchOutcome] = []
        runs: list[list[int]] = []
        open_run = False
        for one in piece.batches:
            outcome = self.judge(index, one)
            told.append(outcome)
            if outcome.verdict is BatchVerdict.APPENDED:
                if not open_run:
                    runs.append([outcome.base_offset, outcome.base_offset - 1, position, 0])
                runs[-1][1] += one.record_count
                runs[-1][3] += one.byte_length
            open_run = outcome.verdict is BatchVerdict.APPENDED
            position += one.byte_length
        self.entries[index] += [(run[0], run[1], run[2], run[3]) for run in runs]
        watermark = self.watermarks[index]
        return SliceOutcome(
            key=piece.key,
            verdict=Verdict.COMMITTED,
            base_offset=start if runs else -1,
            end_offset=watermark - 1 if runs else -1,
            high_watermark=watermark,
            leader_epoch=0,
            batches=tuple(told),
        )

    def judge(self, index: int, one: BatchRun) -> BatchOutcome:
        offset = self.watermarks[index]
        if one.producer_id >= 0:
            window = self.windows.setdefault((index, one.producer_id), ProducerWindow())
            refusal = window.judge(one)
            if refusal is not None:
                return refusal
            window.record(one, offset)
        self.watermarks[index] += one.record_count
        return BatchOutcome(verdict=BatchVerdict.APPENDED, base_offset=offset)

    async def check(self) -> None:
        loaded = await self.backend.store.load_producers(self.keys)
        for index, key in enumerate(self.keys):
            found = await self.backend.entries(key)
            assert [
                (one.base_offset, one.end_offset, one.byte_offset, one.byte_length) for one in found
            ] == self.entries[index]
            assert_dense(found, log_start=0, watermark=self.watermarks[index])
            windows = {state.producer_id: (state.producer_epoch, list(state.batches)) for state in loaded[key].states}
            assert windows == {
                producer: (window.producer_epoch, window.batches)
                for (where, producer), window in self.windows.items()
                if where == index and window.batches
            }


# Few producers, few epochs, sequences around 0 and around the wrap: most batches meet a window that knows them. A batch
# of 2³¹-6 records brings a producer that starts at 0 to the wrap.
runs = st.builds(
    batch,
    st.integers(1, 3) | st.just(SEQUENCE_MODULUS - 6),
    producer=st.sampled_from([None, 1, 1, 2]),
    epoch=st.sampled_from([0, 0, 0, 1]),
    sequence=st.integers(-6, 8).map(lambda number: number % SEQUENCE_MODULUS),
)
leaderless_steps = st.one_of(
    st.tuples(st.just("commit"), st.tuples(st.lists(runs, max_size=5), st.lists(runs, max_size=5)).map(list)),
    st.tuples(st.just("resend"), small),
)


@MODEST
@given(steps=st.lists(leaderless_steps, min_size=3, max_size=15))
async def test_r14_a_leaderless_log_is_what_its_model_says_after_any_mix(
    backend: Backend, steps: list[tuple[object, ...]]
) -> None:
    topic = await backend.topic(f"model-{next(_names)}", partitions=2, leaderless=True)
    model = LeaderlessModel(backend=backend, keys=topic.partition_keys())
    for step, *arguments in steps:
        await getattr(model, str(step))(*arguments)
    await model.check()
