"""Producer ids for idempotent producers: taken from the store in blocks, each given out once, none ever again.

A block that is not used up when the process ends is lost, which is harmless.
"""

from __future__ import annotations

import asyncio
from typing import Final

from streamhouse.broker.caller import Caller
from streamhouse.metadata.contract import MetadataStore

_BLOCK: Final = 1_000  # Kafka's own block size


class ProducerIds:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._left = iter(range(0))
        self._refilling = asyncio.Lock()

    async def next(self, *, caller: Caller) -> int:
        """Raises MetadataUnavailable."""
        found = next(self._left, None)
        if found is not None:
            return found
        async with self._refilling:
            while (found := next(self._left, None)) is None:  # a caller before this one may have refilled it
                self._left = iter(await self._metadata.allocate_producer_ids(_BLOCK))
            return found
