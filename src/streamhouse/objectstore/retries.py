"""Repeat calls that may succeed later, until a deadline, and find out whether a put with a lost reply succeeded (R11).

Only errors marked retriable are repeated, after exponentially growing pauses drawn anew each time between nothing and
the whole step ("full jitter"), so that many clients do not come back together. Each try has its own time-out, more for
larger bodies. A put that meets "taken" after a try whose fate is unknown compares the object with what it meant to
write. Knows no store in particular; sleeps only with asyncio.sleep and measures only with the given clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from streamhouse.core.backoff import Backoff
from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    InvalidRequest,
    ObjectExists,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    StreamHouseError,
)
from streamhouse.core.limits import MAX_STORE_ATTEMPTS, MIB, MULTIPART_PART_BYTES
from streamhouse.core.outage import Outage
from streamhouse.core.randomness import Randomness
from streamhouse.objectstore.contract import ObjectStore, WrappedStore
from streamhouse.objectstore.identity import Fingerprint, holds
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo
from streamhouse.objectstore.upload import Upload

T = TypeVar("T")

_TRIES_UNSAID: Final = 2  # a store may ask to slow down, and a connection may have been closed
_SILENCE_UNSAID_MS: Final = 5_000  # of one try, on top of what its body may take

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    deadline_ms: int = 60_000  # rides out a failover; longer only hides that the store is down
    attempt_timeout_ms: int = 15_000  # for the answer of a small request
    slowest_bytes_per_s: int = 1 * MIB  # a body gets this much more time; slower is as good as down
    first_pause_ms: int = 50
    longest_pause_ms: int = 5_000

    def __post_init__(self) -> None:
        for name in ("deadline_ms", "attempt_timeout_ms", "slowest_bytes_per_s", "first_pause_ms", "longest_pause_ms"):
            if getattr(self, name) <= 0:
                raise InvalidRequest(f"{name} of a retry policy must be positive, not {getattr(self, name)}")

    def transfer_ms(self, body_bytes: int) -> int:
        """What a body may take on top of the time-out and of the deadline."""
        return body_bytes * 1000 // self.slowest_bytes_per_s

    def backoff(self) -> Backoff:
        return Backoff(first_ms=self.first_pause_ms, longest_ms=self.longest_pause_ms, least_share=0)


DEFAULT_POLICY: Final = RetryPolicy()


class RetryingStore(WrappedStore):
    def __init__(
        self, inner: ObjectStore, *, clock: Clock, randomness: Randomness, policy: RetryPolicy = DEFAULT_POLICY
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        self._randomness = randomness
        self._policy = policy
        self._backoff = policy.backoff()
        self.outage = Outage(f"the object store {inner.url}", clock=clock, log=_log)

    async def attempt(
        self,
        what: str,
        call: Callable[[], Awaitable[T]],
        *,
        body_bytes: int = 0,
        on_taken: Callable[[ObjectExists], Awaitable[T]] | None = None,
    ) -> T:
        """Call until it succeeds, fails for good, or the deadline is near.

        ``on_taken`` is asked what "taken" means when an earlier try may have taken the key itself."""
        policy, started_ms = self._policy, self._clock.boot_ms()
        deadline_ms = started_ms + policy.deadline_ms + policy.transfer_ms(body_bytes)
        timeout_ms = policy.attempt_timeout_ms + policy.transfer_ms(body_bytes)
        doubt: StreamHouseError | None = None
        attempt = 0
        while True:
            attempt += 1
            try:
                async with asyncio.timeout(min(timeout_ms, deadline_ms - self._clock.boot_ms()) / 1000):
                    with self._heard(what, body_bytes):
                        return await call()
            except TimeoutError:
                doubt = StoreUnavailable(f"{what} in {self.url} took more than {timeout_ms} ms")
            except ObjectExists as taken:
                if doubt is None or on_taken is None:
                    raise
                return await on_taken(taken)
            except StreamHouseError as error:
                if not error.retriable:
                    raise
                doubt = error
            if attempt > _TRIES_UNSAID:
                self.outage.fails(doubt.message)
            pause_s = self._backoff.pause_s(attempt, self._randomness)
            if attempt == MAX_STORE_ATTEMPTS or self._clock.boot_ms() + pause_s * 1000 >= deadline_ms:
                spent_ms = self._clock.boot_ms() - started_ms
                raise StoreUnavailable(
                    f"gave up after {attempt} tries in {spent_ms} ms: {doubt.message}", hint=doubt.hint
                ) from doubt
            await asyncio.sleep(pause_s)

    @contextmanager
    def _heard(self, what: str, body_bytes: int) -> Iterator[None]:
        """Report an outage when the store has not answered for a while, long before the try times out."""
        silence_s = (_SILENCE_UNSAID_MS + self._policy.transfer_ms(body_bytes)) / 1000
        words = f"no answer to {what} in {silence_s:.0f} s"
        silent = asyncio.get_running_loop().call_later(silence_s, self.outage.fails, words)
        answered = False
        try:
            yield
            answered = True
        except (ObjectNotFound, ObjectExists):
            answered = True
            raise
        finally:
            silent.cancel()
            if answered and self.outage.active:
                self.outage.works()

    def resolve(self, key: str, written: Callable[[], Fingerprint]) -> Callable[[ObjectExists], Awaitable[None]]:
        async def ours_or_raise(taken: ObjectExists) -> None:
            if not await holds(self, key, written()):
                raise taken

        return ours_or_raise

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        await self.attempt(
            f"put of {key}",
            lambda: self._inner.put(key, views),
            body_bytes=size_bytes,
            on_taken=self.resolve(key, lambda: Fingerprint.of(views)),
        )

    async def _get(self, key: str) -> Fetched:
        # Its size is not known before; what takes longer than a large part is better read by ranges.
        data = await self.attempt(f"get of {key}", lambda: self._inner.get(key), body_bytes=MULTIPART_PART_BYTES)
        return Fetched(data=data, size_bytes=len(data))

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        data = await self.attempt(
            f"get of {key}", lambda: self._inner.get_range(key, offset, length), body_bytes=length
        )
        return Fetched(data=data, size_bytes=offset + length)

    async def _head(self, key: str) -> ObjectInfo:
        return await self.attempt(f"head of {key}", lambda: self._inner.head(key))

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        return await self.attempt(f"list of {prefix!r}", lambda: self._inner.list_page(prefix, start_after=start_after))

    async def _delete(self, keys: Sequence[str]) -> None:
        await self.attempt(f"delete of {len(keys)} objects", lambda: self._inner.delete(keys))

    async def _open_upload(self, key: str) -> Upload:
        return _RetryingUpload(self, await self.attempt(f"upload of {key}", lambda: self._inner.open_upload(key)))


class _RetryingUpload(Upload):
    """Writes are not repeated here: the store below sends a lost part again itself, and only it knows which."""

    def __init__(self, store: RetryingStore, inner: Upload) -> None:
        super().__init__(inner.key)
        self._store = store
        self._inner = inner

    async def _write(self, views: Sequence[memoryview], size_bytes: int) -> None:
        await self._inner.write(views)

    async def _complete(self) -> None:
        await self._store.attempt(
            f"upload of {self.key}",
            self._inner.complete,
            body_bytes=self.written.size_bytes,
            on_taken=self._store.resolve(self.key, lambda: self.written),
        )
        # If a lost try had published it, the upload below does not know that it is done, and holds on to its parts.
        with suppress(StoreError):
            await self._inner.abort()

    async def _abort(self) -> None:
        await self._inner.abort()
