"""What every object store promises, and the checks that are the same for all of them.

A store keeps these promises; a wrapper (retries, metering, faults) keeps them too, and is a store itself.

* ``put`` is create-only, always: of any number of puts to a key one wins, the others get ObjectExists. There is no
  overwrite. When ``put`` has returned, the object is durable as far as the store has durability at all.
* ``get`` and ``get_range`` answer with all the bytes asked for or with an error, never with fewer.
* ``list`` yields keys in S3's order (by their UTF-8 bytes) and sees every object put before it began.
* ``delete`` of a missing key is fine.
* An error is one of core/errors/. After StoreUnavailable, a time-out or a cancellation it is unknown whether the call
  took effect; all other errors mean that it did not.
* Data handed to a put or a write is not copied first: the caller must not change it until the call has returned, and
  not at all after a call that was cancelled, because the store may still be reading it.

The public methods here check arguments and answers; a store fills in the underscored ones.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from streamhouse.core.errors import ObjectExists, ReadPastEnd, StoreError, StoreUnavailable
from streamhouse.core.limits import MAX_PARALLEL_RANGE_READS
from streamhouse.objectstore.checks import (
    PlannedRead,
    PutData,
    as_views,
    check_body_size,
    check_key,
    check_prefix,
    check_range,
    plan_reads,
)
from streamhouse.objectstore.identity import Fingerprint, holds
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo
from streamhouse.objectstore.upload import Upload


class ObjectStore(ABC):
    """An object store. The module's header has its promises."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the objects are, without secrets and without a slash at the end: ``s3://bucket/prefix``."""

    async def put(self, key: str, data: PutData, *, accept_equal: bool = False) -> None:
        """Create the object. ``accept_equal``: a taken key that holds exactly these bytes is success too (R11)."""
        check_key(key)
        views, size_bytes = as_views(data)
        check_body_size(f"object {key}", size_bytes)
        try:
            await self._put(key, views, size_bytes)
        except ObjectExists:
            if not (accept_equal and await holds(self, key, Fingerprint.of(views))):
                raise

    async def get(self, key: str) -> memoryview:
        fetched = await self._get(check_key(key))
        self._check_complete(key, len(fetched.data), fetched.size_bytes)
        return fetched.data

    async def get_range(self, key: str, offset: int, length: int) -> memoryview:
        """Return exactly ``length`` bytes from ``offset`` on. Raises ReadPastEnd if the object ends before."""
        check_range(check_key(key), offset, length)
        fetched = await self._get_range(key, offset, length)
        if offset + length > fetched.size_bytes:
            raise ReadPastEnd(
                f"bytes {offset} to {offset + length} of {key} reach past its end at {fetched.size_bytes} in {self.url}"
            )
        self._check_complete(key, len(fetched.data), length)
        return fetched.data

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """One buffer for each (offset, length), in the order asked; near ranges share a request."""
        reads = plan_reads(check_key(key), ranges)
        bodies = await self._read_all(key, reads)
        found: dict[int, memoryview] = {}
        for read, body in zip(reads, bodies, strict=True):
            for place, start in read.serves:
                found[place] = body[start : start + ranges[place][1]]
        return [found[place] for place in range(len(ranges))]

    async def head(self, key: str) -> ObjectInfo:
        return await self._head(check_key(key))

    async def list_page(self, prefix: str = "", *, start_after: str | None = None) -> ListPage:
        """The next objects whose keys begin with ``prefix`` and sort after ``start_after``: one request."""
        page = await self._list_page(check_prefix(prefix), start_after)
        if page.next_start_after is not None and page.next_start_after <= (start_after or ""):
            raise StoreError(f"{self.url} lists {prefix!r} in a circle at {page.next_start_after}")
        return page

    async def list(
        self, prefix: str = "", *, start_after: str | None = None, stop_before: str | None = None
    ) -> AsyncIterator[ObjectInfo]:
        """All objects whose keys begin with ``prefix`` and lie strictly between the two bounds, page by page."""
        after, previous = start_after, start_after or ""
        while True:
            page = await self.list_page(prefix, start_after=after)
            for info in page.objects:
                if info.key <= previous:
                    # Paging resumes after the last key seen, so a server with another order would lose objects.
                    raise StoreError(
                        f"{self.url} lists {info.key} after {previous}",
                        hint="the server must list in key order (S3 directory buckets do not); or a foreign key "
                        "continues the name of a folder beside it",
                    )
                if stop_before is not None and info.key >= stop_before:
                    return
                previous = info.key
                yield info
            if page.next_start_after is None:
                return
            after = page.next_start_after

    async def delete(self, keys: Sequence[str]) -> None:
        """Missing keys are fine. After an error some may be gone and some not; repeat it."""
        if isinstance(keys, str):
            raise TypeError("delete takes a sequence of keys")
        if keys:
            await self._delete([check_key(key) for key in keys])

    async def open_upload(self, key: str) -> Upload:
        """A create-only object written piece by piece, visible all at once when completed; see upload.py."""
        return await self._open_upload(check_key(key))

    @abstractmethod
    async def close(self) -> None:
        """Let go of threads and connections. Calls in flight end first."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _read_all(self, key: str, reads: Sequence[PlannedRead]) -> Sequence[memoryview]:
        if len(reads) == 1:
            return [await self.get_range(key, reads[0].offset, reads[0].length)]
        gate = asyncio.Semaphore(MAX_PARALLEL_RANGE_READS)

        async def one(read: PlannedRead) -> memoryview:
            async with gate:
                return await self.get_range(key, read.offset, read.length)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(read)) for read in reads]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    def _check_complete(self, key: str, got_bytes: int, announced_bytes: int) -> None:
        if got_bytes != announced_bytes:
            raise StoreUnavailable(f"{self.url} sent {got_bytes} of {announced_bytes} bytes of {key}")

    @abstractmethod
    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None: ...

    @abstractmethod
    async def _get(self, key: str) -> Fetched:
        """Read a whole object. It must check the size (check_body_size) before it reads the body."""

    @abstractmethod
    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        """Past the end: answer what there is, with the true size, or raise ReadPastEnd."""

    @abstractmethod
    async def _head(self, key: str) -> ObjectInfo: ...

    @abstractmethod
    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage: ...

    @abstractmethod
    async def _delete(self, keys: Sequence[str]) -> None: ...

    @abstractmethod
    async def _open_upload(self, key: str) -> Upload: ...


class WrappedStore(ObjectStore):
    """A store around a store: what all wrappers share."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    @property
    def url(self) -> str:
        return self._inner.url

    async def close(self) -> None:
        await self._inner.close()
