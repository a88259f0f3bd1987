"""Which readers have not read a partition yet: consumer groups, by their committed offsets.

A topic with ``retention.hold.ms`` keeps records for so much longer until its groups have read them. A streaming query
publishes how far it is as the offsets of a group, and so does every consumer that commits. A group that has never
committed for a partition holds nothing there. One that is gone for good holds until the limit of the topic, or until it
expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import MetadataStore

_GROUPS_AT_A_TIME: Final = 4  # asked for their offsets; each is one short call


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPlace:
    """How far the slowest reader of a partition is."""

    offset: int
    """The lowest offset that it still needs."""
    reader: str
    """The name of its consumer group."""


ReaderHold = Callable[[PartitionKey], Awaitable[ReaderPlace | None]]
"""Returns the place of the slowest reader of the partition, or None if it has no reader."""


class GroupHolds:
    """The slowest groups of all partitions, read once for each pass."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._reading: asyncio.Task[dict[PartitionKey, ReaderPlace]] | None = None

    async def new_pass(self) -> None:
        """Forget what was read, which may be out of date, and end a reading that is still under way."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def slowest(self, key: PartitionKey) -> ReaderPlace | None:
        """Raises what the store raises: then nothing is known of the readers."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="retention-holds")
        return (await asyncio.shield(self._reading)).get(key)

    async def _read(self) -> dict[PartitionKey, ReaderPlace]:
        found: dict[PartitionKey, ReaderPlace] = {}
        waiting = iter([group.group_id for group in await self._metadata.list_groups()])

        async def work() -> None:
            for group_id in waiting:
                for key, committed in (await self._metadata.fetch_offsets(group_id)).items():
                    slowest = found.get(key)
                    # A negative offset names no record: the consumer resets, and nothing is known to be needed.
                    if committed.offset >= 0 and (slowest is None or committed.offset < slowest.offset):
                        found[key] = ReaderPlace(offset=committed.offset, reader=group_id)

        async with asyncio.TaskGroup() as group:
            for _ in range(_GROUPS_AT_A_TIME):
                group.create_task(work())
        return found
