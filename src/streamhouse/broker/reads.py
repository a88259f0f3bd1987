"""Reading from partitions, for every front end: which agent answers, and what of a log may be seen.

A leased partition is read at its leader, as clients expect of offsets and epochs; a leaderless one anywhere. Owns the
rules about leader epochs. Where batches are, and how long to wait for them, is in log/reader/.

Without transactions the last stable offset is the high watermark, so both isolation levels see the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.writes import Writes
from streamhouse.core.errors import NotLeader, StaleEpoch, StreamHouseError, UnknownEpoch
from streamhouse.core.ids import PartitionKey
from streamhouse.log.reader.cursor import ReadRequest, ReadResult
from streamhouse.log.reader.reader import EndOffsets, LogReader
from streamhouse.log.reader.times import TimedOffset
from streamhouse.metadata.contract import Durability, EpochStart, MetadataStore
from streamhouse.metadata.dedup import SEQUENCE_MODULUS, ProducerWindow

__all__ = [
    "ActiveProducer",
    "EndOffsets",
    "EpochEnd",
    "IsolationLevel",
    "ReadRequest",
    "ReadResult",
    "Reads",
    "TimedOffset",
]

ANY_EPOCH: Final = -1
"""A caller that does not say which epoch it knows."""
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1

_MAX_HISTORIES: Final = 10_000  # each a few hundred bytes; one for every partition whose epochs were asked for


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """Where the records of an epoch end; both -1 for an epoch that has not begun."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """An idempotent producer, as its partition's leader remembers it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int


