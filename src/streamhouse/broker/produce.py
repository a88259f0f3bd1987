"""Produce: the one way of a client's batches into the log, for every front end.

A front end gives the batches of one request, and gets one ``Outcome`` for each of them, all at once, when every batch
is as durable as its ``acks`` ask for, refused, or overdue. This module owns the order of writes and all waiting:

    arrival ──► acks allowed, topic known? ──no──► refused
                      │ yes
                      ▼
                is an earlier write of this connection waiting? ──yes──► wait behind it
                      │ no
                      ▼
                 append (broker/writers.py) ──refused, but may soon be taken──► wait, at most 5 s, then append again
                      │                       (the partition opens here, is handed over, or there is no room;
                      │                        or the batch is large and has to be opened first: preparation.py)
                      ▼
              offsets or a refusal ──► followers may go on ──► acknowledged, failed, or overdue ──► on_done

**Order.** Writes of one connection get their offsets in the order in which they arrive. While one waits, those behind
it wait too, also for other partitions. Nothing is awaited between the look at a batch and its offsets (R11).

**What follows a refused batch is refused (R21).** write_order.py remembers which batch of which producer was refused.

**Time.** A request waits for its turn and for its partitions for at most MAX_WAIT_S, counted from its arrival, and for
its acknowledgement until its own time-out. After that the answer is "not known": a batch that has its offsets goes on
into the log, one that has none is not taken any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView, TopicRef
from streamhouse.broker.deadlines import Deadlines
from streamhouse.broker.leading import MAX_WAIT_S
from streamhouse.broker.preparation import PrepareElsewhere
from streamhouse.broker.write_order import Place, WriteOrder
from streamhouse.broker.writes import Append, Writes, partition_key, unknown_topic
from streamhouse.core.errors import (
    BackPressureRejected,
    CorruptBatch,
    InflatedTooLarge,
    InvalidAcks,
    InvalidRecord,
    InvalidTimestamp,
    LimitExceeded,
    NotAcknowledged,
    NotLeader,
    OutOfOrderSequence,
    StreamHouseError,
    TransactionsUnsupported,
    as_result,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.metrics import Latency
from streamhouse.core.topic_config import TopicConfig
from streamhouse.wire.buffers import BytesLike

__all__ = ["Outcome", "Place", "Produce", "ProduceCall", "WriteOrder"]

_ACKS: Final = frozenset({-1, 1, 0})
_FAULTS_OF_A_BATCH: Final = (LimitExceeded, InflatedTooLarge, InvalidRecord, InvalidTimestamp, CorruptBatch)


class ProduceStats:
    """Counters since the start."""

    __slots__ = ("acknowledged", "refused")

    def __init__(self) -> None:
        self.acknowledged = {-1: Latency(), 1: Latency()}
        """The time from a request to its answer, by acks. With acks=0 there is no answer."""
        self.refused: dict[str, int] = {}
        """Batches that were answered with an error, by the name of the error."""

    def count_refused(self, error: BaseException) -> None:
        name = type(error).__name__
        self.refused[name] = self.refused.get(name, 0) + 1


class Outcome:
    """What became of one batch. Exactly one of ``append`` without ``error``, or ``error``, at the end."""

    __slots__ = ("append", "error", "key", "place", "prepared_for", "records")

    def __init__(self, place: Place, records: BytesLike) -> None:
        self.place = place
        self.key: PartitionKey | None = place if isinstance(place, PartitionKey) else None
        """None if the topic is not known here."""
        self.records: BytesLike | None = records
        """The batch while it has neither offsets nor an error."""
        self.prepared_for: TopicConfig | None = None
        """The configs for which ``records`` were opened and perhaps compressed again."""
        self.append: Append | None = None
        """Set when it has its offsets; it may still fail, with ``error``."""
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        """The partition, for messages: as the caller named it."""
        return str(self.place) if isinstance(self.place, PartitionKey) else f"{self.place[0]}/{self.place[1]}"


class ProduceCall:
    """One request while it is under way. Is the callback of its appends."""

    __slots__ = (
        "_began_s",
        "_deadlines",
        "_left",
        "_on_done",
        "_order",
        "_stats",
        "acks",
        "done",
        "outcomes",
        "waits_for_offsets",
    )

    def __init__(
        self,
        batches: Iterable[tuple[Place, BytesLike]],
        acks: int,
        order: WriteOrder,
        on_done: Callable[[ProduceCall], None],
        deadlines: Deadlines,
        stats: ProduceStats,
    ) -> None:
        self.acks = acks
        self.outcomes = [Outcome(place, records) for place, records in batches]
        self.done = False
        """Every outcome is what it is; or the client has gone, and no batch gets offsets any more."""
        self.waits_for_offsets = False
        """Some of its batches had to wait. Only then it makes a difference whether the client is still there."""
        self._left = len(self.outcomes)
        self._order = order
        self._on_done = on_done
        self._deadlines = deadlines
        self._stats = stats
        self._began_s = asyncio.get_running_loop().time()

    def begin(self, timeout_s: float) -> None:
        """Count the time-out from here, if anything is still open."""
        if not self.done:
            if self._left:
                self._deadlines.add(self, timeout_s)
            else:
                self._finish()

    def took(self, outcome: Outcome, append: Append) -> None:
        outcome.append = append
        outcome.records = None
        if self.acks:
            append.done.add_done_callback(self)
        else:
            self._ended_one()

    def failed(self, outcome: Outcome, error: BaseException) -> None:
        outcome.error = as_result(error)
        outcome.records = None
        self._stats.count_refused(error)
        self._ended_one()

    def __call__(self, done: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            for outcome in self.outcomes:
                append = outcome.append
                if append is not None and append.done is done:
                    self._lost(outcome, append, as_result(error))
        self._ended_one()

    def _lost(self, outcome: Outcome, append: Append, error: BaseException) -> None:
        """The batch had its offsets and is not in the log. What was sent behind it must not be taken (R21)."""
        if isinstance(error, StreamHouseError) and error.retriable and outcome.key is not None:
            self._order.lost(outcome.key, append.header, error)
        if not self.done:
            outcome.error = error
            self._stats.count_refused(error)

    def overdue(self) -> None:
        """The time-out is over. What is not acknowledged by now may be written later, or never."""
        for outcome in self.outcomes:
            append = outcome.append
            if outcome.error is None and (append is None or (self.acks and not _succeeded(append.done))):
                outcome.error = NotAcknowledged(f"{outcome.name}: not acknowledged within the request's time-out")
                self._stats.count_refused(outcome.error)
        self._finish()

    def abandon(self) -> None:
        """The client has gone. What has its offsets goes on; the rest is not taken."""
        self.done = True
        self._deadlines.remove(self)

    def _ended_one(self) -> None:
        self._left -= 1
        if not self._left:
            self._deadlines.remove(self)
            self._finish()

    def _finish(self) -> None:
        if not self.done:
            self.done = True
            if (latency := self._stats.acknowledged.get(self.acks)) is not None:
                latency.observe(asyncio.get_running_loop().time() - self._began_s)
            self._on_done(self)


class Produce:
    def __init__(self, writes: Writes, view: ClusterView) -> None:
        self._writes = writes
        self._view = view
        self.deadlines = Deadlines()
        """The time-outs of the requests under way."""
        self.stats = ProduceStats()

    def begin(
        self,
        batches: Iterable[tuple[Place, BytesLike]],
        *,
        acks: int,
        timeout_ms: int,
        order: WriteOrder,
        caller: Caller,
        on_done: Callable[[ProduceCall], None],
        transactional_id: str | None = None,
    ) -> ProduceCall:
        """Give the batches of one request their offsets, now or when it is their turn.

        ``acks`` is -1 (all), 1 or 0. ``on_done`` is called once, perhaps before this returns; never after ``abandon``.
        The records may be views into memory that is used again after this returns: what has to wait is copied.
        """
        call = ProduceCall(batches, acks, order, on_done, self.deadlines, self.stats)
        timeout_s = max(timeout_ms, 0) / 1000
        if acks not in _ACKS or transactional_id is not None:
            self._refuse_all(call, transactional_id)
            call.begin(0)
            return call
        self._find_topics(call, order)
        if call.done:
            return call
        before = order.gate
        waiting = self._append_all(call, order) if before is None else _unsettled(call)
        if waiting:
            call.waits_for_offsets = True
            _copy(waiting)
            wait_s = min(MAX_WAIT_S, timeout_s)
            later = (
                self._append_later(call, waiting, order, wait_s)
                if before is None
                else self._append_behind(call, before, order, wait_s)
            )
            order.hold(asyncio.create_task(later, name="produce-waiting"))
        call.begin(timeout_s)
        return call

    async def run(
        self,
        batches: Iterable[tuple[Place, BytesLike]],
        *,
        acks: int,
        timeout_ms: int,
        order: WriteOrder,
        caller: Caller,
    ) -> list[Outcome]:
        """``begin``, for a caller that awaits the outcomes."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finished(call: ProduceCall) -> None:
            if not done.done():
                done.set_result(None)

        call = self.begin(batches, acks=acks, timeout_ms=timeout_ms, order=order, caller=caller, on_done=finished)
        try:
            await done
        except asyncio.CancelledError:
            call.abandon()
            raise
        return call.outcomes

    def _refuse_all(self, call: ProduceCall, transactional_id: str | None) -> None:
        error: StreamHouseError
        if call.acks not in _ACKS:
            error = InvalidAcks(f"acks is 0, 1 or -1, not {call.acks}")
        else:
            error = TransactionsUnsupported(f"transactions are not supported yet (transactional id {transactional_id})")
        for outcome in call.outcomes:
            call.failed(outcome, error)

    def _find_topics(self, call: ProduceCall, order: WriteOrder) -> None:
        """Find each batch's partition, or refuse the batch: its topic is not known here."""
        last: TopicRef | None = None
        topic = None
        for outcome in call.outcomes:
            place, records = outcome.place, outcome.records
            if isinstance(place, PartitionKey) or records is None:
                continue
            ref, partition = place
            if ref is not last:
                topic, last = self._view.find(ref), ref
            earlier = order.before(place, records) if order.has_refusals else None
            if topic is None or earlier is not None:
                # The topic may be known before the next request: what follows must not be taken first (R21).
                unknown = unknown_topic(ref)
                order.refused(place, records, unknown)
                call.failed(outcome, unknown)
                continue
            if order.has_refusals:
                order.took(place, records)
            outcome.key = partition_key(topic.topic_id, partition)

    def _append_all(self, call: ProduceCall, order: WriteOrder) -> list[Outcome]:
        """Returns the batches that wait. Nothing is awaited."""
        waiting: list[Outcome] = []
        for outcome in call.outcomes:
            if outcome.records is None:
                continue
            behind_its_own = waiting and any(earlier.key == outcome.key for earlier in waiting)
            if behind_its_own or not self._append(call, outcome, order, may_wait=True):
                waiting.append(outcome)
        return waiting

    def _append(self, call: ProduceCall, outcome: Outcome, order: WriteOrder, *, may_wait: bool) -> bool:
        """Give the batch its offsets, or refuse it. False when it had better wait. Nothing is awaited."""
        key, records = outcome.key, outcome.records
        assert key is not None
        assert records is not None
        earlier = order.before(key, records) if order.has_refusals else None
        if earlier is not None and not self._writes.knows_all_before(key, records):
            order.refused(key, records, earlier)
            call.failed(outcome, earlier)
            return True
        try:
            append = self._writes.append(key, records, acks=call.acks, prepared_for=outcome.prepared_for)
        except PrepareElsewhere:
            if may_wait:
                return False
            # The topic's configs changed while the batch waited.
            changed = BackPressureRejected(f"{outcome.name}: the topic's configs have just changed")
            order.refused(key, records, changed)
            call.failed(outcome, changed)
            return True
        except StreamHouseError as error:
            can_wait = may_wait and isinstance(error, (NotLeader, BackPressureRejected))
            if can_wait and self._writes.may_soon_take(key, error, len(records)):
                return False
            self._remember_refusal(outcome, error, order)
            call.failed(outcome, error)
            return True
        if order.has_refusals:
            order.took(key, records)
        call.took(outcome, append)
        return True

    def _remember_refusal(self, outcome: Outcome, error: StreamHouseError, order: WriteOrder) -> None:
        """What follows the batch must not be taken without it (R21)."""
        assert outcome.key is not None
        assert outcome.records is not None
        if error.retriable:
            order.refused(outcome.key, outcome.records, error)
        elif isinstance(error, _FAULTS_OF_A_BATCH):
            # The client splits the batch, sends it again (a damaged one), or begins a new producer epoch. A log that
            # may have forgotten the producer would take any sequence meanwhile.
            gap = OutOfOrderSequence(f"{outcome.name}: an earlier batch of this producer was refused ({error.message})")
            order.refused(outcome.key, outcome.records, gap)

    async def _append_later(
        self, call: ProduceCall, waiting: Sequence[Outcome], order: WriteOrder, wait_s: float
    ) -> None:
        """Append what waits when its partitions are ready, or find out why they are not. Raises nothing."""
        writes, loop = self._writes, asyncio.get_running_loop()
        give_up_s = loop.time() + wait_s
        await writes.wait_settled([outcome.key for outcome in waiting if outcome.key is not None], wait_s)
        for outcome in waiting:
            key = outcome.key
            assert key is not None
            if not call.done:
                await self._prepare(call, outcome, key, order)
            records = outcome.records
            if records is None:
                continue
            if not call.done:
                await writes.wait_writable(key, len(records), max(give_up_s - loop.time(), 0))
            self._append_now(call, outcome, order)

    async def _prepare(self, call: ProduceCall, outcome: Outcome, key: PartitionKey, order: WriteOrder) -> None:
        """Open the batch if its topic needs that, or refuse it."""
        records = outcome.records
        assert records is not None
        try:
            prepared = await self._writes.prepare(key, records)
        except StreamHouseError as error:
            if not call.done:
                self._remember_refusal(outcome, error, order)
                call.failed(outcome, error)
            return
        if prepared is not None:
            outcome.records, outcome.prepared_for = prepared

    def _append_now(self, call: ProduceCall, outcome: Outcome, order: WriteOrder) -> None:
        if not call.done:
            self._append(call, outcome, order, may_wait=False)
            return
        # The client has gone or was told that the outcome is unknown; it sends the batch again, or gives it up. To take
        # it now would be a surprise. Its followers on this connection must not overtake it.
        assert outcome.key is not None
        assert outcome.records is not None
        order.refused(outcome.key, outcome.records, NotAcknowledged("an earlier batch was not taken in time"))
        outcome.records = None

    async def _append_behind(
        self, call: ProduceCall, before: asyncio.Task[None], order: WriteOrder, wait_s: float
    ) -> None:
        """Wait for the earlier write of this connection. The time runs meanwhile: five requests that each waited anew
        would take longer than clients wait for an answer."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + wait_s
        await asyncio.wait([before])
        if call.done:
            for outcome in _unsettled(call):
                self._append_now(call, outcome, order)
            return
        waiting = self._append_all(call, order)
        if waiting:
            await self._append_later(call, waiting, order, max(give_up_s - loop.time(), 0))


def _succeeded(done: asyncio.Future[None]) -> bool:
    """A future may have failed already although its callbacks have not run yet: they run in the loop's next round."""
    return done.done() and not done.cancelled() and done.exception() is None


def _unsettled(call: ProduceCall) -> list[Outcome]:
    return [outcome for outcome in call.outcomes if outcome.records is not None]


def _copy(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        if not isinstance(outcome.records, bytes):
            outcome.records = bytes(outcome.records or b"")
