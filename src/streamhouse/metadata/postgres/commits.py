"""The two commits: each turns a call into columns, sends them as one statement, and reads the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final
from uuid import UUID

from streamhouse.core.errors import NotFound
from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    NO_PRODUCER,
    BatchOutcome,
    BatchRun,
    BatchVerdict,
    IntentKey,
    LeaderlessSlice,
    LeasedSlice,
    Log,
    ObjectRef,
    SliceOutcome,
    Verdict,
)
from streamhouse.metadata.dedup import ProducerWindow
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.rows.intents import IntentRows
from streamhouse.metadata.rows.layer import Row, key_columns

# Positions are the numbers of migrations/0003_leased_commit.sql and 0011_first_sequence.sql.
VERDICTS: Final = (
    Verdict.COMMITTED,
    Verdict.COMMITTED,  # by an earlier sending
    Verdict.GONE,
    Verdict.FENCED,
    Verdict.STALE_OBJECT,
    Verdict.NOT_YET,
    Verdict.TAKEN,
)
REPEATED: Final = 1
_BATCH_VERDICTS: Final = (
    BatchVerdict.APPENDED,
    BatchVerdict.DUPLICATE,
    BatchVerdict.DUPLICATE_TOO_OLD,
    BatchVerdict.OUT_OF_ORDER,
    BatchVerdict.STALE_PRODUCER,
    BatchVerdict.UNKNOWN_PRODUCER,
)
_COMMIT_LEASED: Final = f"SELECT * FROM sh_commit_leased({', '.join(f'${n}' for n in range(1, 24))})"
_COMMIT_LEADERLESS: Final = f"SELECT * FROM sh_commit_leaderless({', '.join(f'${n}' for n in range(1, 21))})"


class PostgresCommits(Log):
    _database: Database

    async def commit_leased(self, append_id: AppendId, slices: Sequence[LeasedSlice]) -> list[SliceOutcome]:
        checks.check_slices(slices)
        row = await self._database.fetchrow(_COMMIT_LEASED, append_id, *_leased_columns(slices))
        assert row is not None
        return [_outcome(row, place, piece, ()) for place, piece in enumerate(slices)]

    async def commit_leaderless(
        self, append_id: AppendId, blob: ObjectRef, slices: Sequence[LeaderlessSlice]
    ) -> list[SliceOutcome]:
        checks.check_slices(slices)
        checks.check_object(blob)
        columns = _BatchColumns()
        for piece in slices:
            columns.add(piece)
        row = await self._database.fetchrow(
            _COMMIT_LEADERLESS,
            append_id,
            blob.key,
            blob.size_bytes,
            blob.created_at_ms,
            *_leaderless_columns(slices),
            *columns.in_order(),
        )
        assert row is not None
        return [
            _outcome(row, place, piece, _batch_outcomes(row, place, piece, columns))
            for place, piece in enumerate(slices)
        ]


class PostgresIntents(IntentRows):
    _database: Database

    async def adopt_intent(
        self, key: IntentKey, partition: int, *, epoch: int, base_offset: int | None
    ) -> SliceOutcome:
        row = await self._database.fetchrow(
            "SELECT * FROM sh_adopt_intent($1, $2, $3, $4, $5, $6)",
            key.query_id,
            key.topic_id,
            key.batch_id,
            partition,
            epoch,
            base_offset,
        )
        if row is None:
            raise NotFound(f"there is no intent {key} with rows for partition {partition}")
        return SliceOutcome(
            key=PartitionKey(key.topic_id, partition),
            verdict=VERDICTS[row["verdict"]],
            base_offset=row["base_offset"],
            end_offset=row["end_offset"],
            high_watermark=row["high_watermark"],
            leader_epoch=row["leader_epoch"],
            repeated=row["verdict"] == REPEATED,
        )


def _leased_columns(slices: Sequence[LeasedSlice]) -> tuple[Any, ...]:
    objects: dict[ObjectRef, int] = {}
    places = [objects.setdefault(piece.object, len(objects) + 1) for piece in slices]
    return (
        *key_columns(piece.key for piece in slices),
        [piece.epoch for piece in slices],
        [piece.base_offset for piece in slices],
        [piece.record_count for piece in slices],
        [str(piece.kind) for piece in slices],
        places,
        [piece.byte_offset for piece in slices],
        [piece.byte_length for piece in slices],
        [piece.encoding for piece in slices],
        [min(batch.min_timestamp_ms for batch in piece.batches) for piece in slices],
        [max(batch.max_timestamp_ms for batch in piece.batches) for piece in slices],
        [ref.key for ref in objects],
        [ref.size_bytes for ref in objects],
        [ref.created_at_ms for ref in objects],
        *_window_columns(slices),
    )


@dataclass(slots=True)
class _Window:
    window: ProducerWindow
    anew: bool


def _window_columns(slices: Sequence[LeasedSlice]) -> tuple[Any, ...]:
    """Each producer's last batches of each slice, already cut to a window: the database joins it to the stored one."""
    numbers: list[int] = []
    producers: list[int] = []
    epochs: list[int] = []
    anew: list[bool] = []
    firsts: list[int] = []
    lasts: list[int] = []
    values: list[int] = []
    for number, piece in enumerate(slices, start=1):
        for producer_id, known in _windows(piece).items():
            numbers.append(number)
            producers.append(producer_id)
            epochs.append(known.window.producer_epoch)
            anew.append(known.anew)
            firsts.append(len(values) + 1)
            for batch in known.window.batches:
                values += (batch.base_sequence, batch.record_count, batch.base_offset)
            lasts.append(len(values))
    return numbers, producers, epochs, anew, firsts, lasts, values


