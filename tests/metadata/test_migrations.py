"""The numbered migrations: found in order, gaps refused, a newer schema refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamhouse.core.errors import MetadataError, SchemaTooNew
from streamhouse.metadata.migrations import Migration, load_migrations, pending_migrations


def package(root: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> str:
    name = f"backend_of_{root.name}".replace("-", "_")
    folder = root / name / "migrations"
    folder.mkdir(parents=True)
    (root / name / "__init__.py").touch()
    for file in files:
        (folder / file).write_text(f"-- {file}\n")
    monkeypatch.syspath_prepend(str(root))
    return name


def test_they_are_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = package(tmp_path, monkeypatch, "0002_more.sql", "0001_first.sql", "README.md", "0010_not.sql.orig")
    assert [(one.version, one.name) for one in load_migrations(name)] == [(1, "first"), (2, "more")]
    assert load_migrations(name)[0].sql == "-- 0001_first.sql\n"


@pytest.mark.parametrize(
    "files", [(), ("0002_second.sql",), ("0001_a.sql", "0003_c.sql"), ("0001_a.sql", "0001_b.sql")]
)
def test_a_gap_or_a_number_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]
) -> None:
    with pytest.raises(MetadataError, match="numbered"):
        load_migrations(package(tmp_path, monkeypatch, *files))


def test_what_a_database_still_lacks() -> None:
    known = [Migration(version=number, name=f"m{number}", sql="") for number in (1, 2, 3)]
    assert pending_migrations(known, set(), where="here") == tuple(known)
    assert [one.version for one in pending_migrations(known, {1, 2}, where="here")] == [3]
    assert pending_migrations(known, [1, 2, 3], where="here") == ()
    with pytest.raises(SchemaTooNew, match="here has schema version 4; this StreamHouse knows up to 3"):
        pending_migrations(known, {1, 2, 3, 4}, where="here")


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_the_backends_have_theirs(backend: str) -> None:
    first = load_migrations(f"streamhouse.metadata.{backend}")[0]
    assert first.name == "foundation"
    assert "CREATE TABLE partitions" in first.sql
