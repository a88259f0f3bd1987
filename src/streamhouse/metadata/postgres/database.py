"""The connections to one PostgreSQL database, and the one loop that sends a call again when its reply was lost.

Owns: pool, session settings, time-outs, retries with back-off. Knows no table. A call is one statement, or one
transaction that is repeated as a whole; both must be safe to repeat, which is the contract's promise for every call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import asyncpg

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import ConfigError, MetadataError, MetadataUnavailable
from streamhouse.core.randomness import Randomness
from streamhouse.core.tasks import retrieve
from streamhouse.metadata.postgres import failures
from streamhouse.metadata.postgres.durability import secure_session, standby_warning
from streamhouse.metadata.postgres.session import (
    STATEMENT_TIMEOUT_S,
    SUSPENDED_MS,
    PostgresSession,
    PostgresTx,
    Transactions,
)
from streamhouse.metadata.rows.layer import Row, Step

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

OLDEST_SERVER: Final = 13  # the oldest that still gets, or has just stopped getting, fixes
MAX_POOL_SIZE: Final = 10  # eleven with the listener's: PostgreSQL's default, 100 with 3 reserved, is eight processes
CONNECT_TIMEOUT_S: Final = 5.0
MIGRATION_TIMEOUT_S: Final = 600.0  # another process may be migrating a large store; wait for it
CLOSE_TIMEOUT_S: Final = 5.0
OPEN_DEADLINE_S: Final = 9.0  # with the last try's own limit: a person at a terminal waits 15 s at most
TELL_WAITING_S: Final = 0.5  # with the start of the process: a person at a terminal reads it within 2 s
STATEMENT_CACHE_SIZE: Final = 200  # more than there are statements, so each is prepared once per connection
_BACKOFF: Final = Backoff(first_ms=10, longest_ms=1_000)

_SESSION: Final = {
    "application_name": "streamhouse",
    # The functions count on a fresh snapshot for every statement, whatever the role's default is (R5).
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": str(SUSPENDED_MS),
    # Every join of ours goes from a list of keys into a table by an index. A plan made while a table was small, or for
    # the ten rows the planner takes every array for, must be that plan too.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}


class Database:
    def __init__(
        self, dsn: str, *, randomness: Randomness, retry_deadline_ms: int, max_connections: int = MAX_POOL_SIZE
    ) -> None:
        self._dsn = dsn
        self._randomness = randomness
        self._deadline_s = retry_deadline_ms / 1000
        self._max_connections = max_connections
        self._transactions = Transactions()
        self._pool: Any = None
        self._ended = False
        self._unsafe_default = ""
        self.where = _place(dsn)
        """Host and database, without user and password: for messages."""

    async def connect(self, *, statement_timeout_s: float = STATEMENT_TIMEOUT_S) -> Any:
        """A connection outside the pool, ready for use."""
        try:
            connection = await asyncpg.connect(
                self._dsn,
                timeout=CONNECT_TIMEOUT_S,
                command_timeout=statement_timeout_s,
                server_settings=_SESSION,
                connection_class=PostgresSession,
                statement_cache_size=STATEMENT_CACHE_SIZE,
                max_cached_statement_lifetime=0,
            )
        except ConnectionError as error:
            # A server that was reached before is PostgreSQL. If it dies during a connect, asyncpg says this too.
            if "rejected SSL" not in str(error) or self._pool is not None:
                raise
            raise MetadataError(
                f"what answers at {self.where} is not PostgreSQL, or refuses TLS",
                hint="check host and port, and sslmode, in the metadata URL",
            ) from error
        except (asyncpg.ClientConfigurationError, ValueError) as error:
            # A plain ValueError quotes what it stumbled on, which may be a piece of a password.
            why = f": {error}" if isinstance(error, asyncpg.ClientConfigurationError) else ""
            raise ConfigError(
                f"the metadata URL for {self.where} is not one that PostgreSQL understands{why}",
                hint="write postgresql://user@host:port/database",
            ) from None
        try:
            self._unsafe_default = await _prepare_session(connection, self.where)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def open(self, prepare: Callable[[PostgresTx], Awaitable[None]]) -> None:
        """Wait for the server, let ``prepare`` bring the schema up, and start the pool."""

        waits = _Wait(self.where)

        async def attempt() -> None:
            try:
                connection = await self.connect(statement_timeout_s=MIGRATION_TIMEOUT_S)
                try:
                    waits.reason = "its tables are being brought up to date, by this process or another"
                    await prepare(PostgresTx(connection, prepared_only=False))
                    await self._warn_of_losses(connection)
                finally:
                    await _close_quietly(connection)
            except Exception as error:
                waits.reason = failures.in_short(error)
                raise

        if self._pool is not None:
            raise MetadataError(f"the metadata store at {self.where} is open already")
        self._ended = False
        telling = asyncio.get_running_loop().call_later(TELL_WAITING_S, waits.tell)
        try:
            await self._persist(attempt, min(self._deadline_s, OPEN_DEADLINE_S))
        finally:
            telling.cancel()
        self._pool = asyncpg.create_pool(
            connect=self._connect_for_pool,
            min_size=0,
            max_size=self._max_connections,
            reset=_leave_as_it_is,
        )
        await self._pool

    async def _warn_of_losses(self, connection: Any) -> None:
        for warning in (self._unsafe_default, await standby_warning(connection, self.where)):
            if warning:
                _log.warning("%s", warning)

    async def _connect_for_pool(self, *_args: object, **_kwargs: object) -> Any:
        return await self.connect()

    async def close(self) -> None:
        """Calls under way get a moment to end, then lose their connections."""
        self._ended = True
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await pool.close()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pool.terminate()

    @property
    def is_open(self) -> bool:
        return self._pool is not None

    def _open_pool(self) -> Any:
        if self._pool is None:
            raise MetadataUnavailable(f"the metadata store at {self.where} is not open", hint="open it first")
        return self._pool

    async def fetch(self, query: str, *args: Any) -> list[Row]:
        return await self.call(lambda tx: tx.fetch(query, *args))

    async def fetchrow(self, query: str, *args: Any) -> Row | None:
        return await self.call(lambda tx: tx.fetchrow(query, *args))

    async def fetchval(self, query: str, *args: Any) -> Any:
        row = await self.fetchrow(query, *args)
        return None if row is None else row[0]

    async def call(self, step: Step[T]) -> T:
        """Run a step of one statement until there is an answer or the deadline has passed."""
        return await self._call(lambda session: step(PostgresTx(session, prepared_only=False)))

    async def _call(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async def attempt() -> T:
            pool = self._open_pool()
            connection = await pool.acquire(timeout=CONNECT_TIMEOUT_S + STATEMENT_TIMEOUT_S)
            try:
                return await work(connection)
            except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                # A late answer may still come on this connection; the next try takes another.
                _drop(connection)
                raise
            finally:
                # A task of its own: a caller that is cancelled does not wait for it, and no one else sees its error.
                release = asyncio.ensure_future(pool.release(connection, timeout=CLOSE_TIMEOUT_S))
                release.add_done_callback(retrieve)
                await asyncio.shield(release)

        return await self._persist(attempt, self._deadline_s)

    async def transact(self, step: Step[T]) -> T:
        """Run a step in one transaction, and all of it again when that fails or its commit's reply is lost."""
        return await self._call(lambda session: self._transactions.run(session, step))

    async def _persist(self, attempt: Callable[[], Awaitable[T]], deadline_s: float) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        tries = 0
        while True:
            try:
                return await attempt()
            except Exception as error:
                if not failures.may_retry(error):
                    known = failures.translated(error, self.where)
                    if known is None:
                        raise
                    raise known from error
                tries += 1
                wait = _BACKOFF.pause_s(tries, self._randomness)
                if self._ended or loop.time() + wait >= deadline:
                    raise failures.unavailable(error, self.where) from error
                if self._pool is not None and failures.lost_connection(error):
                    await self._pool.expire_connections()
            await asyncio.sleep(wait)


