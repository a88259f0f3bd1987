"""The leases of this agent: keeps the store, the lease table and the owner in step.

A lease begins with ``acquire``, which opens it at the owner, and goes on by ``renew``. It ends in one of two ways:

    release   in order: the owner flushes and closes, then the store is told. The next agent can acquire it at once.
    end       at once: the lease is lost, or nothing can be trusted. The owner is told to stop. The store is not asked.

Owns the promise to the owner (contract.Owner): each beginning has one end, and calls for one key never overlap. The
work on a key is one task; the next task for that key waits for it. Must not decide who should lead.

A take-over reads downwards from here: ``_open`` calls the owner's ``gained`` (app/ownership.py), which calls
``LeasedLog.open_partition`` (log/leased/log.py), which prepares the partition (opening.py), sorts the frames that
earlier leaderships left in the WAL (recovery.py) and replays them (replay.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from streamhouse.cluster.contract import Loss, MemberStats, Owner
from streamhouse.cluster.lease_log import LeaseLog
from streamhouse.cluster.lease_table import Leadership, LeaseTable, Stage
from streamhouse.cluster.pace import Calls
from streamhouse.core.backoff import Backoff, KeyedBackoff
from streamhouse.core.clock import Clock
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.limits import MAX_LEASES_PER_CALL
from streamhouse.metadata.contract import AcquireVerdict, HeldLease, Holder, LeaseKey, MetadataStore

T = TypeVar("T")

LEASE_PROBLEM: Final = "lease"
"""The name of a report about one lease. It is cleared at the next tick."""

_ACQUIRE_BATCH: Final = min(1000, MAX_LEASES_PER_CALL)  # the first ones open while the others are acquired
_MAX_OPENING: Final = 64  # each asks the store for producers and epochs: enough to keep it busy, not too much for it
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
        lease_log: LeaseLog,
        report: Callable[[str, Exception | str | None], None],
        on_ended: Callable[[], None],
    ) -> None:
        self.table = table
        self.lease_log = lease_log
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
        """True if this agent holds the lease or is acquiring it."""
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
        """Start a task for a leadership. It waits for the task that still runs for the same key."""
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
            self.end(leadership, Loss.STOPPED)  # does nothing if its end is the reason for the cancellation
            raise
        except Exception as error:
            self.end(leadership, Loss.NOT_FLUSHED)
            self._report(LEASE_PROBLEM, error)

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
            await self.release_in_store(ended_before)
            verdicts.update(await self._acquire([held.key for held in ended_before], again=False))
        return verdicts

    async def _open(self, leadership: Leadership) -> None:
        async with self._opening_room:
            if not self.table.is_current(leadership) or not leadership.valid():
                return  # lost while it waited; the owner does not know it
            leadership.stage = Stage.OPENING
            try:
                await self._owner.gained(leadership.lease)
            except Exception as error:
                await self._not_opened(leadership, error)
                return
        if self.table.is_current(leadership):
            leadership.stage = Stage.SERVING
            self.lease_log.gained(leadership.lease)
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
        await self.release(leadership)
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
                elif not leadership.in_doubt:  # else a release or a transfer is under way, and its answer decides
                    self.end(leadership, Loss.GONE if outcome.lease is None else Loss.FENCED)

    # Ending.

    def end(self, leadership: Leadership, reason: Loss, *, detail: str = "") -> None:
        """End it at once. The task that runs for the key is cancelled, and the owner is told if it still serves.

        GIVEN_UP differs: the owner has dropped it already, and the lease is still held, so it is released. If the ring
        still names this agent, it is acquired again after a pause, at a new epoch. ``detail`` says why.
        """
        if not self.table.end(leadership):
            return
        owned = leadership.owned
        leadership.stage = Stage.CLOSED
        if reason is Loss.GIVEN_UP:
            self.reopening.failed(leadership.key, now_ms=self._clock.boot_ms())
            self.lease_log.given_up(leadership.lease, detail)
            self._report(LEASE_PROBLEM, f"{leadership.key} was given up: {detail}")
            self.start(leadership, self.release)
        else:
            task = self._work.get(leadership.key)
            if task is not None and task is not asyncio.current_task():
                task.cancel()
            if owned:
                self._tell_lost(leadership, reason)
        self._on_ended()

    def _tell_lost(self, leadership: Leadership, reason: Loss) -> None:
        self._stats.lost += 1
        self.lease_log.lost(leadership.lease, reason)
        try:
            self._owner.lost(leadership.key, reason)
        except Exception as error:  # a failure for one key must not stop the calls for the others
            self._report(LEASE_PROBLEM, error)

    async def release(self, leadership: Leadership) -> None:
        """End it in order: close it at the owner if it is served, then release it in the store.

        If the store does not answer, the lease expires by itself.
        """
        if leadership.stage is Stage.SERVING:
            try:
                await self.close(leadership)
            except Exception as error:
                self._report(LEASE_PROBLEM, error)
                self.end(leadership, Loss.NOT_FLUSHED)
            else:
                self.lease_log.released(leadership.lease)
        self.table.end(leadership)
        try:
            await self.release_in_store([leadership.held])
        except (StreamHouseError, TimeoutError) as error:
            self._report("release", error)

    async def close(self, leadership: Leadership) -> int:
        """The owner flushes and closes; the lease stays held and is renewed. Returns the next offset."""
        leadership.stage = Stage.CLOSING
        next_offset = await self._owner.losing(leadership.key)
        if self.table.is_current(leadership):
            leadership.stage = Stage.CLOSED
        return next_offset

    async def release_in_store(self, held: Sequence[HeldLease]) -> None:
        """Release leases in the store that belong to no leadership of this agent."""
        for batch in _batches(held, MAX_LEASES_PER_CALL):
            released = await self._calls.until_answered(
                partial(self._metadata.release_leases, self._holder, batch), give_up_ms=self._ttl_ms or 0
            )
            self._stats.released += len(released)
        self._report("release", None)


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
