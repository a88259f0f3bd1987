"""Loads the producer windows of partitions that are taken over: in pages, newest first, with a bound (R9, R22).

Only one call to the metadata store runs at a time, however many partitions are opened. It asks for a page of every
waiting partition, so that partitions with few producers do not wait for those with many. The other connections to the
store stay free for the renewals of leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_PRODUCERS_PER_LOAD, MAX_PRODUCERS_PER_PARTITION
from streamhouse.log.leased.idempotence import Idempotence
from streamhouse.metadata.contract import MetadataStore, ProducerPage, ProducerState

_STEP: Final = 200
"""Windows added before the event loop can run: less than a millisecond of work."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Loading:
    """The loading of one partition, from its first page to its last."""

    key: PartitionKey
    into: Idempotence
    done: asyncio.Future[None]
    last: ProducerState | None = None
    loaded: int = 0

    async def take(self, page: ProducerPage) -> None:
        states = page.states[: MAX_PRODUCERS_PER_PARTITION - self.loaded]
        self.loaded += len(states)
        is_full = self.loaded == MAX_PRODUCERS_PER_PARTITION
        left_out = is_full and (page.more or len(states) < len(page.states))
        self.into.forgot(page.highest_id if left_out else page.forgotten_up_to)
        for start in range(0, len(states), _STEP):
            self.into.know(states[start : start + _STEP])
            await asyncio.sleep(0)
        if states:
            self.last = states[-1]
        if (is_full or not page.more) and not self.done.done():
            self.done.set_result(None)


class ProducerLoader:
    def __init__(self, metadata: MetadataStore, *, idle_ms: int | None = None) -> None:
        """``idle_ms``: producers that have been idle for longer are left out."""
        self._metadata = metadata
        self._idle_ms = idle_ms
        self._waiting: list[_Loading] = []
        self._calls: asyncio.Task[None] | None = None

    async def load(self, key: PartitionKey, into: Idempotence) -> None:
        """Add the producers of ``key`` to ``into``: all of them, or the newest MAX_PRODUCERS_PER_PARTITION."""
        loading = _Loading(key=key, into=into, done=asyncio.get_running_loop().create_future())
        self._waiting.append(loading)
        if self._calls is None:
            self._calls = asyncio.create_task(self._load_all(), name="load-producers")
        await loading.done  # when it is cancelled, no further page is asked for

    async def _load_all(self) -> None:
        try:
            while True:
                await asyncio.sleep(0)  # so that all partitions opened in this turn of the loop share the first call
                self._waiting = [loading for loading in self._waiting if not loading.done.done()]
                if not self._waiting:
                    return
                await self._load_page(self._next_ones())
        finally:
            self._calls = None

    def _next_ones(self) -> Sequence[_Loading]:
        """The ones that have waited longest, each key once."""
        chosen: dict[PartitionKey, _Loading] = {}
        for loading in self._waiting[:MAX_PRODUCERS_PER_LOAD]:
            chosen.setdefault(loading.key, loading)
        return list(chosen.values())

    async def _load_page(self, loadings: Sequence[_Loading]) -> None:
        try:
            pages = await self._metadata.load_producers(
                [loading.key for loading in loadings],
                limit=min(MAX_PRODUCERS_PER_LOAD // len(loadings), MAX_PRODUCERS_PER_PARTITION),
                after={loading.key: loading.last for loading in loadings if loading.last is not None},
                idle_ms=self._idle_ms,
            )
            for loading in loadings:
                if not loading.done.done():
                    await loading.take(pages[loading.key])
        except Exception as error:  # each opening gets it, and is tried again
            for loading in loadings:
                if not loading.done.done():
                    loading.done.set_exception(error)
