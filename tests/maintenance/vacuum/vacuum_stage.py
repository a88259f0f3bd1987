"""A bucket with objects of every kind under real keys, vacuums of it, and stores that die or refuse at a given call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from builders import leased_slice
from harness import Backend, LedPartition

from streamhouse.core.errors import StoreError
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.summary import VacuumSummary
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.metadata.contract import MetadataStore, ObjectRef, SliceOutcome
from streamhouse.objectstore.contract import ObjectStore, WrappedStore
from streamhouse.objectstore.keys import CompactedKey, ObjectKey, ProbeKey, SegmentKey, SharedBlobKey, StagingKey
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo
from streamhouse.objectstore.upload import Upload

HOUR_MS = 3_600_000
READER_GRACE_MS = 600_000
OPTIONS = VacuumOptions(writer_grace_ms=HOUR_MS, reader_grace_ms=READER_GRACE_MS, purge_rows=2, pause_ms=0)
SIZE_BYTES = 1000


class StoreClock:
    """The clock of the object store's machine, which shows what the metadata store's shows."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def wall_ms(self) -> int:
        return self._backend.now_ms

    def boot_ms(self) -> int:
        return self._backend.now_ms


@dataclass(slots=True, kw_only=True)
class Bucket:
    backend: Backend
    objects: ObjectStore
    root: Path | None = None
    """The directory of a local store."""

    async def put(self, key: ObjectKey | str, *, modified_ms: int | None = None, size: int = SIZE_BYTES) -> str:
        """``modified_ms``: the time that the object store shows; now, unless told. In memory it is always now."""
        await self.objects.put(str(key), bytes(size))
        if self.root is not None:
            now_ms = self.backend.now_ms if modified_ms is None else modified_ms
            with suppress(FileNotFoundError):  # a vacuum beside a slow writer may have deleted it already
                os.utime(self.root / str(key), ns=(now_ms * 1_000_000, now_ms * 1_000_000))
        return str(key)

    async def blob(self, *, created_ms: int | None = None, size: int = SIZE_BYTES) -> ObjectRef:
        stamp_ms = self._stamp(created_ms)
        key = SharedBlobKey(created_ms=stamp_ms, object_id=self.backend.uuid())
        return ObjectRef(key=await self.put(key, size=size), size_bytes=size, created_at_ms=stamp_ms)

    async def segment(self, log: PartitionKey, *, base: int = 0, created_ms: int | None = None) -> ObjectRef:
        stamp_ms = self._stamp(created_ms)
        key = SegmentKey(log=log, base_offset=base, epoch=1, created_ms=stamp_ms, object_id=self.backend.uuid())
        return ObjectRef(key=await self.put(key), size_bytes=SIZE_BYTES, created_at_ms=stamp_ms)

    async def compacted(self, log: PartitionKey, *, base: int, end: int) -> ObjectRef:
        stamp_ms = self.backend.now_ms
        key = CompactedKey(
            log=log, base_offset=base, end_offset=end, created_ms=stamp_ms, object_id=self.backend.uuid()
        )
        return ObjectRef(key=await self.put(key), size_bytes=SIZE_BYTES, created_at_ms=stamp_ms)

    async def staging(self, *, created_ms: int | None = None, modified_ms: int | None = None) -> str:
        key = StagingKey(created_ms=self._stamp(created_ms), object_id=self.backend.uuid())
        return await self.put(key, modified_ms=modified_ms)

    async def probe(self) -> str:
        return await self.put(ProbeKey(created_ms=self.backend.now_ms, object_id=self.backend.uuid()))

    async def keys(self) -> set[str]:
        return {info.key async for info in self.objects.list()}

    def vacuum(
        self,
        *,
        options: VacuumOptions = OPTIONS,
        metadata: Any = None,
        objects: ObjectStore | None = None,
        on_progress: Any = None,
    ) -> Vacuum:
        return Vacuum(
            metadata=metadata or self.backend.store,
            objects=objects or self.objects,
            options=options,
            on_progress=on_progress,
        )

    async def run(self) -> VacuumSummary:
        return await self.vacuum().run()

    async def append(self, led: LedPartition, ref: ObjectRef | None = None) -> ObjectRef:
        """Upload a segment of one record, unless it is given, and commit it."""
        ref = ref or await self.segment(led.key, base=led.next_offset)
        await led.append(ref=ref)
        return ref

    async def try_append(self, led: LedPartition, ref: ObjectRef) -> SliceOutcome:
        piece = leased_slice(led.key, ref, epoch=led.epoch, base=led.next_offset)
        (outcome,) = await self.backend.store.commit_leased(self.backend.append_id(), [piece])
        return outcome

    async def referenced(self) -> set[str]:
        """What the entries of all topics name, in any order."""
        topics = await self.backend.store.list_topics()
        return {
            entry.object_key
            for topic in topics
            for key in topic.partition_keys()
            for entry in await self.backend.entries(key)
        }

    def _stamp(self, created_ms: int | None) -> int:
        return self.backend.now_ms if created_ms is None else created_ms


