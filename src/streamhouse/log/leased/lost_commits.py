"""A metadata store that has lost its last commits (R23): how a partition is opened although its WAL is ahead of it.

A fail-over to a standby without the last commits undoes commits that had been answered, and leaderships as well. Then
the frames that a leader still holds do not continue the log. None was acknowledged with acks=all, because its own
commit is outstanding. So R4 may decide about them, as if another agent had led meanwhile:

    found stranded ──► a leadership of no WAL is put into the partition's history ──► the partition is opened again
                       (acquired under an id that no WAL has, and released)           and R4 sorts the frames

Why a leadership, and not a decision in memory: the frames stay in the WAL's files for a while, and a restart would find
them again. By then the log may have grown to the offset where they begin, and they would be replayed: records that were
sent again meanwhile would be there twice. With the leadership in the history every later start decides in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import LeaseHeldByOther, MetadataError, NotLeader
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.recovery import HeldFrame, SortedFrames, stranded_words
from streamhouse.metadata.contract import HeldLease, Holder, Lease, MetadataStore

_TTL_MS: Final = 1_000  # it is released at once; the TTL is for a process that ends in between
_MAX_LOST_EPOCHS: Final = 1_000  # leaderships of one partition that a fail-over may undo; more means another store
WHAT_TO_DO: Final = (
    "let a standby confirm commits before they count (synchronous_standby_names); compare with what producers have"
    " sent; restart the agents one after the other"
)

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LostCommits:
    metadata: MetadataStore
    randomness: Randomness
    on_alarm: Callable[[str], None]
    """Called with a text for the operator, once for each partition."""

    async def write_off(self, lease: Lease, partition: PartitionLog, frames: SortedFrames) -> NotLeader:
        """End this leadership in the store. Returns the error to raise; the next leadership opens the partition."""
        self._alarm(partition, frames)
        await self._lead_without_wal(lease, partition.key, frames.stranded)
        return NotLeader(
            str(partition), current_leader=None, hint="the metadata store had lost commits; it is opened again"
        )

    async def _lead_without_wal(self, lease: Lease, key: PartitionKey, stranded: Sequence[HeldFrame]) -> None:
        """Lead at an epoch above those of all frames: R4 looks at later leaderships only.

        It uses an incarnation of its own. If its release is lost, this process asks for the lease again and must get a
        new epoch. With the same incarnation it would get the epoch without a WAL, and write in it.
        """
        assert lease.incarnation is not None
        highest = max(frame.epoch for frame in stranded)
        no_wal = self.randomness.uuid()
        holder = Holder(agent_id=lease.agent_id, incarnation=lease.incarnation, wal_id=no_wal)
        epoch = lease.epoch
        for _ in range(_MAX_LOST_EPOCHS):
            await self.metadata.release_leases(holder, [HeldLease(key=key, epoch=epoch)])
            if epoch > highest and epoch > lease.epoch:
                return
            holder = Holder(agent_id=lease.agent_id, incarnation=no_wal, wal_id=no_wal)
            try:
                epoch = (await self.metadata.acquire_partition_lease(key, holder, ttl_ms=_TTL_MS)).epoch
            except LeaseHeldByOther:
                return  # another agent leads; that leadership is in the history
        raise MetadataError(
            f"{key}: the write-ahead log holds frames of epoch {highest}, the metadata store is at {epoch}",
            hint="this is not the metadata store of this write-ahead log, or a very old copy of it",
        )

    def _alarm(self, partition: PartitionLog, frames: SortedFrames) -> None:
        count = len(frames.stranded)
        words = (
            f"the metadata store has lost commits that it had confirmed. {stranded_words(str(partition), frames)}."
            f" The store has fallen back to an older state, as after a fail-over to a standby without the last commits."
            f" Records that it lost are gone, acknowledged ones too. Of the {count} batches behind them none was"
            " acknowledged with acks=all: those of acks=1 without producer id become new records, the others are"
            " dropped, and their producers send them again"
        )
        _log.error(
            "%s (%s)",
            words,
            WHAT_TO_DO,
            extra={
                "topic": partition.topic,
                "partition": partition.key.partition,
                "log_ends": frames.end_offset,
                "batches": count,
            },
        )
        self.on_alarm(words)
