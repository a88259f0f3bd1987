"""Answers flush requests: a reader of objects (Spark) asks the leaders to commit what they have acknowledged."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.log import LeasedLog
from streamhouse.maintenance.background import Background, Report, unheard
from streamhouse.metadata.contract import ChangeKind, FlushRequest, MetadataStore

_RECHECK_S: Final = 1.0
"""Notifications may be lost; a requester waits for seconds."""
_SWEEP_S: Final = 60.0
_LOOK_S: Final = 1.0
"""A topic that is deleted leaves behind what was not flushed: writers must not wait a minute for its room."""
_LISTENING: Final = "flush notifications"


class FlushRequests:
    """Answers requests for the partitions led here, and settles held frames that will not be used again."""

    def __init__(self, *, metadata: MetadataStore, log: LeasedLog, report: Report = unheard) -> None:
        self._metadata = metadata
        self._log = log
        self._asked = asyncio.Event()
        self._loops = Background(report)

    def start(self) -> None:
        self._loops.start(_LISTENING, self._listen)
        self._loops.start("flush requests", self._serve)
        self._loops.start("held frames", self._sweep)

    async def close(self) -> None:
        await self._loops.close()

    async def _listen(self) -> None:
        async with self._metadata.subscribe() as changes:
            self._loops.works(_LISTENING)
            async for change in changes:
                if change.kind in (ChangeKind.FLUSH, ChangeKind.ANY):
                    self._asked.set()
        await asyncio.sleep(_RECHECK_S)  # it has ended by itself; not again at once

    async def _serve(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_RECHECK_S):
                await self._asked.wait()
        self._asked.clear()
        led = self._log.led_keys()
        if not led:
            return
        requests = await self._metadata.list_flush_requests()
        mine = [request for request in requests if request.key in led]
        if mine:
            await self._flush(mine)

    async def _flush(self, requests: list[FlushRequest]) -> None:
        keys: list[PartitionKey] = list(dict.fromkeys(request.key for request in requests))
        outcomes = await asyncio.gather(*(self._log.flush([key]) for key in keys), return_exceptions=True)
        done = {key for key, outcome in zip(keys, outcomes, strict=True) if outcome is None}
        await self._metadata.complete_flushes(
            [(request.request_id, request.key) for request in requests if request.key in done]
        )

    async def _sweep(self) -> None:
        waited_s = 0.0
        while waited_s < _SWEEP_S and not self._log.held_is_in_the_way:
            await asyncio.sleep(_LOOK_S)
            waited_s += _LOOK_S
        await self._log.sweep_held()
        await asyncio.sleep(_LOOK_S)
