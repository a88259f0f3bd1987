"""One flush: upload its objects, wait for its turn, commit until there is a verdict, act on the verdict.

Uploads of several flushes overlap. The commit of a flush waits for all earlier flushes of its partitions, so that the
chunks of a partition are committed in order. Flushes that share no partition do not wait for each other. An upload or
a commit that fails is repeated as long as the process lives: the batches have their offsets, so they must be committed
or refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from streamhouse.core.backoff import Backoff
from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataError, StoreError
from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.core.metrics import Latency
from streamhouse.core.outage import Outage
from streamhouse.core.randomness import Randomness
from streamhouse.log.leased.pack import PackedObject, Placed, packing
from streamhouse.log.leased.partition import Chunk, Phase
from streamhouse.metadata.contract import LeasedSlice, MetadataStore, SliceOutcome, Verdict
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.topic_requests import caused_by

T = TypeVar("T")

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first_ms=50, longest_ms=5_000, least_share=0)
_STAMP_MAX_AGE_MS: Final = 60_000
_FREED_AT_ONCE: Final = 64
UPLOADING: Final = "uploading what was written"
COMMITTING: Final = "committing what was written"
"""The names of a flush's outages, in log and health."""
NOT_YET_TRIES: Final = 6
"""For one chunk, also if its object is uploaded again in between. It takes about three seconds; later flushes wait
meanwhile. After that, the log does not end where this leader believes."""


class Outcomes(Protocol):
    """Called with the outcome of each chunk; the log implements it."""

    def committed(self, chunk: Chunk, outcome: SliceOutcome) -> None: ...

    def refused(self, chunk: Chunk, outcome: SliceOutcome) -> None: ...


@dataclass(slots=True, kw_only=True)
class FlushHealth:
    """What keeps flushes from finishing, as texts for an operator; empty when nothing does."""

    store_problem: str = ""
    metadata_problem: str = ""
    uploads_retried: int = 0
    commits_retried: int = 0
    flush: Latency = field(default_factory=Latency)
    """Whole flushes, retries included."""
    commit: Latency = field(default_factory=Latency)
    """Commits, each until its verdict."""
    objects_stale: int = 0
    """Objects whose commit was refused because the garbage collector's horizon had passed their stamp (R6)."""


@dataclass(slots=True, kw_only=True)
class StoreStamps:
    """Creation stamps by the metadata store's clock; vacuum compares them with its own (R6).

    They never go back, whatever the store's clock does, and are never below a horizon that a commit has met. A stamp
    ahead of the store's clock only protects an object from vacuum for longer; one behind the horizon is refused.
    """

    metadata: MetadataStore
    clock: Clock
    _latest_ms: int = 0
    _ahead_ms: int = 0
    _measured_boot_ms: int | None = None

    async def now_ms(self, *, fresh: bool = False) -> int:
        boot_ms = self.clock.boot_ms()
        if fresh or self._measured_boot_ms is None or boot_ms - self._measured_boot_ms > _STAMP_MAX_AGE_MS:
            store_ms = await self.metadata.now_ms()
            self._ahead_ms = store_ms - self.clock.boot_ms()
            self._measured_boot_ms = self.clock.boot_ms()
        self.rise_to(self.clock.boot_ms() + self._ahead_ms)
        return self._latest_ms

    def rise_to(self, stamp_ms: int) -> None:
        """No stamp from now on is earlier than that."""
        self._latest_ms = max(self._latest_ms, stamp_ms)


