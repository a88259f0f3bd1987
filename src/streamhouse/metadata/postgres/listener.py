"""One connection that listens for what any process commits, and reconnects after it was lost.

The lines that arrive are written by ``sh_notify_keys`` and ``sh_notify_name`` in the database:

    commit <topic id, 32 hex digits>:<partition>,<partition>;<topic id>:…
    groups <name>
    any

After a time without a connection subscribers get one ANY, because what they missed is not known.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import asyncpg

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import Change, ChangeKind
from streamhouse.metadata.postgres.database import Database

CHANNEL: Final = "streamhouse"

_WITH_NAME: Final = frozenset({ChangeKind.TOPICS, ChangeKind.TRANSFERS, ChangeKind.GROUPS, ChangeKind.DEFINITIONS})
ANYTHING: Final = Change(kind=ChangeKind.ANY)

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


def parse_notice(payload: str) -> Change:
    """A line that cannot be read, such as a kind that only a newer StreamHouse knows, is ANY."""
    word, _, rest = payload.partition(" ")
    try:
        kind = ChangeKind(word)
        if kind is ChangeKind.ANY:
            return ANYTHING
        if kind in _WITH_NAME:
            return Change(kind=kind, name=rest)
        return Change(kind=kind, keys=_parse_keys(rest))
    except ValueError:
        return ANYTHING


def _parse_keys(text: str) -> tuple[PartitionKey, ...]:
    keys: list[PartitionKey] = []
    for group in text.split(";") if text else ():
        topic_id, _, partitions = group.partition(":")
        topic = TopicId(UUID(topic_id))
        keys.extend(PartitionKey(topic, int(partition)) for partition in partitions.split(","))
    return tuple(keys)
