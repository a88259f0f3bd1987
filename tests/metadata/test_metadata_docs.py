"""docs/metadata.md names every call of the contract and every table and column of the schema."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamhouse.metadata.contract import MetadataStore

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metadata.md").read_text()
SCHEMA_SECTION = PAGE.partition("\n## Tables\n")[2].partition("\n## ")[0]
MIGRATIONS = sorted((ROOT / "src" / "streamhouse" / "metadata").glob("*/migrations/*.sql"))
_NO_COLUMN = {"PRIMARY", "CHECK", "UNIQUE", "FOREIGN", "CONSTRAINT"}


def tables(migration: Path) -> dict[str, list[str]]:
    """Table → columns. A column is a line's first word, at the first level of indentation."""
    found = re.findall(r"^CREATE TABLE (\w+) \((.*?)^\)", migration.read_text(), re.MULTILINE | re.DOTALL)
    return {
        name: [word for word in re.findall(r"^ {4}(\w+) ", body, re.MULTILINE) if word not in _NO_COLUMN]
        for name, body in found
    }


SCHEMAS: dict[str, dict[str, list[str]]] = {}
for migration in MIGRATIONS:
    SCHEMAS.setdefault(migration.parent.parent.name, {}).update(tables(migration))


@pytest.mark.parametrize("method", sorted(MetadataStore.__abstractmethods__))
def test_every_call_of_the_contract_is_explained(method: str) -> None:
    assert f"`{method}`" in PAGE


def test_both_backends_have_the_same_tables_and_columns() -> None:
    """Except for the clock: SQLite keeps it in ``store_info``, which has one writer at a time anyway."""
    sqlite, postgres = SCHEMAS["sqlite"], SCHEMAS["postgres"]
    assert sqlite.keys() == postgres.keys() - {"store_clock"}
    for name, columns in sqlite.items():
        assert set(columns) - {"clock_ms"} == set(postgres[name]), name


@pytest.mark.parametrize("table", sorted(SCHEMAS["postgres"]))
def test_every_table_is_described_with_its_columns(table: str) -> None:
    (row,) = [line for line in SCHEMA_SECTION.splitlines() if re.match(rf"\| `{table}`", line)]
    described = row.split("|")[2]
    for column in {*SCHEMAS["postgres"][table], *SCHEMAS["sqlite"].get(table, ())}:
        assert f"`{column}`" in described, f"{table}.{column}"
