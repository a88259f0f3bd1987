"""One agent's place in the cluster: the shell that runs the machines of this room against the store.

Loops, each thin, each supervised alike:

    changes      what the store tells → wakes the others
    heartbeat    this agent is alive; who else is?
    renewals     every lease in one call
    expiry       what could not be renewed in time is lost, by the local clock alone
    assigner     look at agents, topics and leases → plan → release, hand over, acquire
    transfers    offers in both directions

A store that is away stops none of them: each tries again, and leases end by their local deadlines. Two things end the
member: ``stop``, and a second process under the same agent id. Must not know what a lease protects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

from streamhouse.cluster.allowance import Allowance
from streamhouse.cluster.contract import (
    Health,
    HealthState,
    LeaseView,
    Loss,
    MemberStats,
    MemberView,
    Mode,
    Owner,
    Timings,
)
from streamhouse.cluster.departure import Departure
from streamhouse.cluster.exchange import Exchange
from streamhouse.cluster.holdings import LEASE_TROUBLE, Holdings
from streamhouse.cluster.lease_table import Leadership, LeaseTable
from streamhouse.cluster.news import LeaseNews
from streamhouse.cluster.pace import Calls, Signal
from streamhouse.cluster.steering import Steering
from streamhouse.cluster.troubles import Troubles
from streamhouse.core.clock import Clock
from streamhouse.core.errors import AgentNotFound, AgentSuperseded, ConfigError, StreamHouseError
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import Agent, AgentInfo, Change, ChangeKind, Holder, LeaseKey, MetadataStore

_SOONEST_TICK_S: Final = 0.05  # leases change by the hundred when an agent comes or goes: a burst is one tick
_LOOKING_SHARE: Final = 0.1  # of the time, at most, goes into looking at everything
_LOOKING_BURST_S: Final = 1.0  # but for so much at once: ten looks at 10,000 partitions
_LISTENING: Final = "changes"
_EXPIRY_CHECK_S: Final = 1.0  # leases taken meanwhile may have nearer deadlines than those last looked at


class Member:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        clock: Clock,
        randomness: Randomness,
        info: AgentInfo,
        wal_id: UUID,
        timings: Timings,
        owner: Owner,
        mode: Mode = Mode.FLEET,
        on_fatal: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        if (timings.lease_ttl_ms is None) != (mode is Mode.SINGLE_NODE):
            raise ConfigError("leases without expiry are for a single node, and a single node has no others (R2)")
        self.stats = MemberStats()
        self.lease_table = LeaseTable(clock=clock, ttl_ms=timings.lease_ttl_ms, margin_ms=timings.margin_ms)
        self.agent: Agent | None = None
        """As registered; its node id is Kafka's broker id."""
        self._metadata = metadata
        self._clock = clock
        self._randomness = randomness
        self._info = info
        self._timings = timings
        self._mode = mode
        self._on_fatal = on_fatal
        self._calls = Calls(randomness, timeout_ms=timings.renew_interval_ms)
        self._news = LeaseNews(info.agent_id)
        holder = Holder(agent_id=info.agent_id, incarnation=info.incarnation, wal_id=wal_id)
        self._holdings = Holdings(
            metadata=metadata,
            clock=clock,
            holder=holder,
            table=self.lease_table,
            ttl_ms=timings.lease_ttl_ms,
            owner=owner,
            calls=self._calls,
            stats=self.stats,
            news=self._news,
            report=self._report,
            on_ended=lambda: self._tick_signal.set(),
        )
        self._exchange = Exchange(
            metadata=metadata,
            clock=clock,
            randomness=randomness,
            holder=holder,
            holdings=self._holdings,
            timings=timings,
            calls=self._calls,
            stats=self.stats,
            fresh_wish=lambda: self._steering.fresh_wish(),
        )
        self._steering = Steering(
            metadata=metadata,
            clock=clock,
            info=info,
            timings=timings,
            mode=mode,
            holdings=self._holdings,
            exchange=self._exchange,
            calls=self._calls,
            stats=self.stats,
        )
        self._tick_signal = Signal()
        self._new_topic = Signal()
        self._ticked_s = 0.0
        self._looking = Allowance(
            share=_LOOKING_SHARE, purse_s=_LOOKING_BURST_S, longest_s=timings.assign_interval_ms / 1000
        )
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._state = HealthState.STARTING
        self._failure = ""
        self._troubles = Troubles(clock=clock)

    @property
    def health(self) -> Health:
        if self._state is HealthState.OK and self._troubles:
            return Health(state=HealthState.DEGRADED, reason=str(self._troubles))
        return Health(state=self._state, reason=self._failure)

    def describe(self) -> MemberView:
        now_ms = self._clock.boot_ms()
        return MemberView(
            agent_id=self._info.agent_id,
            incarnation=self._info.incarnation,
            agent_group=self._info.agent_group,
            availability_zone=self._info.availability_zone,
            mode=self._mode,
            health=self.health,
            leases=tuple(_lease_view(leadership, now_ms) for leadership in self.lease_table),
            wanted=len(self._steering.wish.led_by(self._info.agent_id)),
            live_agents=tuple(agent.agent_id for agent in self._steering.live),
            handing_over=self._steering.handing_over(),
            taking_over=self._exchange.accepted.keys(),
            stats=replace(self.stats),
        )

    def give_up(self, key: LeaseKey, reason: str) -> None:
        """For the owner: it has dropped this key by itself and will not be told ``lost``. The lease must not outlive
        that; it is released, and if the ring still names this agent, gained again a little later at a new epoch."""
        self._holdings.give_up(key, reason)

    def is_taking_over(self, key: LeaseKey) -> bool:
        """Whether this agent has accepted it from another and does not hold it yet."""
        return key in self._exchange.accepted

    def should_lead(self, key: LeaseKey) -> bool:
        """Whether this agent should hold it by the ring of the last look, or the key is too new for that look.

        If this agent does not hold it yet, the next look begins at once instead of at the next interval (S1.16).
        """
        if self._state is not HealthState.OK:
            return False
        if self._steering.wish.leader_of.get(key, self._info.agent_id) != self._info.agent_id:
            return False
        if self.lease_table.get(key) is None:
            self._tick_signal.set()
            self._new_topic.set()
        return True

    def report(self, where: str, error: Exception | None) -> None:
        """For whoever works beside the membership: shows in its health until it is told that ``where`` works again."""
        self._report(where, error)

    # Beginning and end.

    async def start(self, *, address: str | None = None) -> None:
        """Register and begin. A single node has opened everything when this returns; a fleet's agent goes on from here.

        ``address``: where clients reach this agent, if that was not known when the member was made.
        Raises what registering raises, AgentSuperseded and MetadataUnavailable among it; nothing is left behind then.
        """
        if address is not None:
            self._info = replace(self._info, address=address)
        await self._register()
        if self._mode is Mode.SINGLE_NODE:
            try:
                await self._steering.tick()
                await self._holdings.idle()
            except BaseException:
                await self._cease(Loss.STOPPED)
                raise
        self._state = HealthState.OK
        steps: dict[str, Callable[[], Awaitable[float]]] = {
            _LISTENING: self._listen,
            "heartbeat": self._heartbeat,
            "assigner": self._tick,
        }
        if self._mode is Mode.FLEET:
            steps |= {"renewals": self._renew, "expiry": self._expire, "transfers": self._exchange.step}
        for name, step in steps.items():
            self._loops[name] = asyncio.create_task(self._forever(name, step), name=f"cluster {name}")

    async def stop(self, graceful: bool = True) -> None:
        """Graceful: hand over or release everything, which takes as long as the owner's flushes; cancel it to cut that
        short. Otherwise: end everything at once and leave the leases to run out. Repeatable."""
        if self._state is HealthState.STOPPED:
            return
        try:
            if graceful and self._state is HealthState.OK:
                self._state = HealthState.STOPPING
                await self._cancel_loops("assigner")
                departure = Departure(
                    metadata=self._metadata,
                    clock=self._clock,
                    info=self._info,
                    mode=self._mode,
                    holdings=self._holdings,
                    exchange=self._exchange,
                    steering=self._steering,
                    calls=self._calls,
                )
                await departure.leave()
                await self._cancel_loops(*self._loops)
                await departure.sign_off()
        except AgentSuperseded:
            pass  # somebody else has this agent's place: nothing here is left to hand over
        finally:
            if self._state is not HealthState.FAILED:
                self._state = HealthState.STOPPED
            await self._cease(Loss.STOPPED)

    async def _cease(self, reason: Loss) -> None:
        self._holdings.end_all(reason)
        await self._cancel_loops(*self._loops)
        await self._holdings.cancel_work()
        self._holdings.end_all(reason)  # whatever a loop began in its last moment
        self._news.tell()
        self._troubles.forget()

    async def _cancel_loops(self, *names: str) -> None:
        tasks = [self._loops.pop(name) for name in names if name in self._loops]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _fail(self, error: Exception) -> None:
        """For good: everything is lost at once, and the application hears of it."""
        if self._state in (HealthState.FAILED, HealthState.STOPPED):
            return
        self._state, self._failure = HealthState.FAILED, str(error)
        self._exchange.stopping = True
        self._holdings.end_all(Loss.SUPERSEDED if isinstance(error, AgentSuperseded) else Loss.STOPPED)
        for task in self._loops.values():
            if task is not asyncio.current_task():
                task.cancel()
        self._on_fatal(error)

    # Supervision.

    async def _forever(self, name: str, step: Callable[[], Awaitable[float]]) -> None:
        """Again and again, resting as long as the step says; sooner after a failure."""
        failures = 0
        while self._state is not HealthState.FAILED:
            try:
                rest_s = await step()
                failures = 0
                self._report(name, None)
            except (StreamHouseError, TimeoutError) as error:
                failures += 1
                self._report(name, error)
                rest_s = self._calls.pause_s(failures)
            except Exception as error:  # a defect: nothing can be vouched for any more
                self._fail(error)
                return
            await asyncio.sleep(rest_s)

    def _report(self, where: str, error: Exception | str | None) -> None:
        self._troubles.report(where, error)
        if isinstance(error, AgentSuperseded):
            self._fail(error)

    # The loops.

    async def _listen(self) -> float:
        async with self._metadata.subscribe() as changes:
            self._report(_LISTENING, None)  # the step itself goes on for as long as all is well
            self._on_change(Change(kind=ChangeKind.ANY))  # whatever happened before the subscription began
            async for change in changes:
                self._on_change(change)
        return self._calls.pause_s(1)

    def _on_change(self, change: Change) -> None:
        if change.kind in (ChangeKind.TRANSFERS, ChangeKind.ANY) and change.name in ("", self._info.agent_id):
            self._exchange.poke()
        if change.kind is ChangeKind.LEASES:
            # This agent's own acquisitions come back to it; they are no reason to look.
            if not change.keys or not all(map(self._holdings.is_mine, change.keys)):
                self._tick_signal.set()
        elif change.kind in (ChangeKind.TOPICS, ChangeKind.ANY):
            self._tick_signal.set()
            self._new_topic.set()

    async def _heartbeat(self) -> float:
        sent_ms = self._clock.boot_ms()
        try:
            store_ms = await self._calls.once(
                partial(self._metadata.heartbeat, self._info.agent_id, self._info.incarnation)
            )
            self._steering.store_ahead_ms = store_ms - sent_ms
        except AgentNotFound:  # its row was removed by hand, or the store was restored from a backup
            await self._register()
        if await self._steering.see_agents():
            self._tick_signal.set()
        return self._jittered_s(self._timings.heartbeat_interval_ms)

    async def _register(self) -> None:
        sent_ms = self._clock.boot_ms()
        self.agent = await self._metadata.register_agent(self._info)
        self._steering.store_ahead_ms = self.agent.last_heartbeat_ms - sent_ms

    async def _renew(self) -> float:
        await self._holdings.renew()
        return self._jittered_s(self._timings.renew_interval_ms)

    async def _expire(self) -> float:
        self._holdings.expire()
        deadline_ms = self.lease_table.next_deadline_ms()
        if deadline_ms is None:
            return _EXPIRY_CHECK_S
        return min(max(deadline_ms - self._clock.boot_ms(), 1) / 1000, _EXPIRY_CHECK_S)

    async def _tick(self) -> float:
        loop = asyncio.get_running_loop()
        if self.stats.ticks:
            interval_s = self._jittered_s(self._timings.assign_interval_ms)
            await self._tick_signal.wait(self._steering.next_look_s(interval_s))
            await self._new_topic.wait(self._ticked_s + _SOONEST_TICK_S - loop.time())  # for which somebody waits
            await asyncio.sleep(self._looking.wait_s(now_s=loop.time()))
        self._tick_signal.clear()
        self._new_topic.clear()
        began_s = loop.time()
        try:
            plan = await self._steering.look()
        finally:
            self._looking.spent(loop.time() - began_s, now_s=loop.time())
        await self._steering.follow(plan)
        self._report(LEASE_TROUBLE, None)
        without = self._steering.wish.without_leader()
        self._report("groups", f"no live agent for {without} partitions and slots" if without else None)
        self._ticked_s = loop.time()
        return 0.0

    def _jittered_s(self, interval_ms: int) -> float:
        """A little early, so that a fleet started together does not stay in step."""
        return self._randomness.uniform(0.9, 1.0) * interval_ms / 1000


def _lease_view(leadership: Leadership, now_ms: int) -> LeaseView:
    deadline_ms = leadership.deadline_ms
    return LeaseView(
        key=leadership.key,
        topic=leadership.lease.topic,
        epoch=leadership.lease.epoch,
        stage=leadership.stage,
        valid=leadership.valid(),
        valid_for_ms=None if deadline_ms is None else max(0, deadline_ms - now_ms),
    )
