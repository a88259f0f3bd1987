"""Connections: how they are set up, and what an SQLite error means. Runs no statement of the contract."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from streamhouse.core.errors import MetadataDamaged, MetadataError, MetadataUnavailable, StreamHouseError
from streamhouse.core.limits import MIB

MEMORY: Final = ":memory:"

FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)
"""What a statement raises. UnicodeDecodeError: SQLite's message about a damaged page quotes bytes that are no text."""

_OLDEST_SQLITE: Final = (3, 35, 0)  # RETURNING; generated columns and upserts are older
_STATEMENT_CACHE: Final = 512  # more than the backend has, so that each is prepared once per connection
_LARGEST_IDLE_LOG_BYTES: Final = 64 * MIB  # what one huge transaction made of the log is given back afterwards
_WRITER_CACHE_KIB: Final = 8 * 1024
"""The pages that one transaction changes, as a rule. What does not fit is written to the log early."""
_READER_CACHE_KIB: Final = 2 * 1024
"""The inner pages of an index of some million entries. The system's cache has the others, and a vacuum, which reads
every page once, would fill a larger cache of each connection with what is not read again."""


class Busy(StreamHouseError):
    """Another connection holds the lock. Never leaves this package: it is retried until the deadline."""


def connect(path: str, *, busy_timeout_ms: int, read_only: bool = False) -> sqlite3.Connection:
    """WAL mode with synchronous=FULL: COMMIT returns after the log was fsynced. Raises errors of the tree."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        needed = ".".join(map(str, _OLDEST_SQLITE))
        raise MetadataError(f"SQLite {sqlite3.sqlite_version} is too old; {needed} is needed", hint="upgrade Python")
    _check_place(path)
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=_STATEMENT_CACHE
        )
        _set_up(connection, path, busy_timeout_ms=busy_timeout_ms, read_only=read_only)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, FAILURES):
            raise translated(error, path) from error
        raise
    return connection


def _check_place(path: str) -> None:
    """SQLite says "unable to open database file" in all of these cases. Say which one it is."""
    if path == MEMORY:
        return
    parent = Path(path).absolute().parent
    if not parent.is_dir():
        raise MetadataError(f"the metadata cannot be in {path}: there is no directory {parent}", hint="create it first")
    if Path(path).is_dir():
        raise MetadataError(f"the metadata cannot be in {path}: that is a directory", hint="name a file in it")
    if not os.access(parent, os.W_OK | os.X_OK) or (Path(path).exists() and not os.access(path, os.W_OK)):
        raise MetadataError(f"the metadata in {path} is not writable", hint="check the owner and mode of the directory")


def _set_up(connection: sqlite3.Connection, path: str, *, busy_timeout_ms: int, read_only: bool) -> None:
    connection.row_factory = sqlite3.Row
    connection.create_function("sh_uuid", 1, bytes.fromhex, deterministic=True)
    connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
    _check_ours(connection, path)
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal" and path != MEMORY:
        raise MetadataError(
            f"the metadata in {path} cannot use write-ahead logging (it stays in mode {mode!r})",
            hint="keep it on a local disk",
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the platter
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_IDLE_LOG_BYTES}")
    connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB if read_only else _WRITER_CACHE_KIB}")
    if read_only:
        connection.execute("PRAGMA query_only = ON")


def _check_ours(connection: sqlite3.Connection, path: str) -> None:
    """Called before anything is changed in the file: even the switch to write-ahead logging would stay."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and "schema_migrations" not in tables:
        raise MetadataError(
            f"{path} is an SQLite database of another program (it has a table {min(tables)!r})",
            hint="name another file; this one was not touched",
        )


def translated(error: sqlite3.Error | UnicodeDecodeError, path: str) -> StreamHouseError:
    """The error to raise: what went wrong, where, and what to do."""
    if isinstance(error, UnicodeDecodeError):
        return _damaged(path, error)
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the high bits only refine it
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
        return Busy(f"the metadata in {path} is locked by another process: {error}")
    if code == sqlite3.SQLITE_FULL:
        return MetadataUnavailable(f"no space left for the metadata in {path}", hint="free some space, then try again")
    if code == sqlite3.SQLITE_IOERR:
        return MetadataUnavailable(f"the metadata in {path} cannot be read or written: {error}", hint="check the disk")
    if code == sqlite3.SQLITE_NOTADB:
        return MetadataDamaged(
            f"{path} is not an SQLite database, or its header is damaged",
            hint="name another file, or restore it from a backup; this one was not touched",
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return _damaged(path, error)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return MetadataError(
            f"the metadata in {path} cannot be opened for writing: {error}",
            hint="check that the file and its directory exist and belong to this user",
        )
    return MetadataError(f"the metadata in {path} refused a statement: {error}")


def _damaged(path: str, error: Exception) -> MetadataDamaged:
    return MetadataDamaged(f"the metadata in {path} is damaged: {error}", hint="restore it from a backup")
