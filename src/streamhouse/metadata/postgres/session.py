"""One session with PostgreSQL, and transactions in it that lose their locks when this process is suspended.

A process stopped in mid-transaction keeps its row locks, and the agent that takes over from it waits for them. The
server ends such a session by ``idle_in_transaction_session_timeout``, but only when it thinks the client idle. asyncpg
prepares a statement without ending that exchange: suspended right then, a client is still "active", for as long as it
sleeps. So inside a transaction every statement has been prepared before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import asyncpg

from streamhouse.metadata.contract import Change, ObjectRef
from streamhouse.metadata.rows.layer import Row, RowTx, Step, key_columns

T = TypeVar("T")

SUSPENDED_MS: Final = 2_000  # ours idle for a round trip only; one that is cut off is repeated as a whole
STATEMENT_TIMEOUT_S: Final = 10.0  # a reply this late is taken for lost, and the call is sent again
STATEMENT_TIMEOUT_PER_ROW_S: Final = 0.0001  # several times what a row of a commit takes


class PostgresSession(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
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
        """Called by asyncpg when a type or a table has changed."""
        super()._drop_local_statement_cache()
        self._prepared.clear()


class Transactions:
    """Runs transactions, and remembers which statements each kind of transaction needs."""

    def __init__(self) -> None:
        self._statements: dict[str, dict[str, None]] = {}

    async def run(self, session: Any, step: Step[T]) -> T:
        """Run a step in one transaction. It starts again when it meets a statement that is not prepared yet."""
        needed = self._statements.setdefault(getattr(step, "__qualname__", ""), {})
        while True:
            for query in list(needed):
                if not session.has_prepared(query):
                    await session.make_ready(query)
            try:
                async with session.transaction():
                    return await step(PostgresTx(session, prepared_only=True))
            except _NotPreparedError as unknown:
                needed[unknown.query] = None


class _NotPreparedError(Exception):
    def __init__(self, query: str) -> None:
        super().__init__(query)
        self.query = query


class PostgresTx(RowTx):
    """One connection as a step sees it, in a transaction or outside of one.

    ``prepared_only``: a statement that is not prepared yet is refused, because there is a transaction.
    """

    def __init__(self, session: Any, *, prepared_only: bool) -> None:
        self.session = session
        self._prepared_only = prepared_only

    async def fetch(self, query: str, *args: Any) -> list[Row]:
        rows: list[Row] = await self._ready(query).fetch(query, *args, timeout=_timeout_s(args))
        return rows

    async def fetchrow(self, query: str, *args: Any) -> Row | None:
        row: Row | None = await self._ready(query).fetchrow(query, *args, timeout=_timeout_s(args))
        return row

    async def execute(self, query: str, *args: Any) -> int:
        # Without arguments it is not prepared at all, but sent in one exchange.
        session = self._ready(query) if args else self.session
        status: str = await session.execute(query, *args, timeout=_timeout_s(args))
        count = status.rpartition(" ")[2]  # "DELETE 3"; other statements end in a word
        return int(count) if count.isdigit() else 0

    async def notify(self, change: Change) -> None:
        if change.name:
            await self.execute("SELECT sh_notify_name($1, $2)", str(change.kind), change.name)
        else:
            await self.execute("SELECT sh_notify_keys($1, $2, $3)", str(change.kind), *key_columns(change.keys))

    async def reference(self, objects: Sequence[ObjectRef]) -> None:
        await self.execute(
            "SELECT sh_reference($1, $2, $3, $4)",
            [ref.key for ref in objects],
            [ref.size_bytes for ref in objects],
            [ref.created_at_ms for ref in objects],
            [1] * len(objects),
        )

    async def dereference(self, keys: Sequence[str]) -> None:
        if keys:
            await self.execute("SELECT sh_dereference($1)", list(keys))

    def _ready(self, query: str) -> Any:
        if self._prepared_only and not self.session.has_prepared(query):
            raise _NotPreparedError(query)
        return self.session


def _timeout_s(args: tuple[Any, ...]) -> float | None:
    """None is the session's own. A commit of 50,000 partitions takes seconds: a repeat would only add to the load."""
    longest = max((len(arg) for arg in args if isinstance(arg, list)), default=0)
    return STATEMENT_TIMEOUT_S + longest * STATEMENT_TIMEOUT_PER_ROW_S if longest else None
