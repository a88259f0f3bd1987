"""A store in a dictionary, for tests and the simulator.

No threads, no files, no real time: every call yields to the event loop once and then happens at one instant, so a
simulated loop decides the order of events and a seed replays it. It forgets everything with its process.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from streamhouse.core.clock import Clock
from streamhouse.core.errors import ObjectExists, ObjectNotFound
from streamhouse.core.limits import MAX_LIST_PAGE
from streamhouse.objectstore.checks import check_body_size
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo
from streamhouse.objectstore.upload import Upload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    data: bytes
    info: ObjectInfo


class MemoryStore(ObjectStore):
    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[str, _Stored] = {}
        self._keys: list[str] = []

    @property
    def url(self) -> str:
        return "memory://"

    async def close(self) -> None:
        pass

    def create(self, key: str, data: bytes) -> None:
        if key in self._objects:
            raise ObjectExists(f"{key} exists already in {self.url}")
        info = ObjectInfo(key=key, size_bytes=len(data), modified_ms=self._clock.wall_ms(), etag=None)
        self._objects[key] = _Stored(data=data, info=info)
        bisect.insort(self._keys, key)

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        await asyncio.sleep(0)
        self.create(key, b"".join(views))

    async def _get(self, key: str) -> Fetched:
        stored = await self._find(key)
        check_body_size(f"object {key}", stored.info.size_bytes)
        return Fetched(data=memoryview(stored.data), size_bytes=stored.info.size_bytes)

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        stored = await self._find(key)
        return Fetched(data=memoryview(stored.data)[offset : offset + length], size_bytes=stored.info.size_bytes)

    async def _head(self, key: str) -> ObjectInfo:
        return (await self._find(key)).info

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        await asyncio.sleep(0)
        first = bisect.bisect_left(self._keys, prefix)
        if start_after is not None:
            first = max(first, bisect.bisect_right(self._keys, start_after))
        keys = [key for key in self._keys[first : first + MAX_LIST_PAGE] if key.startswith(prefix)]
        more = len(keys) == MAX_LIST_PAGE
        return ListPage(objects=[self._objects[key].info for key in keys], next_start_after=keys[-1] if more else None)

    async def _delete(self, keys: Sequence[str]) -> None:
        await asyncio.sleep(0)
        for key in keys:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect.bisect_left(self._keys, key)]

    async def _open_upload(self, key: str) -> Upload:
        await asyncio.sleep(0)
        return _MemoryUpload(self, key)

    async def _find(self, key: str) -> _Stored:
        await asyncio.sleep(0)
        stored = self._objects.get(key)
        if stored is None:
            raise ObjectNotFound(f"{key} is not in {self.url}")
        return stored


class _MemoryUpload(Upload):
    def __init__(self, store: MemoryStore, key: str) -> None:
        super().__init__(key)
        self._store = store
        self._body = bytearray()

    async def _write(self, views: Sequence[memoryview], size_bytes: int) -> None:
        await asyncio.sleep(0)
        for view in views:
            self._body += view

    async def _complete(self) -> None:
        await asyncio.sleep(0)
        self._store.create(self.key, bytes(self._body))

    async def _abort(self) -> None:
        self._body.clear()
