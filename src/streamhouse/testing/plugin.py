"""The pytest plugin: a running platform for a test, in its own process, gone with the test.

    def test_orders(streamhouse):                       # plain tests
        streamhouse.run(streamhouse.api.create_topic("orders", 3))
        streamhouse.run(streamhouse.api.produce("orders", b"hello"))

    async def test_orders(streamhouse_options):         # async tests, on their own loop
        async with StreamHouse.open(**streamhouse_options) as sh:
            ...

It is the real thing (agent, WAL, SQLite, objects in a directory), so what works in the test works outside. Loaded by
pytest itself when StreamHouse is installed; imports nothing heavy until a fixture is used.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

if TYPE_CHECKING:
    from streamhouse.app.platform import StreamHouse

T = TypeVar("T")

_TIMEOUT_S: Final = 60.0
"""The longest one call of a test may take before it fails instead of hanging."""


class RunningStreamHouse:
    """A platform on an event loop of its own, in a thread of its own."""

    def __init__(self, api: StreamHouse, loop: asyncio.AbstractEventLoop) -> None:
        self.api = api
        self._loop = loop

    def run(self, call: Coroutine[Any, Any, T], *, timeout_s: float = _TIMEOUT_S) -> T:
        """Await ``call`` over there; its result, or its error, here."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(timeout_s)


@pytest.fixture
def streamhouse_options(tmp_path: Path) -> dict[str, Any]:
    """Keywords for StreamHouse.open: the embedded defaults in a directory of the test's own."""
    return {"data_dir": str(tmp_path / "streamhouse")}


@contextmanager
def running(options: Mapping[str, Any]) -> Iterator[RunningStreamHouse]:
    """A platform opened with ``options``, for as long as the block lasts."""
    from streamhouse.app.platform import StreamHouse

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="streamhouse", daemon=True)
    thread.start()
    opened = StreamHouse.open(**options)
    try:
        api = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(_TIMEOUT_S)
        try:
            yield RunningStreamHouse(api, loop)
        finally:
            closing = opened.__aexit__(None, None, None)
            asyncio.run_coroutine_threadsafe(closing, loop).result(_TIMEOUT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_TIMEOUT_S)
        loop.close()


@pytest.fixture
def streamhouse(streamhouse_options: dict[str, Any]) -> Iterator[RunningStreamHouse]:
    """A running platform. Override ``streamhouse_options`` to run it on other settings: with ``kafka_enabled`` and
    ``kafka_listen="127.0.0.1:0"``, Kafka clients connect to ``streamhouse.api.kafka_addresses``."""
    with running(streamhouse_options) as platform:
        yield platform
