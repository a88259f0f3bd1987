"""Producer windows of partitions being taken over, asked for together: at its start an agent opens thousands."""

from __future__ import annotations

import asyncio

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import MetadataStore, ProducerState


class ProducerLoader:
    """Whatever is asked for in one turn of the event loop is one call to the metadata."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._asked: set[PartitionKey] = set()
        self._call: asyncio.Task[dict[PartitionKey, list[ProducerState]]] | None = None

    async def load(self, key: PartitionKey) -> list[ProducerState]:
        self._asked.add(key)
        if self._call is None:
            self._call = asyncio.create_task(self._load(), name="load-producers")
            self._call.add_done_callback(_retrieve)
        # Shielded: the others who share the call still want its answer when one of them is cancelled.
        return (await asyncio.shield(self._call))[key]

    async def _load(self) -> dict[PartitionKey, list[ProducerState]]:
        await asyncio.sleep(0)
        keys, self._asked, self._call = sorted(self._asked), set(), None
        return await self._metadata.load_producers(keys)


def _retrieve(call: asyncio.Task[dict[PartitionKey, list[ProducerState]]]) -> None:
    """Everybody who asked may have been cancelled meanwhile; its failure is nobody's concern then."""
    if not call.cancelled():
        call.exception()
