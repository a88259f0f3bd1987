"""The pytest plugin: a running platform for a test, in its own process, gone with the test.

    def test_orders(streamhouse):                       # plain tests: every call of StreamHouse, answered at once
        streamhouse.create_topic("orders", 3)
        sent = streamhouse.produce("orders", b"hello")

    async def test_orders(streamhouse):                 # async tests: the same calls, awaited
        await streamhouse.create_topic("orders", 3)
        sent = await streamhouse.produce("orders", b"hello")

It is the real thing (agent, WAL, SQLite, objects in a directory), so what works in the test works outside. Loaded by
pytest itself when StreamHouse is installed; imports nothing heavy until a fixture is used.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

import streamhouse as package  # it loads the platform when StreamHouse is first asked for

if TYPE_CHECKING:
    from streamhouse.app.platform import StreamHouse

T = TypeVar("T")

_TIMEOUT_S: Final = 60.0
"""The longest one call of a test may take before it fails instead of hanging."""


class RunningStreamHouse:
    """A platform on an event loop of its own, in a thread of its own.

    Has everything that ``StreamHouse`` has. Its calls return their result in plain code, and are awaited where an
    event loop runs: there they must not block, and cannot be awaited directly because they belong to another loop.
    """

    def __init__(self, api: StreamHouse, loop: asyncio.AbstractEventLoop) -> None:
        self.api = api
        """The platform itself, for ``run``."""
        self._loop = loop

    def run(self, call: Coroutine[Any, Any, T], *, timeout_s: float = _TIMEOUT_S) -> T:
        """Await ``call`` over there; its result, or its error, here. For calls of your own that use ``api``."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(timeout_s)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "api":  # api: a copy that is not made yet has none
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self.api, name)
        return functools.wraps(found)(self._from_here(found)) if inspect.iscoroutinefunction(found) else found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self.api) if not name.startswith("_"))})

    def _from_here(self, method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return self.run(method(*args, **kwargs))
            return self._awaited(method, args, kwargs)

        return call

    async def _awaited(
        self, method: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        over_there = asyncio.run_coroutine_threadsafe(method(*args, **kwargs), self._loop)
        async with asyncio.timeout(_TIMEOUT_S):
            return await asyncio.wrap_future(over_there)


@pytest.fixture
def streamhouse_options(tmp_path: Path) -> dict[str, Any]:
    """Keywords for StreamHouse.open: the embedded defaults in a directory of the test's own."""
    return {"data_dir": str(tmp_path / "streamhouse")}


@contextmanager
def running(options: Mapping[str, Any]) -> Iterator[RunningStreamHouse]:
    """A platform opened with ``options``, for as long as the block lasts."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="streamhouse", daemon=True)
    thread.start()
    opened = package.StreamHouse.open(**options)
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
    ``kafka_listen="127.0.0.1:0"``, Kafka clients connect to ``streamhouse.kafka_addresses``."""
    with running(streamhouse_options) as platform:
        yield platform
