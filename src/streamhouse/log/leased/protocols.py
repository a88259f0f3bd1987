"""What the leased log needs from other packages: the WAL and the guard of a lease."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol
from uuid import UUID

from streamhouse.core.errors import WalFailed
from streamhouse.core.ids import TopicId


class WriteGuard(Protocol):
    def valid(self) -> bool:
        """Whether the lease is certainly still held, by the local deadline (R20)."""
        ...


class WriteAheadLog(Protocol):
    @property
    def wal_id(self) -> UUID: ...

    def append(
        self,
        *,
        topic_id: TopicId,
        partition: int,
        epoch: int,
        base_offset: int,
        timestamp_ms: int,
        acks: int,
        batch: bytes | bytearray | memoryview,
        lazy: bool = False,
    ) -> int:
        """Returns the frame's LSN. The batch must not change until it is synced. Raises before it has taken
        anything. ``lazy``: no client waits for the sync."""
        ...

    def is_full(self, size_bytes: int) -> bool:
        """Whether it refuses a batch of this size until other frames are settled."""
        ...

    @property
    def synced_lsn(self) -> int: ...

    async def wait_synced(self, lsn: int) -> None: ...

    async def read_batches(self, lsns: Collection[int]) -> dict[int, bytes]:
        """Read batches back that are synced and not settled, by LSN."""
        ...

    def on_synced(self, callback: Callable[[int], None]) -> None: ...

    def on_failed(self, callback: Callable[[WalFailed], None]) -> None: ...

    def settle(self, lsns: Iterable[int]) -> None: ...
