"""Opens the metadata store of a URL. The only place that knows which backends there are."""

from __future__ import annotations

from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import ConfigError
from streamhouse.core.randomness import Randomness
from streamhouse.core.urls import local_path, mask_url, scheme_of
from streamhouse.metadata.contract import MetadataStore
from streamhouse.metadata.sqlite.connections import MEMORY
from streamhouse.metadata.sqlite.store import SqliteMetadata

_MEMORY_URL: Final = f"sqlite:///{MEMORY}"


def open_metadata(url: str, *, clock: Clock, randomness: Randomness, threads: bool = True) -> MetadataStore:
    """The store behind ``url``; ``async with`` (or ``open``) connects it. Raises ConfigError.

        sqlite:///var/lib/streamhouse/metadata.db     a file in a directory that exists
        sqlite:///:memory:                            gone with the process
        postgresql://user:secret@host/database

    ``threads=False`` keeps SQLite on the event loop, for the simulator; PostgreSQL needs no threads.
    """
    scheme = scheme_of(url)
    if scheme == "sqlite":
        path = MEMORY if url == _MEMORY_URL else str(local_path(url))
        return SqliteMetadata(path, clock=clock, randomness=randomness, threads=threads)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, randomness)
    if scheme == "oxia":
        raise ConfigError(
            f"the metadata store {mask_url(url)} cannot be used: the Oxia backend is not built yet",
            hint="use sqlite:// or postgresql://",
        )
    raise ConfigError(
        f"{mask_url(url)!r} names no metadata store",
        hint="use sqlite:///path/metadata.db or postgresql://user@host/database",
    )


def _postgres(url: str, randomness: Randomness) -> MetadataStore:
    try:
        from streamhouse.metadata.postgres.store import PostgresMetadata
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigError(
            "PostgreSQL metadata needs the package asyncpg", hint="install streamhouse[postgres]"
        ) from error
    return PostgresMetadata(url, randomness=randomness)
