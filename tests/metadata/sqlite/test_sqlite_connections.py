"""Connections: what is in force on each, which files are refused untouched, and what an error of SQLite means."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from streamhouse.core.errors import MetadataDamaged, MetadataError, MetadataUnavailable, StreamHouseError
from streamhouse.metadata.sqlite import connections, engine
from streamhouse.metadata.sqlite.connections import MEMORY, Busy, connect, translated


def pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    return error


def test_a_commit_is_on_the_disk_and_a_lock_is_waited_for(tmp_path: Path) -> None:
    opened = connect(str(tmp_path / "m.db"), busy_timeout_ms=123)
    assert pragma(opened, "journal_mode") == "wal"
    assert pragma(opened, "synchronous") == 2, "FULL"
    assert pragma(opened, "busy_timeout") == 123
    assert pragma(opened, "journal_size_limit") == 64 << 20
    opened.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    path = str(tmp_path / "m.db")
    writer, reader = connect(path, busy_timeout_ms=0), connect(path, busy_timeout_ms=0, read_only=True)
    writer.execute("CREATE TABLE schema_migrations (n)")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("INSERT INTO schema_migrations VALUES (1)")
    assert reader.execute("SELECT count(*) FROM schema_migrations").fetchone()[0] == 0
    writer.close()
    reader.close()


def test_the_caches_of_a_writer_and_four_readers_are_bounded_to_16_mib(tmp_path: Path) -> None:
    """A vacuum reads every page of the file, so each cache becomes as large as it may."""
    path = str(tmp_path / "metadata.db")
    writer, reader = connect(path, busy_timeout_ms=0), connect(path, busy_timeout_ms=0, read_only=True)
    cached_kib = [-int(str(pragma(each, "cache_size"))) for each in (writer, *[reader] * engine._READERS)]
    assert min(cached_kib) > 0, "a positive number would count pages"
    assert sum(cached_kib) <= 16 * 1024
    writer.close()
    reader.close()


def test_memory_needs_no_place_and_no_log() -> None:
    opened = connect(MEMORY, busy_timeout_ms=0)
    assert opened.execute("SELECT sh_uuid('ff00')").fetchone()[0] == b"\xff\x00"
    opened.close()


def test_a_place_that_cannot_be_is_named_before_sqlite_is_asked(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match=f"there is no directory {tmp_path}/none"):
        connect(str(tmp_path / "none" / "m.db"), busy_timeout_ms=0)
    with pytest.raises(MetadataError, match="that is a directory") as refused:
        connect(str(tmp_path), busy_timeout_ms=0)
    assert refused.value.hint == "name a file in it"
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE bookmarks (url)")
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(MetadataError, match=r"of another program .*'bookmarks'"):
        connect(str(path), busy_timeout_ms=0)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["m.db"]


def test_a_file_that_is_no_database_is_damaged_or_not_ours(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_bytes(b"something else " * 100)
    with pytest.raises(MetadataDamaged, match="is not an SQLite database, or its header is damaged"):
        connect(str(tmp_path / "m.db"), busy_timeout_ms=0)


def test_an_sqlite_that_is_too_old_is_told_with_the_version_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_OLDEST_SQLITE", (99, 1, 0))
    with pytest.raises(MetadataError, match=r"is too old; 99\.1\.0 is needed"):
        connect(MEMORY, busy_timeout_ms=0)


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (sqlite3.SQLITE_BUSY, Busy, "locked by another process"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Busy, "locked by another process"),
        (sqlite3.SQLITE_LOCKED, Busy, "locked"),
        (sqlite3.SQLITE_FULL, MetadataUnavailable, "no space left"),
        (sqlite3.SQLITE_IOERR_FSYNC, MetadataUnavailable, "check the disk"),
        (sqlite3.SQLITE_CORRUPT, MetadataDamaged, "restore it from a backup"),
        (sqlite3.SQLITE_NOTADB, MetadataDamaged, "is not an SQLite database"),
        (sqlite3.SQLITE_READONLY, MetadataError, "cannot be opened for writing"),
        (sqlite3.SQLITE_CONSTRAINT, MetadataError, "refused a statement: what SQLite says"),
    ],
)
def test_an_error_says_what_it_means_and_where(code: int, kind: type[StreamHouseError], said: str) -> None:
    made = translated(sqlite_error(code), "/data/m.db")
    assert type(made) is kind
    assert said in str(made)
    assert "/data/m.db" in str(made)


def test_a_message_that_is_no_text_is_damage() -> None:
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    assert isinstance(translated(error, "/data/m.db"), MetadataDamaged)
