"""Asks for a flush before `latest` is read, so that acknowledged records are in objects.

On a single node a record is durable, and readable through the agent, once it is in the write-ahead log. Spark reads
objects. So a read of `latest` asks the agent for a flush and waits for it, for a limited time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import Durability, MetadataStore

LOG: Final = logging.getLogger("streamhouse.spark")

_POLL_S: Final = 0.02
_ALIVE_WITHIN_MS: Final = 60_000
"""The default of agent.liveness_timeout."""


class Flushes:
    def __init__(self, metadata: MetadataStore, *, clock: Clock, randomness: Randomness) -> None:
        self._metadata = metadata
        self._clock = clock
        self._randomness = randomness
        self._has_warned = False

    async def ask(self, keys: Sequence[PartitionKey], *, timeout_ms: int) -> bool:
        """True when everything acknowledged before the call is in objects, or no agent runs that could flush. False
        when there was no answer in time.
        """
        if not keys or timeout_ms <= 0 or not await self._is_needed():
            return True
        request_id = self._randomness.uuid()
        deadline_ms = self._clock.boot_ms() + timeout_ms
        await self._metadata.request_flush(request_id, keys, ttl_ms=timeout_ms)
        while await self._metadata.pending_flush(request_id):
            if self._clock.boot_ms() >= deadline_ms:
                break
            await asyncio.sleep(_POLL_S)
        is_done = self._clock.boot_ms() < deadline_ms
        if not is_done and not self._has_warned:
            self._has_warned = True
            LOG.warning("no flush within %d ms: records acknowledged just now may come later", timeout_ms)
        return is_done

    async def _is_needed(self) -> bool:
        """Whether a flush is needed. With durability in objects, what was acknowledged with acks=all is there."""
        if (await self._metadata.cluster_info()).durability is not Durability.WAL:
            return False
        return bool(await self._metadata.list_agents(alive_within_ms=_ALIVE_WITHIN_MS))
