"""An object written piece by piece: nothing is visible until ``complete``, nothing is left after ``abort``.

    async with await store.open_upload(key) as upload:
        await upload.write(block)
        ...
        await upload.complete()

Leaving the block without ``complete`` aborts. Writes follow one another; a write that failed spoils the upload, because
it is not known how much of it arrived, and only ``abort`` is left. ``complete`` is create-only like a put, and may be
called again after StoreUnavailable.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext, suppress
from enum import Enum, auto
from types import TracebackType
from typing import Any, Final, Self

from streamhouse.core.errors import InvalidRequest, LimitExceeded, StoreError
from streamhouse.core.limits import MAX_OBJECT_BYTES, MULTIPART_PART_BYTES, MULTIPART_THRESHOLD_BYTES
from streamhouse.core.tasks import retrieve
from streamhouse.objectstore.checks import PutData, as_views
from streamhouse.objectstore.identity import Fingerprint

_PUBLISH_REQUESTS: Final = 3  # cloud_upload.py copies the staged object: open, copy part, complete


class _State(Enum):
    OPEN = auto()
    SPOILED = auto()
    COMPLETE = auto()
    ABORTED = auto()


class Upload(ABC):
    def __init__(self, key: str) -> None:
        self.key = key
        self.written = Fingerprint()
        self._state = _State.OPEN
        self._running: asyncio.Task[None] | None = None
        self._completing: asyncio.Task[None] | None = None

    @property
    def put_requests(self) -> int:
        """How many PUT, COPY and POST requests this took so far, as S3 bills them; parts sent again not counted."""
        size_bytes, complete = self.written.size_bytes, self._state is _State.COMPLETE
        if size_bytes < MULTIPART_THRESHOLD_BYTES:
            return int(complete)
        parts, rest = divmod(size_bytes, MULTIPART_PART_BYTES)
        return 1 + parts + (bool(rest) + 1 + _PUBLISH_REQUESTS if complete else 0)

    async def write(self, data: PutData) -> None:
        """Append. Returns when the bytes are taken over: the caller may reuse its buffers."""
        self._expect_open("write to")
        views, size_bytes = as_views(data)
        if self.written.size_bytes + size_bytes > MAX_OBJECT_BYTES:
            raise LimitExceeded(f"object {self.key} would grow over {MAX_OBJECT_BYTES} bytes")
        self.written = self.written.grown(views)
        self._state = _State.SPOILED
        await asyncio.shield(self._start(self._write(views, size_bytes)))
        self._state = _State.OPEN

    async def complete(self) -> None:
        """Publish, create-only. On a completed upload it does nothing; on one that is completing it waits with it."""
        if self._completing is None or self._completing.done():
            if self._state is _State.COMPLETE:
                return
            self._expect_open("complete")
            self._completing = self._start(self._complete_once())
        await asyncio.shield(self._completing)

    async def abort(self) -> None:
        """Forget everything that was written. On a completed or aborted upload it does nothing."""
        if self._running is not None and not self._running.done():
            await asyncio.wait({self._running})
        if self._state not in (_State.COMPLETE, _State.ABORTED):
            self._state = _State.ABORTED
            await asyncio.shield(self._start(self._abort()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The caller must get the first error, not one of the abort.
        with suppress(StoreError) if error is not None else nullcontext():
            await self.abort()

    @abstractmethod
    async def _write(self, views: Sequence[memoryview], size_bytes: int) -> None: ...

    @abstractmethod
    async def _complete(self) -> None:
        """Complete the upload. A call after StoreUnavailable goes on where the one before stopped."""

    @abstractmethod
    async def _abort(self) -> None: ...

    def _expect_open(self, what: str) -> None:
        if self._running is not None and not self._running.done():
            raise InvalidRequest(f"cannot {what} the upload of {self.key} while an earlier call still runs")
        if self._state is not _State.OPEN:
            raise InvalidRequest(
                f"cannot {what} the upload of {self.key}: it is {self._state.name.lower()}",
                hint="abort it and upload again",
            )

    async def _complete_once(self) -> None:
        await self._complete()
        self._state = _State.COMPLETE

    def _start(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of its own, so that it ends even if the caller is cancelled, and an abort knows what it must undo."""
        task = asyncio.ensure_future(call)
        task.add_done_callback(retrieve)
        self._running = task
        return task
