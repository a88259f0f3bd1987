"""Frames of this WAL that nothing has settled: kept per partition until a leadership here, or time, decides.

recovery.py holds the rules; this keeps the frames and asks the metadata for what the rules need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from streamhouse.core.clock import Clock
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.recovery import HeldFrame, SortedFrames, never_again, sort_frames
from streamhouse.log.leased.seams import WriteAheadLog
from streamhouse.metadata.contract import MetadataStore


@dataclass(slots=True, kw_only=True)
class HeldFrames:
    metadata: MetadataStore
    wal: WriteAheadLog
    clock: Clock
    max_age_ms: int
    """R4: how old an acknowledged acks=1 record may be and still come back after another agent has led."""
    _frames: defaultdict[PartitionKey, list[HeldFrame]] = field(default_factory=lambda: defaultdict(list))

    def add(self, key: PartitionKey, frames: Iterable[HeldFrame]) -> None:
        self._frames[key].extend(frames)

    async def sort(self, partition: PartitionLog) -> SortedFrames:
        """What to do with a partition's frames now that it is led here. Committed and dropped ones are settled.

        Frames to be resubmitted stay held until ``done`` is told of each, so that a failure half-way loses none.
        """
        key = partition.key
        if not self._frames.get(key):
            return SortedFrames()
        # A leadership that ended in this very process may have left frames that no sync has reached yet.
        await self.wal.wait_synced(max(frame.lsn for frame in self._frames[key]))
        history = await self.metadata.epoch_history(key)
        sorted_frames = sort_frames(
            self._frames.get(key, ()),
            wal_id=self.wal.wal_id,
            history=history,
            high_watermark=partition.high_watermark,
            compacted="compact" in partition.config.cleanup_policy,
            now_ms=self.clock.wall_ms(),
            max_age_ms=self.max_age_ms,
            where=str(partition),
        )
        self._frames[key] = sorted_frames.resubmit.copy()
        self.wal.settle([frame.lsn for frame in (*sorted_frames.committed, *sorted_frames.dropped)])
        return sorted_frames

    def done(self, key: PartitionKey, frame: HeldFrame) -> None:
        self.wal.settle([frame.lsn])
        self._frames[key] = [held for held in self._frames[key] if held.lsn != frame.lsn]

    async def sweep(self, led_here: Container[PartitionKey]) -> int:
        """Let go of frames that can never come back: others have led their partition since. Returns how many.

        Frames of partitions that nobody else has led since stay, whatever their age: they may be all there is (R3).
        """
        let_go = 0
        for key in [key for key, frames in self._frames.items() if frames and key not in led_here]:
            history = await self.metadata.epoch_history(key)
            gone = never_again(
                self._frames[key],
                wal_id=self.wal.wal_id,
                history=history,
                oldest_ms=self.clock.wall_ms() - self.max_age_ms,
            )
            lsns = {frame.lsn for frame in gone}
            self._frames[key] = [frame for frame in self._frames[key] if frame.lsn not in lsns]
            self.wal.settle(lsns)
            let_go += len(gone)
        return let_go
