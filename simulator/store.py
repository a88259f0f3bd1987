"""The object store as one simulated process reaches it: objects in memory, behind a link and the faults of faults.py.

A put that was sent may arrive after its sender has died. Bodies are not copied when they are sent: code that changes
one afterwards damages the object, and the checker finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from simulator.dice import Dice
from simulator.loop import SimLoop
from simulator.network import Link, Weather
from streamhouse.core.errors import StoreUnavailable
from streamhouse.objectstore.contract import WrappedStore
from streamhouse.objectstore.faults import FaultTimes, FaultyStore, SeededFaults, StoreFault
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo, Operation
from streamhouse.objectstore.upload import Upload

_TIMES: Final = FaultTimes(silence_ms=600, latency_ms=900, drip_bytes_per_s=4096)


class StoreFaults:
    """Faults at a rate that can be changed while the store is in use."""

    def __init__(self, dice: Dice) -> None:
        self.rate = 0.0
        self._dice = dice
        share = 0.99 / len(StoreFault)
        self._faults = SeededFaults(dice, dict.fromkeys(StoreFault, share), longest_burst=3)

    def next_fault(self, operation: Operation, key: str) -> StoreFault | None:
        if not self.rate or not self._dice.chance(self.rate):
            return None
        return self._faults.next_fault(operation, key)


class RemoteStore(WrappedStore):
    def __init__(
        self,
        inner: MemoryStore,
        loop: SimLoop,
        dice: Dice,
        weather: Weather,
        *,
        name: str,
        tell: Callable[[str, str], None],
    ) -> None:
        self.faults = StoreFaults(dice)
        super().__init__(FaultyStore(inner, plan=self.faults, randomness=dice, times=_TIMES))
        self._tell = tell
        self._link = Link(loop, dice, weather, unavailable=lambda what: StoreUnavailable(f"{name}: {what}"))

    async def close(self) -> None:
        pass

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        async def put() -> None:
            await self._inner.put(key, views)
            self._tell("put", "done")

        self._tell("put", "sent")
        await self._link.call_slow(f"put of {key}", put)

    async def _get(self, key: str) -> Fetched:
        data = await self._link.call_slow(f"get of {key}", lambda: self._inner.get(key))
        return Fetched(data=data, size_bytes=len(data))

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        data = await self._link.call_slow(f"get of {key}", lambda: self._inner.get_range(key, offset, length))
        return Fetched(data=data, size_bytes=offset + length)

    async def _head(self, key: str) -> ObjectInfo:
        return await self._link.call_slow(f"head of {key}", lambda: self._inner.head(key))

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        self._tell("list", "sent")
        return await self._link.call_slow(
            f"list of {prefix}", lambda: self._inner.list_page(prefix, start_after=start_after)
        )

    async def _delete(self, keys: Sequence[str]) -> None:
        async def delete() -> None:
            await self._inner.delete(keys)
            self._tell("delete", "done")

        self._tell("delete", "sent")
        await self._link.call_slow(f"delete of {len(keys)} objects", delete)

    async def _open_upload(self, key: str) -> Upload:
        inner = await self._link.call_slow(f"upload of {key}", lambda: self._inner.open_upload(key))
        return _RemoteUpload(inner, self._link, self._tell)


class _RemoteUpload(Upload):
    """An upload piece by piece: each piece is a request, and so is the end, which makes the object visible."""

    def __init__(self, inner: Upload, link: Link, tell: Callable[[str, str], None]) -> None:
        super().__init__(inner.key)
        self._inner = inner
        self._link = link
        self._tell = tell

    async def _write(self, views: Sequence[memoryview], size_bytes: int) -> None:
        await self._link.call_slow(f"piece of {self.key}", lambda: self._inner.write(views))

    async def _complete(self) -> None:
        async def complete() -> None:
            await self._inner.complete()
            self._tell("complete", "done")

        self._tell("complete", "sent")
        await self._link.call_slow(f"end of {self.key}", complete)

    async def _abort(self) -> None:
        await self._link.call_slow(f"abort of {self.key}", self._inner.abort)
