"""One transaction: what a step of the contract sees of it, and how one or many steps are run in it.

A *step* is a synchronous function ``step(tx, …)``. It knows nothing of threads, retries or event loops. Steps that were
waiting at the same moment share one transaction, each in a savepoint of its own, so that they share one fsync: a step
that fails undoes itself only, and no caller learns a result before COMMIT has succeeded.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Generic, TypeVar

from streamhouse.core.errors import InvalidRequest, MetadataDamaged
from streamhouse.metadata.contract import Change
from streamhouse.metadata.sqlite.clock import StoreClock
from streamhouse.metadata.sqlite.connections import FAILURES, Busy, translated

T = TypeVar("T")
Row = tuple[Any, ...]
Values = Sequence[object] | Mapping[str, object]

_MAX_BULK: Final = 256  # rows; times 15 columns this is far below SQLite's 32,766 values in one statement


class Tx:
    """A step's view of its transaction: statements, the store's time, and the changes to publish after the commit."""

    __slots__ = ("_connection", "changes", "now_ms")

    def __init__(self, connection: sqlite3.Connection, now_ms: int) -> None:
        self._connection = connection
        self.now_ms = now_ms
        self.changes: list[Change] = []

    def run(self, sql: str, values: Values = ()) -> int:
        """Execute a statement and return how many rows it has changed."""
        return self._connection.execute(sql, values).rowcount

    def run_many(self, sql: str, rows: Sequence[Values]) -> int:
        """Execute once per row of values; returns how many rows of the table were changed in all."""
        return self._connection.executemany(sql, rows).rowcount if rows else 0

    def run_rows(self, sql: str, rows: Sequence[Row]) -> int:
        """Execute as ``run_many`` does; ``{rows}`` in ``sql`` stands for many rows of values at once.

        Each statement gives the interpreter lock up and takes it back; beside a busy event loop that, not SQLite, is
        what a commit of a hundred partitions would wait for.
        """
        return sum(self._connection.execute(*bulk).rowcount for bulk in _in_bulk(sql, rows))

    def json_rows(self, sql: str, rows: Sequence[Row]) -> list[list[Any]]:
        """Ask about many rows of values at once; ``sql`` answers with one JSON array of arrays, for the same reason."""
        return [
            found for bulk in _in_bulk(sql, rows) for found in json.loads(self._connection.execute(*bulk).fetchone()[0])
        ]

    def row(self, sql: str, values: Values = ()) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._connection.execute(sql, values).fetchone()
        return row

    def rows(self, sql: str, values: Values = ()) -> list[sqlite3.Row]:
        return self._connection.execute(sql, values).fetchall()

    def value(self, sql: str, values: Values = ()) -> Any:
        """The first column of the first row; None when there is no row."""
        row = self._connection.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def notify(self, change: Change) -> None:
        self.changes.append(change)


def _in_bulk(sql: str, rows: Sequence[Row]) -> Iterator[tuple[str, list[object]]]:
    """Powers of two, so that a handful of statements, each prepared once, serves any number of rows."""
    start = 0
    while start < len(rows):
        size = min(1 << ((len(rows) - start).bit_length() - 1), _MAX_BULK)
        chunk = rows[start : start + size]
        yield _bulk_sql(sql, len(chunk[0]), size), [value for row in chunk for value in row]
        start += size


@cache
def _bulk_sql(sql: str, width: int, size: int) -> str:
    row = f"({', '.join('?' * width)})"
    return sql.format(rows=", ".join([row] * size))


class Job(Generic[T]):
    """One step to run, and its outcome."""

    __slots__ = ("changes", "error", "result", "step")

    def __init__(self, step: Callable[[Tx], T]) -> None:
        self.step = step
        self.result: T | None = None
        self.error: BaseException | None = None
        self.changes: list[Change] = []

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # None only where T allows it


def run_jobs(connection: sqlite3.Connection, clock: StoreClock, jobs: Sequence[Job[Any]], where: str) -> None:
    """Run all in one transaction. Raises nothing: each job carries its own outcome."""
    try:
        _run_together(connection, clock, jobs)
    except Exception as error:
        failure: Exception = error
        if isinstance(error, FAILURES):
            failure = translated(error, where)
            failure.__cause__ = error
        if len(jobs) > 1 and not isinstance(failure, Busy):
            # The transaction broke as a whole (a full disk, say). Alone, each has its own chance and its own verdict;
            # running one again is as safe as its caller sending it again.
            for job in jobs:
                run_jobs(connection, clock, [job], where)
            return
        for job in jobs:
            job.result, job.error, job.changes = None, failure, []


def run_read(connection: sqlite3.Connection, clock: StoreClock, step: Callable[[Tx], T], where: str) -> T:
    """Run one step on one snapshot."""
    try:
        connection.execute("BEGIN")
        try:
            return step(Tx(connection, clock.now_ms(_stored_clock(connection))))
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")
    except FAILURES as error:
        raise translated(error, where) from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise _unstorable(error) from error


def _run_together(connection: sqlite3.Connection, clock: StoreClock, jobs: Sequence[Job[Any]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        stored_ms = _stored_clock(connection)
        now_ms = clock.now_ms(stored_ms)
        if now_ms > stored_ms:
            connection.execute("UPDATE store_info SET clock_ms = ?", (now_ms,))
        for job in jobs:
            _run_one(connection, now_ms, job)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _run_one(connection: sqlite3.Connection, now_ms: int, job: Job[Any]) -> None:
    tx = Tx(connection, now_ms)
    job.result, job.error, job.changes = None, None, []
    connection.execute("SAVEPOINT job")
    try:
        result = job.step(tx)
    except FAILURES:
        raise
    except (OverflowError, UnicodeEncodeError) as error:
        job.error = _unstorable(error)
    except Exception as error:
        job.error = error
    else:
        job.changes, job.result = tx.changes, result
        connection.execute("RELEASE job")
        return
    connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")


def _stored_clock(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT clock_ms FROM store_info").fetchone()
    if row is None:
        raise MetadataDamaged("the metadata has no identity row", hint="restore it from a backup")
    return int(row[0])


def _unstorable(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"a value in this call cannot be stored: {error}")
