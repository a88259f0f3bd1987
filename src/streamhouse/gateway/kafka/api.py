"""What a Kafka API is to the server: its key, the versions served, and a handler. Handlers register themselves.

    cold    async (Call, Message) → fields        read and written by the schema table (wire/)
    hot     (Call, body) → buffers or awaitable   reads and writes its own bytes, because it is called for every batch

A hot handler is called as soon as its frame is complete and must not keep ``body``: the buffer is used again after the
call returns, so it takes what it needs before its first await. ``pipelined`` lets the requests behind it on the same
connection start before its answer is ready; answers still leave in order. Everything else on a connection is served one
at a time, as Apache Kafka does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from streamhouse.broker.broker import Broker
from streamhouse.broker.caller import Caller
from streamhouse.broker.produce import WriteOrder
from streamhouse.core.clock import Clock
from streamhouse.gateway.kafka.fetch_sessions import FetchSessions
from streamhouse.gateway.kafka.hot.metadata import TopicBlocks
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.wire.buffers import BytesLike

Fields: TypeAlias = Mapping[str, Any]
"""A response body by field name. Names unknown to the API are a bug; fields its version lacks are left out, missing
ones get their default."""

Buffers: TypeAlias = Sequence[BytesLike]
"""A response body, in pieces that stay unchanged until they are sent."""


@dataclass(slots=True, kw_only=True)
class ClientConnection:
    """The client of one connection."""

    host: str
    listener: str
    """Name of the listener it came through; its advertised address is what this client is told."""
    order: WriteOrder = field(default_factory=WriteOrder)
    """The writes of this connection keep their order."""
    client_id: str = ""
    software_name: str = ""
    software_version: str = ""
    _caller: Caller | None = field(default=None, init=False, repr=False)

    @property
    def caller(self) -> Caller:
        """This client as the broker knows it."""
        known = self._caller
        if known is None or known.client_id != self.client_id:
            known = self._caller = Caller(address=self.host, client_id=self.client_id, protocol="kafka")
        return known


class ServerMemory:
    """What the handlers of one server remember between requests. All of it is bounded."""

    def __init__(self, clock: Clock, *, max_fetch_sessions: int) -> None:
        self.fetch_sessions = FetchSessions(
            clock=clock,
            max_sessions=max_fetch_sessions,
            first_id=clock.wall_ms() % 2**31 or 1,
        )
        self.topic_blocks = TopicBlocks()
        """Encoded topics of Metadata's answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, without its body."""

    api_key: int
    version: int
    correlation_id: int
    client: ClientConnection
    broker: Broker
    memory: ServerMemory


ColdHandler: TypeAlias = Callable[[Call, Message], Awaitable[Fields]]
HotHandler: TypeAlias = Callable[[Call, memoryview], Buffers | Awaitable[Buffers | None] | None]
"""A handler that returns None sends no answer at all (acks=0)."""


class CloseConnection(Exception):
    """Raised by a handler where Kafka's only answer is to hang up; the reason goes to the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    key: int
    min_version: int
    max_version: int
    advertised_min_version: int
    cold: ColdHandler | None = None
    hot: HotHandler | None = None
    pipelined: bool = False


_APIS: dict[int, Api] = {}


def apis() -> Mapping[int, Api]:
    """Return the APIs that this server speaks, by key."""
    return _APIS


def cold_api(key: int, versions: tuple[int, int]) -> Callable[[ColdHandler], ColdHandler]:
    """Register a handler for ``versions``, both included."""

    def register(handler: ColdHandler) -> ColdHandler:
        low, high = versions
        _add(Api(key=key, min_version=low, max_version=high, advertised_min_version=low, cold=handler))
        return handler

    return register


def hot_api(
    key: int, versions: tuple[int, int], *, advertise_from: int | None = None, pipelined: bool = False
) -> Callable[[HotHandler], HotHandler]:
    """``advertise_from``: the lowest version to claim, where clients draw wrong conclusions from the true one."""

    def register(handler: HotHandler) -> HotHandler:
        low, high = versions
        advertised = low if advertise_from is None else advertise_from
        _add(
            Api(
                key=key,
                min_version=low,
                max_version=high,
                advertised_min_version=advertised,
                hot=handler,
                pipelined=pipelined,
            )
        )
        return handler

    return register


def _add(api: Api) -> None:
    assert api.key not in _APIS, f"API {api.key} is registered twice"
    _APIS[api.key] = api
