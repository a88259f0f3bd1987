"""The commit point of the sink: one intent for each topic of a batch, then the wait until it is in the log (R8).

    register ──► registered: mine counts                                        ┐ wait until every partition
             ├─► pending: an earlier attempt's counts, mine is never read       ┘ has its share
             ├─► complete: it is in the log already
             ├─► previous incomplete: the batch before waits for its leaders; wait with it
             ├─► refused: older than the query's last batch. Dropping it silently would be a loss
             ├─► the last batch's number, and another number of rows: refused, too, where the rows of a batch are sure
             └─► stale: uploaded longer ago than vacuum waits; the tasks must run again

The first intent of a (query, topic, batch) wins, so a killed driver, a repeated task or a second driver never writes
twice; what is unknown is sent again until it is known, or the time is up. An intent that is gone counts as complete
if a later batch has replaced it. Otherwise the metadata store has lost it, in a fail-over to a standby that had not got
it (R23), and it is registered again. Knows nothing of Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import (
    BatchRegressed,
    LimitExceeded,
    MetadataUnavailable,
    NotAdopted,
    NotFound,
    StoreUnavailable,
    TopicNotFound,
)
from streamhouse.core.ids import TopicId
from streamhouse.core.limits import MAX_INTENT_SLICES
from streamhouse.metadata.contract import Intent, IntentKey, IntentSlice, IntentVerdict, MetadataStore, Verdict

T = TypeVar("T")

_BACKOFF: Final = Backoff(first_ms=10, longest_ms=250)
"""The longest pause between two looks at a pending batch is 250 ms."""
_NAMED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchId:
    """Query and batch: a batch that comes again has the same ones."""

    query_id: str
    batch_id: int

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShare:
    """What a task tells the commit: which rows of a topic are in which objects. Pickled, from executor to driver."""

    topic: str
    topic_id: TopicId
    leaderless: bool
    slices: tuple[IntentSlice, ...]


def merged(shares: Iterable[TopicShare]) -> list[TopicShare]:
    """One for each topic, slices in the order of the tasks; topics in the order of their ids, the same each time."""
    slices: dict[TopicId, list[IntentSlice]] = {}
    first: dict[TopicId, TopicShare] = {}
    for share in shares:
        first.setdefault(share.topic_id, share)
        slices.setdefault(share.topic_id, []).extend(share.slices)
    return [
        TopicShare(
            topic=first[topic_id].topic,
            topic_id=topic_id,
            leaderless=first[topic_id].leaderless,
            slices=tuple(slices[topic_id]),
        )
        for topic_id in sorted(first)
    ]


class SinkCommit:
    def __init__(self, metadata: MetadataStore, *, timeout_ms: int, refuses_other_rows: bool = False) -> None:
        """``refuses_other_rows``: a batch that comes again with another number of rows is not the same batch. Where a
        checkpoint was restored that is older than the topic, Spark gives a number twice.
        """
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._refuses_other_rows = refuses_other_rows

    async def commit(self, batch: BatchId, shares: Sequence[TopicShare]) -> None:
        """Returns when every row of the batch is in the log, once, now or since an earlier attempt.

        Raises BatchRegressed, NotAdopted (also when the metadata stays away for so long), StoreUnavailable for uploads
        that are too old, LimitExceeded for more slices than an intent takes, TopicNotFound.
        """
        waited = _TimeLimit(self._timeout_ms)
        for share in shares:
            if len(share.slices) > MAX_INTENT_SLICES:
                raise LimitExceeded(
                    f"{batch} has {len(share.slices)} slices for {share.topic}; {MAX_INTENT_SLICES} at most",
                    hint="raise blobBytes, coalesce to fewer tasks, or write it in parts",
                )
        for share in shares:
            key = IntentKey(query_id=batch.query_id, topic_id=share.topic_id, batch_id=batch.batch_id)
            await self._commit(key, share, batch, waited)

    async def _commit(self, key: IntentKey, share: TopicShare, batch: BatchId, waited: _TimeLimit) -> None:
        intent = Intent(key=key, slices=share.slices)
        while True:
            outcome = await waited.until_known(
                lambda: self._metadata.register_intent(intent), f"{batch} for {share.topic} could not be registered"
            )
            if outcome.verdict in (IntentVerdict.COMPLETE, IntentVerdict.PENDING):
                self._check_rows(outcome.intent, share, batch)
            match outcome.verdict:
                case IntentVerdict.COMPLETE:
                    return
                case IntentVerdict.REGISTERED | IntentVerdict.PENDING:
                    assert outcome.intent is not None
                    if await self._complete(outcome.intent, share, batch, waited):
                        return
                case IntentVerdict.PREVIOUS_INCOMPLETE:
                    assert outcome.intent is not None
                    before = BatchId(query_id=batch.query_id, batch_id=outcome.intent.key.batch_id)
                    await self._complete(outcome.intent, share, before, waited)
                case IntentVerdict.STALE_OBJECT:
                    raise StoreUnavailable(
                        f"{batch} for {share.topic} was uploaded too long ago: the log takes no objects from before its"
                        " GC horizon",
                        hint="run the query again: the batch is written again",
                    )

    def _check_rows(self, winner: Intent | None, share: TopicShare, batch: BatchId) -> None:
        if winner is None or not self._refuses_other_rows:
            return
        theirs, mine = (sum(piece.record_count for piece in slices) for slices in (winner.slices, share.slices))
        if theirs != mine:
            raise BatchRegressed(
                f"{batch} has {mine} rows for {share.topic}, which has {theirs} rows of a batch of that number",
                hint="the checkpoint is older than the sink: restore the newest, or begin a new one; if this query's"
                " rows depend on chance, failOnChangedBatch=false keeps what is there",
            )

    async def _complete(self, intent: Intent, share: TopicShare, batch: BatchId, waited: _TimeLimit) -> bool:
        """Waits until every partition has adopted its share. On a leaderless topic this driver adopts them itself.

        False: the metadata store has lost the intent, and the rows are not in the log.
        """
        found, key, state = intent, intent.key, f"{batch} is registered"
        while not found.complete:
            if share.leaderless:
                await self._adopt(found, batch, waited)
            else:
                await waited.pause(_not_adopted(found, share, batch))
            looked = await waited.until_known(lambda: self._metadata.get_intent(key), state)
            if looked is None:
                return await waited.until_known(lambda: self._is_replaced(key, share), state)
            found = looked
        return True

    async def _is_replaced(self, key: IntentKey, share: TopicShare) -> bool:
        """True if a later batch has replaced the intent: only a complete intent is ever replaced."""
        last = await self._metadata.last_batch(key.query_id, key.topic_id)
        if last is not None:
            return last > key.batch_id
        try:
            await self._metadata.get_topic_by_id(key.topic_id)
        except TopicNotFound as error:
            raise TopicNotFound(f"topic {share.topic} was deleted while {key.query_id} wrote to it") from error
        return False

    async def _adopt(self, intent: Intent, batch: BatchId, waited: _TimeLimit) -> None:
        for partition in sorted({piece.partition for piece in intent.slices} - intent.adopted):

            async def adopt(partition: int = partition) -> Verdict | None:
                try:
                    outcome = await self._metadata.adopt_intent(intent.key, partition, epoch=0, base_offset=None)
                except NotFound:
                    return None  # complete, and replaced by a later batch
                return outcome.verdict

            verdict = await waited.until_known(adopt, f"{batch} is registered, but not adopted")
            if verdict not in (None, Verdict.COMMITTED):
                await waited.pause(f"{batch}: partition {partition} answers {verdict}")


class _TimeLimit:
    """One time limit for all waits, with growing pauses."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        self._pauses = 0

    async def pause(self, state: str) -> None:
        """Raises NotAdopted, with what is still missing, when the time is up."""
        if asyncio.get_running_loop().time() >= self._deadline_s:
            raise NotAdopted(f"{state} after {self._timeout_ms / 1000:g} s")
        self._pauses += 1
        await asyncio.sleep(_BACKOFF.step_ms(self._pauses) / 1000)

    async def until_known(self, call: Callable[[], Awaitable[T]], state: str) -> T:
        """Sends the call again while its outcome is unknown: that is always safe (R5)."""
        while True:
            try:
                return await call()
            except MetadataUnavailable as error:
                await self.pause(f"{state}: {error.message}")


def _not_adopted(intent: Intent, share: TopicShare, batch: BatchId) -> str:
    left = sorted({piece.partition for piece in intent.slices} - intent.adopted)
    named = ", ".join(map(str, left[:_NAMED])) + (f" and {len(left) - _NAMED} more" if len(left) > _NAMED else "")
    return f"{batch} is safe, but no leader has put its rows into partition {named} of {share.topic}"
