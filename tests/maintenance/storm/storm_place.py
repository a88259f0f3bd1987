"""Where a storm's cluster lies, so that any process can open its stores, and the time that all of them share.

Time is the machine's, plus what a test lets pass: hours go by at once, for the metadata store and for every process.
"""

from __future__ import annotations

import mmap
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamhouse.core.clock import SystemClock
from streamhouse.core.randomness import SystemRandomness
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.opening import StoreOptions, open_store
from streamhouse.objectstore.retries import RetryingStore, RetryPolicy

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS

CLOCK_KIT = """
CREATE TABLE storm_clock (shift_ms bigint NOT NULL);
INSERT INTO storm_clock VALUES (0);
CREATE OR REPLACE FUNCTION sh_clock_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + shift_ms FROM storm_clock
$$;
"""
"""PostgreSQL's one source of time, shifted."""

SNAPSHOT = """
CREATE SCHEMA prepared;
DO $$
DECLARE found text;
BEGIN
    FOR found IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('CREATE TABLE prepared.%1$I AS TABLE public.%1$I', found);
    END LOOP;
END $$;
"""
RESTORE = """
SET session_replication_role = replica;
DO $$
DECLARE found text; stored text;
BEGIN
    FOR found IN SELECT tablename FROM pg_tables WHERE schemaname = 'prepared' LOOP
        SELECT string_agg(quote_ident(column_name), ', ') INTO stored FROM information_schema.columns
        WHERE table_schema = 'public' AND table_name = found AND is_generated = 'NEVER';
        EXECUTE format('DELETE FROM public.%I', found);
        EXECUTE format('INSERT INTO public.%1$I (%2$s) SELECT %2$s FROM prepared.%1$I', found, stored);
    END LOOP;
END $$;
"""


class ShiftedClock:
    """The machine's clocks, later by what stands in a file that every process maps."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._shift = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
        self._machine = SystemClock()

    def wall_ms(self) -> int:
        return self._machine.wall_ms() + self._shift[0]

    def boot_ms(self) -> int:
        return self._machine.boot_ms() + self._shift[0]

    @property
    def shift_ms(self) -> int:
        return self._shift[0]

    def set_shift(self, ms: int) -> None:
        self._shift[0] = ms


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Address:
    bucket: str
    endpoint_url: str
    region: str
    access_key: str
    secret_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    metadata: MetadataStore
    objects: ObjectStore
    clock: ShiftedClock


@dataclass(frozen=True, slots=True, kw_only=True)
class StormPlace:
    """One cluster: SQLite and a directory, or PostgreSQL and S3. It is handed to every process."""

    directory: Path
    dsn: str | None = None
    s3: S3Address | None = None

    @property
    def clock(self) -> ShiftedClock:
        return ShiftedClock(self.directory / "clock")

    @property
    def database(self) -> Path:
        return self.directory / "metadata.db"

    def new_metadata(self) -> MetadataStore:
        if self.dsn is None:
            from streamhouse.metadata.sqlite.store import SqliteMetadata

            return SqliteMetadata(self.database, clock=self.clock, randomness=SystemRandomness())
        from streamhouse.metadata.postgres.store import PostgresMetadata

        return PostgresMetadata(self.dsn, randomness=SystemRandomness())

    async def new_objects(self) -> ObjectStore:
        randomness = SystemRandomness()
        if self.s3 is None:
            # Its clock only tells which temporary files a dead process has left: files have the machine's time.
            bare = await open_store(f"file://{self.directory / 'objects'}", clock=SystemClock(), randomness=randomness)
        else:
            options = StoreOptions(
                endpoint_url=self.s3.endpoint_url,
                region=self.s3.region,
                access_key_id=self.s3.access_key,
                secret_access_key=self.s3.secret_key,
            )
            bare = await open_store(
                f"s3://{self.s3.bucket}/storm", clock=self.clock, randomness=randomness, options=options
            )
        return RetryingStore(bare, clock=SystemClock(), randomness=randomness, policy=RetryPolicy())

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Stores]:
        async with AsyncExitStack() as stack:
            metadata = await stack.enter_async_context(self.new_metadata())
            objects = await self.new_objects()
            stack.push_async_callback(objects.close)
            yield Stores(metadata=metadata, objects=objects, clock=self.clock)

    async def let_pass(self, ms: int) -> None:
        await self._shift_to(self.clock.shift_ms + ms)

    async def _shift_to(self, shift_ms: int) -> None:
        if self.dsn is not None:
            await self._execute(f"UPDATE storm_clock SET shift_ms = {shift_ms}")
        self.clock.set_shift(shift_ms)

    async def install_clock(self) -> None:
        """For a database that was just migrated."""
        if self.dsn is not None:
            await self._execute(CLOCK_KIT)

    async def object_rows(self) -> set[str]:
        """The keys in the metadata's table of objects."""
        query = "SELECT object_key FROM objects"
        if self.dsn is None:
            with closing(sqlite3.connect(self.database)) as connection:
                return {row[0] for row in connection.execute(query)}
        import asyncpg

        opened = await asyncpg.connect(self.dsn)
        try:
            return {row[0] for row in await opened.fetch(query)}
        finally:
            await opened.close()

    # A way back to an earlier state, which no other process may use meanwhile.

    async def keep_rows(self) -> None:
        """Keep the metadata as it is, for ``restore_rows``. The store must be closed."""
        if self.dsn is None:
            with closing(sqlite3.connect(self.database)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copyfile(self.database, self.directory / "prepared.db")
        else:
            await self._execute(SNAPSHOT)

    async def restore_rows(self, *, shift_ms: int) -> None:
        if self.dsn is None:
            for suffix in ("-wal", "-shm"):
                self.database.with_name(self.database.name + suffix).unlink(missing_ok=True)
            shutil.copyfile(self.directory / "prepared.db", self.database)
        else:
            await self._execute(RESTORE)
        await self._shift_to(shift_ms)

    async def _execute(self, statements: str) -> None:
        import asyncpg

        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(statements)
        finally:
            await connection.close()
