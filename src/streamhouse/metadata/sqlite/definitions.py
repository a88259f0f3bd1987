"""Definitions: named documents with a version, the state wanted of them, and what runners say."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from streamhouse.core.errors import DefinitionChanged, DefinitionExists, DefinitionNotFound
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Change, ChangeKind, Definition, WantedState
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Row, Tx

_SELECT: Final = """
    SELECT kind, name, definition_id, document, version, wanted, created_at, updated_at, status, status_at
    FROM definitions"""
_ONE: Final = "WHERE kind = ? AND name = ?"


def create_definition(
    tx: Tx, kind: str, name: str, *, definition_id: UUID, document: str, wanted: WantedState
) -> Definition:
    found = get_definition(tx, kind, name)
    if found is not None:
        if found.definition_id != definition_id:
            raise DefinitionExists(f"there is a {kind} {name!r} already")
        return found
    checks.check_definition_count(tx.value("SELECT count(*) FROM definitions WHERE kind = ?", (kind,)), kind)
    tx.run(
        "INSERT INTO definitions VALUES (?, ?, ?, ?, 1, ?, ?, ?, '', 0)",
        (kind, name, definition_id.bytes, document, str(wanted), tx.now_ms, tx.now_ms),
    )
    _notify(tx, kind)
    return _need(tx, kind, name)


def update_definition(
    tx: Tx, kind: str, name: str, *, expected_version: int, document: str | None, wanted: WantedState | None
) -> Definition:
    found = _need(tx, kind, name)
    asked = (found.document if document is None else document, found.wanted if wanted is None else wanted)
    if asked == (found.document, found.wanted):
        return found
    if found.version != expected_version:
        raise DefinitionChanged(f"the {kind} {name!r} is at version {found.version}, not {expected_version}")
    tx.run(
        f"UPDATE definitions SET document = ?, wanted = ?, version = version + 1, updated_at = ? {_ONE}",
        (asked[0], str(asked[1]), tx.now_ms, kind, name),
    )
    _notify(tx, kind)
    return _need(tx, kind, name)


def report_definition(tx: Tx, kind: str, name: str, *, definition_id: UUID, status: str) -> bool:
    said = f"UPDATE definitions SET status = ?, status_at = ? {_ONE} AND definition_id = ?"
    return tx.run(said, (status, tx.now_ms, kind, name, definition_id.bytes)) > 0


def delete_definition(tx: Tx, kind: str, name: str, *, definition_id: UUID) -> bool:
    gone = tx.run(f"DELETE FROM definitions {_ONE} AND definition_id = ?", (kind, name, definition_id.bytes)) > 0
    if gone:
        _notify(tx, kind)
    return gone


def get_definition(tx: Tx, kind: str, name: str) -> Definition | None:
    row = tx.row(f"{_SELECT} {_ONE}", (kind, name))
    return None if row is None else _definition_of(row)


def list_definitions(tx: Tx, kind: str | None) -> list[Definition]:
    rows = tx.rows(f"{_SELECT} WHERE ?1 IS NULL OR kind = ?1 ORDER BY kind, name", (kind,))
    return [_definition_of(row) for row in rows]


def _need(tx: Tx, kind: str, name: str) -> Definition:
    found = get_definition(tx, kind, name)
    if found is None:
        raise DefinitionNotFound(f"there is no {kind} {name!r}")
    return found


def _notify(tx: Tx, kind: str) -> None:
    tx.notify(Change(kind=ChangeKind.DEFINITIONS, name=kind))


def _definition_of(row: Row) -> Definition:
    kind, name, definition_id, document, version, wanted, created_at, updated_at, status, status_at = row
    return Definition(
        kind=kind,
        name=name,
        definition_id=UUID(bytes=definition_id),
        document=document,
        version=version,
        wanted=WantedState(wanted),
        created_at_ms=created_at,
        updated_at_ms=updated_at,
        status=status,
        status_at_ms=status_at,
    )


class DefinitionCalls(Shell):
    async def create_definition(
        self, kind: str, name: str, *, definition_id: UUID, document: str, wanted: WantedState
    ) -> Definition:
        checks.check_definition(kind, name, document=document)
        return await self._write(
            create_definition, kind, name, definition_id=definition_id, document=document, wanted=wanted
        )

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
        return await self._write(
            update_definition, kind, name, expected_version=expected_version, document=document, wanted=wanted
        )

    async def report_definition(self, kind: str, name: str, *, definition_id: UUID, status: str) -> bool:
        checks.check_definition(kind, name, status=status)
        return await self._write(report_definition, kind, name, definition_id=definition_id, status=status)

    async def delete_definition(self, kind: str, name: str, *, definition_id: UUID) -> bool:
        checks.check_definition(kind, name)
        return await self._write(delete_definition, kind, name, definition_id=definition_id)

    async def get_definition(self, kind: str, name: str) -> Definition | None:
        checks.check_definition(kind, name)
        return await self._read(get_definition, kind, name)

    async def list_definitions(self, kind: str | None = None) -> list[Definition]:
        checks.check_text(kind or "", "a kind of definition", may_be_empty=True)
        return await self._read(list_definitions, kind)
