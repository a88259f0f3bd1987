"""Vacuum of very many objects: objects a second of CPU, requests, and how much memory it takes at most.

Half of the objects were never committed, a quarter was dereferenced, a quarter is in use. Metadata is SQLite in a file,
or a private PostgreSQL.
The bucket has no bodies and makes its listing from the numbers of its objects: an object takes a byte, so that what
grows is vacuum and its metadata store. SQLite caches pages of its file, 16 MiB in all connections together, which a
file of 100,000 objects fills. A tenth of the objects is vacuumed too: what memory grows by must not depend on them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import asyncpg

from maintenance_logs import (
    MB,
    RANDOMNESS,
    LedLog,
    Place,
    Spent,
    Stopwatch,
    in_own_process,
    leased_slice,
    load,
    place,
)
from report import heading, row
from streamhouse.core.clock import Clock, ManualClock
from streamhouse.core.errors import ObjectNotFound
from streamhouse.core.limits import MAX_LIST_PAGE
from streamhouse.log.offload import ThreadOffload
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.metadata.contract import KAFKA_BATCHES, BatchRun, EntryKind, LeasedSlice, ObjectRef
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import SHARED_BLOB_PREFIX, SharedBlobKey, parse
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.metering import Meter, MeteredStore
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo, Operation
from streamhouse.objectstore.upload import Upload
from streamhouse.testing.services import start_postgres

_START_MS = 1_700_000_000_000
_HOUR_MS = 3_600_000
_SIZE_BYTES = 1_000
_PARTITIONS = 250
_RUN = BatchRun(record_count=1, byte_length=_SIZE_BYTES, min_timestamp_ms=_START_MS, max_timestamp_ms=_START_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    spent: Spent
    metadata_mb: float
    deleted: int
    requests: dict[Operation, int]


def vacuum(*, objects: int, on_postgres: bool = False) -> None:
    product = "PostgreSQL" if on_postgres else "SQLite"
    heading(f"Vacuum of {objects:,} objects, three quarters of them garbage, {product}; {load()}")
    vacuumed = _vacuumed_on_postgres if on_postgres else _vacuumed_on_sqlite
    tenth, whole = vacuumed(objects // 10), vacuumed(objects)
    row("objects a second of CPU", f"{objects / whole.spent.cpu_s:,.0f} /s/core", ratio=f"{whole.spent.wall_s:.1f} s")
    row("objects deleted", f"{whole.deleted:,}", ratio=f"{whole.deleted / objects:.0%} of all")
    for operation, count in whole.requests.items():
        if count:
            row(f"requests: {operation}", f"{count:,}", ratio=f"{objects / count:,.0f} objects each")
    if not on_postgres:
        row(
            "metadata: size of its file",
            f"{whole.metadata_mb:,.0f} MB",
            ratio=f"{tenth.metadata_mb:,.0f} MB for a tenth",
        )
    row(
        "memory: growth at most" if on_postgres else "memory: growth at most, SQLite's caches included",
        f"{whole.spent.peak_growth_mb:,.1f} MB",
        target="bounded",
        ratio=f"{tenth.spent.peak_growth_mb:,.1f} MB for a tenth of the objects",
    )


def _vacuumed_on_sqlite(objects: int) -> Vacuumed:
    with tempfile.TemporaryDirectory(prefix="bench-maintenance-") as directory:
        return _vacuumed(str(Path(directory) / "metadata.db"), objects)


def _vacuumed_on_postgres(objects: int) -> Vacuumed:
    with start_postgres(durable=True) as service:
        return _vacuumed(service.create_database(), objects)


def _vacuumed(where: str, objects: int) -> Vacuumed:
    in_own_process(_fill, where, objects)
    found = in_own_process(_measure, where, objects)
    assert found.deleted == sum(not _is_live(number) for number in range(objects)), found
    return found


def _is_dsn(where: str) -> bool:
    return where.startswith("postgresql://")


@asynccontextmanager
async def _ground(where: str, store: ObjectStore, clock: Clock) -> AsyncIterator[Place]:
    """``where``: the path of an SQLite file, or PostgreSQL's DSN. PostgreSQL has a clock of its own."""
    if not _is_dsn(where):
        async with place(store, path=where, clock=clock) as ground:
            yield ground
        return
    offload = ThreadOffload(2)
    async with PostgresMetadata(where, randomness=RANDOMNESS) as metadata:
        yield Place(metadata=metadata, store=store, offload=offload)
    await offload.close()


def _fill(where: str, objects: int) -> None:
    asyncio.run(_commit(where, objects))


