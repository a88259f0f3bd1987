"""Brings the schema up to date at opening: under a lock, in one transaction, refusing a newer one."""

from __future__ import annotations

from typing import Final

from streamhouse.core.errors import MetadataError
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.migrations import Migration, load_migrations, pending_migrations
from streamhouse.metadata.postgres.session import PostgresTx, Transactions
from streamhouse.metadata.rows.layer import RowTx

MIGRATIONS: Final = load_migrations("streamhouse.metadata.postgres")

# The two numbers of an advisory lock: "SH", and what it is for (2 is that of pins, in 0002_shared_functions.sql).
_LOCK: Final = (0x5348, 1)


async def migrate(connection: PostgresTx, *, where: str, randomness: Randomness) -> None:
    """Concurrent starts wait for each other here; the later ones find nothing to do."""
    product = str(await connection.fetchval("SELECT version()"))
    if not product.startswith("PostgreSQL "):
        raise MetadataError(f"the server at {where} is {product[:80]}, not PostgreSQL")
    if not pending_migrations(MIGRATIONS, await _applied(connection, where), where=where):
        return

    async def bring_up(connection: RowTx) -> None:
        # Without arguments where the statement cannot be prepared before: its table is made here.
        await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK[0]}, {_LOCK[1]})")
        for migration in pending_migrations(MIGRATIONS, await _applied(connection, where), where=where):
            await _run(connection, migration)
        await connection.execute(
            f"INSERT INTO store_info (id, cluster_id) VALUES (1, '{randomness.uuid()}') ON CONFLICT DO NOTHING"
        )

    await Transactions().run(connection.session, bring_up)


async def _applied(connection: RowTx, where: str) -> set[int]:
    schema = await connection.fetchval("SELECT current_schema()")
    if schema is None:
        raise MetadataError(
            f"search_path names no schema that exists in {where}", hint="create the schema, or correct search_path"
        )
    # Not to_regclass: its answer "there is none" is cached in the session and would outlive the wait for the lock.
    table = """SELECT EXISTS (
        SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE c.relname = 'schema_migrations' AND n.nspname = current_schema())"""
    if not await connection.fetchval(table):
        return set()
    return {int(row["version"]) for row in await connection.fetch("SELECT version FROM schema_migrations")}


async def _run(connection: RowTx, migration: Migration) -> None:
    await connection.execute(migration.sql)
    await connection.execute(
        f"INSERT INTO schema_migrations (version, name, applied_at)"
        f" VALUES ({migration.version}, '{migration.name}', sh_now_ms())"
    )
