"""Adoption: the leader appends one partition's share of an intent to the log (R8, R13)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from streamhouse.core.errors import NotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Change, ChangeKind, EntryKind, IntentKey, SliceOutcome, Verdict
from streamhouse.metadata.rows.intents import SLICE_COLUMNS, to_slice
from streamhouse.metadata.sqlite.appends import Appends, Tail, find_tails
from streamhouse.metadata.sqlite.commits import judge_leaderless, judge_leased, refusal
from streamhouse.metadata.sqlite.objects import drop_references
from streamhouse.metadata.sqlite.transactions import Row, Tx

_OF_BATCH: Final = "query_id = ? AND topic_id = ? AND batch_id = ?"


def adopt_intent(tx: Tx, key: IntentKey, partition: int, *, epoch: int, base_offset: int | None) -> SliceOutcome:
    checks.check_text(key.query_id, "a query id")
    share = tx.rows(
        f"SELECT {SLICE_COLUMNS} FROM sink_slices AS s WHERE {_OF_BATCH} AND partition_id = ? ORDER BY seq",
        (*_sql_key(key), partition),
    )
    if not share:
        raise NotFound(f"batch {key.batch_id} of query {key.query_id} has nothing for partition {partition}")
    log = PartitionKey(key.topic_id, partition)
    tail = find_tails(tx, [log]).get(log)
    if tail is None:
        return SliceOutcome(key=log, verdict=Verdict.GONE)
    if share[0]["adopted_base_offset"] is not None:
        return _adopted(tail, share[0]["adopted_base_offset"], share[-1]["adopted_end_offset"], repeated=True)
    # An intent's objects are referenced from its registration on, so their age is no reason against them (R6).
    if base_offset is None:
        against = judge_leaderless(tail, object_stamp_ms=None) if epoch == 0 else Verdict.FENCED
    else:
        against = judge_leased(tail, epoch=epoch, base_offset=base_offset, object_stamp_ms=None)
    if against is not None:
        return refusal(tail, against)
    _append_share(tx, key, tail, share)
    return _adopted(tail, tail.found_watermark, tail.watermark - 1, repeated=False)


def _append_share(tx: Tx, key: IntentKey, tail: Tail, share: Sequence[sqlite3.Row]) -> None:
    """Entries, watermark and the mark on the share in one step, so that a share is appended once (R8).

    From here on the entries hold the objects, and the manifest does not. A manifest stays until its query's next batch,
    which most batch writes never have; its references would keep objects that nothing else needs.
    """
    appends = Appends(tx)
    marks: list[Row] = []
    adopted: list[str] = []
    for row in share:
        piece = to_slice(row)
        base = appends.append(
            tail,
            kind=EntryKind.WAL,
            reference=piece.object,
            byte_offset=piece.byte_offset,
            byte_length=piece.byte_length,
            record_count=piece.record_count,
            encoding=piece.encoding,
            min_timestamp_ms=piece.min_timestamp_ms,
            max_timestamp_ms=piece.max_timestamp_ms,
        )
        marks.append((base, tail.watermark - 1, *_sql_key(key), row["seq"]))
        adopted.append(piece.object.key)
    appends.write()
    drop_references(tx, adopted)
    tx.run_many(
        f"UPDATE sink_slices SET adopted_base_offset = ?, adopted_end_offset = ? WHERE {_OF_BATCH} AND seq = ?", marks
    )
    tx.run(
        "UPDATE sink_queries SET complete = 1 WHERE query_id = ? AND topic_id = ? AND last_batch_id = ? "
        f"AND NOT EXISTS (SELECT 1 FROM sink_slices WHERE {_OF_BATCH} AND adopted_base_offset IS NULL)",
        (*_sql_key(key), *_sql_key(key)),
    )
    tx.notify(Change(kind=ChangeKind.COMMIT, keys=appends.moved))


def _adopted(tail: Tail, base: int, end: int, *, repeated: bool) -> SliceOutcome:
    return SliceOutcome(
        key=tail.key,
        verdict=Verdict.COMMITTED,
        base_offset=base,
        end_offset=end,
        high_watermark=end + 1,
        leader_epoch=tail.leader_epoch,
        repeated=repeated,
    )


def _sql_key(key: IntentKey) -> tuple[str, bytes, int]:
    return key.query_id, key.topic_id.bytes, key.batch_id
