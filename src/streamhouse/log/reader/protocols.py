"""What the reader needs of partitions that are led in this process. LeasedLog implements it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from streamhouse.core.ids import PartitionKey
from streamhouse.wire.batch import BatchHeader
from streamhouse.wire.buffers import BytesLike


class BufferedBatch(Protocol):
    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def data(self) -> BytesLike:
        """The batch with its real offset and epoch; it never changes again."""
        ...

    @property
    def header(self) -> BatchHeader: ...


class LedPartition(Protocol):
    @property
    def epoch(self) -> int:
        """The epoch of this leadership."""
        ...

    @property
    def visible_end(self) -> int:
        """The offset after the last record that may be read."""
        ...

    @property
    def high_watermark(self) -> int:
        """The watermark of the partition: all records below it are committed."""
        ...

    def buffered_from(self, offset: int) -> Iterable[BufferedBatch]:
        """Batches that may be read and are not committed yet, from the one with ``offset`` on."""
        ...


class LedPartitions(Protocol):
    def partition(self, key: PartitionKey) -> LedPartition | None:
        """Return None when this agent does not lead the partition."""
        ...

    async def wait_visible(self, key: PartitionKey, beyond_offset: int) -> None:
        """Returns once a record at ``beyond_offset`` may be read. Raises NotLeader. Cancel it to stop waiting."""
        ...