def _windows(piece: LeasedSlice) -> dict[int, _Window]:
    windows: dict[int, _Window] = {}
    offset = piece.base_offset
    for batch in piece.batches:
        if batch.producer_id != NO_PRODUCER:
            known = windows.get(batch.producer_id)
            if known is None:
                known = windows[batch.producer_id] = _Window(ProducerWindow(batch.producer_epoch), anew=False)
            # An epoch that changed within the slice has cleared whatever was stored before it.
            known.anew |= known.window.producer_epoch != batch.producer_epoch
            known.window.record(batch, offset)
        offset += batch.record_count
    return windows


@dataclass(slots=True)
class _BatchColumns:
    """The batches of a leaderless commit, slice after slice. One without producers is sent as the sum it will be."""

    listed: list[bool] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    slices: list[int] = field(default_factory=list)
    record_counts: list[int] = field(default_factory=list)
    byte_lengths: list[int] = field(default_factory=list)
    min_timestamps: list[int] = field(default_factory=list)
    max_timestamps: list[int] = field(default_factory=list)
    producers: list[int] = field(default_factory=list)
    producer_epochs: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)

    def add(self, piece: LeaderlessSlice) -> None:
        listed = any(batch.producer_id != NO_PRODUCER for batch in piece.batches)
        batches = piece.batches if listed else (_sum(piece.batches),)
        self.listed.append(listed)
        self.firsts.append(len(self.slices) + 1)
        for batch in batches:
            self.slices.append(len(self.listed))
            self.record_counts.append(batch.record_count)
            self.byte_lengths.append(batch.byte_length)
            self.min_timestamps.append(batch.min_timestamp_ms)
            self.max_timestamps.append(batch.max_timestamp_ms)
            self.producers.append(batch.producer_id)
            self.producer_epochs.append(batch.producer_epoch)
            self.sequences.append(batch.base_sequence)
        self.lasts.append(len(self.slices))

    def in_order(self) -> tuple[Any, ...]:
        return (
            self.listed,
            self.firsts,
            self.lasts,
            self.slices,
            self.record_counts,
            self.byte_lengths,
            self.min_timestamps,
            self.max_timestamps,
            self.producers,
            self.producer_epochs,
            self.sequences,
        )


def _sum(batches: Sequence[BatchRun]) -> BatchRun:
    if len(batches) == 1:
        return batches[0]
    return BatchRun(
        record_count=sum(batch.record_count for batch in batches),
        byte_length=sum(batch.byte_length for batch in batches),
        min_timestamp_ms=min(batch.min_timestamp_ms for batch in batches),
        max_timestamp_ms=max(batch.max_timestamp_ms for batch in batches),
    )


def _leaderless_columns(
    slices: Sequence[LeaderlessSlice],
) -> tuple[list[UUID], list[int], list[int], list[int], list[str]]:
    encodings: dict[str, int] = {}
    numbers = [encodings.setdefault(piece.encoding, len(encodings) + 1) for piece in slices]
    topic_ids, partitions = key_columns(piece.key for piece in slices)
    return topic_ids, partitions, [piece.byte_offset for piece in slices], numbers, list(encodings)


def _outcome(
    row: Row, place: int, piece: LeasedSlice | LeaderlessSlice, batches: tuple[BatchOutcome, ...]
) -> SliceOutcome:
    number = row["verdicts"][place]
    return SliceOutcome(
        key=piece.key,
        verdict=VERDICTS[number],
        base_offset=row["base_offsets"][place],
        end_offset=row["end_offsets"][place],
        high_watermark=row["high_watermarks"][place],
        leader_epoch=row["leader_epochs"][place],
        batches=batches,
        repeated=number == REPEATED,
    )


def _batch_outcomes(row: Row, place: int, piece: LeaderlessSlice, columns: _BatchColumns) -> tuple[BatchOutcome, ...]:
    if VERDICTS[row["verdicts"][place]] is not Verdict.COMMITTED:
        return ()
    if not columns.listed[place]:
        counts = (batch.record_count for batch in piece.batches[:-1])
        return tuple(
            BatchOutcome(verdict=BatchVerdict.APPENDED, base_offset=offset)
            for offset in accumulate(counts, initial=row["base_offsets"][place])
        )
    first, last = columns.firsts[place] - 1, columns.lasts[place]
    return tuple(
        BatchOutcome(verdict=_BATCH_VERDICTS[number], base_offset=offset)
        for number, offset in zip(row["batch_verdicts"][first:last], row["batch_offsets"][first:last], strict=True)
    )
