"""A directory as object store: durable, create-only, for one machine.

The asynchronous shell around local_files.py, which holds the promises. All file work runs in a small pool of threads;
the event loop never waits for a disk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from streamhouse.core.clock import Clock
from streamhouse.core.limits import LOCAL_STORE_THREADS, STALE_TEMP_MS
from streamhouse.core.randomness import Randomness
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.failures import from_os_error
from streamhouse.objectstore.local_files import DurableFiles, write_all
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo
from streamhouse.objectstore.upload import Upload

T = TypeVar("T")


class LocalStore(ObjectStore):
    """An object store in a local directory. ``LocalStore.open`` makes it."""

    def __init__(self, root: Path, *, randomness: Randomness, direct_io: bool) -> None:
        self.files = DurableFiles(root, direct_io=direct_io)
        self._randomness = randomness
        self._pool = ThreadPoolExecutor(max_workers=LOCAL_STORE_THREADS, thread_name_prefix="local-store")

    @classmethod
    async def open(
        cls, root: Path, *, clock: Clock, randomness: Randomness, create: bool = True, direct_io: bool = True
    ) -> LocalStore:
        """Make the directory if asked to, see that it can be used, and clear away what dead writers left."""
        store = cls(root, randomness=randomness, direct_io=direct_io)
        stale_before_ms = clock.wall_ms() - STALE_TEMP_MS

        def prepare() -> None:
            store.files.open(create=create)
            store.files.check_links(store.temp_name())
            store.files.remove_stale_temps(stale_before_ms)

        try:
            await store.run(f"opening {store.files.root}", prepare)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def url(self) -> str:
        return f"file://{quote(self.files.root)}"

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)

    async def run(self, what: str, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        except OSError as error:
            raise from_os_error(error, what) from error

    def temp_name(self) -> str:
        return self._randomness.uuid().hex

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        temp_name = self.temp_name()
        await self.run(self._what("put", key), lambda: self.files.put(key, views, temp_name))

    async def _get(self, key: str) -> Fetched:
        return await self.run(self._what("get", key), lambda: self.files.read(key))

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        return await self.run(self._what("get", key), lambda: self.files.read(key, offset, length))

    async def _head(self, key: str) -> ObjectInfo:
        return await self.run(self._what("head", key), lambda: self.files.head(key))

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        return await self.run(self._what("list", prefix), lambda: self.files.list_page(prefix, start_after))

    async def _delete(self, keys: Sequence[str]) -> None:
        await self.run(self._what("delete", keys[0]), lambda: self.files.delete(keys))

    async def _open_upload(self, key: str) -> Upload:
        name = self.temp_name()
        fd, temp = await self.run(self._what("upload", key), lambda: self.files.create_temp(name))
        return _LocalUpload(self, key, fd, temp)

    def _what(self, operation: str, key: str) -> str:
        return f"{operation} of {key} in {self.files.root}"


class _LocalUpload(Upload):
    def __init__(self, store: LocalStore, key: str, fd: int, temp: str) -> None:
        super().__init__(key)
        self._store = store
        self._fd = fd
        self._temp = temp

    async def _write(self, views: Sequence[memoryview], size_bytes: int) -> None:
        await self._run(lambda: write_all(self._fd, views))

    async def _complete(self) -> None:
        def publish() -> None:
            os.fsync(self._fd)
            self._store.files.publish(self._temp, self.key)
            self._discard()

        await self._run(publish)

    async def _abort(self) -> None:
        await self._run(self._discard)

    async def _run(self, call: Callable[[], None]) -> None:
        await self._store.run(f"upload of {self.key} in {self._store.files.root}", call)

    def _discard(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        with suppress(FileNotFoundError):
            os.unlink(self._temp)
