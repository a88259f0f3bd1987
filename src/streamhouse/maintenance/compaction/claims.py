"""The claim of one process on one partition while it compacts it (S2.13).

A claim saves work and nothing else: two compactors that both work on a partition do no harm, because one of them is
refused when it commits. So a claim that cannot be renewed while the store is away counts until it expires.
"""

from __future__ import annotations

from contextlib import suppress

from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataUnavailable, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import MetadataStore


def claim_name(key: PartitionKey) -> str:
    return f"compaction/{key}"


class PartitionClaim:
    def __init__(self, key: PartitionKey, *, metadata: MetadataStore, clock: Clock, owner: str, ttl_ms: int) -> None:
        self._name = claim_name(key)
        self._metadata = metadata
        self._clock = clock
        self._owner = owner
        self._ttl_ms = ttl_ms
        self._until_ms: int | None = None
        """How long it is ours at least, by the boot clock; None while it is not ours."""

    async def hold(self) -> bool:
        """Take it, or renew it once half of its time has passed. False when another process has it.

        Raises MetadataError when it is not ours yet and the store does not answer.
        """
        now_ms = self._clock.boot_ms()
        if self._until_ms is not None and self._until_ms - now_ms > self._ttl_ms // 2:
            return True
        try:
            claim = await self._metadata.acquire_claim(self._name, owner=self._owner, ttl_ms=self._ttl_ms)
        except MetadataUnavailable:
            if self._until_ms is None:
                raise
            return self._until_ms > now_ms
        self._until_ms = now_ms + self._ttl_ms if claim.owner == self._owner else None
        return self._until_ms is not None

    async def release(self) -> None:
        """Give it back. If the store does not answer, it expires by itself."""
        if self._until_ms is not None:
            self._until_ms = None
            with suppress(StreamHouseError):
                await self._metadata.release_claim(self._name, owner=self._owner)
