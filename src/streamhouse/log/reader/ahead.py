"""Read-ahead: recognises sequential readers and fetches what they read next.

A read that begins where an earlier one ended makes a stream. From the second read of a stream on, what follows is
fetched into the block cache while the reader works on what it has. The window doubles with every read, up to its
limit. All limits are soft: when one is reached, nothing is fetched ahead, and the reader fetches the data itself, as it
would without read-ahead. Errors are dropped here: a reader that comes to that place gets them again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MIB
from streamhouse.log.reader.entries import EntryFinder
from streamhouse.log.reader.objects import ObjectReader
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.views import Views
from streamhouse.log.tail import TailCache

_FIRST_WINDOW_BYTES: Final = 1 * MIB
_MAX_STREAMS: Final = 4096  # places where a reader may go on; the least recently used is forgotten
_MAX_DOUBLINGS: Final = 20


class Stream:
    """One sequential reader of a partition."""

    __slots__ = ("ahead_bytes", "ahead_offset", "steps", "task")

    def __init__(self) -> None:
        self.steps = 0
        """How many reads began where the one before ended."""
        self.ahead_offset = 0
        """All records below this offset were fetched or are being fetched."""
        self.ahead_bytes = 0
        """The bytes of it that the reader has not read yet."""
        self.task: asyncio.Task[None] | None = None

    def step(self, next_offset: int, size_bytes: int) -> None:
        self.ahead_bytes = max(0, self.ahead_bytes - size_bytes)
        if self.ahead_offset < next_offset:
            self.ahead_offset, self.ahead_bytes = next_offset, 0

    def window_bytes(self, max_bytes: int) -> int:
        return min(max_bytes, _FIRST_WINDOW_BYTES << min(self.steps, _MAX_DOUBLINGS)) if self.steps else 0


class Streams:
    """Recognises sequential readers. Pure."""

    def __init__(self, max_streams: int = _MAX_STREAMS) -> None:
        self._max_streams = max_streams
        self._by_place: OrderedDict[tuple[PartitionKey, int], Stream] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_place)

    def step(self, key: PartitionKey, offset: int, next_offset: int, size_bytes: int) -> Stream:
        stream = self._by_place.pop((key, offset), None)
        if stream is None:
            stream = Stream()
        else:
            stream.steps += 1
        stream.step(next_offset, size_bytes)
        self._by_place[key, next_offset] = stream
        if len(self._by_place) > self._max_streams:
            self._by_place.popitem(last=False)
        return stream


class ReadAhead:
    def __init__(
        self, *, entries: EntryFinder, objects: ObjectReader, views: Views, tail: TailCache, options: ReaderOptions
    ) -> None:
        self._entries = entries
        self._objects = objects
        self._views = views
        self._tail = tail
        self._window_bytes = min(options.read_ahead_bytes, options.block_cache_bytes // 2)
        self._bytes_left = min(options.max_ahead_bytes, options.block_cache_bytes // 2)
        self._streams = Streams()
        self._tasks: set[asyncio.Task[None]] = set()

    def stepped(self, key: PartitionKey, offset: int, next_offset: int, size_bytes: int) -> None:
        """A reader took ``size_bytes`` from objects, from ``offset`` on; it may go on at ``next_offset``."""
        if not self._window_bytes:
            return
        stream = self._streams.step(key, offset, next_offset, size_bytes)
        window = stream.window_bytes(self._window_bytes)
        if stream.task is not None or stream.ahead_bytes * 2 > window:
            return
        wanted = min(window - stream.ahead_bytes, self._bytes_left)
        if wanted > 0 and self._is_committed_and_cold(key, stream.ahead_offset):
            self._bytes_left -= wanted
            stream.task = asyncio.create_task(self._fetch(key, stream, wanted))
            self._tasks.add(stream.task)
            stream.task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_committed_and_cold(self, key: PartitionKey, offset: int) -> bool:
        """Above the known watermark there is nothing to fetch, and what the tail cache holds need not be fetched."""
        view = self._views.get(key)
        if view is None or offset >= view.state.high_watermark:
            return False
        hot_from = self._tail.start_offset(key)
        return hot_from is None or offset < hot_from

    async def _fetch(self, key: PartitionKey, stream: Stream, wanted: int) -> None:
        begun: list[asyncio.Task[None]] = []
        left = wanted
        try:
            while left > 0 and self._is_committed_and_cold(key, stream.ahead_offset):
                entry = await self._entries.find(key, stream.ahead_offset)
                if entry is None:
                    break
                offset, picked = stream.ahead_offset, []
                for stretch in await self._objects.stretches(key, entry, offset):
                    if left <= 0:
                        break
                    picked.append(stretch)
                    offset = stretch.end_offset + 1
                    left -= stretch.memory_bytes
                else:
                    offset = entry.end_offset + 1
                begun += self._objects.fetch_ahead(picked)
                stream.ahead_bytes += sum(stretch.memory_bytes for stretch in picked)
                stream.ahead_offset = max(stream.ahead_offset, offset)
            if begun:
                await asyncio.wait(begun)
        except StreamHouseError:
            pass
        finally:
            self._bytes_left += wanted
            stream.task = None
