"""Definitions: named documents with a version, the state wanted of them, and what runners say."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from streamhouse.core.errors import DefinitionChanged, DefinitionExists, DefinitionNotFound
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Definition, Definitions, WantedState
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.postgres.rows import plain_uuid
from streamhouse.metadata.postgres.session import Connection, Row

_COLUMNS: Final = "kind, name, definition_id, document, version, wanted, created_at, updated_at, status, status_at"
_GET: Final = f"SELECT {_COLUMNS} FROM definitions WHERE kind = $1 AND name = $2"
_NOTIFY: Final = "SELECT sh_notify_name('definitions', $1)"
_INSERT: Final = f"""
INSERT INTO definitions ({_COLUMNS})
SELECT $1, $2, $3, $4, 1, $5, clock.now_ms, clock.now_ms, '', 0 FROM (SELECT sh_now_ms() AS now_ms) AS clock
ON CONFLICT (kind, name) DO NOTHING
"""
_UPDATE: Final = f"""
UPDATE definitions SET document = $3, wanted = $4, version = version + 1, updated_at = sh_now_ms()
WHERE kind = $1 AND name = $2 RETURNING {_COLUMNS}
"""
_REPORT: Final = """
UPDATE definitions SET status = $4, status_at = sh_now_ms()
WHERE kind = $1 AND name = $2 AND definition_id = $3 RETURNING true
"""
_DELETE: Final = "DELETE FROM definitions WHERE kind = $1 AND name = $2 AND definition_id = $3 RETURNING true"


class PostgresDefinitions(Definitions):
    _database: Database

    async def create_definition(
        self, kind: str, name: str, *, definition_id: UUID, document: str, wanted: WantedState
    ) -> Definition:
        checks.check_definition(kind, name, document=document)

        async def work(connection: Connection) -> Definition:
            if await connection.fetchrow(_GET, kind, name) is None:
                count = await connection.fetchval("SELECT count(*) FROM definitions WHERE kind = $1", kind)
                checks.check_definition_count(count, kind)
                await connection.execute(_INSERT, kind, name, definition_id, document, str(wanted))
                await connection.execute(_NOTIFY, kind)
            # Fresh: whoever was faster has committed by now, or the insertion would still wait.
            row = await connection.fetchrow(_GET, kind, name)
            if row is None or plain_uuid(row["definition_id"]) != definition_id:
                raise DefinitionExists(f"there is a {kind} {name!r} already")
            return _to_definition(row)

        return await self._database.transact(work)

    async def update_definition(
        self,
        kind: str,
        name: str,
        *,
        expected_version: int,
        document: str | None = None,
        wanted: WantedState | None = None,
    ) -> Definition:
        checks.check_definition(kind, name, document=document)

        async def work(connection: Connection) -> Definition:
            row = await connection.fetchrow(f"{_GET} FOR UPDATE", kind, name)
            if row is None:
                raise DefinitionNotFound(f"there is no {kind} {name!r}")
            found = _to_definition(row)
            asked = (found.document if document is None else document, found.wanted if wanted is None else wanted)
            if asked == (found.document, found.wanted):
                return found
            if found.version != expected_version:
                raise DefinitionChanged(f"the {kind} {name!r} is at version {found.version}, not {expected_version}")
            changed = await connection.fetchrow(_UPDATE, kind, name, asked[0], str(asked[1]))
            await connection.execute(_NOTIFY, kind)
            assert changed is not None
            return _to_definition(changed)

        return await self._database.transact(work)

    async def report_definition(self, kind: str, name: str, *, definition_id: UUID, status: str) -> bool:
        checks.check_definition(kind, name, status=status)
        return bool(await self._database.fetchval(_REPORT, kind, name, definition_id, status))

    async def delete_definition(self, kind: str, name: str, *, definition_id: UUID) -> bool:
        checks.check_definition(kind, name)

        async def work(connection: Connection) -> bool:
            gone = await connection.fetchval(_DELETE, kind, name, definition_id)
            if gone:
                await connection.execute(_NOTIFY, kind)
            return bool(gone)

        return await self._database.transact(work)

    async def get_definition(self, kind: str, name: str) -> Definition | None:
        checks.check_definition(kind, name)
        row = await self._database.fetchrow(_GET, kind, name)
        return None if row is None else _to_definition(row)

    async def list_definitions(self, kind: str | None = None) -> list[Definition]:
        checks.check_text(kind or "", "a kind of definition", may_be_empty=True)
        rows = await self._database.fetch(
            f"SELECT {_COLUMNS} FROM definitions WHERE $1::text IS NULL OR kind = $1 ORDER BY kind, name", kind
        )
        return [_to_definition(row) for row in rows]


def _to_definition(row: Row) -> Definition:
    return Definition(
        kind=row["kind"],
        name=row["name"],
        definition_id=plain_uuid(row["definition_id"]),
        document=row["document"],
        version=row["version"],
        wanted=WantedState(row["wanted"]),
        created_at_ms=row["created_at"],
        updated_at_ms=row["updated_at"],
        status=row["status"],
        status_at_ms=row["status_at"],
    )
