"""Stores as a process sees them that is killed, loses answers, or meets others at work between two of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore, WrappedStore
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo
from streamhouse.objectstore.upload import Upload


class Died(BaseException):
    """The process was killed: nothing of it runs on."""


@contextmanager
def killed() -> Iterator[None]:
    """A process that may die in the middle. Other errors pass."""
    try:
        yield
    except BaseExceptionGroup as group:
        _, others = group.split(Died)
        if others is not None:
            raise others from None
    except Died:
        pass


class Life:
    """How many calls to its stores a process makes before it is killed."""

    def __init__(self, steps: int | None = None) -> None:
        self.left = steps
        self.steps: list[str] = []

    async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """The call takes effect, and then the process may die without its answer."""
        self._die_if_dead()
        answer = await call()
        self._die_if_dead()  # another call was the last one, while this one was under way
        self.steps.append(name)
        self._die_if_dead()
        return answer

    def _die_if_dead(self) -> None:
        if self.left is not None and len(self.steps) >= self.left:
            raise Died


class MortalMetadata:
    """The metadata store as a process sees it that may be killed."""

    def __init__(self, inner: MetadataStore, life: Life) -> None:
        self._inner = inner
        self._life = life

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            return await self._life.step(name, lambda: method(*arguments, **named))

        return call


class SteppedStore(WrappedStore):
    """An object store whose calls pass ``step``; a test's own class says what happens there."""

    async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        await self.step("put", lambda: self._inner.put(key, views))

    async def _get(self, key: str) -> Fetched:
        data = await self.step("get", lambda: self._inner.get(key))
        return Fetched(data=data, size_bytes=len(data))

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        data = await self.step("get_range", lambda: self._inner.get_range(key, offset, length))
        return Fetched(data=data, size_bytes=offset + length)

    async def _head(self, key: str) -> ObjectInfo:
        found: ObjectInfo = await self.step("head", lambda: self._inner.head(key))
        return found

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        page: ListPage = await self.step("list", lambda: self._inner.list_page(prefix, start_after=start_after))
        return page

    async def _delete(self, keys: Sequence[str]) -> None:
        await self.step("delete", lambda: self._inner.delete(keys))

    async def _open_upload(self, key: str) -> Upload:
        return SteppedUpload(self, await self.step("open_upload", lambda: self._inner.open_upload(key)))


class SteppedUpload(Upload):
    def __init__(self, store: SteppedStore, inner: Upload) -> None:
        super().__init__(inner.key)
        self._store = store
        self._inner = inner

    async def _write(self, views: Sequence[memoryview], size_bytes: int) -> None:
        await self._store.step("write", lambda: self._inner.write(views))

    async def _complete(self) -> None:
        await self._store.step("complete", self._inner.complete)

    async def _abort(self) -> None:
        await self._store.step("abort", self._inner.abort)


class MortalStore(SteppedStore):
    def __init__(self, inner: ObjectStore, life: Life) -> None:
        super().__init__(inner)
        self._life = life

    async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        return await self._life.step(name, call)


class HeldStore(SteppedStore):
    """Uploads wait until ``open`` is set."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.open = asyncio.Event()
        self.uploads = 0
        self.most_at_a_time = 0

    async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if name == "open_upload":
            self.uploads += 1
            self.most_at_a_time = max(self.most_at_a_time, self.uploads)
            await self.open.wait()
        if name in ("complete", "abort"):
            self.uploads -= 1
        return await call()


class MeddledMetadata:
    """The metadata store, with something done before or after one call."""

    def __init__(self, inner: Any, call: str, deed: Callable[[], Awaitable[None]], *, times: int = 1) -> None:
        self._inner = inner
        self._call = call
        self._deed = deed
        self._times = times

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name != self._call:
            return method

        async def call(*arguments: Any, **named: Any) -> Any:
            if self._times:
                self._times -= 1
                await self._deed()
            return await method(*arguments, **named)

        return call


class LossyMetadata:
    """A metadata store whose answers to some calls are lost, after they took effect."""

    def __init__(self, inner: Any, losses: dict[str, int]) -> None:
        self._inner = inner
        self.losses = losses

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            answer = await method(*arguments, **named)
            if self.losses.get(name, 0):
                self.losses[name] -= 1
                raise MetadataUnavailable(f"no answer to {name}")
            return answer

        return call