async def _commit(where: str, objects: int) -> None:
    """Commit the objects that are in use, and those that a deleted topic had."""
    clock = ManualClock(_START_MS)
    async with _ground(where, MemoryStore(clock=clock), clock) as ground:
        live = await ground.logs("live", _PARTITIONS)
        gone = await ground.logs("gone", _PARTITIONS)
        for logs, numbers in (
            (live, [number for number in range(objects) if _is_live(number)]),
            (gone, [number for number in range(objects) if _is_dereferenced(number)]),
        ):
            for first in range(0, len(numbers), _PARTITIONS):
                await ground.commit(
                    [
                        _slice(log, number)
                        for log, number in zip(logs, numbers[first : first + _PARTITIONS], strict=False)
                    ]
                )
        await ground.metadata.delete_topic(gone[0].key.topic_id)
        while await ground.metadata.purge_deleted_topics(limit=10_000):
            pass
    if _is_dsn(where):
        connection = await asyncpg.connect(where)
        await connection.execute(
            "UPDATE objects SET dereferenced_at = dereferenced_at - $1 WHERE dereferenced_at IS NOT NULL", 2 * _HOUR_MS
        )
        await connection.close()


def _slice(log: LedLog, number: int) -> LeasedSlice:
    key = _key(number)
    ref = ObjectRef(key=str(key), size_bytes=_SIZE_BYTES, created_at_ms=key.created_ms)
    piece = leased_slice(log, ref, (0, _SIZE_BYTES), _RUN, EntryKind.WAL, KAFKA_BATCHES)
    log.next_offset += 1
    return piece


def _measure(where: str, objects: int) -> Vacuumed:
    return asyncio.run(_vacuum(where, objects))


async def _vacuum(where: str, objects: int) -> Vacuumed:
    clock = ManualClock(_START_MS + objects + 2 * _HOUR_MS)
    store = MeteredStore(_NumberedStore(objects), meter=Meter(), clock=clock)
    async with _ground(where, store, clock) as ground:
        options = VacuumOptions(writer_grace_ms=_HOUR_MS, reader_grace_ms=_HOUR_MS)
        stopwatch = Stopwatch()
        summary = await Vacuum(metadata=ground.metadata, objects=store, options=options).run()
        spent = stopwatch.read()
    assert not summary.problems, summary.problems
    requests = {operation: totals.requests for operation, totals in store.meter.read().totals.items()}
    return Vacuumed(spent=spent, metadata_mb=_file_mb(where), deleted=summary.total.objects, requests=requests)


def _file_mb(where: str) -> float:
    return 0.0 if _is_dsn(where) else Path(where).stat().st_size / MB


def _is_live(number: int) -> bool:
    return number % 4 == 0


def _is_dereferenced(number: int) -> bool:
    return number % 4 == 1


def _key(number: int) -> SharedBlobKey:
    """Keys sort as their numbers do."""
    return SharedBlobKey(created_ms=_START_MS + number, object_id=UUID(int=number))


def _number(key: str) -> int:
    parsed = parse(key)
    assert isinstance(parsed, SharedBlobKey), key
    return parsed.created_ms - _START_MS


class _NumberedStore(ObjectStore):
    """Shared blobs without bodies, which are listed and deleted."""

    def __init__(self, count: int) -> None:
        self._stands = bytearray(b"\1" * count)

    @property
    def url(self) -> str:
        return "numbered://"

    async def close(self) -> None:
        pass

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        await asyncio.sleep(0)
        if not SHARED_BLOB_PREFIX.startswith(prefix):
            return ListPage(objects=[], next_start_after=None)
        number = 0 if start_after is None or parse(start_after) is None else _number(start_after) + 1
        found: list[ObjectInfo] = []
        while len(found) < MAX_LIST_PAGE:
            number = self._stands.find(1, number)
            if number < 0:
                return ListPage(objects=found, next_start_after=None)
            info = ObjectInfo(key=str(_key(number)), size_bytes=_SIZE_BYTES, modified_ms=_START_MS + number, etag=None)
            found.append(info)
            number += 1
        return ListPage(objects=found, next_start_after=found[-1].key)

    async def _delete(self, keys: Sequence[str]) -> None:
        await asyncio.sleep(0)
        for key in keys:
            self._stands[_number(key)] = 0

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        raise NotImplementedError("vacuum writes nothing")

    async def _get(self, key: str) -> Fetched:
        raise ObjectNotFound(f"{key} has no body in {self.url}")

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        raise ObjectNotFound(f"{key} has no body in {self.url}")

    async def _head(self, key: str) -> ObjectInfo:
        raise ObjectNotFound(f"{key} has no body in {self.url}")

    async def _open_upload(self, key: str) -> Upload:
        raise NotImplementedError("vacuum writes nothing")
