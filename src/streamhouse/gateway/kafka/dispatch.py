"""Starts the handler of a frame. Knows versions, headers and what Kafka does with a request it does not know."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from typing import NamedTuple

from streamhouse.broker.broker import Broker
from streamhouse.gateway.kafka.api import Api, Buffers, Call, ClientConnection, CloseConnection, ServerMemory
from streamhouse.gateway.kafka.handlers.api_18_api_versions import unsupported_version
from streamhouse.gateway.kafka.wire.headers import (
    API_VERSIONS_KEY,
    has_flexible_response,
    peek_header,
    read_header,
    response_head,
)
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.schema import read_request, write_response
from streamhouse.gateway.kafka.wire.table import message_spec
from streamhouse.wire.buffers import BytesLike


class Started(NamedTuple):
    correlation_id: int
    flexible: bool
    """Whether the response's header has tagged fields."""
    pipelined: bool
    cancel_with_client: bool
    """Whether its wait ends with the connection. A cold handler goes on, as in Kafka: it may be half-way."""
    result: Buffers | Awaitable[Buffers | None] | None


class Dispatcher:
    def __init__(self, apis: Mapping[int, Api], broker: Broker, memory: ServerMemory) -> None:
        for api in apis.values():
            # Its first line would run after the frame's buffer has been used again.
            assert not inspect.iscoroutinefunction(api.hot), f"the hot handler of API {api.key} is a coroutine"
        self._apis = apis
        self._broker = broker
        self._memory = memory

    def start(self, frame: memoryview, client: ClientConnection) -> Started:
        """Raises MalformedRequest, CloseConnection, and whatever the handler raises."""
        api_key, version, correlation_id = peek_header(frame)
        api = self._apis.get(api_key)
        if api is None or not api.min_version <= version <= api.max_version:
            return self._unknown(api_key, version, correlation_id)
        header = read_header(frame)
        client.client_id = header.client_id or ""
        call = Call(
            api_key=api_key,
            version=version,
            correlation_id=correlation_id,
            client=client,
            broker=self._broker,
            memory=self._memory,
        )
        body = frame[header.body_start :]
        flexible = has_flexible_response(api_key, version)
        if api.hot is not None:
            return Started(correlation_id, flexible, api.pipelined, True, api.hot(call, body))
        cold = _cold(api, call, read_request(api_key, version, body))
        return Started(correlation_id, flexible, False, False, cold)

    def _unknown(self, api_key: int, version: int, correlation_id: int) -> Started:
        api = self._apis.get(api_key)
        if api is not None and api_key == API_VERSIONS_KEY and version > api.max_version:
            return Started(correlation_id, False, False, True, (unsupported_version(),))
        if api is None:
            raise CloseConnection(f"{api_name(api_key)} is not served here")
        raise CloseConnection(
            f"{api_name(api_key)} is served in versions {api.min_version} to {api.max_version}, not in {version}"
        )


async def _cold(api: Api, call: Call, message: Message) -> Buffers:
    assert api.cold is not None
    return (write_response(call.api_key, call.version, await api.cold(call, message)),)


def framed(flexible: bool, correlation_id: int, body: Buffers) -> list[BytesLike]:
    """A whole response: size, header, body."""
    head = response_head(flexible, correlation_id, sum(map(len, body)))
    return [head, *body]


def api_name(api_key: int) -> str:
    try:
        return f"{message_spec(f'{api_key}.request').name} ({api_key})"
    except KeyError:
        return f"API {api_key}"
