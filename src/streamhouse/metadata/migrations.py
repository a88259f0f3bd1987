"""Numbered schema migrations, for every SQL backend: which there are, and which a database still lacks.

A backend keeps them beside itself as ``migrations/0001_foundation.sql``, ``0002_….sql``, without gaps, and never edits
one that was released. This module reads the files and decides; running them, under which lock, is the backend's work.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

from streamhouse.core.errors import MetadataError, SchemaTooNew

_FILE_NAME: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    version: int
    name: str
    sql: str


def load_migrations(package: str) -> tuple[Migration, ...]:
    """The migrations of ``package`` (such as ``streamhouse.metadata.sqlite``), in order."""
    found: dict[int, Migration] = {}
    for file in resources.files(package).joinpath("migrations").iterdir():
        match = _FILE_NAME.fullmatch(file.name)
        if match is None:
            continue
        version = int(match[1])
        if version in found:
            raise MetadataError(f"{package} has two migrations numbered {version}: {found[version].name}, {match[2]}")
        found[version] = Migration(version=version, name=match[2], sql=file.read_text(encoding="utf-8"))
    if sorted(found) != list(range(1, len(found) + 1)) or not found:
        raise MetadataError(
            f"the migrations of {package} are numbered {sorted(found)}; they must start at 1 and leave no gap",
            hint="reinstall StreamHouse",
        )
    return tuple(found[version] for version in sorted(found))


def pending_migrations(known: Sequence[Migration], applied: Collection[int], *, where: str) -> tuple[Migration, ...]:
    """The migrations that the database at ``where`` lacks. Raises SchemaTooNew if a newer StreamHouse wrote it."""
    newest = known[-1].version
    if applied and max(applied) > newest:
        raise SchemaTooNew(
            f"the metadata in {where} has schema version {max(applied)}; this StreamHouse knows up to {newest}"
        )
    return tuple(migration for migration in known if migration.version not in applied)
