"""One session with PostgreSQL, and transactions in it that lose their locks when this process is suspended.

A process stopped in mid-transaction keeps its row locks, and whoever takes over from it waits for them. The server ends
such a session by ``idle_in_transaction_session_timeout``, but only when it thinks the client idle. asyncpg prepares a
statement without ending that exchange: suspended right then, a client is still "active", for as long as it sleeps.
So inside a transaction every statement has been prepared before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

import asyncpg

T = TypeVar("T")

SUSPENDED_MS: Final = 2_000  # ours idle for a round trip only; one that is cut off is repeated as a whole


class Row(Protocol):
    def __getitem__(self, key: str | int) -> Any: ...


class Connection(Protocol):
    """What the areas use of asyncpg's connection."""

    async def fetch(self, query: str, *args: Any) -> list[Row]: ...
    async def fetchrow(self, query: str, *args: Any) -> Row | None: ...
    async def fetchval(self, query: str, *args: Any) -> Any: ...
    async def execute(self, query: str, *args: Any) -> str: ...


class Session(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """asyncpg's connection, which also knows what it has prepared."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prepared: set[str] = set()

    def has_prepared(self, query: str) -> bool:
        return query in self._prepared

    async def make_ready(self, query: str) -> None:
        """Prepare ``query`` for when it is run."""
        await self._get_statement(query, None)
        self._prepared.add(query)

    def _drop_local_statement_cache(self) -> None:
        """asyncpg's, when a type or a table has changed under its statements."""
        super()._drop_local_statement_cache()
        self._prepared.clear()


class Transactions:
    """Runs transactions, and remembers of each kind which statements it needs."""

    def __init__(self) -> None:
        self._statements: dict[str, dict[str, None]] = {}

    async def run(self, session: Any, work: Callable[[Connection], Awaitable[T]]) -> T:
        """``work`` in one transaction. It begins anew when it meets a statement that is not prepared yet."""
        kind = getattr(work, "func", work).__qualname__  # of a partial, the function's
        needed = self._statements.setdefault(kind, {})
        while True:
            for query in list(needed):
                if not session.has_prepared(query):
                    await session.make_ready(query)
            try:
                async with session.transaction():
                    return await work(_Prepared(session))
            except _NotPreparedError as unknown:
                needed[unknown.query] = None


class _NotPreparedError(Exception):
    def __init__(self, query: str) -> None:
        super().__init__(query)
        self.query = query


class _Prepared:
    """A connection in a transaction."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def fetch(self, query: str, *args: Any) -> list[Row]:
        rows: list[Row] = await self._ready(query).fetch(query, *args)
        return rows

    async def fetchrow(self, query: str, *args: Any) -> Row | None:
        row: Row | None = await self._ready(query).fetchrow(query, *args)
        return row

    async def fetchval(self, query: str, *args: Any) -> Any:
        return await self._ready(query).fetchval(query, *args)

    async def execute(self, query: str, *args: Any) -> str:
        # Without arguments it is not prepared at all, but sent in one exchange.
        status: str = await (self._ready(query) if args else self._session).execute(query, *args)
        return status

    def _ready(self, query: str) -> Any:
        if not self._session.has_prepared(query):
            raise _NotPreparedError(query)
        return self._session
