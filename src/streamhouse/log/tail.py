"""The tail cache: the newest visible batches of every partition led here, in memory, with a bound.

    one partition's run          oldest                         newest
                          ┌─────────┬─────────┬─────────┬─────────┐
                          │ batch   │ batch   │ batch   │ batch   │
                          └─────────┴─────────┴─────────┴─────────┘
                        start                                    end      offsets; reads from start to end are hits

A run has no gaps and ends at the last batch published. Readers that keep up find everything here and ask neither the
metadata store nor the object store; other readers miss and fall back. At the end of a run the answer is "nothing
newer". That answer matters as much as the batches: it lets a reader wait without a call. Eviction removes the oldest
batch of all partitions, so that a busy partition does not displace the newer batches of a quiet one.

Holds references to batches, not copies (except for a view that would keep something larger alive). A published buffer
must never change again: readers may hold it as long as they like. Does no IO, and does not decide what is visible: what
is published is visible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from streamhouse.core.ids import PartitionKey
from streamhouse.wire.batch import HEADER_BYTES
from streamhouse.wire.buffers import BytesLike, byte_view

BATCH_OVERHEAD_BYTES: Final = 500
"""The measured size of the objects around a cached batch; for tiny batches most of the memory."""

_OFFSETS: Final = Struct(">q15xi")  # a batch's base offset and last offset delta
_SHRINK_FROM: Final = 64  # evicted batches before their slots are freed


class TailRead(NamedTuple):
    batches: tuple[memoryview, ...]
    next_offset: int
    size_bytes: int


class _Run:
    """The batches of one partition. ``head`` counts the evicted ones still in the lists, so that eviction is cheap.

    ``ends[i]`` is the offset after batch ``i``, ``sums[i]`` the bytes of all batches up to and with it.
    """

    __slots__ = ("alive", "before", "ends", "head", "start", "sums", "views")

    def __init__(self, start: int) -> None:
        self.start = start
        self.views: list[memoryview | None] = []
        self.ends: list[int] = []
        self.sums: list[int] = []
        self.before = 0
        """The bytes of all batches before the first in the lists."""
        self.head = 0
        self.alive = True

    @property
    def end(self) -> int:
        return self.ends[-1] if self.head < len(self.ends) else self.start

    @property
    def size_bytes(self) -> int:
        if self.head == len(self.sums):
            return 0
        return self.sums[-1] - (self.sums[self.head - 1] if self.head else self.before)

    def __len__(self) -> int:
        return len(self.ends) - self.head

    def add(self, view: memoryview, end: int) -> None:
        self.views.append(view)
        self.ends.append(end)
        self.sums.append((self.sums[-1] if self.sums else self.before) + len(view))

    def evict_oldest(self) -> int:
        """Returns the number of bytes freed."""
        view = self.views[self.head]
        assert view is not None
        self.views[self.head] = None
        self.start = self.ends[self.head]
        self.head += 1
        if self.head >= _SHRINK_FROM and self.head * 2 >= len(self.ends):
            self.before = self.sums[self.head - 1]
            del self.views[: self.head], self.ends[: self.head], self.sums[: self.head]
            self.head = 0
        return len(view)

    def clear(self) -> None:
        """Drop everything. The queue may refer to this run for some time."""
        self.alive = False
        self.views, self.ends, self.sums, self.head = [], [], [], 0

    def read(self, offset: int, max_bytes: int) -> TailRead:
        first = bisect_right(self.ends, offset, self.head)
        if first == len(self.ends):
            return TailRead(batches=(), next_offset=offset, size_bytes=0)
        before = self.sums[first - 1] if first else self.before
        after = max(first + 1, bisect_right(self.sums, before + max_bytes, first))
        return TailRead(
            batches=tuple(self.views[first:after]),  # type: ignore[arg-type]  # only evicted ones are None
            next_offset=self.ends[after - 1],
            size_bytes=self.sums[after - 1] - before,
        )


class TailCache:
    """The tail cache of an agent. It belongs to one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.hits = 0
        self.misses = 0
        self._max_bytes = max_bytes
        self._runs: dict[PartitionKey, _Run] = {}
        self._order: deque[_Run] = deque()
        """The run of each batch, oldest batch first. The batches of a run are in order, so this says which one is
        oldest."""
        self._dropped_count = 0
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches held, and of the objects around them."""
        return self._bytes

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    def publish(self, key: PartitionKey, base_offset: int, batches: Sequence[BytesLike]) -> None:
        """Add consecutive batches with their real offsets. They must never change again.

        Batches that do not continue the partition's run start a new run. Raises ValueError if the batches do not follow
        each other; then none of them is added.
        """
        checked: list[tuple[memoryview, int]] = []
        next_offset = base_offset
        for batch in batches:
            view = _own_view(batch)
            found_offset, last_delta = _OFFSETS.unpack_from(view)
            if found_offset != next_offset:
                raise ValueError(f"{key}: a batch at offset {found_offset} where {next_offset} is next")
            next_offset += last_delta + 1
            checked.append((view, next_offset))
        run = self._runs.get(key)
        if run is None or run.end != base_offset:
            self.drop(key)
            run = self._runs[key] = _Run(base_offset)
        for view, end in checked:
            run.add(view, end)
            self._bytes += len(view) + BATCH_OVERHEAD_BYTES
            self._order.append(run)
        if self._bytes > self._max_bytes:
            self._evict()

    def read(self, key: PartitionKey, offset: int, max_bytes: int) -> TailRead | None:
        """Whole batches from the one with ``offset`` on, the first whatever its size. None is a miss.

        At the end of the run the answer has no batches: nothing newer is visible.
        """
        run = self._runs.get(key)
        if run is None or not run.start <= offset <= run.end:
            self.misses += 1
            return None
        self.hits += 1
        return run.read(offset, max_bytes)

    def start_offset(self, key: PartitionKey) -> int | None:
        run = self._runs.get(key)
        return None if run is None else run.start

    def end_offset(self, key: PartitionKey) -> int | None:
        run = self._runs.get(key)
        return None if run is None else run.end

    def drop(self, key: PartitionKey) -> None:
        """Forget the partition: its leadership has ended, or its run is broken."""
        run = self._runs.pop(key, None)
        if run is None:
            return
        self._bytes -= run.size_bytes + BATCH_OVERHEAD_BYTES * len(run)
        self._dropped_count += len(run)
        run.clear()
        if self._dropped_count * 2 > len(self._order):
            # At least half of the queue is useless now. The publishes that filled it pay for the cleaning.
            self._order = deque(each for each in self._order if each.alive)
            self._dropped_count = 0

    def _evict(self) -> None:
        while self._bytes > self._max_bytes and self._order:
            run = self._order.popleft()
            if run.alive:
                self._bytes -= run.evict_oldest() + BATCH_OVERHEAD_BYTES
            else:
                self._dropped_count -= 1


def _own_view(batch: BytesLike) -> memoryview:
    view = memoryview(batch) if isinstance(batch, bytearray) else byte_view(batch)
    if len(view) < HEADER_BYTES:
        raise ValueError(f"{len(view)} bytes are no record batch")
    if isinstance(batch, memoryview) and memoryview(batch.obj).nbytes > len(view):
        view = memoryview(bytes(view))  # a view would keep the whole buffer around it, which is not counted
    return view.toreadonly()
