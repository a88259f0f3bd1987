"""One agent: its log, its broker and its front ends, started and stopped in the right order.

    start   log opened (app/log_parts.py) → broker made (app/broker_parts.py) → front ends bind
            → membership takes leases → broker knows the cluster → front ends open
    stop    membership hands its partitions over, flushing each → front ends drain and close → the rest,
            in the opposite order of the start

Owns the order. Decides nothing about records or leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from streamhouse.app.broker_parts import make_broker
from streamhouse.app.front_ends import make_kafka
from streamhouse.app.log_parts import AgentIdentity, LogParts, Surroundings, open_log, recovery_line
from streamhouse.app.stores import Stores
from streamhouse.broker.broker import Broker
from streamhouse.core.clock import Clock
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.core.settings import Settings
from streamhouse.gateway.front_end import FrontEnd
from streamhouse.metadata.contract import HTTP_LISTENER, KAFKA_LISTENER, Durability

__all__ = ["Agent", "AgentIdentity"]

_GIVE_BACK_S: Final = 5.0


class Agent:
    """A running agent. ``Agent.start`` makes it, and ``stop`` ends it."""

    def __init__(self, around: Surroundings, made: LogParts, broker: Broker, kafka: FrontEnd | None) -> None:
        self.wal = made.wal
        self.log = made.log
        self.reader = made.reader
        self.member = made.member
        self.tail = made.tail
        self.adoption = made.adoption
        self.expiry = made.expiry
        self.upkeep = made.upkeep
        self.broker = broker
        self.kafka = kafka
        """None unless it was asked for."""
        self.left_behind = ""
        """One line for people that says what is not in the log after ``stop``."""
        self._recovered = made.recovered
        self._stop_timeout_s = around.settings.agent.stop_timeout_ms / 1000
        self._wal_dir = around.wal_dir
        self._leads_all = around.durability is Durability.WAL
        """A single node: when it has started, it leads everything and has replayed everything."""
        self._parts = AsyncExitStack()

    @classmethod
    async def start(
        cls,
        settings: Settings,
        stores: Stores,
        *,
        identity: AgentIdentity,
        clock: Clock,
        randomness: Randomness,
        on_fatal: Callable[[Exception], None],
        wal_dir: Path | None = None,
        kafka: bool = False,
        http_address: str | None = None,
    ) -> Agent:
        """``wal_dir``: another WAL than the settings', for several agents in one process. ``kafka``: serve clients.
        ``http_address``: where the process serves HTTP, to be registered.

        If it raises, nothing is left behind.
        """
        around = Surroundings(
            settings=settings,
            stores=stores,
            identity=identity,
            clock=clock,
            randomness=randomness,
            on_fatal=on_fatal,
            wal_dir=wal_dir or settings.wal.dir,
        )
        async with AsyncExitStack() as parts:
            made = await open_log(around, parts)
            broker = make_broker(around, made, parts)
            made.owner.attach(
                log=made.log, member=made.member, topics=made.topics, routes=broker.view, slots=broker.groups.slots
            )
            agent = cls(around, made, broker, make_kafka(settings, broker) if kafka else None)
            if agent.kafka is not None:
                parts.push_async_callback(agent.kafka.close)
                parts.push_async_callback(agent.kafka.drain)
            await agent._join(http_address)
            agent._parts = parts.pop_all()
            return agent

    async def _join(self, http_address: str | None) -> None:
        kafka = self.kafka
        if kafka is not None:
            await kafka.bind()
        # The first address is the one that agents tell clients of each other.
        listeners = {} if kafka is None else {KAFKA_LISTENER: kafka.addresses[0]}
        if http_address is not None:
            listeners[HTTP_LISTENER] = http_address
        await self.member.start(listeners=listeners)
        try:
            await self.broker.view.start(self.member.agent, None if kafka is None else kafka.endpoints)
            self.broker.groups.start()
            if kafka is not None:
                await kafka.open()
        except BaseException:
            await self.member.stop()
            raise

    async def stop(self, *, graceful: bool = True) -> None:
        """Graceful: everything acknowledged is in the log and the partitions are handed over when this returns; or
        ``agent.stop_timeout`` has passed, and ``left_behind`` says what is not in the log."""
        try:
            if graceful:
                self.log.limit_closing(self._stop_timeout_s)
            with suppress(TimeoutError):
                # The rest is for the leases. Those that could not be given back run out by themselves.
                async with asyncio.timeout(self._stop_timeout_s + _GIVE_BACK_S if graceful else None):
                    await self.member.stop(graceful=graceful)
            self.left_behind = self._left_behind()
        finally:
            await self._parts.aclose()  # also when the graceful part is cut short

    def recovery(self) -> str:
        """One line for people that says what the start found in the WAL."""
        # An agent of a fleet leads nothing yet when it has started, so it could only say that nothing was replayed.
        replayed = self.log.stats.replayed_batches if self._leads_all else None
        return recovery_line(self._recovered, replayed=replayed)

    def _left_behind(self) -> str:
        count = self.log.held_batches
        if not count:
            return ""
        batches = "one batch is" if count == 1 else f"{count} batches are"
        return f"{batches} not in the log yet, and kept in the WAL in {self._wal_dir} until this agent starts again"

    async def wait_leading(self, keys: list[PartitionKey], *, timeout_s: float) -> bool:
        """Whether every one of these partitions is served here before the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.log.wait_open(keys)
        except TimeoutError:
            return False
        return True
