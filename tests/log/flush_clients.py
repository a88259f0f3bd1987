"""Clients and stores in virtual time, to try the flush policy with before a real log uses it.

The clients do what real ones were seen to do: they fill their window at once and again after each answer, send at
moments that have nothing to do with each other, and do not slow down because the server is slow.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from streamhouse.core.limits import KIB, MIB
from streamhouse.log.flush_policy import (
    WINDOW_REQUESTS,
    FlushPace,
    PutBudget,
    RoundTime,
    Waiting,
    affordable_ms,
    due_ms,
)

MAX_FLUSHES = 4
MAX_FLUSH_BYTES = 8 * MIB
IDEMPOTENT_WINDOW = 5
ONE_RECORD = 180  # bytes of a batch with one record of 100 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    put_ms: float = 3.0
    commit_ms: float = 3.0
    bytes_per_ms: float = 150 * KIB
    """All uploads together."""


@dataclass(slots=True, kw_only=True)
class Batch:
    client: Client
    size: int
    made_ms: float
    """When its first record was handed to the client's library: its linger counts as latency."""
    arrived_ms: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Client:
    """``window`` None: as many requests under way as there are batches, as librdkafka sends without idempotence."""

    batch_bytes: int
    window: int | None
    next_ready: Callable[[random.Random], float]
    """The time in ms from one batch's being ready to the next one's."""
    linger_ms: float = 0.0
    largest_batch_bytes: int = 0
    """Records that may not be sent yet, because the window is full, join the last batch up to this size."""
    largest_queue: int = 10_000
    """Batches that the client keeps; a program that writes more has to wait."""
    under_way: int = 0
    ready: deque[Batch] = field(default_factory=deque)


def busy(*, batch_bytes: int, bytes_per_ms: float, window: int | None = IDEMPOTENT_WINDOW) -> Client:
    """Always has a next batch, as soon as it could be filled."""
    return Client(
        batch_bytes=batch_bytes,
        window=window,
        largest_queue=2 * IDEMPOTENT_WINDOW if window else 64,
        next_ready=lambda _: batch_bytes / bytes_per_ms,
    )


def java_defaults() -> Client:
    return busy(batch_bytes=16 * KIB, bytes_per_ms=40 * KIB)


def librdkafka_large(*, window: int | None = IDEMPOTENT_WINDOW) -> Client:
    return busy(batch_bytes=1000 * KIB, bytes_per_ms=400 * KIB, window=window)


def franz_go() -> Client:
    return busy(batch_bytes=64 * KIB, bytes_per_ms=100 * KIB)


def paced(*, per_second: float, linger_ms: float, window: int | None) -> Client:
    """Batches of what comes within the linger time, or of one record."""
    between_ms = max(1000 / per_second, linger_ms)
    records = max(1, round(per_second * linger_ms / 1000))
    size = ONE_RECORD + 100 * (records - 1)
    return Client(
        batch_bytes=size,
        window=window,
        linger_ms=linger_ms,
        largest_batch_bytes=16 * KIB,
        next_ready=lambda _: between_ms,
    )


