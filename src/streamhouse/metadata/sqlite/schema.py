"""Brings a file to this build's schema: under the write lock, all migrations or none."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from streamhouse.core.errors import MetadataError
from streamhouse.metadata.migrations import load_migrations, pending_migrations
from streamhouse.metadata.sqlite.clock import StoreClock
from streamhouse.metadata.sqlite.connections import FAILURES, translated

MIGRATIONS: Final = load_migrations("streamhouse.metadata.sqlite")

_APPLICATION_ID: Final = 0x53_48_4D_44  # "SHMD" in the file's header: `file` and our own check recognise it


def migrate(connection: sqlite3.Connection, clock: StoreClock, cluster_id: UUID, where: str) -> None:
    """Idempotent. Processes that start together wait for the lock one after another and find the work done."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            _migrate(connection, clock, cluster_id, where)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except FAILURES as error:
        raise translated(error, where) from error


def _migrate(connection: sqlite3.Connection, clock: StoreClock, cluster_id: UUID, where: str) -> None:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()
    applied = {version for (version,) in connection.execute("SELECT version FROM schema_migrations")} if tables else ()
    for migration in pending_migrations(MIGRATIONS, applied, where=where):
        for statement in statements(migration.sql):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO schema_migrations (version, name, applied_at) VALUES (?, ?, ?)",
            (migration.version, migration.name, clock.now_ms(0)),
        )
    if not tables:
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(
            "INSERT INTO store_info (id, cluster_id, clock_ms) VALUES (1, ?, ?)", (cluster_id.bytes, clock.now_ms(0))
        )


def statements(script: str) -> Iterator[str]:
    """Statement by statement, because ``executescript`` would commit first and so give up all-or-none."""
    collected = ""
    for line in script.splitlines(keepends=True):
        collected += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(collected):
            yield collected
            collected = ""
    if collected.strip():
        raise MetadataError(f"a migration ends inside a statement: {collected.strip()[:80]!r}")
