"""One tick: read agents, topics and leases from the store, compare them with what is held, and follow the plan.

assigner.py decides; the holdings and the exchange act. Keeps the result of the last look for ``Member.describe``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from streamhouse.cluster.assigner import (
    NO_WISH,
    Assigner,
    LeasePlan,
    Wish,
    all_keys,
    is_draining,
    members_of,
    plan,
    plan_single_node,
    soonest_death_ms,
)
from streamhouse.cluster.contract import Loss, MemberStats, Mode, Timings
from streamhouse.cluster.exchange import Exchange, Handed
from streamhouse.cluster.holdings import Holdings
from streamhouse.cluster.lease_log import log_agents
from streamhouse.cluster.lease_table import Leadership, Stage
from streamhouse.cluster.pace import Calls
from streamhouse.core.backoff import Backoff, KeyedBackoff
from streamhouse.core.clock import Clock
from streamhouse.metadata.contract import AgentInfo, Lease, LeaseKey, MetadataStore, RegisteredAgent

MAX_LEAVING: Final = 64
"""Leases handed over or closed at a time. More would share a flush, but each then waits longer for its completion: on
PostgreSQL a partition was without a leader for 0.26 s (median) with 128."""

_KEEP_TRANSFERS_MS: Final = 3_600_000  # ended transfers stay so long for operators to look at
_SWEEP_INTERVAL_MS: Final = 600_000


class Reconciler:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        clock: Clock,
        info: AgentInfo,
        timings: Timings,
        mode: Mode,
        holdings: Holdings,
        exchange: Exchange,
        calls: Calls,
        stats: MemberStats,
    ) -> None:
        self.wish = NO_WISH
        self.live: tuple[RegisteredAgent, ...] = ()
        self.store_ahead_ms = 0
        """The store's clock minus this agent's boot clock, at the last heartbeat."""
        self._metadata = metadata
        self._clock = clock
        self._info = info
        self._timings = timings
        self._mode = mode
        self._holdings = holdings
        self._exchange = exchange
        self._calls = calls
        self._stats = stats
        self._assigner = Assigner()
        self._hand_overs: dict[LeaseKey, str] = {}
        self._moving: dict[LeaseKey, str] = {}
        self._offering: KeyedBackoff[LeaseKey] = KeyedBackoff(
            Backoff(first_ms=timings.transfer_timeout_ms, longest_ms=timings.liveness_timeout_ms)
        )
        self._next_sweep_ms = 0

    def handing_over(self) -> tuple[LeaseKey, ...]:
        return tuple(self._moving.keys() | self._hand_overs.keys())

    # Looking.

    async def see_agents(self) -> bool:
        """Whether an agent joined, went, or began to leave since the last look."""
        before = self._membership()
        agents = await self._calls.once(
            partial(self._metadata.list_agents, alive_within_ms=self._timings.liveness_timeout_ms)
        )
        known, leaving = self.live, self._leaving()  # only now: another look may have run during the call
        self.live = tuple(agents)
        log_agents(
            self._info.agent_id,
            before=(agent.agent_id for agent in known),
            now=(agent.agent_id for agent in agents),
            leaving=self._leaving() - leaving,
        )
        return self._membership() != before

    def _leaving(self) -> frozenset[str]:
        return frozenset(agent.agent_id for agent in self.live if is_draining(agent))

    def _membership(self) -> set[tuple[object, ...]]:
        return {(agent.agent_id, agent.incarnation, agent.agent_group, is_draining(agent)) for agent in self.live}

    async def fresh_wish(self) -> tuple[Wish, frozenset[str]]:
        """The ring of this moment, and the agents that are leaving."""
        await self.see_agents()
        members = members_of(self.live, self._info, leaving=self._exchange.stopping)
        draining = self._leaving()
        topics = await self._calls.once(self._metadata.list_topics)
        return self._assigner.wish(members, topics), draining

    def next_look_s(self, interval_s: float) -> float:
        """The time until the next look: the interval, an agent that may be dead, or a lease that did not open."""
        now_ms = self._clock.boot_ms()
        waits_ms: list[float] = [interval_s * 1000]
        retry_ms = self._holdings.reopening.next_ms(now_ms=now_ms)
        if retry_ms is not None:
            waits_ms.append(retry_ms - now_ms)
        death_ms = soonest_death_ms(
            self.live,
            except_agent=self._info.agent_id,
            now_ms=now_ms + self.store_ahead_ms,
            liveness_timeout_ms=self._timings.liveness_timeout_ms,
        )
        if death_ms is not None and self._mode is Mode.FLEET:
            waits_ms.append(death_ms + 1)
        return min(waits_ms) / 1000

    # Acting.

    async def tick(self) -> None:
        await self.follow(await self.look())

    async def look(self) -> LeasePlan:
        """Read everything and plan. Its cost grows with the number of all partitions."""
        known = list(self._holdings.table)  # before the calls: their answers say nothing about what is held later
        if self._mode is Mode.SINGLE_NODE:
            topics = await self._calls.once(self._metadata.list_topics)
            wish = Wish(leader_of=dict.fromkeys(all_keys(topics), self._info.agent_id))
            self._reconcile(known, wish, {})
            made = plan_single_node(topics, held=self._holdings.table, busy=self._untouchable())
        else:
            wish, _ = await self.fresh_wish()
            leases = {lease.key: lease for lease in await self._calls.once(self._metadata.list_leases)}
            self._reconcile(known, wish, leases)
            made = plan(
                wish,
                leases,
                agent_id=self._info.agent_id,
                incarnation=self._info.incarnation,
                held=self._holdings.table,
                busy=self._untouchable(),
            )
        self.wish = wish
        self._stats.ticks += 1
        return made

    async def follow(self, made: LeasePlan) -> None:
        for key in made.release:
            leadership = self._holdings.table.get(key)
            if leadership is not None and leadership.stage is Stage.SERVING:
                self._holdings.start(leadership, self._holdings.release)
        self._hand_overs = made.hand_over
        self.pump()
        if made.give_back:
            await self._holdings.release_in_store(made.give_back)
        if made.acquire:
            await self._holdings.acquire(made.acquire)
        await self._sweep()

    def _reconcile(self, known: list[Leadership], wish: Wish, leases: dict[LeaseKey, Lease]) -> None:
        """An epoch only grows: a lease listed at a later epoch belongs to a later leadership, however old the list
        is."""
        existing = wish.leader_of.keys()
        for leadership in known:
            lease = leases.get(leadership.key)
            if leadership.key not in existing:
                self._holdings.end(leadership, Loss.GONE)
            elif lease is not None and lease.epoch > leadership.lease.epoch and not leadership.in_doubt:
                self._holdings.end(leadership, Loss.FENCED)
        self._holdings.table.forget_except(existing)
        self._holdings.reopening.forget_except(existing)
        self._offering.forget_except(existing)
        self._exchange.partners.forget_except({agent.agent_id for agent in self.live})

    def _untouchable(self) -> set[LeaseKey]:
        now_ms = self._clock.boot_ms()
        busy = self._holdings.busy_keys()
        busy.update(self._exchange.accepted.keys())
        busy.update(self._holdings.reopening.waiting(now_ms=now_ms))
        return busy

    def pump(self) -> None:
        """Start as many planned hand-overs as may run at a time."""
        now_ms = self._clock.boot_ms()
        for key, target in list(self._hand_overs.items()):
            if len(self._moving) >= MAX_LEAVING:
                return
            del self._hand_overs[key]
            leadership = self._holdings.table.get(key)
            if (
                leadership is not None
                and leadership.stage is Stage.SERVING
                and key not in self._moving
                and self._offering.may_try(key, now_ms=now_ms)
                and self._may_ask(target, now_ms)
            ):
                self._moving[key] = target
                self._holdings.start(leadership, partial(self._move, target=target))

    def _may_ask(self, target: str, now_ms: int) -> bool:
        """An agent that did not answer last time is offered one lease first, not all of them."""
        partners = self._exchange.partners
        return partners.may_try(target, now_ms=now_ms) and (
            target not in partners or target not in self._moving.values()
        )

    def drop_hand_overs(self) -> None:
        self._hand_overs = {}

    async def _move(self, leadership: Leadership, target: str) -> None:
        key = leadership.key
        try:
            handed = await self._exchange.hand_over(leadership, target)
            if handed is Handed.REFUSED:
                self._offering.failed(key, now_ms=self._clock.boot_ms())
            else:
                self._offering.worked(key)
            if handed is Handed.RELEASED and not self._exchange.stopping:
                # The target failed after this agent had closed. The ring still names the target, so no other agent
                # would acquire it: take it back, at a new epoch.
                await self._holdings.acquire([key])
        finally:
            self._moving.pop(key, None)
            self.pump()

    async def _sweep(self) -> None:
        """Delete ended transfers. Any agent may do it."""
        now_ms = self._clock.boot_ms()
        if self._mode is Mode.FLEET and now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + _SWEEP_INTERVAL_MS
            await self._calls.once(partial(self._metadata.expire_transfers, keep_ms=_KEEP_TRANSFERS_MS))
