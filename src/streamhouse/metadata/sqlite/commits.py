"""The two commits, and the record of append ids that makes sending one again harmless (R5, R10, R14)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from streamhouse.core.ids import AppendId, PartitionKey, TopicId
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    NO_PRODUCER,
    BatchOutcome,
    BatchRun,
    BatchVerdict,
    Change,
    ChangeKind,
    EntryKind,
    LeaderlessSlice,
    LeasedSlice,
    ObjectRef,
    SliceOutcome,
    Verdict,
    WriteMode,
)
from streamhouse.metadata.sqlite.appends import Appends, Tail, find_tails
from streamhouse.metadata.sqlite.producers import Windows
from streamhouse.metadata.sqlite.rows import lock_order
from streamhouse.metadata.sqlite.transactions import Tx

Outcomes = dict[PartitionKey, SliceOutcome]

_NOTHING_YET: Final = -(2**62)


def commit_leased(tx: Tx, append_id: AppendId, slices: Sequence[LeasedSlice]) -> list[SliceOutcome]:
    checks.check_slices(slices)
    outcomes, newest_object_ms = _committed_before(tx, append_id)
    repeated = len(outcomes)
    fresh = sorted((piece for piece in slices if piece.key not in outcomes), key=lambda piece: lock_order(piece.key))
    appends, windows = Appends(tx), Windows(tx, fresh)
    tails = find_tails(tx, [piece.key for piece in fresh])
    for piece in fresh:
        outcome = _commit_leased_slice(tails.get(piece.key), piece, appends, windows)
        outcomes[piece.key] = outcome
        if outcome.verdict is Verdict.COMMITTED:
            newest_object_ms = max(newest_object_ms, piece.object.created_at_ms)
    _write(tx, appends, windows)
    _remember(tx, append_id, outcomes, newest_object_ms, was_known=repeated > 0)
    return [outcomes[piece.key] for piece in slices]


def judge_leased(tail: Tail, *, epoch: int, base_offset: int, object_stamp_ms: int | None) -> Verdict | None:
    """None when the slice may be appended; else the first reason against it, in the contract's order.

    ``object_stamp_ms`` is None for an object that is referenced already: it cannot be deleted, whatever its age (R6).
    """
    leads = epoch == tail.leader_epoch > 0  # before the first lease there is no leader, not even epoch 0
    if not tail.is_open or tail.write_mode != WriteMode.LEASED or not leads:
        return Verdict.FENCED
    if object_stamp_ms is not None and object_stamp_ms < tail.gc_horizon_ms:
        return Verdict.STALE_OBJECT
    if tail.watermark != base_offset:
        return Verdict.NOT_YET if tail.watermark < base_offset else Verdict.TAKEN
    return None


def judge_leaderless(tail: Tail, *, object_stamp_ms: int | None) -> Verdict | None:
    if not tail.is_open or tail.write_mode != WriteMode.LEADERLESS:
        return Verdict.FENCED
    if object_stamp_ms is not None and object_stamp_ms < tail.gc_horizon_ms:
        return Verdict.STALE_OBJECT
    return None


def refusal(tail: Tail, verdict: Verdict) -> SliceOutcome:
    return SliceOutcome(key=tail.key, verdict=verdict, high_watermark=tail.watermark, leader_epoch=tail.leader_epoch)


def _commit_leased_slice(tail: Tail | None, piece: LeasedSlice, appends: Appends, windows: Windows) -> SliceOutcome:
    if tail is None:
        return SliceOutcome(key=piece.key, verdict=Verdict.GONE)
    against = judge_leased(
        tail, epoch=piece.epoch, base_offset=piece.base_offset, object_stamp_ms=piece.object.created_at_ms
    )
    if against is not None:
        return refusal(tail, against)
    offset = piece.base_offset
    for batch in piece.batches:
        if batch.producer_id != NO_PRODUCER:
            windows.record(piece.key, batch, offset)
        offset += batch.record_count
    appends.append(
        tail,
        kind=piece.kind,
        reference=piece.object,
        byte_offset=piece.byte_offset,
        byte_length=piece.byte_length,
        record_count=offset - piece.base_offset,
        encoding=piece.encoding,
        min_timestamp_ms=min(batch.min_timestamp_ms for batch in piece.batches),
        max_timestamp_ms=max(batch.max_timestamp_ms for batch in piece.batches),
    )
    return SliceOutcome(
        key=piece.key,
        verdict=Verdict.COMMITTED,
        base_offset=piece.base_offset,
        end_offset=offset - 1,
        high_watermark=offset,
        leader_epoch=tail.leader_epoch,
    )


def commit_leaderless(
    tx: Tx, append_id: AppendId, blob: ObjectRef, slices: Sequence[LeaderlessSlice]
) -> list[SliceOutcome]:
    checks.check_object(blob)
    checks.check_slices(slices)
    outcomes, newest_object_ms = _committed_before(tx, append_id)
    repeated = len(outcomes)
    fresh = sorted((piece for piece in slices if piece.key not in outcomes), key=lambda piece: lock_order(piece.key))
    appends, windows = Appends(tx), Windows(tx, fresh)
    tails = find_tails(tx, [piece.key for piece in fresh])
    for piece in fresh:
        outcomes[piece.key] = _commit_leaderless_slice(tails.get(piece.key), blob, piece, appends, windows)
    _write(tx, appends, windows)
    _remember(tx, append_id, outcomes, max(newest_object_ms, blob.created_at_ms), was_known=repeated > 0)
    return [outcomes[piece.key] for piece in slices]


def _commit_leaderless_slice(
    tail: Tail | None, blob: ObjectRef, piece: LeaderlessSlice, appends: Appends, windows: Windows
) -> SliceOutcome:
    if tail is None:
        return SliceOutcome(key=piece.key, verdict=Verdict.GONE)
    against = judge_leaderless(tail, object_stamp_ms=blob.created_at_ms)
    if against is not None:
        return refusal(tail, against)
    batches: list[BatchOutcome] = []
    run: list[BatchRun] = []
    run_start = position = piece.byte_offset
    next_offset = first_offset = tail.watermark

    def end_run() -> None:
        """A run of surviving batches becomes one entry over its own bytes (R14)."""
        if run:
            appends.append(
                tail,
                kind=EntryKind.WAL,
                reference=blob,
                byte_offset=run_start,
                byte_length=position - run_start,
                record_count=sum(batch.record_count for batch in run),
                encoding=piece.encoding,
                min_timestamp_ms=min(batch.min_timestamp_ms for batch in run),
                max_timestamp_ms=max(batch.max_timestamp_ms for batch in run),
            )
            run.clear()

    for batch in piece.batches:
        answer = _judge_batch(windows, piece.key, batch, next_offset)
        batches.append(answer)
        if answer.verdict is BatchVerdict.APPENDED:
            if not run:
                run_start = position
            run.append(batch)
            next_offset += batch.record_count
        else:
            end_run()
        position += batch.byte_length
    end_run()
    appended = next_offset > first_offset
    return SliceOutcome(
        key=piece.key,
        verdict=Verdict.COMMITTED,
        base_offset=first_offset if appended else -1,
        end_offset=next_offset - 1 if appended else -1,
        high_watermark=next_offset,
        leader_epoch=tail.leader_epoch,
        batches=tuple(batches),
    )


def _judge_batch(windows: Windows, key: PartitionKey, batch: BatchRun, next_offset: int) -> BatchOutcome:
    if batch.producer_id != NO_PRODUCER:
        answer = windows.judge(key, batch)
        if answer is not None:
            return answer
        windows.record(key, batch, next_offset)
    return BatchOutcome(verdict=BatchVerdict.APPENDED, base_offset=next_offset)


def _write(tx: Tx, appends: Appends, windows: Windows) -> None:
    appends.write()
    windows.write()
    if appends.moved:
        tx.notify(Change(kind=ChangeKind.COMMIT, keys=appends.moved))


def _committed_before(tx: Tx, append_id: AppendId) -> tuple[Outcomes, int]:
    """What an earlier sending of this append id has committed, and its newest object's stamp."""
    row = tx.row("SELECT outcomes, newest_object_at FROM commits WHERE append_id = ?", (append_id.bytes,))
    if row is None:
        return {}, _NOTHING_YET
    outcomes = {outcome.key: outcome for outcome in map(_outcome_of, json.loads(row[0]))}
    return outcomes, row[1]


