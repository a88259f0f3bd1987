"""Decides about frames that an earlier leadership left in the WAL: committed, used again, or dropped. Pure.

R3: let F be the start of the first later epoch that another WAL led (∞ if there was none). A frame is committed iff it
lies below min(F, watermark). If F is ∞, no other agent has written since: the rest is replayed at the same offsets.
R4: if F is finite, other records have those offsets now. Only acknowledged frames with acks=1 and without producer id,
on a topic that is not compacted, and not too old, are submitted again as new records. For the others, a retry by their
producer may have written them already, or newer values may have replaced them.
R23: the metadata store may have lost its last commits, in a fail-over to a standby without them. Two signs show it: the
frames to be replayed do not continue the log, or the store does not know the leadership that wrote them. Such frames
are *stranded*. Where the WAL is the durability, they were acknowledged, and nothing may be opened. In object mode none
of them was acknowledged with acks=all, and lost_commits.py makes R4 apply to them.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from streamhouse.core.errors import DurabilityMismatch
from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.formats.wal_frame_v1 import Frame
from streamhouse.metadata.contract import EpochStart
from streamhouse.wire.batch import BatchHeader, read_header
from streamhouse.wire.buffers import BytesLike

MAX_TOLD_PARTITIONS: Final = 5
"""Named in one message; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFrame:
    """A frame of this WAL that is not settled."""

    lsn: int
    epoch: int
    base_offset: int
    acks: int
    timestamp_ms: int
    batch: BytesLike | None
    """None: only the WAL has it (``HeldFrames.load``)."""
    header: BatchHeader
    refused: bool = False
    """Its producer was told NOT_LEADER and sends it again to another agent. Unknown after a crash, then False."""
    in_memory: bool = False
    """Left by a leadership of this process, and not synced yet. What recovery found is a view of a mapped file."""

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.header.last_offset_delta + 1


def held_by_partition(frames: Iterable[Frame]) -> dict[PartitionKey, list[HeldFrame]]:
    """The frames that a WAL returned when it was opened, by partition, in the order they were written."""
    held: defaultdict[PartitionKey, list[HeldFrame]] = defaultdict(list)
    for frame in frames:
        held[PartitionKey(frame.topic_id, frame.partition)].append(
            HeldFrame(
                lsn=frame.lsn,
                epoch=frame.epoch,
                base_offset=frame.base_offset,
                acks=frame.acks,
                timestamp_ms=frame.timestamp_ms,
                batch=frame.payload,
                header=read_header(frame.payload),
            )
        )
    return held


@dataclass(slots=True, kw_only=True)
class SortedFrames:
    committed: list[HeldFrame] = field(default_factory=list)
    replay: list[HeldFrame] = field(default_factory=list)
    """To be put back at the same offsets, consecutive from the watermark on."""
    resubmit: list[HeldFrame] = field(default_factory=list)
    """To be written as new records, in this order."""
    dropped: list[HeldFrame] = field(default_factory=list)
    stranded: list[HeldFrame] = field(default_factory=list)
    """R23: the metadata store has lost the commits before them."""
    end_offset: int = 0
    """The end of the log once the frames in ``replay`` are in it."""


def sort_frames(
    frames: Iterable[HeldFrame],
    *,
    wal_id: uuid.UUID,
    history: Sequence[EpochStart],
    high_watermark: int,
    compacted: bool,
    now_ms: int,
    max_age_ms: int,
    epoch: int | None = None,
    wal_is_durable: bool = False,
) -> SortedFrames:
    """``epoch``: the epoch of the new leadership. ``wal_is_durable``: no other WAL can have been written meanwhile
    (R2), so frames that continue the log are replayed, whatever the store knows of their leadership."""
    out = SortedFrames(end_offset=high_watermark)
    for frame in sorted(frames, key=lambda frame: frame.lsn):
        foreign = foreign_start(frame.epoch, wal_id=wal_id, history=history)
        bound = high_watermark if foreign is None else min(foreign, high_watermark)
        known = wal_is_durable or _is_known(frame, epoch, wal_id=wal_id, history=history)
        if known and frame.next_offset <= bound:
            out.committed.append(frame)
        elif foreign is None:
            if known and frame.base_offset == out.end_offset and not out.stranded:
                out.replay.append(frame)
                out.end_offset = frame.next_offset
            else:
                out.stranded.append(frame)
        elif _may_resubmit(frame, compacted=compacted, oldest_ms=now_ms - max_age_ms):
            out.resubmit.append(frame)
        else:
            out.dropped.append(frame)
    return out


