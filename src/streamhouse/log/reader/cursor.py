"""One partition of a read: its position, what was taken, what still fits. Pure.

first batch of the whole answer     taken whatever its size: a reader must get past it
every other batch                   only if it fits both its partition's bytes and the answer's
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamhouse.core.errors import StreamHouseError, as_result
from streamhouse.core.ids import PartitionKey
from streamhouse.log.reader.views import PartitionView


class ReadRequest(NamedTuple):
    """This and its result are tuples: they are made for every partition of every fetch."""

    key: PartitionKey
    offset: int
    max_bytes: int


class ReadResult(NamedTuple):
    batches: list[memoryview]
    """Whole record batches at their real offsets, one buffer each; the first may begin before the offset asked for."""
    next_offset: int
    """The offset to read next. It may lie behind the last batch, if key compaction emptied the offsets between
    (R18)."""
    high_watermark: int
    """The end of what may be read."""
    log_start_offset: int
    last_stable_offset: int

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.batches))


class Allowance:
    """The bytes of one answer, shared by all its partitions."""

    __slots__ = ("left", "taken")

    def __init__(self, max_bytes: int) -> None:
        self.left = max_bytes
        self.taken = 0

    def take(self, size_bytes: int) -> None:
        self.left -= size_bytes
        self.taken += size_bytes


class Cursor:
    __slots__ = ("allowance", "batches", "confirmed", "error", "full", "key", "left", "offset", "view")

    def __init__(self, request: ReadRequest, allowance: Allowance) -> None:
        self.key = request.key
        self.offset = request.offset
        self.left = request.max_bytes
        self.allowance = allowance
        self.batches: list[memoryview] = []
        self.full = False
        """True when the answer has no room for another batch."""
        self.confirmed = False
        """The end of the log was read fresh for this cursor."""
        self.error: StreamHouseError | None = None
        self.view: PartitionView | None = None
        """The state of the partition, as it was last known."""

    @property
    def room(self) -> int:
        return max(0, min(self.left, self.allowance.left))

    def is_done(self) -> bool:
        return self.full or self.error is not None

    def is_crowded_out(self) -> bool:
        """Whether other partitions have used up the answer, so that nothing of this one fits."""
        return self.allowance.left <= 0 and self.allowance.taken > 0

    def fail(self, error: StreamHouseError) -> None:
        """What was taken before is returned; the next read from there gets the error again."""
        if self.batches:
            self.full = True
        else:
            self.error = as_result(error)

    def take(self, batches: Sequence[memoryview], size_bytes: int, next_offset: int) -> bool:
        """Take batches; all but the first are known to fit ``room``. False if not even the first fits."""
        if size_bytes > self.room and self.allowance.taken:
            self.full = True
            return False
        self.batches.extend(batches)
        self.left -= size_bytes
        self.allowance.take(size_bytes)
        self.offset = next_offset
        if not self.room:
            self.full = True
        return True
