"""A store that fails as object stores do, by script or by seed, for tests and the simulator.

    UNAVAILABLE      503 at once, nothing done             TIMEOUT_BEFORE   silence, nothing done
    SERVER_ERROR     500 at once, nothing done             TIMEOUT_AFTER    done, then silence
    ERROR_AFTER      done, then 500                        LATENCY          done, late
    TRUNCATED        a body that ends early                SLOW_DRIP        a body that comes byte by byte
    CORRUPTED        a body with one bit flipped

A truncated body is found by its length in every store (contract.py); a corrupted one passes here and must be found by
the formats' checksums. Waits only with asyncio.sleep, draws only from the given randomness: the same seed and the same
order of calls give the same faults. Never part of a product's store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol, TypeVar

from streamhouse.core.errors import StoreUnavailable
from streamhouse.core.limits import KIB
from streamhouse.core.randomness import Randomness
from streamhouse.objectstore.contract import ObjectStore, WrappedStore
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo, Operation
from streamhouse.objectstore.upload import Upload

T = TypeVar("T")


class StoreFault(Enum):
    UNAVAILABLE = auto()
    SERVER_ERROR = auto()
    ERROR_AFTER = auto()
    TIMEOUT_BEFORE = auto()
    TIMEOUT_AFTER = auto()
    TRUNCATED = auto()
    CORRUPTED = auto()
    SLOW_DRIP = auto()
    LATENCY = auto()


_BODY_FAULTS: Final = {StoreFault.TRUNCATED, StoreFault.CORRUPTED, StoreFault.SLOW_DRIP}
_WITH_BODY: Final = {Operation.GET, Operation.RANGE_GET}


class FaultPlan(Protocol):
    def next_fault(self, operation: Operation, key: str) -> StoreFault | None:
        """Asked once for every call, in the order of the calls."""
        ...


class ScriptedFaults:
    """These faults, one for each call of the given operations (None lets one pass); then none any more."""

    def __init__(self, script: Iterable[StoreFault | None], *, only: Iterable[Operation] = Operation) -> None:
        self._script = deque(script)
        self._only = frozenset(only)

    def next_fault(self, operation: Operation, key: str) -> StoreFault | None:
        return self._script.popleft() if operation in self._only and self._script else None


class SeededFaults:
    """Each fault with its own probability per call; a 503 begins a burst of up to ``longest_burst`` of them."""

    def __init__(self, randomness: Randomness, rates: Mapping[StoreFault, float], *, longest_burst: int = 5) -> None:
        if any(rate < 0 for rate in rates.values()) or sum(rates.values()) > 1:
            raise ValueError("fault rates are probabilities and may not add up to more than 1")
        self._randomness = randomness
        self._rates = dict(rates)
        self._longest_burst = longest_burst
        self._burst_left = 0

    def next_fault(self, operation: Operation, key: str) -> StoreFault | None:
        if self._burst_left > 0:
            self._burst_left -= 1
            return StoreFault.UNAVAILABLE
        draw = self._randomness.uniform(0, 1)
        for fault, rate in self._rates.items():
            if draw < rate:
                if fault is StoreFault.UNAVAILABLE:
                    self._burst_left = int(self._randomness.uniform(0, self._longest_burst))
                return fault
            draw -= rate
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTimes:
    silence_ms: int = 30_000  # how long a request hangs before its connection is given up
    latency_ms: int = 2_000
    drip_bytes_per_s: int = 64 * KIB


class FaultyStore(WrappedStore):
    def __init__(
        self, inner: ObjectStore, *, plan: FaultPlan, randomness: Randomness, times: FaultTimes | None = None
    ) -> None:
        super().__init__(inner)
        self._plan = plan
        self._randomness = randomness
        self._times = times or FaultTimes()

    async def disturb(self, operation: Operation, key: str, call: Callable[[], Awaitable[T]]) -> T:
        """Cause the faults of one call, without those of its body."""
        return await self._act(self._draw(operation, key), operation, key, call)

    async def _act(
        self, fault: StoreFault | None, operation: Operation, key: str, call: Callable[[], Awaitable[T]]
    ) -> T:
        what = f"{operation} of {key} in {self.url} failed"
        match fault:
            case StoreFault.UNAVAILABLE:
                raise StoreUnavailable(f"{what}: SlowDown: injected 503")
            case StoreFault.SERVER_ERROR:
                raise StoreUnavailable(f"{what}: InternalError: injected 500")
            case StoreFault.TIMEOUT_BEFORE:
                await asyncio.sleep(self._times.silence_ms / 1000)
                raise StoreUnavailable(f"{what}: no answer: injected time-out")
            case StoreFault.LATENCY:
                await asyncio.sleep(self._times.latency_ms / 1000)
        answer = await call()
        match fault:
            case StoreFault.ERROR_AFTER:
                raise StoreUnavailable(f"{what}: InternalError: injected 500 after the effect")
            case StoreFault.TIMEOUT_AFTER:
                await asyncio.sleep(self._times.silence_ms / 1000)
                raise StoreUnavailable(f"{what}: no answer: injected time-out after the effect")
        return answer

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        await self.disturb(Operation.PUT, key, lambda: self._inner.put(key, views))

    async def _get(self, key: str) -> Fetched:
        return await self._disturb_body(Operation.GET, key, lambda: self._inner.get(key), 0)

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        return await self._disturb_body(
            Operation.RANGE_GET, key, lambda: self._inner.get_range(key, offset, length), offset
        )

    async def _head(self, key: str) -> ObjectInfo:
        return await self.disturb(Operation.HEAD, key, lambda: self._inner.head(key))

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        return await self.disturb(
            Operation.LIST, prefix, lambda: self._inner.list_page(prefix, start_after=start_after)
        )

    async def _delete(self, keys: Sequence[str]) -> None:
        await self.disturb(Operation.DELETE, keys[0], lambda: self._inner.delete(keys))

    async def _open_upload(self, key: str) -> Upload:
        return _FaultyUpload(self, await self._inner.open_upload(key))

    async def _disturb_body(
        self, operation: Operation, key: str, call: Callable[[], Awaitable[memoryview]], offset: int
    ) -> Fetched:
        fault = self._draw(operation, key)
        data = await self._act(fault, operation, key, call)
        size_bytes = offset + len(data)
        match fault:
            case StoreFault.TRUNCATED:
                data = data[: self._below(len(data))]
            case StoreFault.CORRUPTED if data:
                data = _with_bit_flipped(data, self._below(len(data) * 8))
            case StoreFault.SLOW_DRIP:
                await asyncio.sleep(len(data) / self._times.drip_bytes_per_s)
        return Fetched(data=data, size_bytes=size_bytes)

    def _draw(self, operation: Operation, key: str) -> StoreFault | None:
        fault = self._plan.next_fault(operation, key)
        return None if fault in _BODY_FAULTS and operation not in _WITH_BODY else fault

    def _below(self, end: int) -> int:
        return min(int(self._randomness.uniform(0, end)), max(0, end - 1))


class _FaultyUpload(Upload):
    def __init__(self, store: FaultyStore, inner: Upload) -> None:
        super().__init__(inner.key)
        self._store = store
        self._inner = inner

    async def _write(self, views: Sequence[memoryview], size_bytes: int) -> None:
        await self._store.disturb(Operation.MULTIPART, self.key, lambda: self._inner.write(views))

    async def _complete(self) -> None:
        await self._store.disturb(Operation.MULTIPART, self.key, self._inner.complete)

    async def _abort(self) -> None:
        await self._inner.abort()


def _with_bit_flipped(data: memoryview, bit: int) -> memoryview:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << (bit % 8)
    return memoryview(bytes(changed))
