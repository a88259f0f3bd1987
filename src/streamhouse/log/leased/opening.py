"""The first part of a take-over: what a new leader must know before it serves (R3, R9).

Knows which partitions are being opened, and which epochs have been led here. log.py registers and serves them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from streamhouse.core import topic_config
from streamhouse.core.errors import NotLeader
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.held import HeldFrames
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.producers import ProducerLoader
from streamhouse.log.leased.protocols import WriteGuard
from streamhouse.log.leased.recovery import SortedFrames
from streamhouse.metadata.contract import Lease, Topic

_MAX_REMEMBERED_EPOCHS: Final = 100_000
"""Ten times what one agent leads. A commit of a leadership so many openings ago has long ended."""


@dataclass(slots=True, kw_only=True)
class Openings:
    producers: ProducerLoader
    held: HeldFrames
    visible_when_synced: bool
    _under_way: dict[PartitionKey, PartitionLog] = field(default_factory=dict)
    _led_epochs: dict[PartitionKey, int] = field(default_factory=dict)
    """The last epoch led here for each key, in the order of opening."""

    def under_way(self) -> Iterable[PartitionLog]:
        """Partitions that are being opened; changed configs apply to them too."""
        return self._under_way.values()

    def check_epoch(self, lease: Lease) -> PartitionKey:
        """Raises NotLeader for an epoch that has been led here."""
        assert isinstance(lease.key, PartitionKey)
        if lease.epoch <= self._led_epochs.get(lease.key, 0):
            # A commit of the ended leadership may still be under way: only a higher epoch settles what it did.
            hint = f"epoch {lease.epoch} has been led here already"
            raise NotLeader(str(lease.key), current_leader=None, hint=hint)
        return lease.key

    async def prepare(self, lease: Lease, topic: Topic, guard: WriteGuard) -> tuple[PartitionLog, SortedFrames]:
        """Returns the partition, and what to do with the frames of earlier leaderships. Its epoch counts as led now."""
        key = self.check_epoch(lease)
        partition = PartitionLog(
            key=key,
            topic=topic.name,
            config=topic_config.effective(topic.configs),
            epoch=lease.epoch,
            high_watermark=lease.high_watermark,
            guard=guard,
            visible_when_synced=self.visible_when_synced,
        )
        self._under_way[key] = partition
        try:
            await self.producers.load(key, partition.producers)
            frames = await self.held.sort(partition)
        finally:
            self._under_way.pop(key, None)
        self._remember(key, lease.epoch)
        return partition, frames

    def _remember(self, key: PartitionKey, epoch: int) -> None:
        self._led_epochs.pop(key, None)
        self._led_epochs[key] = epoch
        if len(self._led_epochs) > _MAX_REMEMBERED_EPOCHS:
            del self._led_epochs[next(iter(self._led_epochs))]
