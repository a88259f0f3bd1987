"""The SQLite backend: one file (or one database in memory), opened, migrated, shared by processes, watched for changes.

The plain areas come from the row layer (``metadata/rows``). The others are modules of synchronous steps; the table in
``SqliteMetadata`` makes methods of them.

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
from streamhouse.metadata.contract import Change, ChangeKind, MetadataStore, NewTopic
from streamhouse.metadata.rows.agents import AgentRows
from streamhouse.metadata.rows.compactions import CompactionRows
from streamhouse.metadata.rows.definitions import DefinitionRows
from streamhouse.metadata.rows.epochs import EpochRows
from streamhouse.metadata.rows.flushes import FlushRows
from streamhouse.metadata.rows.groups import GroupRows
from streamhouse.metadata.rows.identity import IdentityRows
from streamhouse.metadata.rows.intents import IntentRows
from streamhouse.metadata.rows.layer import RowTx
from streamhouse.metadata.rows.objects import ObjectRows
from streamhouse.metadata.rows.topics import TopicRows
from streamhouse.metadata.sqlite import (
    adoption,
    agents,
    commits,
    groups,
    leases,
    lookups,
    objects,
    producers,
    transfers,
)
from streamhouse.metadata.sqlite.clock import StoreClock
from streamhouse.metadata.sqlite.engine import Engine, InlineEngine, ThreadedEngine
from streamhouse.metadata.sqlite.schema import migrate
from streamhouse.metadata.sqlite.shell import Shell, read, write

_WATCH_INTERVAL_S: Final = (
    0.05  # after another process's commit, subscribers are notified this late; a look costs 10 µs
)


class SqliteMetadata(
    Shell,
    TopicRows,
    AgentRows,
    GroupRows,
    CompactionRows,
    ObjectRows,
    IntentRows,
    FlushRows,
    DefinitionRows,
    EpochRows,
    IdentityRows,
    MetadataStore,
):
    """``path`` is a file in a directory that exists, or ``:memory:`` for one that ends with this object.

    ``threads=False`` is for the simulator: every call runs on the event loop, and other processes are not watched.
    """

    _PRODUCT = "SQLite"
    _VERSION = "sqlite_version()"
    _HORIZON = "(SELECT gc_horizon_ms FROM store_info)"

    commit_leased = write(commits.commit_leased)
    commit_leaderless = write(commits.commit_leaderless)
    expire_commits = write(commits.expire_commits)
    adopt_intent = write(adoption.adopt_intent)
    find_entry = read(lookups.find_entry)
    find_entry_by_timestamp = read(lookups.find_entry_by_timestamp)
    find_max_timestamp_entry = read(lookups.find_max_timestamp_entry)
    scan_entries = read(lookups.scan_entries)
    epoch_history = read(lookups.epoch_history)
    load_producers = read(producers.load_producers)
    expire_producers = write(producers.expire_producers)
    allocate_producer_ids = write(producers.allocate_producer_ids)
    acquire_leases = write(leases.acquire_leases)
    renew_leases = write(leases.renew_leases)
    release_leases = write(leases.release_leases)
    list_leases = read(leases.list_leases)
    initiate_transfer = write(transfers.initiate_transfer)
    accept_transfer = write(transfers.accept_transfer)
    reject_transfer = write(transfers.reject_transfer)
    complete_transfer = write(transfers.complete_transfer)
    list_transfers = read(transfers.list_transfers)
    expire_transfers = write(transfers.expire_transfers)
    register_agent = write(agents.register_agent)
    deregister_agent = write(agents.deregister_agent)
    raise_gc_horizon = write(objects.raise_gc_horizon)
    create_pin = write(objects.create_pin)
    _commit_offsets = write(groups.commit_offsets)

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
        cluster_id = self._randomness.uuid()  # used only if this call creates the file
        clock = self._store_clock
        await self._until_free(
            lambda: self._engine.start(lambda connection: migrate(connection, clock, cluster_id, self._path))
        )
        self._is_open = True

    async def now_ms(self) -> int:
        return await self._read(lambda tx: tx.now_ms)

    async def _claim_leases(self, tx: RowTx, topic: NewTopic) -> None:
        await tx.execute(
            "UPDATE partition_leases SET topic_id = $1 WHERE topic = $2 AND topic_id IS NULL",
            topic.topic_id,
            topic.name,
        )

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
        """SQLite sends no notice, but it counts for each connection the commits of the others."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            try:
                version = await self._engine.data_version()
            except StreamHouseError:  # a call that needs an answer gets the same error; here it means "not known"
                version = None
            if version != seen:
                seen = version
                self._hub.publish(Change(kind=ChangeKind.ANY))

    def _new_engine(self) -> Engine:
        kind = ThreadedEngine if self._threads else InlineEngine
        return kind(self._path, self._store_clock, lambda change: self._hub.publish(change))