class Reads:
    def __init__(
        self, *, reader: LogReader, writes: Writes, metadata: MetadataStore, view: ClusterView, durability: Durability
    ) -> None:
        self._reader = reader
        self._writes = writes
        self._metadata = metadata
        self._view = view
        self._durability = durability
        self._histories: dict[PartitionKey, tuple[int, list[EpochStart]]] = {}

    # Which agent answers.

    def leader_epoch(self, key: PartitionKey, claimed_epoch: int = ANY_EPOCH, *, or_leaving: bool = False) -> int:
        """The epoch under which this agent answers for the partition. No await.

        ``claimed_epoch``: the one that the caller knows. ``or_leaving``: true for a caller that only reads batches. It
        may go on here while the partition is handed over, since what is committed may be read anywhere.
        Raises NotLeader, PartitionNotFound, StaleEpoch, UnknownEpoch.
        """
        epoch = self._writes.epoch(key)
        if epoch is None:
            epoch = self._view.leaving_epoch(key) if or_leaving else None
            if epoch is None:
                raise self._writes.not_here(key)
        if claimed_epoch not in (epoch, ANY_EPOCH):
            if claimed_epoch < epoch:
                raise StaleEpoch(self._view.name_of(key), expected=claimed_epoch, actual=epoch)
            raise UnknownEpoch(self._view.name_of(key), asked=claimed_epoch, known=epoch)
        return epoch

    # Batches.

    def read_now(
        self, requests: Sequence[ReadRequest], *, max_bytes: int, min_bytes: int
    ) -> Sequence[ReadResult] | None:
        """What ``read`` would answer at once from memory; None when it would ask or wait. No await."""
        return self._reader.read_now(requests, max_bytes=max_bytes, min_bytes=min_bytes)

    async def read(
        self, requests: Sequence[ReadRequest], *, max_bytes: int, min_bytes: int, max_wait_ms: int
    ) -> Sequence[ReadResult | StreamHouseError]:
        """See LogReader.read_many; it waits also beside a damaged partition. Ask ``leader_epoch`` first."""
        return await self._reader.read_many(
            requests, max_bytes=max_bytes, min_bytes=min_bytes, max_wait_ms=max_wait_ms, wait_despite_damage=True
        )

    # Offsets.

    def known_log_start(self, key: PartitionKey) -> int:
        """Return the log start that was read last; -1 when this process has not read it yet. No await."""
        return self._reader.known_log_start(key)

    async def ends(self, key: PartitionKey) -> EndOffsets:
        """Fresh (R16)."""
        return await self._reader.end_offsets(key)

    async def first_at(self, key: PartitionKey, timestamp_ms: int) -> TimedOffset | None:
        """The first record, not batch, with that time or a later one."""
        return await self._reader.offset_for_timestamp(key, timestamp_ms)

    async def newest(self, key: PartitionKey) -> TimedOffset | None:
        """The first record among those with the largest time."""
        return await self._reader.max_timestamp_offset(key)

    # Epochs.

    async def epoch_of(self, key: PartitionKey, offset: int) -> int:
        """The epoch of the record at ``offset``; -1 when the history does not reach it."""
        found = NO_EPOCH
        for start in await self._history(key, self.leader_epoch(key)):
            if start.start_offset > offset:
                break
            found = start.epoch
        return found

    async def epoch_end(self, key: PartitionKey, epoch: int) -> EpochEnd:
        """Where the records of ``epoch``, or of the last one before it, end.

        That is the start of the next higher epoch; the log's end for the current one; the log's start for one older
        than the history. Clients cut back to the answer, so where the WAL is the durability and replay continues a log
        across epochs (R2), the later epochs of the same WAL do not end an earlier one.
        Raises NotLeader, PartitionNotFound, MetadataError.
        """
        current = self.leader_epoch(key)
        if epoch > current or epoch < 0:
            return EpochEnd(epoch=NO_EPOCH, end_offset=NO_OFFSET)
        history = await self._history(key, current)
        ends = await self._reader.end_offsets(key)
        if self.leader_epoch(key) != current or (history and history[-1].epoch > current):
            raise NotLeader(
                self._view.name_of(key), current_leader=None, hint="its leadership has just changed; ask again"
            )
        if epoch == current:
            return EpochEnd(epoch=current, end_offset=ends.high_watermark)
        if not history or epoch < history[0].epoch:
            return EpochEnd(epoch=epoch, end_offset=ends.log_start_offset)
        return _end_in(history, epoch, ends, self._durability)

    async def _history(self, key: PartitionKey, current: int) -> Sequence[EpochStart]:
        """While one epoch leads, nothing is added to it."""
        known = self._histories.get(key)
        if known is not None and known[0] == current:
            return known[1]
        history = await self._metadata.epoch_history(key)
        if len(self._histories) >= _MAX_HISTORIES:
            del self._histories[next(iter(self._histories))]
        self._histories[key] = (current, history)
        return history

    # Producers.

    async def writers(self, key: PartitionKey, *, caller: Caller) -> list[ActiveProducer]:
        """Idempotent producers that the leader would recognise. Raises NotLeader, PartitionNotFound, MetadataError."""
        self.leader_epoch(key)
        windows = self._writes.writer(key).producers(key)
        if not windows:
            return []
        newest = (await self._metadata.load_producers([key]))[key]  # as many as a leader keeps
        return _writers(windows, {state.producer_id: state.updated_at_ms for state in newest.states})


def _end_in(history: Sequence[EpochStart], epoch: int, ends: EndOffsets, durability: Durability) -> EpochEnd:
    """The end of an epoch between the first of the history and the current one."""
    floor = max((start for start in history if start.epoch <= epoch), key=lambda start: start.epoch)
    end_offset = ends.high_watermark
    for before, after in pairwise(history):
        if before.epoch >= floor.epoch and not (durability is Durability.WAL and before.wal_id == after.wal_id):
            end_offset = after.start_offset
            break
    return EpochEnd(epoch=floor.epoch, end_offset=max(end_offset, ends.log_start_offset))


def _writers(windows: Mapping[int, ProducerWindow], times_ms: Mapping[int, int]) -> list[ActiveProducer]:
    found = []
    for producer_id, window in list(windows.items()):
        last = window.batches[-1] if window.batches else None
        found.append(
            ActiveProducer(
                producer_id=producer_id,
                producer_epoch=window.producer_epoch,
                last_sequence=-1 if last is None else (last.base_sequence + last.record_count - 1) % SEQUENCE_MODULUS,
                last_timestamp_ms=times_ms.get(producer_id, -1),
            )
        )
    return found