def irregular(*, per_second: float) -> Client:
    """One record at a time, at random moments: one of many small producers."""
    return Client(
        batch_bytes=ONE_RECORD, window=IDEMPOTENT_WINDOW, next_ready=lambda dice: dice.expovariate(per_second / 1000)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    latencies_ms: list[float]
    """The latency of each batch, from the time its client got its first record until the answer; sorted."""
    acknowledged_bytes: int
    puts: int
    seconds: float

    def latency_ms(self, share: float) -> float:
        return self.latencies_ms[min(int(len(self.latencies_ms) * share), len(self.latencies_ms) - 1)]

    @property
    def mb_per_s(self) -> float:
        return self.acknowledged_bytes / 1e6 / self.seconds

    @property
    def puts_per_s(self) -> float:
        return self.puts / self.seconds


class World:
    """One agent whose clients all wait for commits."""

    def __init__(self, clients: list[Client], pace: FlushPace, stores: Stores, seed: int = 1) -> None:
        self._clients = clients
        self._pace = pace
        self._stores = stores
        self._dice = random.Random(seed)
        self._now_ms = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers: Iterator[int] = count()
        self._waiting: list[Batch] = []
        self._unanswered: Counter[int] = Counter()  # batches at the agent, by client
        self._budget = PutBudget(pace.puts_per_second)
        self._round = RoundTime()
        self._under_way = 0
        self._last_start_ms = 0.0
        self._link_free_ms = 0.0
        self._last_commit_ms = 0.0
        self._planned_ms: float | None = None
        self._answered: list[float] = []
        self._bytes = 0
        self._puts = 0
        self._counts_from_ms = 0.0

    def run(self, *, warm_up_s: float = 2.0, seconds: float = 10.0) -> Result:
        """The first seconds, in which the budget's burst is used up, are left out."""
        self._counts_from_ms = warm_up_s * 1000
        for client in self._clients:
            self._at(self._dice.random() * client.next_ready(self._dice), lambda client=client: self._made(client))
        end_ms = (warm_up_s + seconds) * 1000
        while self._events and self._events[0][0] <= end_ms:
            self._now_ms, _, happens = heapq.heappop(self._events)
            happens()
        return Result(
            latencies_ms=sorted(self._answered), acknowledged_bytes=self._bytes, puts=self._puts, seconds=seconds
        )

    def _at(self, when_ms: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_ms, next(self._numbers), happens))

    def _made(self, client: Client) -> None:
        size, ready = client.batch_bytes, client.ready
        if ready and ready[-1].size + size <= client.largest_batch_bytes:
            ready[-1].size += size
        elif len(ready) + client.under_way < client.largest_queue:
            ready.append(Batch(client=client, size=size, made_ms=self._now_ms - client.linger_ms))
        self._at(self._now_ms + client.next_ready(self._dice), lambda: self._made(client))
        self._send(client)

    def _send(self, client: Client) -> None:
        while client.ready and (client.window is None or client.under_way < client.window):
            batch = client.ready.popleft()
            client.under_way += 1
            self._at(self._now_ms + 0.1 + self._dice.random() * 0.3, lambda batch=batch: self._arrived(batch))

    def _arrived(self, batch: Batch) -> None:
        batch.arrived_ms = self._now_ms
        self._waiting.append(batch)
        self._unanswered[id(batch.client)] += 1
        self._look()

    def _look(self) -> None:
        """What the flush loop does: flush if it is due, else look again when it will be."""
        self._planned_ms = None
        if not self._waiting or self._under_way >= MAX_FLUSHES:
            return
        waiting = Waiting(
            size_bytes=sum(batch.size for batch in self._waiting),
            oldest_ms=self._waiting[0].arrived_ms,
            newest_ms=self._waiting[-1].arrived_ms,
            windows_full=all(
                batch.client.window is not None and self._unanswered[id(batch.client)] >= WINDOW_REQUESTS
                for batch in self._waiting
            ),
        )
        wish_ms = due_ms(
            waiting,
            self._pace,
            round_ms=self._round.estimate_ms,
            last_start_ms=self._last_start_ms if self._under_way else None,
            now_ms=self._now_ms,
        )
        assert wish_ms is not None
        at_ms = affordable_ms(wish_ms, waiting.size_bytes, self._pace, budget=self._budget, now_ms=self._now_ms)
        if at_ms <= self._now_ms:
            self._flush()
            self._look()
        else:
            self._planned_ms = at_ms
            self._at(at_ms, lambda: self._look() if self._planned_ms == at_ms else None)

    def _flush(self) -> None:
        size_bytes = taken_count = 0
        while taken_count < len(self._waiting) and size_bytes < MAX_FLUSH_BYTES:
            size_bytes += self._waiting[taken_count].size
            taken_count += 1
        taken, self._waiting = self._waiting[:taken_count], self._waiting[taken_count:]
        started_ms = self._last_start_ms = self._now_ms
        if size_bytes < self._pace.unbudgeted_bytes:
            self._budget.spend(self._now_ms)
        self._under_way += 1
        if self._now_ms >= self._counts_from_ms:
            self._puts += 1
        self._link_free_ms = max(self._link_free_ms, self._now_ms) + size_bytes / self._stores.bytes_per_ms
        uploaded_ms = self._link_free_ms + self._stores.put_ms * self._dice.uniform(0.7, 1.6)
        committed_ms = max(uploaded_ms, self._last_commit_ms) + self._stores.commit_ms * self._dice.uniform(0.7, 1.6)
        self._last_commit_ms = committed_ms
        self._at(committed_ms, lambda: self._committed(taken, started_ms))

    def _committed(self, taken: list[Batch], started_ms: float) -> None:
        self._under_way -= 1
        self._round.observe(self._now_ms - started_ms)
        for batch in taken:
            batch.client.under_way -= 1
            self._unanswered[id(batch.client)] -= 1
            if self._now_ms >= self._counts_from_ms:
                self._answered.append(self._now_ms - batch.made_ms)
                self._bytes += batch.size
        for client in {id(batch.client): batch.client for batch in taken}.values():
            self._send(client)
        self._look()
