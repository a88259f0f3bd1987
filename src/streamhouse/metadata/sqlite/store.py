"""The SQLite backend: one file (or one database in memory), opened, migrated, shared by processes, watched for changes.

Each area of the contract is a module of synchronous steps with its thin asynchronous calls; this one composes them.
Several processes may use the file at once (a Spark driver beside the server). Network file systems are not supported:
SQLite's write-ahead log needs shared memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataError, StreamHouseError
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.changes import ChangeHub
from streamhouse.metadata.contract import Change, ChangeKind, MetadataStore
from streamhouse.metadata.sqlite.agents import AgentCalls
from streamhouse.metadata.sqlite.clock import StoreClock
from streamhouse.metadata.sqlite.commits import CommitCalls
from streamhouse.metadata.sqlite.compactions import CompactionCalls
from streamhouse.metadata.sqlite.definitions import DefinitionCalls
from streamhouse.metadata.sqlite.engine import Engine, InlineEngine, ThreadedEngine
from streamhouse.metadata.sqlite.flushes import FlushCalls
from streamhouse.metadata.sqlite.groups import GroupCalls
from streamhouse.metadata.sqlite.identity import IdentityCalls
from streamhouse.metadata.sqlite.intents import IntentCalls
from streamhouse.metadata.sqlite.leases import LeaseCalls
from streamhouse.metadata.sqlite.lookups import LookupCalls
from streamhouse.metadata.sqlite.objects import ObjectCalls
from streamhouse.metadata.sqlite.pins_claims import PinClaimCalls
from streamhouse.metadata.sqlite.producers import ProducerCalls
from streamhouse.metadata.sqlite.schema import migrate
from streamhouse.metadata.sqlite.topics import TopicCalls
from streamhouse.metadata.sqlite.transfers import TransferCalls

_WATCH_INTERVAL_S: Final = 0.05  # how late a subscriber hears of another process's commit; the question costs 10 µs


class SqliteMetadata(
    IdentityCalls,
    TopicCalls,
    CommitCalls,
    LookupCalls,
    ProducerCalls,
    LeaseCalls,
    TransferCalls,
    AgentCalls,
    GroupCalls,
    CompactionCalls,
    ObjectCalls,
    PinClaimCalls,
    IntentCalls,
    FlushCalls,
    DefinitionCalls,
    MetadataStore,
):
    """``path`` is a file in a directory that exists, or ``:memory:`` for one that ends with this object.

    ``threads=False`` is for the simulator: every call runs on the event loop, and nobody watches for other processes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock,
        randomness: Randomness,
        threads: bool = True,
        retry_deadline_ms: int = 30_000,
    ) -> None:
        self._path = os.fspath(path)
        self._store_clock = StoreClock(clock)
        self._hub = ChangeHub()
        self._threads = threads
        self._watch: asyncio.Task[None] | None = None
        self._watchers = 0
        self._is_open = False
        super().__init__(self._new_engine(), randomness, retry_deadline_ms=retry_deadline_ms)

    async def open(self) -> None:
        if self._is_open:
            raise MetadataError(f"the metadata in {self._path} is open already")
        self._hub = ChangeHub()
        cluster_id = self._randomness.uuid()  # used by whoever creates the file
        clock = self._store_clock
        await self._until_free(
            lambda: self._engine.start(lambda connection: migrate(connection, clock, cluster_id, self._path))
        )
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        self._hub.close()
        await self._stop_watching()
        await self._engine.stop()

    def subscribe(self) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        return self._subscription()

    @asynccontextmanager
    async def _subscription(self) -> AsyncIterator[AsyncIterator[Change]]:
        async with self._hub.subscribe() as changes:
            self._watchers += 1
            try:
                await self._start_watching()
                yield changes
            finally:
                self._watchers -= 1
                if self._watchers == 0:
                    await self._stop_watching()

    async def _start_watching(self) -> None:
        if self._watch is None and self._is_open:
            seen = await self._engine.data_version()
            if seen is not None and self._watch is None:
                self._watch = asyncio.create_task(self._watch_others(seen))

    async def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])

    async def _watch_others(self, seen: int | None) -> None:
        """SQLite tells nobody; but it counts, for each connection, the commits of the others."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            try:
                version = await self._engine.data_version()
            except StreamHouseError:  # whoever needs an answer meets the same error; here it only means "not known"
                version = None
            if version != seen:
                seen = version
                self._hub.publish(Change(kind=ChangeKind.ANY))

    def _new_engine(self) -> Engine:
        kind = ThreadedEngine if self._threads else InlineEngine
        return kind(self._path, self._store_clock, lambda change: self._hub.publish(change))
