"""The handler of a frame: the versions served, hot and cold handlers, and the answers to unknown requests."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any, cast

import pytest
from serving import FETCH, HEARTBEAT, cold, echo, heartbeat, hot

from streamhouse.broker.broker import Broker
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import MalformedRequest
from streamhouse.gateway.kafka.api import Api, Buffers, Call, ClientConnection, CloseConnection, ServerMemory
from streamhouse.gateway.kafka.dispatch import Dispatcher, Started, api_name, framed
from streamhouse.gateway.kafka.handlers import register_all
from streamhouse.gateway.kafka.wire.headers import request_frame
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.schema import read_response, write_request

API_VERSIONS = 18
CLIENT = ClientConnection(host="127.0.0.1", listener="test")


async def answer(call: Call, request: Message) -> dict[str, Any]:
    return {"error_code": 27 if request.group_id == "g" else 0}


async def never_called(call: Call, request: Message) -> dict[str, Any]:
    raise AssertionError


def dispatcher(*served: Api) -> Dispatcher:
    memory = ServerMemory(SystemClock(), max_fetch_sessions=1)
    return Dispatcher({api.key: api for api in served}, cast(Broker, None), memory)


def start(made: Dispatcher, key: int, version: int, body: bytes = b"", client_id: str | None = "me") -> Started:
    return made.start(memoryview(request_frame(key, version, 77, client_id, body))[4:], CLIENT)


def test_a_hot_handler_gets_the_bytes_behind_the_header_and_its_wait_ends_with_the_client() -> None:
    started = start(dispatcher(hot(FETCH, echo, pipelined=True)), FETCH, 3, b"the body")
    assert started == Started(77, False, True, True, (b"the body",))


async def test_a_cold_handler_gets_a_message_and_goes_on_when_the_client_leaves() -> None:
    started = start(dispatcher(cold(HEARTBEAT, answer)), HEARTBEAT, 4, write_request(HEARTBEAT, 4, {"group_id": "g"}))
    assert (started.flexible, started.pipelined, started.cancel_with_client) == (True, False, False)
    assert inspect.isawaitable(started.result)
    (body,) = await cast(Awaitable[Buffers], started.result)
    assert read_response(HEARTBEAT, 4, memoryview(body)).error_code == 27


def test_a_request_that_cannot_be_read_is_refused_before_its_handler_is_called() -> None:
    made = dispatcher(cold(HEARTBEAT, never_called))
    with pytest.raises(MalformedRequest):
        start(made, HEARTBEAT, 0, heartbeat()[:-1])
    with pytest.raises(MalformedRequest, match="has no header"):
        made.start(memoryview(bytes(7)), CLIENT)


@pytest.mark.parametrize(
    ("key", "version", "said"),
    [
        (999, 0, "API 999 is not served here"),
        (3, 0, r"metadata \(3\) is not served here"),
        (FETCH, 4, r"fetch \(1\) is served in versions 0 to 3, not in 4"),
        (FETCH, -1, r"fetch \(1\) is served in versions 0 to 3, not in -1"),
    ],
)
def test_what_is_not_served_closes_the_connection_and_says_what_is(key: int, version: int, said: str) -> None:
    with pytest.raises(CloseConnection, match=said):
        start(dispatcher(hot(FETCH, echo)), key, version)


def test_only_api_versions_is_answered_in_a_version_that_is_too_new() -> None:
    register_all()
    made = dispatcher(cold(API_VERSIONS, never_called))
    started = start(made, API_VERSIONS, 5)
    assert not started.flexible
    (body,) = cast(Buffers, started.result)
    assert read_response(API_VERSIONS, 0, memoryview(cast(bytes, body))).error_code == 35
    with pytest.raises(CloseConnection, match=r"served in versions 0 to 4, not in -1"):
        start(made, API_VERSIONS, -1)


def test_the_client_is_known_by_the_name_of_its_last_request() -> None:
    made = dispatcher(hot(FETCH, echo))
    start(made, FETCH, 0, client_id="first")
    assert CLIENT.client_id == "first"
    start(made, FETCH, 0, client_id=None)
    assert CLIENT.client_id == ""


def test_a_hot_handler_that_would_read_its_frame_too_late_is_refused_at_once() -> None:
    async def late(call: Call, body: memoryview) -> Buffers:
        return (bytes(body),)

    with pytest.raises(AssertionError, match="API 1 is a coroutine"):
        dispatcher(hot(FETCH, late))


def test_a_whole_response_has_its_size_before_it() -> None:
    assert b"".join(framed(True, 7, (b"ab", b"c"))) == b"\0\0\0\x08" + b"\0\0\0\x07" + b"\0" + b"abc"


def test_an_api_is_named_where_the_table_knows_it() -> None:
    assert [api_name(0), api_name(-7)] == ["produce (0)", "API -7"]