class Killed(BaseException):
    """The process is gone: nothing below this call happens any more."""


class Moment(StrEnum):
    BEFORE = "before the call"
    HALF = "in the middle of the call"
    AFTER = "after the call"


class Life:
    """Ends at the given call, whichever of the two stores gets it."""

    def __init__(self, calls: int, moment: Moment) -> None:
        self._left = calls
        self._moment = moment
        self.over = False

    def ends_now(self, moment: Moment) -> bool:
        """Asked once before each call and once after it."""
        if self.over:
            raise Killed
        if moment is Moment.BEFORE:
            self._left -= 1
        if self._left == 0 and moment is self._moment:
            self.over = True
        return self.over

    def check(self, moment: Moment) -> None:
        if self.ends_now(moment):
            raise Killed


class MortalMetadata:
    def __init__(self, inner: MetadataStore, life: Life) -> None:
        self._inner = inner
        self._life = life

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)

        async def mortal(*args: Any, **options: Any) -> Any:
            self._life.check(Moment.BEFORE)
            self._life.check(Moment.HALF)
            answer = await call(*args, **options)
            self._life.check(Moment.AFTER)
            return answer

        return mortal


class StoreShell(WrappedStore):
    """Passes everything on; a test's own class changes what it needs."""

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        await self._inner.put(key, views)

    async def _get(self, key: str) -> Fetched:
        data = await self._inner.get(key)
        return Fetched(data=data, size_bytes=len(data))

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        data = await self._inner.get_range(key, offset, length)
        return Fetched(data=data, size_bytes=offset + len(data))

    async def _head(self, key: str) -> ObjectInfo:
        return await self._inner.head(key)

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        return await self._inner.list_page(prefix, start_after=start_after)

    async def _delete(self, keys: Sequence[str]) -> None:
        await self._inner.delete(keys)

    async def _open_upload(self, key: str) -> Upload:
        return await self._inner.open_upload(key)


class MortalStore(StoreShell):
    def __init__(self, inner: ObjectStore, life: Life) -> None:
        super().__init__(inner)
        self._life = life

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        self._life.check(Moment.BEFORE)
        self._life.check(Moment.HALF)
        page = await self._inner.list_page(prefix, start_after=start_after)
        self._life.check(Moment.AFTER)
        return page

    async def _delete(self, keys: Sequence[str]) -> None:
        self._life.check(Moment.BEFORE)
        if self._life.ends_now(Moment.HALF):
            await self._inner.delete(keys[: len(keys) // 2])
            raise Killed
        await self._inner.delete(keys)
        self._life.check(Moment.AFTER)


class RefusingStore(StoreShell):
    """Deletes nothing in a request that names one of ``refused``. Counts the requests, and how many are under way."""

    def __init__(
        self, inner: ObjectStore, error: StoreError | OSError, *, refused: Sequence[str] | None = None
    ) -> None:
        super().__init__(inner)
        self.error = error
        self.refused = refused
        self.requests: list[int] = []
        self.most_at_once = 0
        self._under_way = 0

    async def _delete(self, keys: Sequence[str]) -> None:
        self.requests.append(len(keys))
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            if self.refused is None or any(key in self.refused for key in keys):
                raise self.error
            await self._inner.delete(keys)
        finally:
            self._under_way -= 1
