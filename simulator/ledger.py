"""Records what the WAL of a machine was given, and checks at every start of its agent that it returns the same.

The ledger belongs to the machine and outlives its processes, as the disk does. A frame that was reported as synced and
never settled must come back; whatever comes back must be what was last written under its LSN (R12).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable
from typing import Any
from uuid import UUID

from streamhouse.core.errors import WalFailed
from streamhouse.log.wal import Wal


class WalLedger:
    def __init__(self) -> None:
        self._written: dict[int, int] = {}
        """LSN → checksum of the batch."""
        self._synced: set[int] = set()
        self._settled: set[int] = set()

    def forget(self) -> None:
        """The disk is gone."""
        self.__init__()  # type: ignore[misc]

    def write(self, lsn: int, batch: bytes | bytearray | memoryview) -> None:
        """An LSN comes again only where a crash took the frame that had it."""
        self._written[lsn] = zlib.crc32(batch)
        self._synced.discard(lsn)
        self._settled.discard(lsn)

    def synced(self, lsn: int) -> None:
        self._synced.update(each for each in self._written if each <= lsn)

    def settled(self, lsns: Iterable[int]) -> None:
        self._settled.update(lsns)

    def judge(self, recovered: Iterable[tuple[int, bytes | memoryview]]) -> list[str]:
        """What is wrong with what a start has found."""
        wrong: list[str] = []
        found: set[int] = set()
        for lsn, batch in recovered:
            found.add(lsn)
            if lsn not in self._written:
                wrong.append(f"LSN {lsn} was recovered and never written")
            elif self._written[lsn] != zlib.crc32(batch):
                wrong.append(f"LSN {lsn} was recovered with another batch than was written")
        missing = sorted(self._synced - self._settled - found)
        if missing:
            wrong.append(f"LSNs {missing} were synced, not settled, and are gone")
        for lsn in [lsn for lsn in self._written if lsn not in found]:
            del self._written[lsn]
        self._synced = found.copy()  # a recovered frame was synced before any part relied on it
        self._settled &= found
        return wrong


class WatchedWal:
    """The WAL for the leased log; it records everything in a ledger."""

    def __init__(self, wal: Wal, ledger: WalLedger) -> None:
        self._wal = wal
        self._ledger = ledger
        wal.on_synced(ledger.synced)

    @property
    def wal_id(self) -> UUID:
        return self._wal.wal_id

    def append(self, *, batch: bytes | bytearray | memoryview, **frame: Any) -> int:
        lsn = self._wal.append(batch=batch, **frame)
        self._ledger.write(lsn, batch)
        return lsn

    def is_full(self, size_bytes: int) -> bool:
        return self._wal.is_full(size_bytes)

    @property
    def synced_lsn(self) -> int:
        return self._wal.synced_lsn

    async def wait_synced(self, lsn: int) -> None:
        await self._wal.wait_synced(lsn)

    async def read_batches(self, lsns: Collection[int]) -> dict[int, bytes]:
        return await self._wal.read_batches(lsns)

    def on_synced(self, callback: Callable[[int], None]) -> None:
        self._wal.on_synced(callback)

    def on_failed(self, callback: Callable[[WalFailed], None]) -> None:
        self._wal.on_failed(callback)

    def settle(self, lsns: Iterable[int]) -> None:
        lsns = list(lsns)
        self._ledger.settled(lsns)
        self._wal.settle(lsns)
