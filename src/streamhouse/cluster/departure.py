"""A graceful stop: take nothing new, hand every lease over to the agent that leads it next, then deregister.

Leases are renewed and heartbeats sent meanwhile. Every lease is offered to the agent that the ring names without this
one. This agent serves until the other accepts, so that a client waits only for the flush and the transfer itself. A
lease that no agent takes is closed and released.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from streamhouse.cluster.assigner import DRAINING, Assigner, Wish, members_of
from streamhouse.cluster.contract import Loss, Mode
from streamhouse.cluster.exchange import Exchange, Handed
from streamhouse.cluster.holdings import Holdings
from streamhouse.cluster.lease_table import Leadership, Stage
from streamhouse.cluster.pace import Calls
from streamhouse.cluster.reconciler import MAX_LEAVING, Reconciler
from streamhouse.core.clock import Clock
from streamhouse.core.errors import AgentSuperseded, StreamHouseError
from streamhouse.metadata.contract import AgentInfo, HeldLease, LeaseKey, MetadataStore, Topic

_MAX_TARGETS: Final = 3  # agents that are offered a lease before it is released


class Departure:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        clock: Clock,
        info: AgentInfo,
        mode: Mode,
        holdings: Holdings,
        exchange: Exchange,
        reconciler: Reconciler,
        calls: Calls,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._info = info
        self._mode = mode
        self._holdings = holdings
        self._exchange = exchange
        self._reconciler = reconciler
        self._calls = calls
        self._room = asyncio.Semaphore(MAX_LEAVING)
        self._topics: list[Topic] = []
        self._successors: dict[frozenset[str], Wish] = {}

    async def leave(self) -> None:
        """Returns when nothing is held any more. Call ``sign_off`` afterwards."""
        self._exchange.stopping = True
        self._exchange.poke()
        self._reconciler.drop_hand_overs()
        self._end_unopened()
        try:
            if self._mode is Mode.FLEET:
                await self._announce()
        except AgentSuperseded:
            raise
        except (StreamHouseError, TimeoutError):
            pass  # the other agents cannot be told, so none is offered anything: close and release
        await self._empty()

    async def sign_off(self) -> None:
        """Deregister, unless the store cannot be reached. No other call may be under way any more: the store would take
        a late heartbeat for a second process (R20)."""
        try:
            await self._release_leftovers()
            await self._calls.once(
                partial(self._metadata.deregister_agent, self._info.agent_id, self._info.incarnation)
            )
        except (StreamHouseError, TimeoutError):
            pass  # the others notice that its heartbeats stop

    def _end_unopened(self) -> None:
        for leadership in self._holdings.table:
            if leadership.stage in (Stage.WAITING, Stage.OPENING):
                self._holdings.end(leadership, Loss.STOPPED)

    async def _announce(self) -> None:
        """Makes the other agents leave this one out of their rings, so that they agree on the next leader of each
        lease."""
        leaving = replace(self._info, metadata={**self._info.metadata, DRAINING: True})
        await self._calls.once(partial(self._metadata.register_agent, leaving))
        await self._reconciler.see_agents()
        self._topics = await self._calls.once(self._metadata.list_topics)

    async def _empty(self) -> None:
        while True:
            for leadership in self._holdings.table:
                if leadership.stage is Stage.SERVING and not self._holdings.is_busy(leadership.key):
                    self._holdings.start(leadership, self._hand_on)
            await self._holdings.idle()
            if not any(leadership.stage is Stage.SERVING for leadership in self._holdings.table):
                return

    async def _hand_on(self, leadership: Leadership) -> None:
        async with self._room:
            refused_by: set[str] = set()
            for _ in range(_MAX_TARGETS):
                target = self._successor(leadership.key, refused_by)
                if target is None:
                    break
                if await self._exchange.hand_over(leadership, target) is not Handed.REFUSED:
                    return
                refused_by.add(target)
            await self._holdings.release(leadership)

    def _successor(self, key: LeaseKey, refused_by: set[str]) -> str | None:
        now_ms = self._clock.boot_ms()
        out = frozenset(
            agent.agent_id
            for agent in self._reconciler.live
            if agent.agent_id in refused_by or not self._exchange.partners.may_try(agent.agent_id, now_ms=now_ms)
        )
        if out not in self._successors:
            agents = [agent for agent in self._reconciler.live if agent.agent_id not in out]
            members = members_of(agents, self._info, leaving=True)
            self._successors[out] = Assigner().wish(members, self._topics)
        return self._successors[out].leader_of.get(key)

    async def _release_leftovers(self) -> None:
        """Release leases whose acquisition was cancelled, or whose transfer to this agent completed too late to be
        refused."""
        listed = await self._calls.once(partial(self._metadata.list_leases, agent_id=self._info.agent_id))
        mine = [
            HeldLease(key=lease.key, epoch=lease.epoch)
            for lease in listed
            if lease.incarnation == self._info.incarnation and not lease.expired
        ]
        if mine:
            await self._holdings.release_in_store(mine)
