"""What all connections share: their number, their limits, their counters. Closes those that take too long.

    handshake    connected, and no complete request yet                         limits.handshake_timeout_ms
    stalled      in the middle of a request, and no byte comes                  the same
    hogging      the budget is spent, and the eldest request is still coming    the same
    idle         no byte for long and nothing under way                         limits.idle_timeout_ms
    slow         takes none of its answers                                      limits.slow_reader_timeout_ms
    lingering    closed, and does not take the last answer                      limits.slow_reader_timeout_ms

One timer looks once a second while there are connections: at the oldest newcomers, at all that are slow or in the
middle of a request, and at some of the others in turn, so that ten thousand idle connections cost almost nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from streamhouse.core.limits import MAX_REQUEST_BYTES, MIB
from streamhouse.core.rate_limited_log import RateLimitedLog
from streamhouse.gateway.kafka.budget import MemoryBudget
from streamhouse.gateway.kafka.inbox import ReceiveBuffers

if TYPE_CHECKING:
    from streamhouse.gateway.kafka.answers import AnswerSlot
    from streamhouse.gateway.kafka.connection import KafkaConnection
    from streamhouse.gateway.kafka.dispatch import Dispatcher

SWEEP_S: Final = 1.0
IDLE_CHECKS_PER_SWEEP: Final = 500
_LOGGED_NAME_CHARS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    max_connections: int = 10_000
    max_connections_per_address: int = 5_000
    max_request_bytes: int = MAX_REQUEST_BYTES
    request_memory_bytes: int = 256 * MIB
    """Requests of all connections, received or being served; over it, sockets are not read."""
    unsent_memory_bytes: int = 256 * MIB
    """Answers that clients do not take, all together; over it, the one that has been slow for longest is closed."""
    unsent_high_bytes: int = 1 * MIB
    """Unsent answers of one connection over which its further requests wait."""
    unsent_low_bytes: int = MIB // 4
    handshake_timeout_ms: int = 30_000
    idle_timeout_ms: int = 600_000
    slow_reader_timeout_ms: int = 30_000
    max_fetch_sessions: int = 1_000
    stop_grace_ms: int = 5_000
    """How long a server that stops still answers the requests under way."""


@dataclass(slots=True, kw_only=True)
class ServerStats:
    accepted: int = 0
    connections: int = 0
    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    in_flight: int = 0
    """Requests under way."""
    closed: dict[str, int] = field(default_factory=dict)
    """The number of closed connections, by reason; "client" where the client closed."""

    def count_closed(self, reason: str) -> None:
        self.closed[reason] = self.closed.get(reason, 0) + 1


@dataclass(slots=True, kw_only=True)
class _Slowness:
    unsent_bytes: int
    since: float


class Connections:
    def __init__(self, *, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher, limits: ServerLimits) -> None:
        self.limits = limits
        self.dispatcher = dispatcher
        self.buffers = ReceiveBuffers()
        self.stats = ServerStats()
        self.now: Callable[[], float] = loop.time
        self.call_soon = loop.call_soon
        self.budget: MemoryBudget[KafkaConnection] = MemoryBudget(limits.request_memory_bytes, call_soon=loop.call_soon)
        self.log = RateLimitedLog(logging.getLogger("streamhouse.kafka"), loop.time)
        self.live: dict[KafkaConnection, None] = {}
        self.under_way_slots: set[AnswerSlot] = set()
        self.emptied = asyncio.Event()
        self._loop = loop
        self._per_address: Counter[str] = Counter()
        self._newcomers: dict[KafkaConnection, None] = {}
        self._slow: dict[KafkaConnection, _Slowness] = {}
        self._lingering: dict[KafkaConnection, float] = {}
        self._to_check: list[KafkaConnection] = []
        self._eldest: tuple[object, float] = (None, 0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    # What connections report.

    def admit(self, connection: KafkaConnection) -> tuple[str, str] | None:
        """Return None if the connection is admitted, else why it is not: a reason to count and a text."""
        self.stats.accepted += 1
        host = connection.client.host
        if self._is_closed:
            return "stopped", "the server stops"
        if len(self.live) >= self.limits.max_connections:
            return "too_many", f"{len(self.live)} clients are connected; see kafka.max_connections"
        if self._per_address[host] >= self.limits.max_connections_per_address:
            return "too_many_of_address", (
                f"{self._per_address[host]} connections come from {host}; see kafka.max_connections_per_ip"
            )
        self._per_address[host] += 1
        self.live[connection] = None
        self._newcomers[connection] = None
        self.stats.connections = len(self.live)
        self.emptied.clear()
        self._sweep_later()
        return None

    def greeted(self, connection: KafkaConnection) -> None:
        self._newcomers.pop(connection, None)

    def under_way(self, slot: AnswerSlot) -> None:
        self.under_way_slots.add(slot)
        self.stats.in_flight += 1
        self.budget.charge(slot.request_bytes)

    def ended(self, slot: AnswerSlot) -> None:
        self.under_way_slots.discard(slot)
        self.stats.in_flight -= 1
        self.budget.release(slot.request_bytes)

    def reader_is_slow(self, connection: KafkaConnection) -> None:
        """Each time that more is added to what it does not take."""
        known = self._slow.get(connection)
        since = self.now() if known is None else known.since
        self._slow[connection] = _Slowness(unsent_bytes=connection.unsent_bytes(), since=since)
        unsent = sum(slowness.unsent_bytes for slowness in self._slow.values())
        while unsent > self.limits.unsent_memory_bytes and len(self._slow) > 1:
            slowest = min(self._slow, key=lambda one: self._slow[one].since)
            unsent -= self._slow.pop(slowest).unsent_bytes
            slowest.abort("slow_reader", "took its answers slower than all others, and memory ran out", logging.WARNING)

    def reader_caught_up(self, connection: KafkaConnection) -> None:
        self._slow.pop(connection, None)

    def closing(
        self, connection: KafkaConnection, reason: str, text: str, level: int, error: BaseException | None
    ) -> None:
        self.stats.count_closed(reason)
        if text:
            client = connection.client
            name = client.client_id[:_LOGGED_NAME_CHARS]
            who = f"{client.host} ({name!r})" if name else client.host  # quoted: it may hold line breaks
            self.log.log(level, f"closed the connection of {who}: {text}", error=error)
        if connection in self.live:
            self._lingering[connection] = self.now()
        self.budget.forget(connection)

    def gone(self, connection: KafkaConnection) -> None:
        if connection not in self.live:
            return
        if self._lingering.pop(connection, None) is None:
            self.stats.count_closed("client")
        del self.live[connection]
        self._newcomers.pop(connection, None)
        self._slow.pop(connection, None)
        self.budget.forget(connection)
        host = connection.client.host
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]
        self.stats.connections = len(self.live)
        if not self.live:
            self.emptied.set()

    # The sweep.

    def close(self) -> None:
        """Refuse every new connection from now on."""
        self._is_closed = True

    def stop_sweeping(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep_and_go_on)

    def _sweep_and_go_on(self) -> None:
        self._timer = None
        self.sweep()
        if self.live:
            self._sweep_later()

    def sweep(self) -> None:
        now = self.now()
        handshake_s = self.limits.handshake_timeout_ms / 1000
        self._sweep_newcomers(now, handshake_s)
        self._sweep_receiving(now, handshake_s)
        self._sweep_slow(now, self.limits.slow_reader_timeout_ms / 1000)
        self._sweep_idle(now, self.limits.idle_timeout_ms / 1000)

    def _sweep_newcomers(self, now: float, timeout_s: float) -> None:
        for connection in list(self._newcomers):
            if now - connection.opened_at < timeout_s:
                break
            del self._newcomers[connection]
            connection.hang_up("handshake", "sent no complete request in time")

    def _sweep_receiving(self, now: float, timeout_s: float) -> None:
        eldest = self.budget.eldest
        if eldest is not self._eldest[0] or not self.budget.is_spent:
            self._eldest = (eldest, now)
        for receiver in self.budget.receiving():
            if not receiver.is_held_back and now - receiver.read_at >= timeout_s:
                receiver.hang_up("stalled", "stopped in the middle of a request", logging.INFO)
            elif receiver is self._eldest[0] and now - self._eldest[1] >= timeout_s:
                receiver.hang_up("hogging", "sends a request too slowly while memory is short", logging.WARNING)

    def _sweep_slow(self, now: float, timeout_s: float) -> None:
        for connection, slowness in list(self._slow.items()):
            unsent = connection.unsent_bytes()
            if unsent < slowness.unsent_bytes:
                slowness.unsent_bytes, slowness.since = unsent, now
            elif now - slowness.since >= timeout_s:
                del self._slow[connection]
                connection.abort("slow_reader", f"does not take its answers ({unsent} bytes wait)", logging.WARNING)
        for connection, since in list(self._lingering.items()):
            if now - since >= timeout_s:
                connection.abort("slow_reader", "")

    def _sweep_idle(self, now: float, timeout_s: float) -> None:
        if not self._to_check:
            self._to_check = list(self.live)
        for connection in self._to_check[-IDLE_CHECKS_PER_SWEEP:]:
            if not connection.is_busy and not connection.is_held_back and now - connection.read_at >= timeout_s:
                connection.hang_up("idle", "was idle")
        del self._to_check[-IDLE_CHECKS_PER_SWEEP:]
