"""Leases in the store, in the table and at the owner, kept in step: acquire, renew, expire, open, close, give back.

Owns the promise to the owner (contract.Owner): one end for every beginning, nothing of one key overlapping. What is
under way for a key is one task; the next for that key waits for it. Must not decide who should lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from streamhouse.cluster.contract import Loss, MemberStats, Owner
from streamhouse.cluster.lease_table import Leadership, LeaseTable, Stage
from streamhouse.cluster.news import LeaseNews
from streamhouse.cluster.pace import Calls
from streamhouse.core.backoff import Backoff, KeyedBackoff
from streamhouse.core.clock import Clock
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.limits import MAX_LEASES_PER_CALL
from streamhouse.metadata.contract import AcquireVerdict, HeldLease, Holder, LeaseKey, MetadataStore

T = TypeVar("T")

LEASE_TROUBLE: Final = "lease"
"""Under this name, what went wrong once with one lease; it does not last."""

_ACQUIRE_BATCH: Final = min(1000, MAX_LEASES_PER_CALL)  # the first open while the rest is acquired; none waits long
_MAX_OPENING: Final = 64  # each asks the store for producers and epochs: enough to keep it busy, not to drown it
_REOPEN: Final = Backoff(first_ms=200, longest_ms=30_000)


class Holdings:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        clock: Clock,
        holder: Holder,
        table: LeaseTable,
        ttl_ms: int | None,
        owner: Owner,
        calls: Calls,
        stats: MemberStats,
        news: LeaseNews,
        report: Callable[[str, Exception | str | None], None],
        on_ended: Callable[[], None],
    ) -> None:
        self.table = table
        self.news = news
        self.reopening: KeyedBackoff[LeaseKey] = KeyedBackoff(_REOPEN)
        self._metadata = metadata
        self._clock = clock
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._owner = owner
        self._calls = calls
        self._stats = stats
        self._report = report
        self._on_ended = on_ended
        self._acquiring: set[LeaseKey] = set()
        self._work: dict[LeaseKey, asyncio.Task[None]] = {}
        self._opening_room = asyncio.Semaphore(_MAX_OPENING)

    # What is under way.

    def busy_keys(self) -> set[LeaseKey]:
        return self._acquiring | self._work.keys()

    def is_busy(self, key: LeaseKey) -> bool:
        return key in self._acquiring or key in self._work

    def is_mine(self, key: LeaseKey) -> bool:
        """Held, or being acquired."""
        return key in self.table or key in self._acquiring

    async def idle(self) -> None:
        """Returns when nothing is under way."""
        while self._work:
            await asyncio.wait(list(self._work.values()))

    async def cancel_work(self) -> None:
        for task in self._work.values():
            task.cancel()
        await self.idle()

    def start(self, leadership: Leadership, work: Callable[[Leadership], Awaitable[None]]) -> None:
        """Do something about a leadership, after whatever is still under way for its key."""
        key = leadership.key
        task = asyncio.create_task(self._run(leadership, work, self._work.get(key)), name=f"lease {key}")
        self._work[key] = task
        task.add_done_callback(lambda done: self._done(key, done))

    async def _run(
        self,
        leadership: Leadership,
        work: Callable[[Leadership], Awaitable[None]],
        previous: asyncio.Task[None] | None,
    ) -> None:
        try:
            if previous is not None:
                await asyncio.wait([previous])
            await work(leadership)
        except asyncio.CancelledError:
            self.end(leadership, Loss.STOPPED)  # nothing to do when the end is why it was cancelled
            raise
        except Exception as error:
            self.end(leadership, Loss.NOT_FLUSHED)
            self._report(LEASE_TROUBLE, error)

    def _done(self, key: LeaseKey, task: asyncio.Task[None]) -> None:
        if self._work.get(key) is task:
            del self._work[key]
        if task.cancelled():
            self._on_ended()  # only now may the key be acquired again

    # Beginning.

    async def acquire(self, keys: Sequence[LeaseKey]) -> dict[LeaseKey, AcquireVerdict]:
        """Acquire and open. Opening goes on in the background."""
        wanted = [key for key in keys if not self.is_mine(key)]
        verdicts: dict[LeaseKey, AcquireVerdict] = {}
        for batch in _batches(wanted, _ACQUIRE_BATCH):
            verdicts.update(await self._acquire(batch))
        return verdicts

    async def _acquire(self, keys: Sequence[LeaseKey], *, again: bool = True) -> dict[LeaseKey, AcquireVerdict]:
        self._acquiring.update(keys)
        try:
            sent_ms = self._clock.boot_ms()
            outcomes = await self._calls.once(
                partial(self._metadata.acquire_leases, self._holder, keys, ttl_ms=self._ttl_ms)
            )
            ended_before: list[HeldLease] = []
            for outcome in outcomes:
                if outcome.lease is None or outcome.verdict not in (AcquireVerdict.ACQUIRED, AcquireVerdict.EXTENDED):
                    continue
                leadership = self.table.hold(outcome.lease, sent_ms=sent_ms)
                if leadership is None:
                    ended_before.append(HeldLease(key=outcome.key, epoch=outcome.lease.epoch))
                else:
                    self._stats.acquired += 1
                    self.start(leadership, self._open)
        finally:
            self._acquiring.difference_update(keys)
        verdicts = {outcome.key: outcome.verdict for outcome in outcomes}
        if ended_before and again:
            await self.release(ended_before)
            verdicts.update(await self._acquire([held.key for held in ended_before], again=False))
        return verdicts

    async def _open(self, leadership: Leadership) -> None:
        async with self._opening_room:
            if not self.table.is_current(leadership) or not leadership.valid():
                return  # lost while it waited; the owner has not heard of it
            leadership.stage = Stage.OPENING
            try:
                await self._owner.gained(leadership.lease)
            except Exception as error:
                await self._not_opened(leadership, error)
                return
        if self.table.is_current(leadership):
            leadership.stage = Stage.SERVING
            self.news.gained(leadership.lease)
            self.reopening.worked(leadership.key)
            if not self.reopening:
                self._report("open", None)

    async def _not_opened(self, leadership: Leadership, error: Exception) -> None:
        if not self.table.is_current(leadership):
            return  # lost while it was being opened, which is why it failed
        leadership.stage = Stage.CLOSED
        self._stats.open_failures += 1
        self.reopening.failed(leadership.key, now_ms=self._clock.boot_ms())
        self._report("open", error)
        await self.give_back(leadership)
        self._on_ended()

    # Going on.

    async def renew(self) -> None:
        for batch in _batches(self.table.renewable(), MAX_LEASES_PER_CALL):
            sent_ms = self._clock.boot_ms()
            held = [leadership.held for leadership in batch]
            outcomes = await self._calls.once(
                partial(self._metadata.renew_leases, self._holder, held, ttl_ms=self._ttl_ms)
            )
            self._stats.renewals += 1
            for leadership, outcome in zip(batch, outcomes, strict=True):
                if outcome.renewed:
                    self.table.renewed(leadership, sent_ms=sent_ms)
                elif not leadership.in_doubt:  # else a release or completion is under way, and knows better
                    self.end(leadership, Loss.GONE if outcome.lease is None else Loss.FENCED)

    # Ending.

    def expire(self) -> None:
        for leadership in self.table.overdue():
            self.end(leadership, Loss.EXPIRED)

    def end(self, leadership: Leadership, reason: Loss) -> None:
        """At once. The owner is told if it still thinks it leads; what is under way for the key is cancelled."""
        if not self.table.end(leadership):
            return
        owned = leadership.owned
        leadership.stage = Stage.CLOSED
        task = self._work.get(leadership.key)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if owned:
            self._stats.lost += 1
            self.news.lost(leadership.lease, reason)
            try:
                self._owner.lost(leadership.key, reason)
            except Exception as error:  # the others must hear of their end all the same
                self._report(LEASE_TROUBLE, error)
        self._on_ended()

    def give_up(self, key: LeaseKey, reason: str) -> None:
        """The owner has dropped it by itself. Release it; if it is still wanted here, it comes back at a new epoch."""
        leadership = self.table.get(key)
        if leadership is None:
            return
        self.table.end(leadership)
        leadership.stage = Stage.CLOSED
        self.reopening.failed(key, now_ms=self._clock.boot_ms())
        self.news.given_up(leadership.lease, reason)
        self._report(LEASE_TROUBLE, f"{key} was given up: {reason}")
        self.start(leadership, self.give_back)
        self._on_ended()

    def end_all(self, reason: Loss) -> None:
        for leadership in self.table:
            self.end(leadership, reason)

    async def close(self, leadership: Leadership) -> int:
        """The owner lets go in order. Renewals go on. Returns the next offset."""
        leadership.stage = Stage.CLOSING
        next_offset = await self._owner.losing(leadership.key)
        if self.table.is_current(leadership):
            leadership.stage = Stage.CLOSED
        return next_offset

    async def let_go(self, leadership: Leadership) -> None:
        """Close and release."""
        try:
            await self.close(leadership)
        except Exception as error:
            self._report(LEASE_TROUBLE, error)
            self.end(leadership, Loss.NOT_FLUSHED)
        else:
            self.news.released(leadership.lease)
        await self.give_back(leadership)

    async def give_back(self, leadership: Leadership) -> None:
        """Release what the owner no longer has. If that fails, the lease runs out by itself."""
        self.table.end(leadership)
        try:
            await self.release([leadership.held])
        except (StreamHouseError, TimeoutError) as error:
            self._report("release", error)

    async def release(self, held: Sequence[HeldLease]) -> None:
        for batch in _batches(held, MAX_LEASES_PER_CALL):
            released = await self._calls.until_answered(
                partial(self._metadata.release_leases, self._holder, batch), give_up_ms=self._ttl_ms or 0
            )
            self._stats.released += len(released)
        self._report("release", None)


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
