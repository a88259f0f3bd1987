"""Count what a store is asked to do, and what that would cost on S3.

    Meter           the counters; several stores of a process may share one
    MeteredStore    a store that counts what passes through it: put it inside the retries, so that tries are counted
    TopicRequests   the same requests, divided between topics (topic_requests.py)
    UsageScan       how much is stored, found by listing now and then through the metered store (which counts as well)

Counters only grow, so those of several processes may be summed. What is stored is the same for all of them, so the
largest gauge counts. Nothing that passes through is changed.

Costs are an estimate for comparing, not for paying: S3 Standard in us-east-1, list prices of 2026 without tax, discount
or free tier. All requests count, whether they succeeded or not; every byte has the price of the first 50 TB; transfer
costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Self, TypeVar

from streamhouse.core.clock import Clock
from streamhouse.core.errors import ObjectNotFound
from streamhouse.core.limits import GIB, MAX_LIST_PAGE
from streamhouse.core.metrics import Latency
from streamhouse.objectstore.contract import ObjectStore, WrappedStore
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo, Operation
from streamhouse.objectstore.topic_requests import SHARED, Causes, TopicRequests, causes_of, causes_of_deletion
from streamhouse.objectstore.upload import Upload

T = TypeVar("T")

USD_PER_1000_WRITES: Final = 0.005  # PUT, COPY, POST, LIST
USD_PER_1000_READS: Final = 0.0004  # GET, HEAD and everything else
USD_PER_GIB_MONTH: Final = 0.023  # S3 means 2**30 when it says GB

USD_PER_1000: Final[Mapping[Operation, float]] = {
    Operation.PUT: USD_PER_1000_WRITES,
    Operation.MULTIPART: USD_PER_1000_WRITES,
    Operation.LIST: USD_PER_1000_WRITES,
    Operation.GET: USD_PER_1000_READS,
    Operation.RANGE_GET: USD_PER_1000_READS,
    Operation.HEAD: USD_PER_1000_READS,
    Operation.DELETE: 0.0,
}


def request_cost_usd(requests: Mapping[Operation, float]) -> float:
    """A topic's part of a request counts for a part of its price."""
    return sum(count * USD_PER_1000[operation] for operation, count in requests.items()) / 1000


def storage_cost_usd_month(stored_bytes: int) -> float:
    return stored_bytes / GIB * USD_PER_GIB_MONTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """One kind of request. ``requests`` includes ``errors``; ``bytes`` counts bodies that arrived whole."""

    requests: int = 0
    errors: int = 0
    bytes: int = 0
    latency_ms: int = 0

    def plus(self, other: Totals) -> Totals:
        return Totals(
            requests=self.requests + other.requests,
            errors=self.errors + other.errors,
            bytes=self.bytes + other.bytes,
            latency_ms=self.latency_ms + other.latency_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUsage:
    objects: int
    bytes: int
    scanned_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterReading:
    """What a meter showed at one moment, or several meters together."""

    totals: Mapping[Operation, Totals]
    stored: StoredUsage | None = None

    def as_json(self) -> dict[str, dict[str, int] | None]:
        """Return the reading for another process to merge; ``from_json`` reads it."""
        stored = asdict(self.stored) if self.stored else None
        return {"stored": stored, **{operation: asdict(totals) for operation, totals in self.totals.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, int] | None]) -> Self:
        """Operations this build does not know are left out, those it misses are zero."""
        stored = data.get("stored")
        return cls(
            totals={operation: Totals(**(data.get(operation) or {})) for operation in Operation},
            stored=StoredUsage(**stored) if stored else None,
        )

    @property
    def request_cost_usd(self) -> float:
        return request_cost_usd({operation: totals.requests for operation, totals in self.totals.items()})

    @property
    def storage_cost_usd_month(self) -> float:
        return storage_cost_usd_month(self.stored.bytes if self.stored else 0)


def merge(readings: Iterable[MeterReading]) -> MeterReading:
    """The snapshots of several processes on one store as one: counters are summed, the largest gauge counts."""
    totals = dict.fromkeys(Operation, Totals())
    stored: StoredUsage | None = None
    for reading in readings:
        for operation, more in reading.totals.items():
            totals[operation] = totals[operation].plus(more)
        if reading.stored is not None:
            stored = _larger(stored, reading.stored)
    return MeterReading(totals=totals, stored=stored)


@dataclass(slots=True)
class Meter:
    """Counts the requests of a store. It belongs to one event loop."""

    _totals: dict[Operation, Totals] = field(default_factory=lambda: dict.fromkeys(Operation, Totals()))
    stored: StoredUsage | None = None
    latency: dict[Operation, Latency] = field(default_factory=lambda: {each: Latency() for each in Operation})
    topics: TopicRequests = field(default_factory=TopicRequests)

    def count(self, operation: Operation, more: Totals, causes: Causes = SHARED) -> None:
        self._totals[operation] = self._totals[operation].plus(more)
        self.topics.count(operation, more.requests, causes)

    def read(self) -> MeterReading:
        return MeterReading(totals=dict(self._totals), stored=self.stored)