class _Wait:
    """Logs once what an opening waits for."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.reason = "no answer yet"

    def tell(self) -> None:
        _log.warning("waiting for PostgreSQL at %s: %s", self._where, self.reason)


async def _prepare_session(connection: Any, where: str) -> str:
    """Make the session safe. Returns a text about what was unsafe before; empty when nothing was."""
    version = connection.get_server_version()
    if version.major < OLDEST_SERVER:
        raise MetadataError(
            f"the server at {where} is PostgreSQL {version.major}; {OLDEST_SERVER} is the oldest that works",
            hint="upgrade PostgreSQL",
        )
    return await secure_session(connection, where)


async def _leave_as_it_is(_connection: object) -> None:
    """Nothing of ours outlives its transaction in a session, so returning it to the pool costs no round trip."""


def _drop(pooled: Any) -> None:
    """Close a connection of the pool. The pool may have noticed already, and then refuses."""
    with contextlib.suppress(asyncpg.InterfaceError):
        pooled.terminate()


async def _close_quietly(connection: Any) -> None:
    try:
        await connection.close(timeout=CLOSE_TIMEOUT_S)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


def _place(dsn: str) -> str:
    """``host:port/database`` of a DSN, without user, password and options."""
    without_user = dsn.rpartition("@")[2] if "@" in dsn else dsn.partition("://")[2]
    return without_user.partition("?")[0].partition("#")[0] or "localhost"