def stranded_words(where: str, frames: SortedFrames) -> str:
    """A text for an operator about a partition's stranded frames."""
    first = min(frame.base_offset for frame in frames.stranded)
    end = max(frame.next_offset for frame in frames.stranded)
    records = sum(frame.header.record_count for frame in frames.stranded)
    missing = f"; offsets {frames.end_offset} to {first - 1} are in neither" if first > frames.end_offset else ""
    return (
        f"{where}: the metadata store says that the log ends at offset {frames.end_offset}, but the write-ahead log"
        f" holds {records} records at offsets {first} to {end - 1}{missing}"
    )


def does_not_continue(words: Sequence[str]) -> DurabilityMismatch:
    """The error for a start where the WAL is the durability. ``words``: one text for each partition."""
    more = f" (and {len(words) - MAX_TOLD_PARTITIONS} more partitions)" if len(words) > MAX_TOLD_PARTITIONS else ""
    return DurabilityMismatch(
        "the metadata store does not match the write-ahead log, and acknowledged records would be lost: "
        + "; ".join(words[:MAX_TOLD_PARTITIONS])
        + more,
        hint="the metadata store is an older copy, or files of the write-ahead log are missing: restore the metadata"
        " store that belongs to this write-ahead log, or the missing files; nothing was changed",
    )


def foreign_start(epoch: int, *, wal_id: uuid.UUID, history: Sequence[EpochStart]) -> int | None:
    """The start offset of the first later leadership with another WAL; None if there was none (R3)."""
    return next((start.start_offset for start in history if start.epoch > epoch and start.wal_id != wal_id), None)


def never_again(
    frames: Iterable[HeldFrame],
    *,
    wal_id: uuid.UUID,
    history: Sequence[EpochStart],
    compacted: bool,
    oldest_ms: int,
) -> list[HeldFrame]:
    """Frames of a partition led elsewhere that no later leadership here can use. No history: the topic is deleted."""
    gone: list[HeldFrame] = []
    for frame in frames:
        foreign = foreign_start(frame.epoch, wal_id=wal_id, history=history)
        may_matter = foreign is None or (
            frame.next_offset > foreign and _may_resubmit(frame, compacted=compacted, oldest_ms=oldest_ms)
        )
        if not history or not may_matter:
            gone.append(frame)
    return gone


def resubmission_id(wal_id: uuid.UUID, lsn: int) -> AppendId:
    """The same id for every attempt at this frame, so that a crash between commit and clean-up writes it once (R4)."""
    return AppendId(uuid.uuid5(wal_id, str(lsn)))


def _may_resubmit(frame: HeldFrame, *, compacted: bool, oldest_ms: int) -> bool:
    acknowledged = frame.acks == 1 and not frame.refused
    return acknowledged and not frame.header.has_producer and not compacted and frame.timestamp_ms >= oldest_ms


def _is_known(frame: HeldFrame, epoch: int | None, *, wal_id: uuid.UUID, history: Sequence[EpochStart]) -> bool:
    """Whether the store knows the leadership under which the frame was written. The store assigns the epoch of a lost
    leadership again, to this agent or to another. Then the frame's offset lies below the start of that epoch, or the
    frame's epoch is not below the one that was just acquired."""
    if epoch is not None and frame.epoch >= epoch:
        return False
    return any(
        start.epoch == frame.epoch and start.wal_id == wal_id and start.start_offset <= frame.base_offset
        for start in history
    )
