"""Fetch: the one way of batches out of the log, for every front end.

A front end gives the partitions of one request, and gets one answer for each: a result, a refusal, or the offset from
which the caller's copy of the log differs. This module owns the checks, the waiting and the limits:

    topic known? ──► does this agent answer for the partition, under the epoch that the caller knows?
                          │ yes                             │ no, but it will soon: wait, at most 1 s, then look again
                          ▼                                 ▼ no: refused
                     is the caller's last epoch part of this log? (only if it says which it read last)
                          │
                          ▼
                     read: from memory at once, else from the objects; at the end of the log, wait for more

**At once or later.** ``begin`` returns the answers themselves if memory has them, and an awaitable otherwise: most
fetches of a consumer at the end of the log are answered without a task. Cancel the awaitable to give up.

**Waiting.** With less than ``min_bytes`` to give, it waits up to ``max_wait_ms``, unless a partition is refused: the
caller is to hear of that at once. A damaged object is an exception, because some clients ask again without a pause; it
waits half a second (log/reader/). A leader that hands a partition over serves what is committed until another leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, Protocol

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView, TopicRef
from streamhouse.broker.reads import ReadRequest, ReadResult, Reads
from streamhouse.broker.writes import Writes, partition_key, unknown_topic
from streamhouse.core.errors import NotLeader, OffsetOutOfRange, StreamHouseError, as_result
from streamhouse.core.ids import PartitionKey
from streamhouse.core.metrics import Latency

OPENING_WAIT_S: Final = 1.0
"""The longest wait for a partition that this agent is about to lead. After an error a client rests for longer."""


class Wanted(Protocol):
    """What a caller wants of one partition. A front end's own type does, if it has these attributes."""

    @property
    def partition(self) -> int: ...
    @property
    def fetch_offset(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def current_leader_epoch(self) -> int:
        """The leader epoch that the caller knows; -1 if it does not say."""
        ...

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the record that the caller read last; -1 if it does not say."""
        ...


class PlainWanted(NamedTuple):
    """What a caller that knows of no epochs wants to read."""

    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


class Refused(NamedTuple):
    error: StreamHouseError
    key: PartitionKey | None
    """None if there is no such topic."""


class Diverging(NamedTuple):
    """What the caller read last is not part of this log: it is to cut its own back to here."""

    epoch: int
    end_offset: int


Answer = ReadResult | Refused | Diverging


class _Plan:
    """What one fetch reads, and what is known of its answers before."""

    __slots__ = ("answers", "diverging", "opening", "places", "requests")

    def __init__(self, count: int) -> None:
        self.answers: list[Answer | None] = [None] * count
        self.requests: list[ReadRequest] = []
        self.places: list[int] = []
        """The place of each of ``requests`` among the answers."""
        self.diverging: list[tuple[int, PartitionKey]] = []
        """Places whose last fetched epoch must be compared with the log first."""
        self.opening: list[PartitionKey] = []
        """Partitions that this agent is about to answer for."""


class _Request(NamedTuple):
    wanted: Sequence[tuple[TopicRef, Wanted]]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    leader_only: bool


class Fetch:
    def __init__(self, *, view: ClusterView, reads: Reads, writes: Writes) -> None:
        self._view = view
        self._reads = reads
        self._writes = writes
        self.answered_now = Latency()
        """The time from a request to its answer, for requests that memory answered."""
        self.answered_later = Latency()
        """The same time, for requests that asked a store or waited for new records."""

    def begin(
        self,
        wanted: Sequence[tuple[TopicRef, Wanted]],
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        caller: Caller,
        leader_only: bool = True,
    ) -> Sequence[Answer] | Awaitable[Sequence[Answer]]:
        """One answer for each of ``wanted``, now or later. The first batch is given whole, even above ``max_bytes``.

        ``leader_only=False``: for a caller that cannot go to another agent. It gets what is committed, whichever agent
        leads.
        """
        began_s = asyncio.get_running_loop().time()
        request = _Request(wanted, max_wait_ms, min_bytes, max(max_bytes, 0), leader_only)
        plan = self._plan(request)
        if plan.opening and max_wait_ms > 0:
            return self._read_when_open(request, plan.opening, began_s)
        if plan.diverging:
            return self._read_later(request, plan, began_s)
        results: Sequence[ReadResult] | None = ()
        if plan.requests:
            least = _least_bytes(request, plan)
            results = self._reads.read_now(plan.requests, max_bytes=request.max_bytes, min_bytes=least)
        if results is None:
            return self._read_later(request, plan, began_s)
        for place, result in zip(plan.places, results, strict=True):
            plan.answers[place] = result
        self.answered_now.observe(asyncio.get_running_loop().time() - began_s)
        return _complete(plan)

    async def run(
        self,
        wanted: Sequence[tuple[TopicRef, Wanted]],
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        caller: Caller,
        leader_only: bool = True,
    ) -> Sequence[Answer]:
        """``begin``, for a caller that awaits anyway."""
        found = self.begin(
            wanted,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            caller=caller,
            leader_only=leader_only,
        )
        return await found if isinstance(found, Awaitable) else found

    def _plan(self, request: _Request) -> _Plan:
        view, reads = self._view, self._reads
        plan = _Plan(len(request.wanted))
        last: TopicRef | None = None
        topic = None
        for place, (ref, asked) in enumerate(request.wanted):
            if ref is not last:
                topic = view.find(ref)
                last = ref
            if topic is None:
                plan.answers[place] = Refused(unknown_topic(ref), None)
                continue
            key = partition_key(topic.topic_id, asked.partition)
            try:
                reads.leader_epoch(key, asked.current_leader_epoch, or_leaving=True)
            except StreamHouseError as error:
                elsewhere = isinstance(error, NotLeader)
                if elsewhere and self._writes.is_changing(key):
                    plan.opening.append(key)
                if request.leader_only or not elsewhere:
                    plan.answers[place] = Refused(as_result(error), key)
                    continue
            if asked.last_fetched_epoch >= 0:
                plan.diverging.append((place, key))
            plan.places.append(place)
            plan.requests.append(ReadRequest(key=key, offset=asked.fetch_offset, max_bytes=max(asked.max_bytes, 0)))
        return plan

    async def _read_when_open(
        self, request: _Request, opening: Sequence[PartitionKey], began_s: float
    ) -> Sequence[Answer]:
        await self._writes.wait_settled(opening, min(request.max_wait_ms / 1000, OPENING_WAIT_S))
        return await self._read_later(request, self._plan(request), began_s)

    async def _read_later(self, request: _Request, plan: _Plan, began_s: float) -> Sequence[Answer]:
        """Ask the metadata or the object store, or wait."""
        for place, key in plan.diverging:
            await self._compare_epochs(request.wanted[place][1], plan, place, key)
        least = _least_bytes(request, plan)
        results = await self._reads.read(
            plan.requests,
            max_bytes=request.max_bytes,
            min_bytes=least,
            max_wait_ms=request.max_wait_ms if least > 0 else 0,
        )
        for place, (key, _, _), result in zip(plan.places, plan.requests, results, strict=True):
            if isinstance(result, StreamHouseError):
                plan.answers[place] = Refused(as_result(self._view.with_name(result, key)), key)
                continue
            plan.answers[place] = result
            if not result.batches and request.leader_only:
                try:  # it may have moved during the wait, and nothing more would be heard here
                    self._reads.leader_epoch(key, or_leaving=True)
                except StreamHouseError as error:
                    plan.answers[place] = Refused(as_result(error), key)
        self.answered_later.observe(asyncio.get_running_loop().time() - began_s)
        return _complete(plan)

    async def _compare_epochs(self, asked: Wanted, plan: _Plan, place: int, key: PartitionKey) -> None:
        """Find out whether what the caller read last is part of this log. If not, it gets no records."""
        answer: Answer
        try:
            end = await self._reads.epoch_end(key, asked.last_fetched_epoch)
            if end.epoch < 0 or end.end_offset < 0:
                name = f"the log of {self._view.name_of(key)}"
                raise OffsetOutOfRange(name, offset=asked.fetch_offset, log_start_offset=-1, end_offset=-1)
        except StreamHouseError as error:
            answer = Refused(as_result(error), key)
        else:
            if end.epoch >= asked.last_fetched_epoch and end.end_offset >= asked.fetch_offset:
                return
            answer = Diverging(end.epoch, end.end_offset)
        plan.answers[place] = answer
        at = plan.places.index(place)
        del plan.places[at], plan.requests[at]


def _least_bytes(request: _Request, plan: _Plan) -> int:
    """A refusal, or no time to wait, is answered at once."""
    if request.max_wait_ms <= 0 or len(plan.requests) < len(plan.answers):
        return 0
    return request.min_bytes


def _complete(plan: _Plan) -> Sequence[Answer]:
    answers = [answer for answer in plan.answers if answer is not None]
    assert len(answers) == len(plan.answers)
    return answers