@dataclass(slots=True, kw_only=True)
class Committer:
    metadata: MetadataStore
    store: ObjectStore
    clock: Clock
    randomness: Randomness
    outcomes: Outcomes
    pause_s: float = 0.0
    """The pause between two steps of work on the event loop. More than 0 where no client waits for a commit: without a
    real pause the WAL's thread, which clients wait for, would rarely get the interpreter lock."""
    health: FlushHealth = field(default_factory=FlushHealth)
    failing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the health shows a problem."""
    stamps: StoreStamps = field(init=False)
    _uploads: Outage = field(init=False)
    _commits: Outage = field(init=False)
    _stale: Outage = field(init=False)
    _last: dict[PartitionKey, asyncio.Future[None]] = field(default_factory=dict)
    """The end of the last flush of each partition that has one under way."""
    _stamps_under_way: dict[int, int] = field(default_factory=dict)
    """The stamp of the objects of each flush that has uploads and has not ended, by the flush's turn."""

    def __post_init__(self) -> None:
        self.stamps = StoreStamps(metadata=self.metadata, clock=self.clock)
        self._uploads = Outage(UPLOADING, clock=self.clock, log=_log)
        self._commits = Outage(COMMITTING, clock=self.clock, log=_log)
        self._stale = Outage("the stamps of uploaded objects", clock=self.clock, log=_log)

    async def flush(self, large: Sequence[Chunk], small: Sequence[Chunk], turn: Turn) -> None:
        """Upload and commit the chunks. ``turn`` keeps the order of commits; it is passed on in any case."""
        time = asyncio.get_running_loop().time
        began_s = time()
        try:
            placed = await self._upload(large, small, turn)
            await turn.wait()
            tries = 0
            not_yet: Counter[PartitionKey] = Counter()
            while placed:
                stale = await self._commit(placed, not_yet)
                # R11: a definite refusal that is no fence: the same batches again, at the same offsets.
                placed = await self._upload_again(stale, tries, turn) if stale else []
                tries += 1
            if self._stale.active:
                self._stale.works()
            self.health.flush.observe(time() - began_s)
        finally:
            self._stamps_under_way.pop(id(turn), None)
            turn.pass_on()

    def oldest_stamp_ms(self) -> int | None:
        """The oldest stamp of an object that flushes have uploaded and may still commit; None when there is none."""
        return min(self._stamps_under_way.values(), default=None)

    def next_turn(self, keys: Sequence[PartitionKey]) -> Turn:
        """Flushes of the same partition take their turns in the order of these calls; other flushes do not wait."""
        done = asyncio.get_running_loop().create_future()
        before = {id(last): last for key in keys if (last := self._last.get(key)) is not None and not last.done()}
        for key in keys:
            self._last[key] = done
        done.add_done_callback(lambda _: self._turn_ended(keys, done))
        return Turn(before=list(before.values()), done=done)

    def _turn_ended(self, keys: Sequence[PartitionKey], done: asyncio.Future[None]) -> None:
        for key in keys:
            if self._last.get(key) is done:
                del self._last[key]

    async def commit_slices(self, append_id: AppendId, slices: Sequence[LeasedSlice]) -> list[SliceOutcome]:
        """Send the identical commit until there is a verdict (R5)."""
        time = asyncio.get_running_loop().time
        began_s = time()
        outcomes = await self._persist(
            lambda: self.metadata.commit_leased(append_id, slices), MetadataError, self._note_metadata
        )
        self.health.commit.observe(time() - began_s)
        return outcomes

    def outages(self) -> list[Outage]:
        """What keeps flushes from finishing at this time."""
        return [outage for outage in (self._uploads, self._commits, self._stale) if outage.active]

    async def pack(self, large: Sequence[Chunk], small: Sequence[Chunk], *, created_ms: int) -> list[PackedObject]:
        steps = packing(large, small, created_ms=created_ms, new_id=self.randomness.uuid)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                objects: list[PackedObject] = done.value
                return objects
            await asyncio.sleep(self.pause_s)

    async def put(self, packed: PackedObject) -> None:
        # OSError: the client library of a store may raise one. It also means "try again".
        with caused_by(packed.bytes_by_topic):
            await self._persist(
                lambda: self.store.put(packed.object.key, packed.buffers, accept_equal=True),
                (StoreError, OSError),
                self._note_store,
            )

    async def back_off(self, tries: int) -> None:
        """Pause after this many failed tries in a row."""
        await asyncio.sleep(_BACKOFF.pause_s(tries, self.randomness))

    async def _upload(
        self, large: Sequence[Chunk], small: Sequence[Chunk], turn: Turn, *, fresh: bool = False
    ) -> list[Placed]:
        created_ms = await self._persist(lambda: self.stamps.now_ms(fresh=fresh), MetadataError, self._note_metadata)
        self._stamps_under_way[id(turn)] = created_ms
        objects = await self.pack(large, small, created_ms=created_ms)
        if len(objects) == 1:
            await self.put(objects[0])
        else:
            async with asyncio.TaskGroup() as group:
                for packed in objects:
                    group.create_task(self.put(packed))
        return [placed for packed in objects for placed in packed.placed]

    async def _upload_again(self, chunks: Sequence[Chunk], tries: int, turn: Turn) -> list[Placed]:
        """Upload with a stamp that the horizon has not passed. The first time at once: vacuum was faster than a slow
        upload. If it happens again, something is wrong, and each further upload waits for a pause."""
        self.health.objects_stale += len(chunks)
        await self.learn_horizon([chunk.partition.key for chunk in chunks])
        if tries:
            self._stale.fails(
                f"{len(chunks)} partitions: the garbage collector's horizon has passed their objects {tries + 1} times;"
                " they are uploaded again after a pause"
            )
            await self.back_off(tries)
        return await self._upload([], chunks, turn, fresh=True)

    async def learn_horizon(self, keys: Sequence[PartitionKey]) -> None:
        """A commit found its object too old: new objects of these partitions get stamps from their horizon on."""
        states = await self._persist(lambda: self.metadata.get_partitions(keys), MetadataError, self._note_metadata)
        for state in states:
            self.stamps.rise_to(state.gc_horizon_ms)

    async def _commit(self, placed: Sequence[Placed], not_yet: Counter[PartitionKey]) -> list[Chunk]:
        """Returns the chunks whose object had become too old. ``not_yet`` counts that verdict for the whole flush."""
        alive = [each for each in placed if each.chunk.partition.phase is not Phase.DROPPED]
        if not alive:
            return []
        append_id = AppendId(self.randomness.uuid())
        slices = [each.slice for each in alive]
        stale: list[Chunk] = []
        while alive:
            outcomes = {outcome.key: outcome for outcome in await self.commit_slices(append_id, slices)}
            postponed: list[Placed] = []
            for each in alive:
                outcome = outcomes[each.slice.key]
                if each.chunk.partition.phase is Phase.DROPPED:
                    continue  # the leadership ended while the commit was under way; recovery will find out
                if outcome.verdict is Verdict.COMMITTED:
                    self.outcomes.committed(each.chunk, outcome)
                    await self._free(each.chunk)
                elif outcome.verdict is Verdict.STALE_OBJECT:
                    stale.append(each.chunk)
                elif outcome.verdict is Verdict.NOT_YET and not_yet[each.slice.key] < NOT_YET_TRIES:
                    not_yet[each.slice.key] += 1
                    postponed.append(each)  # R10: no reason to tear down; the identical commit again
                else:
                    self.outcomes.refused(each.chunk, outcome)
            alive = postponed
            if alive:
                self.health.commits_retried += 1
                await self.back_off(max(not_yet[each.slice.key] for each in alive))
        return stale

    async def _free(self, chunk: Chunk) -> None:
        """To free thousands of batches takes milliseconds: free a few at a time, unless a client waits for a commit."""
        while self.pause_s and len(chunk.batches) > _FREED_AT_ONCE:
            del chunk.batches[-_FREED_AT_ONCE:]
            await asyncio.sleep(self.pause_s)

    async def _persist(
        self,
        call: Callable[[], Awaitable[T]],
        repeat: type[MetadataError] | tuple[type[Exception], ...],
        note: Callable[[str], None],
    ) -> T:
        tries = 0
        while True:
            try:
                result = await call()
            except repeat as error:
                note(str(error) or type(error).__name__)
                tries += 1
                await self.back_off(tries)
            else:
                note("")
                return result

    def _note_store(self, problem: str) -> None:
        self.health.store_problem = problem
        self.health.uploads_retried += bool(problem)
        _tell(self._uploads, problem)
        self._note_failing()

    def _note_metadata(self, problem: str) -> None:
        self.health.metadata_problem = problem
        self.health.commits_retried += bool(problem)
        _tell(self._commits, problem)
        self._note_failing()

    def _note_failing(self) -> None:
        if self.health.store_problem or self.health.metadata_problem:
            self.failing.set()
        else:
            self.failing.clear()


def _tell(outage: Outage, problem: str) -> None:
    if problem:
        outage.fails(problem)
    elif outage.active:
        outage.works()


@dataclass(slots=True, kw_only=True)
class Turn:
    before: list[asyncio.Future[None]]
    """The ends of the flushes that this one waits for."""
    done: asyncio.Future[None]

    async def wait(self) -> None:
        for each in self.before:
            # Shielded: cancelling one flush must not cancel the one before it.
            await asyncio.shield(each)

    def pass_on(self) -> None:
        """If this turn never came, the next one must still wait for the ones before this."""
        left = [each for each in self.before if not each.done()]
        if left:
            left[0].add_done_callback(lambda _: self.pass_on())
        elif not self.done.done():
            self.done.set_result(None)
