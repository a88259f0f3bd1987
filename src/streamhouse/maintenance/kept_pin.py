"""Holds a pin for as long as something runs that reads objects or uploads them.

For a reader: vacuum deletes nothing that was dereferenced after the pin was created (R7). For a writer: no vacuum
raises the GC horizon beyond the creation of a live pin, so what is uploaded under a pin can still be committed (R6).
Safety does not depend on the latter: a commit that comes too late is refused, and the writer has to upload again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Self
from uuid import UUID

from streamhouse.core.errors import StreamHouseError
from streamhouse.metadata.contract import MetadataStore

_RENEWALS_PER_TTL: Final = 3

_log = logging.getLogger(__name__)


class KeptPin:
    """The pin exists from entering the context on: entries must be listed inside.

    A process that was paused for longer than the pin lives takes it again, under the same id. Objects may have been
    deleted meanwhile. That loses the reader nothing but time: an entry that is gone is looked up again.
    """

    def __init__(self, metadata: MetadataStore, pin_id: UUID, *, owner: str, ttl_ms: int) -> None:
        self.lapses = 0
        self._metadata = metadata
        self._pin_id = pin_id
        self._owner = owner
        self._ttl_ms = ttl_ms
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._create()
        self._renewing = asyncio.create_task(self._keep_renewed(), name="pin-renewal")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        try:
            await self._metadata.release_pins([self._pin_id])
        except StreamHouseError as error:
            _log.warning("a pin was not released and will expire: %s", error)

    async def _create(self) -> None:
        await self._metadata.create_pin(self._pin_id, owner=self._owner, ttl_ms=self._ttl_ms)

    async def _keep_renewed(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_ms / _RENEWALS_PER_TTL / 1000)
            try:
                if self._pin_id not in await self._metadata.renew_pins([self._pin_id], ttl_ms=self._ttl_ms):
                    self.lapses += 1
                    await self._create()
            except StreamHouseError as error:
                _log.warning("a pin was not renewed: %s", error)
