"""The frames of this WAL that are not settled: kept by partition until a leadership here, or time, decides.

recovery.py has the rules. This module keeps the frames and reads from the metadata store what the rules need.

Frames of an ended leadership can wait for minutes, until this agent leads the partition again. Their batches are not
kept in memory: once they are synced, only their places are remembered, and they are read back from the WAL when they
are needed. Otherwise they would take the write buffer away from the partitions that are led here.

A frame's age counts by the boot clock from the moment it is held; only what it was older by then is known from the
machine's clock. That clock may be set back, and a frame from its future would be held for as long as the step was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from streamhouse.core import topic_config
from streamhouse.core.clock import Clock
from streamhouse.core.errors import TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_KEYS_PER_CALL, MIB
from streamhouse.log.leased.budget import WriteBudget, cost_bytes
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.pending import PendingBatch
from streamhouse.log.leased.protocols import WriteAheadLog
from streamhouse.log.leased.recovery import (
    HeldFrame,
    SortedFrames,
    does_not_continue,
    never_again,
    sort_frames,
    stranded_words,
)
from streamhouse.metadata.contract import MetadataStore, Topic

_PART_BYTES: Final = 8 * MIB  # what a commit of resubmitted frames refuses is uploaded again


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The frames of one partition that were dropped."""

    key: PartitionKey
    topic: Topic | None
    """None for a deleted topic."""
    never_again: int
    """How many frames could neither be replayed nor resubmitted any more."""
    given_up: list[HeldFrame]
    """Frames that could still have been resubmitted."""

    @property
    def name(self) -> str:
        """The partition's name for messages, with the topic's id only if the topic is deleted."""
        return str(self.key) if self.topic is None else f"{self.topic.name}/{self.key.partition}"


