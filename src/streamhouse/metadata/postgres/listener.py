"""One connection that listens for what any process commits, and comes back when it was lost.

Owns the LISTEN connection and its reconnecting. After a time without it, subscribers are told that anything may have
changed, since nobody can tell what they missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import asyncpg

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import Change
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.postgres.notices import ANYTHING, CHANNEL, parse_notice

_CHECK_INTERVAL_S: Final = 10.0  # a connection that died without a word is noticed this late
_BACKOFF: Final = Backoff(first_ms=50, longest_ms=2_000)
_START_TIMEOUT_S: Final = 5.0  # a subscriber does not wait longer for a server that is away; it will get an ANY


class ChangeListener:
    def __init__(self, database: Database, publish: Callable[[Change], None], *, randomness: Randomness) -> None:
        self._database = database
        self._publish = publish
        self._randomness = randomness
        self._listening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once it listens: what is committed from then on is heard. Repeatable."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="postgres change listener")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._listening.wait()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        failures = 0
        first = True
        while True:
            try:
                connection = await self._database.connect()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, StreamHouseError):
                first = False
                failures += 1
                await asyncio.sleep(_BACKOFF.pause_s(failures, self._randomness))
                continue
            try:
                await self._listen(connection, missed_something=not first)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                pass
            finally:
                connection.terminate()
            first = False
            failures = 0
            # Even a server that takes connections and drops them at once is asked only some times a second.
            await asyncio.sleep(_BACKOFF.step_ms(1) / 1000)

    async def _listen(self, connection: Any, *, missed_something: bool) -> None:
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _connection: lost.set())
        await connection.add_listener(CHANNEL, self._heard)
        self._listening.set()
        if missed_something:
            self._publish(ANYTHING)
        while not lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_INTERVAL_S):
                    await lost.wait()
            if not lost.is_set():
                await connection.execute("SELECT 1")

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._publish(parse_notice(str(payload)))
