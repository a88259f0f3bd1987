"""Runs the transfers of this agent, outgoing and incoming. transfers.py decides; this module does the IO.

One poll serves every transfer of this agent. A notification starts it at once. It also runs at intervals, because a
notification may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Final
from uuid import UUID

from streamhouse.cluster.assigner import Wish
from streamhouse.cluster.contract import Loss, MemberStats, Timings
from streamhouse.cluster.holdings import Holdings
from streamhouse.cluster.lease_table import Leadership
from streamhouse.cluster.pace import Calls, Signal
from streamhouse.cluster.transfers import Accepted, Completion, Offer, judge_completion, judge_offer, refusal
from streamhouse.core.backoff import Backoff, KeyedBackoff
from streamhouse.core.clock import Clock
from streamhouse.core.errors import NotLeader, StreamHouseError, TransferConflict, TransferNotFound
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import AcquireVerdict, Holder, LeaseKey, MetadataStore, Transfer, TransferState

_MAX_ANSWERS: Final = 64  # incoming transfers answered at a time; the rest in the next round
_SOONEST_POLL_S: Final = 0.01  # a burst of notifications is one poll


class Handed(StrEnum):
    MOVED = "moved"
    """Another agent leads."""
    REFUSED = "refused"
    """The transfer has changed nothing: this agent still serves."""
    RELEASED = "released"
    """This agent has closed the partition for a transfer that did not complete, and has released the lease."""


class Exchange:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        clock: Clock,
        randomness: Randomness,
        holder: Holder,
        holdings: Holdings,
        timings: Timings,
        calls: Calls,
        stats: MemberStats,
        fresh_wish: Callable[[], Awaitable[tuple[Wish, frozenset[str]]]],
    ) -> None:
        """``fresh_wish`` returns the ring of this moment and the agents that are leaving."""
        self.accepted = Accepted()
        self.partners: KeyedBackoff[str] = KeyedBackoff(
            Backoff(first_ms=timings.transfer_timeout_ms, longest_ms=timings.liveness_timeout_ms)
        )
        self.stopping = False
        self._metadata = metadata
        self._clock = clock
        self._randomness = randomness
        self._holder = holder
        self._holdings = holdings
        self._timings = timings
        self._calls = calls
        self._stats = stats
        self._fresh_wish = fresh_wish
        self._signal = Signal()
        self._offers: dict[UUID, asyncio.Future[Offer]] = {}

    def poke(self) -> None:
        """Wake the exchange, because a transfer of this agent may have changed."""
        self._signal.set()

    async def step(self) -> float:
        """Wait for a signal or the interval, then poll. Returns how long to rest."""
        in_progress = self._offers or self.accepted
        share = 20 if in_progress else 5
        await self._signal.wait(self._timings.transfer_timeout_ms / 1000 / share)
        await self._poll()
        return _SOONEST_POLL_S

    async def _poll(self) -> None:
        waiting = dict(self._offers)  # before asking: an offer made meanwhile may not be in the answer
        transfers = await self._calls.once(
            partial(self._metadata.list_transfers, agent_id=self._holder.agent_id, open_only=True)
        )
        listed = {transfer.transfer_id: transfer for transfer in transfers}
        for transfer_id, answer in waiting.items():
            offer = judge_offer(listed.get(transfer_id))
            if offer is not Offer.OPEN and not answer.done():
                answer.set_result(offer)
        await self._adopt(self.accepted.ended(listed))
        incoming = [transfer for transfer in transfers if transfer.to_agent == self._holder.agent_id]
        await self._answer(
            [transfer for transfer in incoming if transfer.state is TransferState.PENDING or self.stopping]
        )

    # Incoming.

    async def _answer(self, pending: Sequence[Transfer]) -> None:
        if not pending:
            return
        wish, draining = await self._fresh_wish()
        if len(pending) > _MAX_ANSWERS:
            self.poke()
        outcomes = await asyncio.gather(
            *(self._answer_one(transfer, wish, draining) for transfer in pending[:_MAX_ANSWERS]),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, (TransferConflict, TransferNotFound)):
                raise outcome

    async def _answer_one(self, transfer: Transfer, wish: Wish, draining: frozenset[str]) -> None:
        reason = refusal(
            transfer,
            agent_id=self._holder.agent_id,
            wish=wish,
            holds=self._holdings.table,
            draining=draining,
            stopping=self.stopping,
        )
        if reason is None:
            self.accepted.add(transfer)  # first: if the reply is lost, the sender may still go on and complete it
            try:
                await self._metadata.accept_transfer(transfer.transfer_id, target=self._holder)
            except (TransferConflict, TransferNotFound):
                self.accepted.forget([transfer.key])
        else:
            await self._metadata.reject_transfer(transfer.transfer_id, agent_id=self._holder.agent_id, reason=reason)

    async def _adopt(self, keys: Sequence[LeaseKey]) -> None:
        """Acquire what was accepted. A completed transfer answers EXTENDED; otherwise another agent leads."""
        if keys and not self.stopping:
            verdicts = await self._holdings.acquire(keys)
            self._stats.adopted += sum(verdict is AcquireVerdict.EXTENDED for verdict in verdicts.values())
        self.accepted.forget(keys)

    # Outgoing.

    async def hand_over(self, leadership: Leadership, target: str) -> Handed:
        """Hand a leadership that is served here over to ``target``. An error before it is closed means REFUSED."""
        transfer_id = self._randomness.uuid()
        refused = await self._offer(leadership, target, transfer_id)
        if refused is not None:
            return refused
        next_offset = await self._holdings.close(leadership)
        self._holdings.table.doubt(leadership)
        verdict = await self._complete(transfer_id, next_offset)
        if verdict is Completion.REFUSED:
            self._stats.transfers_refused += 1
            self._holdings.lease_log.released(leadership.lease)
            await self._holdings.release(leadership)
            return Handed.RELEASED
        self._stats.transfers_completed += verdict is Completion.MOVED
        self._holdings.lease_log.handed_over(leadership.lease, target)
        self._holdings.table.end(leadership)
        return Handed.MOVED

    async def _offer(self, leadership: Leadership, target: str, transfer_id: UUID) -> Handed | None:
        """Return None when the target has accepted."""
        accept_ms = self._timings.transfer_timeout_ms // 4
        try:
            await self._calls.until_answered(
                partial(
                    self._metadata.initiate_transfer,
                    transfer_id,
                    leadership.held,
                    holder=self._holder,
                    to_agent=target,
                    timeout_ms=self._timings.transfer_timeout_ms,
                ),
                give_up_ms=accept_ms,
            )
        except NotLeader:
            self._holdings.end(leadership, Loss.FENCED)
            return Handed.MOVED
        except (StreamHouseError, TimeoutError):
            return Handed.REFUSED
        answer: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()
        self._offers[transfer_id] = answer
        try:
            async with asyncio.timeout(accept_ms / 1000):
                offer = await answer
            self.partners.worked(target)
        except TimeoutError:
            offer = Offer.REFUSED
            self.partners.failed(target, now_ms=self._clock.boot_ms())
            await self._withdraw(transfer_id)
        finally:
            del self._offers[transfer_id]
        if offer is Offer.ACCEPTED:
            return None
        self._stats.transfers_refused += 1
        return Handed.REFUSED

    async def _withdraw(self, transfer_id: UUID) -> None:
        """Reject it, so that the key is free for another offer. If this fails, the transfer's deadline ends it."""
        with suppress(StreamHouseError, TimeoutError):
            await self._calls.once(
                partial(
                    self._metadata.reject_transfer,
                    transfer_id,
                    agent_id=self._holder.agent_id,
                    reason="the target did not answer",
                )
            )

    async def _complete(self, transfer_id: UUID, next_offset: int) -> Completion:
        """Send the identical call until there is a verdict. The leadership's deadline cancels it at the latest
        (R20)."""
        failures = 0
        while True:
            try:
                await self._calls.once(
                    partial(
                        self._metadata.complete_transfer,
                        transfer_id,
                        holder=self._holder,
                        next_offset=next_offset,
                        ttl_ms=self._timings.lease_ttl_ms,
                        liveness_timeout_ms=self._timings.liveness_timeout_ms,
                    )
                )
                verdict = judge_completion(None)
            except (StreamHouseError, TimeoutError) as error:
                verdict = judge_completion(error)
            if verdict is not Completion.UNKNOWN:
                return verdict
            failures += 1
            await self._calls.pause(failures)