@dataclass(slots=True, kw_only=True)
class HeldFrames:
    metadata: MetadataStore
    wal: WriteAheadLog
    clock: Clock
    budget: WriteBudget
    wal_is_durable: bool
    max_age_ms: int
    """R4: the age up to which an acknowledged acks=1 record is written again after another agent has led."""
    pressed_age_ms: int
    """The same while writes are refused for want of room."""
    _wall_ahead_ms: int = field(init=False)
    """How far the machine's clock was ahead of the boot clock when this process began."""
    _frames: dict[PartitionKey, dict[int, HeldFrame]] = field(default_factory=dict)
    """By partition and LSN; a partition without frames is not in it."""
    _unsynced: list[tuple[PartitionKey, int]] = field(default_factory=list)
    """Frames in memory, because the WAL has not synced them yet."""

    def __post_init__(self) -> None:
        self._wall_ahead_ms = self.clock.wall_ms() - self.clock.boot_ms()

    def add(self, key: PartitionKey, frames: Iterable[HeldFrame]) -> None:
        now_ms, wall_ms = self._now_ms(), self.clock.wall_ms()
        for frame in frames:
            age_ms = max(0, wall_ms - frame.timestamp_ms)
            self._frames.setdefault(key, {})[frame.lsn] = replace(frame, timestamp_ms=now_ms - age_ms)
            self.budget.held_bytes += _cost_bytes(frame)

    def add_left(self, partition: PartitionLog, left: Iterable[PendingBatch]) -> None:
        """Add the uncommitted batches of a leadership that ended in this process."""
        frames = [
            HeldFrame(
                lsn=batch.lsn,
                epoch=partition.epoch,
                base_offset=batch.base_offset,
                acks=batch.acks,
                timestamp_ms=batch.timestamp_ms,
                batch=batch.data,
                header=batch.header,
                refused=batch.refused,
                in_memory=True,
            )
            for batch in left
        ]
        self.add(partition.key, frames)
        self._unsynced += ((partition.key, frame.lsn) for frame in frames)
        self.synced(self.wal.synced_lsn)

    def synced(self, lsn: int) -> None:
        """Frames up to this LSN are on the disk: their batches need no memory any more."""
        if not self._unsynced:
            return
        for key, each in self._unsynced:
            mine = self._frames.get(key, {})
            if each <= lsn and (frame := mine.get(each)) is not None:
                mine[each] = replace(frame, batch=None, in_memory=False)
                self.budget.held_bytes -= _cost_bytes(frame)
        self._unsynced = [each for each in self._unsynced if each[1] > lsn]
        self.budget.look_again()

    async def load(self, frames: Sequence[HeldFrame]) -> list[HeldFrame]:
        """The same frames, each with its batch. Raises CorruptFrame, WalFailed."""
        read = await self.wal.read_batches([frame.lsn for frame in frames if frame.batch is None])
        return [replace(frame, batch=read[frame.lsn]) if frame.batch is None else frame for frame in frames]

    def frames_of(self, key: PartitionKey) -> Collection[HeldFrame]:
        return self._frames.get(key, {}).values()

    def count(self) -> int:
        return sum(len(frames) for frames in self._frames.values())

    async def sort(self, partition: PartitionLog) -> SortedFrames:
        """Decides about a partition's frames now that it is led here. Settles the committed and the dropped ones.

        The others stay held until ``take_out`` is called for each, so that a failure in between loses none.
        """
        key = partition.key
        if not self.frames_of(key):
            return SortedFrames()
        # A leadership that ended in this process may have left frames that are not synced yet.
        await self.wal.wait_synced(max(frame.lsn for frame in self.frames_of(key)))
        history = await self.metadata.epoch_history(key)
        sorted_frames = sort_frames(
            self.frames_of(key),
            wal_id=self.wal.wal_id,
            history=history,
            high_watermark=partition.high_watermark,
            compacted=partition.config.compacts,
            now_ms=self._now_ms(),
            max_age_ms=self.max_age_ms,
            epoch=partition.epoch,
            wal_is_durable=self.wal_is_durable,
        )
        if sorted_frames.stranded and self.wal_is_durable:
            raise does_not_continue([stranded_words(str(partition), sorted_frames)])
        if sorted_frames.stranded:
            sorted_frames.resubmit.clear()  # a later leadership decides about them, together with the stranded ones
        self.settle(key, (*sorted_frames.committed, *sorted_frames.dropped))
        return sorted_frames

    async def check(self) -> None:
        """Where the WAL is the durability, before anything is opened: raises DurabilityMismatch if some of its frames
        do not continue their log (R2, R23). Frames of deleted topics do not count."""
        if not self._frames:
            return
        names = {topic.topic_id: topic.name for topic in await self.metadata.list_topics()}
        words: list[str] = []
        keys = sorted(key for key in self._frames if key.topic_id in names)
        for first in range(0, len(keys), MAX_KEYS_PER_CALL):
            for state in await self.metadata.get_partitions(keys[first : first + MAX_KEYS_PER_CALL]):
                sorted_frames = sort_frames(
                    self.frames_of(state.key),
                    wal_id=self.wal.wal_id,
                    history=await self.metadata.epoch_history(state.key),
                    high_watermark=state.high_watermark,
                    compacted=False,
                    now_ms=self._now_ms(),
                    max_age_ms=self.max_age_ms,
                    wal_is_durable=True,
                )
                if sorted_frames.stranded:
                    where = f"{names[state.key.topic_id]}/{state.key.partition}"
                    words.append(stranded_words(where, sorted_frames))
        if words:
            raise does_not_continue(words)

    def settle(self, key: PartitionKey, frames: Collection[HeldFrame]) -> None:
        """These frames are committed, or never will be: the WAL may recycle them."""
        self.wal.settle([frame.lsn for frame in frames])
        for frame in frames:
            self.take_out(key, frame)
        self.budget.look_again()

    def take_out(self, key: PartitionKey, frame: HeldFrame) -> None:
        """A leadership here has it now, or it is not needed any more."""
        mine = self._frames.get(key, {})
        if (taken := mine.pop(frame.lsn, None)) is not None:
            self.budget.held_bytes -= _cost_bytes(taken)
        if not mine:
            self._frames.pop(key, None)

    async def sweep(self, led_here: Container[PartitionKey], *, pressed: bool = False) -> AsyncIterator[Swept]:
        """Drop frames that can never be used again: other agents have led their partition since.

        ``pressed``: writes are refused for want of room. Then acknowledged acks=1 frames are given up earlier. They can
        be written again only if this agent leads their partition again, and until then they take the room away from
        all other partitions. Frames of partitions that no other agent has led since stay, whatever their age: only this
        WAL may have them (R3).

        Yields what it drops at once, partition by partition: if the metadata store fails to answer about one partition,
        what was dropped of the others is known all the same.
        """
        topics: dict[TopicId, Topic | None] = {}
        now_ms = self._now_ms()
        for key in [key for key in self._frames if key not in led_here]:
            if key.topic_id not in topics:
                topics[key.topic_id] = await self._topic(key.topic_id)
            topic = topics[key.topic_id]
            # A deleted topic has no history either, so its frames are dropped.
            compacted = topic is not None and topic_config.effective(topic.configs).compacts
            history = await self.metadata.epoch_history(key)
            rule = partial(never_again, wal_id=self.wal.wal_id, history=history, compacted=compacted)
            gone = rule(self.frames_of(key), oldest_ms=now_ms - self.max_age_ms)
            self.settle(key, gone)
            given_up = rule(self.frames_of(key), oldest_ms=now_ms - self.pressed_age_ms) if pressed else []
            self.settle(key, given_up)
            if gone or given_up:
                yield Swept(key=key, topic=topic, never_again=len(gone), given_up=given_up)

    def _now_ms(self) -> int:
        """The machine's time as it would be if its clock had not been set since this process began."""
        return self.clock.boot_ms() + self._wall_ahead_ms

    async def _topic(self, topic_id: TopicId) -> Topic | None:
        try:
            return await self.metadata.get_topic_by_id(topic_id)
        except TopicNotFound:
            return None


def in_parts(frames: Sequence[HeldFrame]) -> Iterator[list[HeldFrame]]:
    """A few megabytes at a time: so much is read from the WAL, or put into one blob, at once."""
    part: list[HeldFrame] = []
    size = 0
    for frame in frames:
        if part and size + frame.header.size > _PART_BYTES:
            yield part
            part, size = [], 0
        part.append(frame)
        size += frame.header.size
    if part:
        yield part


def _cost_bytes(frame: HeldFrame) -> int:
    return cost_bytes(frame.header.size) if frame.in_memory else 0