def _remember(tx: Tx, append_id: AppendId, outcomes: Outcomes, newest_object_ms: int, *, was_known: bool) -> None:
    """Record the committed partitions. A refused one is judged again when the commit is sent again."""
    committed = [outcome for outcome in outcomes.values() if outcome.verdict is Verdict.COMMITTED]
    if not committed or (was_known and all(outcome.repeated for outcome in committed)):
        return
    tx.run(
        "INSERT INTO commits (append_id, outcomes, newest_object_at, committed_at) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (append_id) DO UPDATE SET outcomes = excluded.outcomes, "
        "newest_object_at = excluded.newest_object_at, committed_at = excluded.committed_at",
        (
            append_id.bytes,
            json.dumps([_outcome_json(outcome) for outcome in committed], separators=(",", ":")),
            newest_object_ms,
            tx.now_ms,
        ),
    )


def _outcome_json(outcome: SliceOutcome) -> list[object]:
    return [
        outcome.key.topic_id.hex,
        outcome.key.partition,
        outcome.base_offset,
        outcome.end_offset,
        outcome.high_watermark,
        outcome.leader_epoch,
        [(batch.verdict.value, batch.base_offset) for batch in outcome.batches],
    ]


def _outcome_of(stored: list[Any]) -> SliceOutcome:
    topic_id, partition, base, end, watermark, epoch, batches = stored
    return SliceOutcome(
        key=PartitionKey(TopicId(UUID(hex=topic_id)), partition),
        verdict=Verdict.COMMITTED,
        base_offset=base,
        end_offset=end,
        high_watermark=watermark,
        leader_epoch=epoch,
        batches=tuple(BatchOutcome(verdict=BatchVerdict(verdict), base_offset=offset) for verdict, offset in batches),
        repeated=True,
    )


def expire_commits(tx: Tx, *, keep_ms: int, limit: int) -> int:
    """Below the store-wide horizon no object of theirs can be committed again, so no repeat needs them (R5)."""
    checks.check_duration(keep_ms, "an age")
    checks.check_sweep_limit(limit)
    return tx.run(
        "DELETE FROM commits WHERE rowid IN (SELECT rowid FROM commits WHERE committed_at < ? AND newest_object_at < "
        "(SELECT gc_horizon_ms FROM store_info) ORDER BY newest_object_at LIMIT ?)",
        (tx.now_ms - keep_ms, limit),
    )
