"""Brings the frames that an earlier leadership left in the WAL into this one, before it serves (R3, R4).

recovery.py decides for each frame. This module acts: it puts frames back at the same offsets, as memory allows, and has
resubmission.py write the others as new records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from streamhouse.core.clock import Clock
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.budget import WriteBudget
from streamhouse.log.leased.held import HeldFrames, in_parts
from streamhouse.log.leased.partition import PartitionLog, Phase
from streamhouse.log.leased.pending import PendingBatch
from streamhouse.log.leased.recovery import HeldFrame, SortedFrames
from streamhouse.log.leased.resubmission import Resubmission
from streamhouse.log.tail import TailCache
from streamhouse.wire.batch import patch, read_header


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtBack:
    replayed: int
    resubmitted: int


@dataclass(slots=True, kw_only=True)
class Replay:
    held: HeldFrames
    budget: WriteBudget
    resubmission: Resubmission
    tail: TailCache
    clock: Clock
    wal_is_durable: bool
    """Replayed batches were acknowledged, so readers see them at once. Otherwise they are committed first."""
    take: Callable[[PartitionLog, PendingBatch], None]
    flush: Callable[[Sequence[PartitionKey]], Awaitable[None]]

    async def run(self, partition: PartitionLog, frames: SortedFrames) -> BroughtBack:
        """Every frame stays held until the partition has it, so that a failure in between loses none."""
        for part in in_parts(frames.replay):
            for frame in await self.held.load(part):
                await self.budget.wait_for_room(frame.header.size)
                if partition.phase is Phase.DROPPED:
                    raise partition.not_leader()
                self.held.take_out(partition.key, frame)
                self._replay(partition, frame)
        if frames.replay and not self.wal_is_durable:
            await self.flush([partition.key])
        resubmitted = await self.resubmission.run(partition, frames.resubmit)
        return BroughtBack(replayed=len(frames.replay), resubmitted=resubmitted)

    def _replay(self, partition: PartitionLog, frame: HeldFrame) -> None:
        assert frame.batch is not None, "it was loaded"
        data = bytearray(frame.batch)
        patch(data, 0, base_offset=frame.base_offset, leader_epoch=partition.epoch)
        pending = PendingBatch(
            base_offset=frame.base_offset,
            next_offset=frame.next_offset,
            data=data,
            header=read_header(data),
            lsn=frame.lsn,
            acks=frame.acks,
            appended_ms=self.clock.boot_ms(),
            timestamp_ms=frame.timestamp_ms,
            waits_for_commit=False,
            done=None,
            acknowledged=self.wal_is_durable,
            refused=frame.refused,
        )
        self.take(partition, pending)
        partition.synced_end = partition.next_offset  # it comes from the WAL
        if self.wal_is_durable:
            self.tail.publish(partition.key, pending.base_offset, [data])
