"""The membership of one agent: runs the state machines of this package against the metadata store.

It runs these loops. Each is short, and all are supervised in the same way:

    changes      wakes the other loops when the store notifies of a change
    heartbeat    tells the store that this agent is alive, and asks which others are
    renewals     renews every lease in one call
    expiry       ends leases that were not renewed in time, by the local clock alone
    assigner     reads agents, topics and leases; plans; then releases, hands over and acquires (reconciler.py)
    transfers    offers leases to other agents and answers their offers

If the store is away, no loop stops: each tries again after a pause, and leases end by their local deadlines. Two events
end the member: ``stop``, and a second process with the same agent id. Must not know what a lease protects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

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
from streamhouse.cluster.holdings import LEASE_PROBLEM, Holdings
from streamhouse.cluster.lease_log import LeaseLog
from streamhouse.cluster.lease_table import Leadership, LeaseTable
from streamhouse.cluster.pace import Calls, Signal, TimeBudget
from streamhouse.cluster.problems import Problems
from streamhouse.cluster.reconciler import Reconciler
from streamhouse.core.clock import Clock
from streamhouse.core.errors import AgentNotFound, AgentSuperseded, ConfigError, StreamHouseError
from streamhouse.core.outage import Outage
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import (
    AgentInfo,
    Change,
    ChangeKind,
    Holder,
    LeaseKey,
    MetadataStore,
    RegisteredAgent,
)

_SOONEST_TICK_S: Final = 0.05  # leases change by the hundred when an agent comes or goes: a burst is one tick
_LOOKING_SHARE: Final = 0.1  # of the time, at most, is spent reading everything
_LOOKING_BURST_S: Final = 1.0  # at once: ten looks at 10,000 partitions
_LISTENING: Final = "changes"
_EXPIRY_CHECK_S: Final = 1.0  # leases taken meanwhile may have earlier deadlines


class FleetMember:
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
            raise ConfigError(
                "leases that never expire are for a single node only, and a single node has no other leases (R2)"
            )
        self.stats = MemberStats()
        self.lease_table = LeaseTable(clock=clock, ttl_ms=timings.lease_ttl_ms, margin_ms=timings.margin_ms)
        self.agent: RegisteredAgent | None = None
        """This agent as it is registered; its node id is Kafka's broker id."""
        self._metadata = metadata
        self._clock = clock
        self._randomness = randomness
        self._info = info
        self._timings = timings
        self._mode = mode
        self._on_fatal = on_fatal
        self._calls = Calls(randomness, timeout_ms=timings.renew_interval_ms)
        self._lease_log = LeaseLog(info.agent_id)
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
            lease_log=self._lease_log,
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
            fresh_wish=lambda: self._reconciler.fresh_wish(),
        )
        self._reconciler = Reconciler(
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
        self._looking = TimeBudget(
            share=_LOOKING_SHARE, burst_s=_LOOKING_BURST_S, longest_s=timings.assign_interval_ms / 1000
        )
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._state = HealthState.STARTING
        self._failure = ""
        self._problems = Problems(clock=clock)

    @property
    def health(self) -> Health:
        if self._state is HealthState.OK and self._problems:
            return Health(state=HealthState.DEGRADED, reason=str(self._problems))
        return Health(state=self._state, reason=self._failure)

    def outages(self) -> list[Outage]:
        """What does not work at this time, one for each cause. ``health`` has the same in one line."""
        return self._problems.outages()

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
            wanted=len(self._reconciler.wish.led_by(self._info.agent_id)),
            live_agents=tuple(agent.agent_id for agent in self._reconciler.live),
            handing_over=self._reconciler.handing_over(),
            taking_over=self._exchange.accepted.keys(),
            stats=replace(self.stats),
        )

    def give_up(self, key: LeaseKey, reason: str) -> None:
        """The owner calls this after it has dropped this key by itself; ``lost`` is not called then. The lease is
        released. If the ring still names this agent, the lease is acquired again after a pause, at a new epoch."""
        leadership = self.lease_table.get(key)
        if leadership is not None:
            self._holdings.end(leadership, Loss.GIVEN_UP, detail=reason)

    def is_taking_over(self, key: LeaseKey) -> bool:
        """Whether this agent has accepted it from another agent and does not hold it yet."""
        return key in self._exchange.accepted

    def should_lead(self, key: LeaseKey) -> bool:
        """Whether this agent should hold it by the ring of the last look, or the key is too new for that look.

        If this agent does not hold it yet, the next look begins at once instead of at the next interval.
        """
        if self._state is not HealthState.OK:
            return False
        if self._reconciler.wish.leader_of.get(key, self._info.agent_id) != self._info.agent_id:
            return False
        if self.lease_table.get(key) is None:
            self._tick_signal.set()
            self._new_topic.set()
        return True

    def report(self, where: str, error: Exception | None) -> None:
        """Other loops of the process call it: ``where`` has this error, or works again (None). The health shows it."""
        self._report(where, error)

    # Beginning and end.

    async def start(self, *, listeners: Mapping[str, str] | None = None) -> None:
        """Register and start the loops. A single node has opened everything when this returns; an agent of a fleet
        acquires its leases afterwards.

        ``listeners``: where clients reach this agent, as far as that was not known when the member was made.
        Raises AgentSuperseded, MetadataUnavailable and what else registering raises; nothing runs then.
        """
        if listeners is not None:
            self._info = replace(self._info, listeners={**self._info.listeners, **listeners})
        await self._register()
        if self._mode is Mode.SINGLE_NODE:
            try:
                await self._reconciler.tick()
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
        """Graceful: hand over or release everything. That takes as long as the owner's flushes; cancel the call to stop
        waiting. Not graceful: end everything at once and let the leases expire. May be called again."""
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
                    reconciler=self._reconciler,
                    calls=self._calls,
                )
                await departure.leave()
                await self._cancel_loops(*self._loops)
                await departure.sign_off()
        except AgentSuperseded:
            pass  # another process has this agent's id: nothing is left to hand over
        finally:
            if self._state is not HealthState.FAILED:
                self._state = HealthState.STOPPED
            await self._cease(Loss.STOPPED)

    async def _cease(self, reason: Loss) -> None:
        self._end_all(reason)
        await self._cancel_loops(*self._loops)
        await self._holdings.cancel_work()
        self._end_all(reason)  # also what a loop acquired just before it was cancelled
        self._lease_log.write()
        self._problems.forget()

    async def _cancel_loops(self, *names: str) -> None:
        tasks = [self._loops.pop(name) for name in names if name in self._loops]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _end_all(self, reason: Loss) -> None:
        for leadership in self.lease_table:
            self._holdings.end(leadership, reason)

    def _fail(self, error: Exception) -> None:
        """The member ends for good: every leadership ends at once, and the application is told."""
        if self._state in (HealthState.FAILED, HealthState.STOPPED):
            return
        self._state, self._failure = HealthState.FAILED, str(error)
        self._exchange.stopping = True
        self._end_all(Loss.SUPERSEDED if isinstance(error, AgentSuperseded) else Loss.STOPPED)
        for task in self._loops.values():
            if task is not asyncio.current_task():
                task.cancel()
        self._on_fatal(error)

    # Supervision.

    async def _forever(self, name: str, step: Callable[[], Awaitable[float]]) -> None:
        """Run the step again and again. It returns how long to rest; after a failure the backoff decides."""
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
            except Exception as error:  # a bug: the state of this member cannot be trusted any more
                self._fail(error)
                return
            await asyncio.sleep(rest_s)

    def _report(self, where: str, error: Exception | str | None) -> None:
        self._problems.report(where, error)
        if isinstance(error, AgentSuperseded):
            self._fail(error)

    # The loops.

    async def _listen(self) -> float:
        async with self._metadata.subscribe() as changes:
            self._report(_LISTENING, None)  # the step does not return while all is well
            self._on_change(Change(kind=ChangeKind.ANY))  # for changes before the subscription began
            async for change in changes:
                self._on_change(change)
        return self._calls.pause_s(1)

    def _on_change(self, change: Change) -> None:
        if change.kind in (ChangeKind.TRANSFERS, ChangeKind.ANY) and change.name in ("", self._info.agent_id):
            self._exchange.poke()
        if change.kind is ChangeKind.LEASES:
            # This agent's own acquisitions are notified too; they are no reason to look.
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
            self._reconciler.store_ahead_ms = store_ms - sent_ms
        except AgentNotFound:  # its row was deleted by hand, or the store was restored from a backup
            await self._register()
        if await self._reconciler.see_agents():
            self._tick_signal.set()
        return self._jittered_s(self._timings.heartbeat_interval_ms)

    async def _register(self) -> None:
        sent_ms = self._clock.boot_ms()
        self.agent = await self._metadata.register_agent(self._info)
        self._reconciler.store_ahead_ms = self.agent.last_heartbeat_ms - sent_ms

    async def _renew(self) -> float:
        await self._holdings.renew()
        return self._jittered_s(self._timings.renew_interval_ms)

    async def _expire(self) -> float:
        for leadership in self.lease_table.overdue():
            self._holdings.end(leadership, Loss.EXPIRED)
        deadline_ms = self.lease_table.next_deadline_ms()
        if deadline_ms is None:
            return _EXPIRY_CHECK_S
        return min(max(deadline_ms - self._clock.boot_ms(), 1) / 1000, _EXPIRY_CHECK_S)

    async def _tick(self) -> float:
        loop = asyncio.get_running_loop()
        if self.stats.ticks:
            interval_s = self._jittered_s(self._timings.assign_interval_ms)
            await self._tick_signal.wait(self._reconciler.next_look_s(interval_s))
            await self._new_topic.wait(self._ticked_s + _SOONEST_TICK_S - loop.time())  # a client waits for it
            await asyncio.sleep(self._looking.wait_s(now_s=loop.time()))
        self._tick_signal.clear()
        self._new_topic.clear()
        began_s = loop.time()
        try:
            plan = await self._reconciler.look()
        finally:
            self._looking.spent(loop.time() - began_s, now_s=loop.time())
        await self._reconciler.follow(plan)
        self._report(LEASE_PROBLEM, None)
        without = self._reconciler.wish.without_leader()
        self._report("groups", f"no live agent for {without} partitions and slots" if without else None)
        self._ticked_s = loop.time()
        return 0.0

    def _jittered_s(self, interval_ms: int) -> float:
        """Up to a tenth early, so that agents that were started together do not stay in step."""
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