class MeteredStore(WrappedStore):
    def __init__(self, inner: ObjectStore, *, meter: Meter, clock: Clock) -> None:
        super().__init__(inner)
        self.meter = meter
        self._clock = clock

    async def measure(
        self,
        operation: Operation,
        call: Awaitable[T],
        *,
        causes: Causes,
        requests: Callable[[T], int] = lambda _: 1,
        size_bytes: Callable[[T], int] = lambda _: 0,
    ) -> T:
        started_ms = self._clock.boot_ms()
        time = asyncio.get_running_loop().time
        began_s = time()
        try:
            answer = await call
        except BaseException as error:
            # A cancelled request counts too: it was sent, and it is billed. A HEAD that finds nothing has its answer.
            failed = operation is not Operation.HEAD or not isinstance(error, ObjectNotFound)
            self.meter.count(
                operation,
                Totals(requests=1, errors=int(failed), latency_ms=self._clock.boot_ms() - started_ms),
                causes,
            )
            raise
        finally:
            self.meter.latency[operation].observe(time() - began_s)
        self.meter.count(
            operation,
            Totals(
                requests=requests(answer),
                bytes=size_bytes(answer),
                latency_ms=self._clock.boot_ms() - started_ms,
            ),
            causes,
        )
        return answer

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        await self.measure(
            Operation.PUT, self._inner.put(key, views), causes=causes_of(key), size_bytes=lambda _: size_bytes
        )

    async def _get(self, key: str) -> Fetched:
        data = await self.measure(Operation.GET, self._inner.get(key), causes=causes_of(key), size_bytes=len)
        return Fetched(data=data, size_bytes=len(data))

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        data = await self.measure(
            Operation.RANGE_GET, self._inner.get_range(key, offset, length), causes=causes_of(key), size_bytes=len
        )
        return Fetched(data=data, size_bytes=offset + length)

    async def _head(self, key: str) -> ObjectInfo:
        return await self.measure(Operation.HEAD, self._inner.head(key), causes=causes_of(key))

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        return await self.measure(
            Operation.LIST,
            self._inner.list_page(prefix, start_after=start_after),
            causes=SHARED,
            requests=lambda page: max(1, -(-len(page.objects) // MAX_LIST_PAGE)),
        )

    async def _delete(self, keys: Sequence[str]) -> None:
        # S3 takes a thousand keys in a request.
        requests = -(-len(keys) // MAX_LIST_PAGE)
        await self.measure(
            Operation.DELETE,
            self._inner.delete(keys),
            causes=causes_of_deletion(keys),
            requests=lambda _: requests,
        )

    async def _open_upload(self, key: str) -> Upload:
        return _MeteredUpload(self, await self._inner.open_upload(key))


class _MeteredUpload(Upload):
    def __init__(self, store: MeteredStore, inner: Upload) -> None:
        super().__init__(inner.key)
        self._store = store
        self._inner = inner
        self._counted = 0

    async def _write(self, views: Sequence[memoryview], size_bytes: int) -> None:
        await self._measure(self._inner.write(views), size_bytes)

    async def _complete(self) -> None:
        await self._measure(self._inner.complete(), 0)

    async def _abort(self) -> None:
        await self._inner.abort()

    async def _measure(self, call: Awaitable[None], size_bytes: int) -> None:
        await self._store.measure(
            Operation.MULTIPART,
            call,
            causes=causes_of(self.key),
            requests=lambda _: self._new_requests(),
            size_bytes=lambda _: size_bytes,
        )

    def _new_requests(self) -> int:
        new, self._counted = self._inner.put_requests - self._counted, self._inner.put_requests
        return new


class UsageScan:
    """Stored bytes and objects under a prefix, listed at most once in ``max_age_ms``; kept in the meter."""

    def __init__(self, store: MeteredStore, *, clock: Clock, prefix: str = "", max_age_ms: int = 300_000) -> None:
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._max_age_ms = max_age_ms
        self._last: StoredUsage | None = None
        self._scanned_boot_ms = 0
        self._one_at_a_time = asyncio.Lock()

    async def refresh(self) -> StoredUsage:
        async with self._one_at_a_time:
            now_ms = self._clock.boot_ms()
            if self._last is not None and now_ms - self._scanned_boot_ms < self._max_age_ms:
                return self._last
            objects = size_bytes = 0
            async for info in self._store.list(self._prefix):
                objects += 1
                size_bytes += info.size_bytes
            usage = StoredUsage(objects=objects, bytes=size_bytes, scanned_at_ms=self._clock.wall_ms())
            self._last, self._scanned_boot_ms = usage, now_ms
            self._store.meter.stored = usage
            return usage


def _larger(one: StoredUsage | None, other: StoredUsage) -> StoredUsage:
    if one is None:
        return other
    return StoredUsage(
        objects=max(one.objects, other.objects),
        bytes=max(one.bytes, other.bytes),
        scanned_at_ms=max(one.scanned_at_ms, other.scanned_at_ms),
    )
