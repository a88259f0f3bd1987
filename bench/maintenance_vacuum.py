"""Vacuum of very many objects: objects a second of CPU, requests, and how much memory it takes at most.

Half of the objects were never committed, a quarter was dereferenced, a quarter is in use. Metadata is SQLite in a file.
The bucket has no bodies and makes its listing from the numbers of its objects: an object takes a byte, so that what
grows is vacuum and its metadata store. SQLite caches pages of its file, up to 16 MiB for each of five connections; so
memory grows with the file until then. Half of the objects are vacuumed too, to show by how much it does.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from maintenance_logs import MB, LedLog, Spent, Stopwatch, in_own_process, leased_slice, load, place
from report import heading, row
from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import ObjectNotFound
from streamhouse.core.limits import MAX_LIST_PAGE
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.metadata.contract import KAFKA_BATCHES, BatchRun, EntryKind, LeasedSlice, ObjectRef
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import SHARED_BLOB_PREFIX, SharedBlobKey, parse
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.metering import Meter, MeteredStore
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo, Operation
from streamhouse.objectstore.upload import Upload

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


def vacuum(*, objects: int) -> None:
    heading(f"Vacuum of {objects:,} objects, three quarters of them garbage; {load()}")
    half, whole = _vacuumed(objects // 2), _vacuumed(objects)
    row("objects a second of CPU", f"{objects / whole.spent.cpu_s:,.0f} /s/core", ratio=f"{whole.spent.wall_s:.1f} s")
    row("objects deleted", f"{whole.deleted:,}", ratio=f"{whole.deleted / objects:.0%} of all")
    for operation, count in whole.requests.items():
        if count:
            row(f"requests: {operation}", f"{count:,}", ratio=f"{objects / count:,.0f} objects each")
    row("metadata: size of its file", f"{whole.metadata_mb:,.0f} MB", ratio=f"{half.metadata_mb:,.0f} MB for half")
    row(
        "memory: growth at most, SQLite's caches included",
        f"{whole.spent.peak_growth_mb:,.1f} MB",
        target="bounded",
        ratio=f"{half.spent.peak_growth_mb:,.1f} MB for half of the objects",
    )


def _vacuumed(objects: int) -> Vacuumed:
    with tempfile.TemporaryDirectory(prefix="bench-maintenance-") as directory:
        in_own_process(_fill, directory, objects)
        found = in_own_process(_measure, directory, objects)
    assert found.deleted == sum(not _is_live(number) for number in range(objects)), found
    return found


def _fill(directory: str, objects: int) -> None:
    asyncio.run(_commit(Path(directory), objects))


async def _commit(directory: Path, objects: int) -> None:
    """Commit the objects that are in use, and those that a deleted topic had."""
    clock = ManualClock(_START_MS)
    async with place(MemoryStore(clock=clock), path=directory / "metadata.db", clock=clock) as ground:
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


def _slice(log: LedLog, number: int) -> LeasedSlice:
    key = _key(number)
    ref = ObjectRef(key=str(key), size_bytes=_SIZE_BYTES, created_at_ms=key.created_ms)
    piece = leased_slice(log, ref, (0, _SIZE_BYTES), _RUN, EntryKind.WAL, KAFKA_BATCHES)
    log.next_offset += 1
    return piece


def _measure(directory: str, objects: int) -> Vacuumed:
    return asyncio.run(_vacuum(Path(directory), objects))


async def _vacuum(directory: Path, objects: int) -> Vacuumed:
    clock = ManualClock(_START_MS + objects + 2 * _HOUR_MS)
    store = MeteredStore(_NumberedStore(objects), meter=Meter(), clock=clock)
    async with place(store, path=directory / "metadata.db", clock=clock) as ground:
        options = VacuumOptions(writer_grace_ms=_HOUR_MS, reader_grace_ms=_HOUR_MS)
        stopwatch = Stopwatch()
        summary = await Vacuum(metadata=ground.metadata, objects=store, options=options).run()
        spent = stopwatch.read()
    assert not summary.problems, summary.problems
    requests = {operation: totals.requests for operation, totals in store.meter.read().totals.items()}
    metadata_mb = (directory / "metadata.db").stat().st_size / MB
    return Vacuumed(spent=spent, metadata_mb=metadata_mb, deleted=summary.total.objects, requests=requests)


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
