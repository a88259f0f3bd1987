"""Definitions: named documents with a version, the state that people want, and the status that runners report."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from streamhouse.core.errors import DefinitionChanged, DefinitionExists, DefinitionNotFound
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Change, ChangeKind, Definition, Definitions, WantedState
from streamhouse.metadata.rows.layer import Row, RowStore, RowTx, as_uuid

_COLUMNS: Final = "kind, name, definition_id, document, version, wanted, created_at, updated_at, status, status_at"
_GET: Final = f"SELECT {_COLUMNS} FROM definitions WHERE kind = $1 AND name = $2"
_INSERT: Final = f"""
INSERT INTO definitions ({_COLUMNS})
SELECT $1, $2, $3, $4, 1, $5, clock.now_ms, clock.now_ms, '', 0 FROM (SELECT sh_now_ms() AS now_ms) AS clock
WHERE true ON CONFLICT (kind, name) DO NOTHING
"""
_UPDATE: Final = f"""
UPDATE definitions SET document = $3, wanted = $4, version = version + 1, updated_at = sh_now_ms()
WHERE kind = $1 AND name = $2 RETURNING {_COLUMNS}
"""
_REPORT: Final = """
UPDATE definitions SET status = $4, status_at = sh_now_ms() WHERE kind = $1 AND name = $2 AND definition_id = $3
"""


class DefinitionRows(RowStore, Definitions):
    async def create_definition(
        self, kind: str, name: str, *, definition_id: UUID, document: str, wanted: WantedState
    ) -> Definition:
        checks.check_definition(kind, name, document=document)

        async def step(tx: RowTx) -> Definition:
            if await tx.fetchrow(_GET, kind, name) is None:
                count = await tx.fetchval("SELECT count(*) FROM definitions WHERE kind = $1", kind)
                checks.check_definition_count(count, kind)
                await tx.execute(_INSERT, kind, name, definition_id, document, str(wanted))
                await tx.notify(_changed(kind))
            # Read again: a faster creation has committed by now, or the insertion would still wait.
            row = await tx.fetchrow(_GET, kind, name)
            if row is None or as_uuid(row["definition_id"]) != definition_id:
                raise DefinitionExists(f"there is a {kind} {name!r} already")
            return _to_definition(row)

        return await self._transact(step)

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

        async def step(tx: RowTx) -> Definition:
            row = await tx.fetchrow(f"{_GET} FOR UPDATE", kind, name)
            if row is None:
                raise DefinitionNotFound(f"there is no {kind} {name!r}")
            found = _to_definition(row)
            asked = (found.document if document is None else document, found.wanted if wanted is None else wanted)
            if asked == (found.document, found.wanted):
                return found
            if found.version != expected_version:
                raise DefinitionChanged(f"the {kind} {name!r} is at version {found.version}, not {expected_version}")
            changed = await tx.fetchrow(_UPDATE, kind, name, asked[0], str(asked[1]))
            assert changed is not None
            await tx.notify(_changed(kind))
            return _to_definition(changed)

        return await self._transact(step)

    async def report_definition(self, kind: str, name: str, *, definition_id: UUID, status: str) -> bool:
        checks.check_definition(kind, name, status=status)
        return await self._statement(lambda tx: tx.execute(_REPORT, kind, name, definition_id, status)) > 0

    async def delete_definition(self, kind: str, name: str, *, definition_id: UUID) -> bool:
        checks.check_definition(kind, name)

        async def step(tx: RowTx) -> bool:
            delete = "DELETE FROM definitions WHERE kind = $1 AND name = $2 AND definition_id = $3"
            deleted = await tx.execute(delete, kind, name, definition_id) > 0
            if deleted:
                await tx.notify(_changed(kind))
            return deleted

        return await self._transact(step)

    async def get_definition(self, kind: str, name: str) -> Definition | None:
        checks.check_definition(kind, name)
        row = await self._fetchrow(_GET, kind, name)
        return None if row is None else _to_definition(row)

    async def list_definitions(self, kind: str | None = None) -> list[Definition]:
        checks.check_text(kind or "", "a kind of definition", may_be_empty=True)
        rows = await self._fetch(
            f"SELECT {_COLUMNS} FROM definitions WHERE $1::text IS NULL OR kind = $1 ORDER BY kind, name", kind
        )
        return [_to_definition(row) for row in rows]


def _changed(kind: str) -> Change:
    return Change(kind=ChangeKind.DEFINITIONS, name=kind)


def _to_definition(row: Row) -> Definition:
    return Definition(
        kind=row["kind"],
        name=row["name"],
        definition_id=as_uuid(row["definition_id"]),
        document=row["document"],
        version=row["version"],
        wanted=WantedState(row["wanted"]),
        created_at_ms=row["created_at"],
        updated_at_ms=row["updated_at"],
        status=row["status"],
        status_at_ms=row["status_at"],
    )
