"""The Kafka front end: sockets on listeners, a KafkaConnection for each client.

It implements gateway/front_end.py. ``drain`` answers requests under way for at most the grace time of its limits;
``close`` cancels the rest.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from streamhouse.broker.broker import Broker
from streamhouse.broker.nodes import Endpoint
from streamhouse.core.clock import Clock, SystemClock
from streamhouse.core.settings import Address
from streamhouse.gateway.kafka.api import Api, ServerMemory, apis
from streamhouse.gateway.kafka.connection import KafkaConnection
from streamhouse.gateway.kafka.connections import Connections, ServerLimits, ServerStats
from streamhouse.gateway.kafka.dispatch import Dispatcher
from streamhouse.gateway.kafka.handlers import register_all
from streamhouse.gateway.listening import bound_sockets, cannot_listen

logger = logging.getLogger("streamhouse.kafka")

BACKLOG: Final = 1024
"""Connections the kernel keeps while the loop is busy: a fleet of clients that comes back at once."""
CLOSING_S: Final = 1.0
"""How long closed connections may take to send their last bytes."""

_FLAG: Final = "--kafka-listen"

__all__ = ["KafkaServer", "Listener", "ServerLimits", "ServerStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One listener: the address that it listens on, and the address that clients are given."""

    name: str
    host: str
    port: int
    """0: any free one; ``KafkaServer.listeners`` has it."""
    advertised_host: str
    advertised_port: int
    """0: the port it listens on."""


class KafkaServer:
    def __init__(
        self,
        *,
        broker: Broker,
        listeners: Sequence[Listener],
        limits: ServerLimits | None = None,
        served: Mapping[int, Api] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``served``: other APIs than all that have a handler, for tests."""
        if served is None:
            register_all()
            served = apis()
        self._limits = limits or ServerLimits()
        memory = ServerMemory(clock or SystemClock(), max_fetch_sessions=self._limits.max_fetch_sessions)
        self._dispatcher = Dispatcher(served, broker, memory)
        self._listeners = list(listeners)
        self._sockets: list[tuple[Listener, socket.socket]] = []
        self._servers: list[asyncio.Server] = []
        self._connections: Connections | None = None

    @property
    def listeners(self) -> Sequence[Listener]:
        """The listeners, after ``bind`` with the ports that they really have."""
        return self._listeners

    @property
    def addresses(self) -> list[str]:
        return [str(Address(host=each.advertised_host, port=each.advertised_port)) for each in self._listeners]

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        return {each.name: Endpoint(host=each.advertised_host, port=each.advertised_port) for each in self._listeners}

    @property
    def stats(self) -> ServerStats:
        return ServerStats() if self._connections is None else self._connections.stats

    async def bind(self) -> None:
        """Raises ConfigError where an address cannot be had; then none is kept."""
        assert self._connections is None, "bound already"
        loop = asyncio.get_running_loop()
        try:
            for index, listener in enumerate(self._listeners):
                sockets = await bound_sockets(listener.host, listener.port, flag=_FLAG)
                port = sockets[0].getsockname()[1]
                known = replace(listener, port=port, advertised_port=listener.advertised_port or port)
                self._listeners[index] = known
                self._sockets += [(known, one) for one in sockets]
        except BaseException:
            self._close_sockets()
            raise
        self._connections = Connections(loop=loop, dispatcher=self._dispatcher, limits=self._limits)

    async def open(self) -> None:
        """Let clients in. Raises ConfigError if another process has begun to listen on an address since ``bind``."""
        assert self._connections is not None, "bind comes first"
        loop = asyncio.get_running_loop()
        for listener, bound in self._sockets:
            factory = partial(KafkaConnection, self._connections, listener.name)
            try:
                self._servers.append(await loop.create_server(factory, sock=bound, backlog=BACKLOG))
            except OSError as error:
                await self.close()
                raise cannot_listen(listener.host, listener.port, error, flag=_FLAG) from error
            logger.info("Kafka clients may connect to %s:%d", listener.host, listener.port)
        self._sockets.clear()

    async def drain(self, grace_s: float | None = None) -> None:
        """Answer the requests under way, for at most ``grace_s``; without it, for the grace time of the limits."""
        for server in self._servers:
            server.close()
        self._close_sockets()
        connections = self._connections
        if connections is None:
            return
        connections.close()
        for connection in list(connections.live):
            connection.drain()
        await _emptied(connections, self._limits.stop_grace_ms / 1000 if grace_s is None else grace_s)

    async def close(self) -> None:
        """Cancel the requests that are still under way, and disconnect everyone."""
        await self.drain(0)
        connections = self._connections
        if connections is None:
            return
        for connection in list(connections.live):
            connection.abort("stopped", "")
        pending = [slot.future for slot in connections.under_way_slots if slot.future is not None]
        for future in pending:
            future.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await _emptied(connections, CLOSING_S)
        connections.stop_sweeping()
        self._servers.clear()

    def _close_sockets(self) -> None:
        for _, bound in self._sockets:
            bound.close()
        self._sockets.clear()


async def _emptied(connections: Connections, timeout_s: float) -> None:
    if connections.live and timeout_s > 0:
        with suppress(TimeoutError):
            await asyncio.wait_for(connections.emptied.wait(), timeout_s)
