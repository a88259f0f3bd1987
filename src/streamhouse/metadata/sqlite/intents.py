"""Sink intents: the manifest of one Spark micro-batch, and its adoption partition by partition (R8, R13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streamhouse.core.errors import BatchRegressed, NotFound, PartitionNotFound, TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId, topic_id_text
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    Change,
    ChangeKind,
    EntryKind,
    Intent,
    IntentKey,
    IntentOutcome,
    IntentSlice,
    IntentVerdict,
    ObjectRef,
    SliceOutcome,
    Verdict,
)
from streamhouse.metadata.sqlite.appends import Appends, Tail, find_tails
from streamhouse.metadata.sqlite.commits import judge_leaderless, judge_leased, refusal
from streamhouse.metadata.sqlite.objects import add_references, drop_references, gc_horizon_ms
from streamhouse.metadata.sqlite.rows import sql_key, topic_id_of
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Row, Tx

_SLICE_COLUMNS: Final = """partition_id, object_key, object_size, object_created_at, byte_offset, byte_length,
    record_count, encoding, min_timestamp, max_timestamp"""

_OF_BATCH: Final = "query_id = ? AND topic_id = ? AND batch_id = ?"


def register_intent(tx: Tx, intent: Intent) -> IntentOutcome:
    key = intent.key
    _check_partitions(tx, intent)
    last = tx.row(
        "SELECT last_batch_id, complete FROM sink_queries WHERE query_id = ? AND topic_id = ?",
        (key.query_id, key.topic_id.bytes),
    )
    if last is not None:
        last_batch_id, complete = last
        if key.batch_id < last_batch_id:
            raise BatchRegressed(
                f"query {key.query_id} sends batch {key.batch_id} to {topic_id_text(key.topic_id)}, "
                f"which already has its batch {last_batch_id}"
            )
        if key.batch_id == last_batch_id:
            return _again(tx, intent, complete=bool(complete))
        if not complete:
            earlier = IntentKey(query_id=key.query_id, topic_id=key.topic_id, batch_id=last_batch_id)
            return IntentOutcome(verdict=IntentVerdict.PREVIOUS_INCOMPLETE, intent=get_intent(tx, earlier))
    horizon_ms = gc_horizon_ms(tx)
    if any(piece.object.created_at_ms < horizon_ms for piece in intent.slices):
        return IntentOutcome(verdict=IntentVerdict.STALE_OBJECT, intent=None)
    _replace(tx, intent)
    verdict = IntentVerdict.REGISTERED if intent.slices else IntentVerdict.COMPLETE
    return IntentOutcome(verdict=verdict, intent=get_intent(tx, key))


def _check_partitions(tx: Tx, intent: Intent) -> None:
    count = tx.value("SELECT partition_count FROM topics WHERE topic_id = ?", (intent.key.topic_id.bytes,))
    if count is None:
        raise TopicNotFound(f"there is no topic with id {topic_id_text(intent.key.topic_id)}")
    beyond = max((piece.partition for piece in intent.slices), default=0)
    if beyond >= count:
        raise PartitionNotFound(f"{topic_id_text(intent.key.topic_id)} has {count} partitions and no number {beyond}")


def _again(tx: Tx, intent: Intent, *, complete: bool) -> IntentOutcome:
    """Whoever sends the winning slices again must not be told to discard them, complete or not."""
    winner = get_intent(tx, intent.key)
    if winner is not None and winner.slices and winner.slices == tuple(intent.slices):
        return IntentOutcome(verdict=IntentVerdict.REGISTERED, intent=winner)
    return IntentOutcome(verdict=IntentVerdict.COMPLETE if complete else IntentVerdict.PENDING, intent=winner)


def _replace(tx: Tx, intent: Intent) -> None:
    """The previous batch is in the log, where its entries hold the objects; its manifest goes."""
    key = intent.key
    of_query = (key.query_id, key.topic_id.bytes)
    _forget_slices(tx, of_query)
    tx.run(
        "INSERT INTO sink_queries (query_id, topic_id, last_batch_id, complete, registered_at) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (query_id, topic_id) DO UPDATE SET last_batch_id = excluded.last_batch_id, "
        "complete = excluded.complete, registered_at = excluded.registered_at",
        (*of_query, key.batch_id, 0 if intent.slices else 1, tx.now_ms),
    )
    tx.run_many(
        f"INSERT INTO sink_slices (query_id, topic_id, batch_id, seq, {_SLICE_COLUMNS}) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(*_sql_key(key), seq, *_slice_row(piece)) for seq, piece in enumerate(intent.slices)],
    )
    add_references(tx, [piece.object for piece in intent.slices])
    if intent.slices:
        partitions = sorted({piece.partition for piece in intent.slices})
        keys = tuple(PartitionKey(key.topic_id, partition) for partition in partitions)
        tx.notify(Change(kind=ChangeKind.INTENTS, keys=keys))


def get_intent(tx: Tx, key: IntentKey) -> Intent | None:
    if last_batch(tx, key.query_id, key.topic_id) != key.batch_id:
        return None
    rows = tx.rows(
        f"SELECT {_SLICE_COLUMNS}, adopted_base_offset FROM sink_slices WHERE {_OF_BATCH} ORDER BY seq", _sql_key(key)
    )
    return Intent(
        key=key,
        slices=tuple(_slice_of(row[:-1]) for row in rows),
        adopted=frozenset(row[0] for row in rows if row[-1] is not None),
    )


def last_batch(tx: Tx, query_id: str, topic_id: TopicId) -> int | None:
    found: int | None = tx.value(
        "SELECT last_batch_id FROM sink_queries WHERE query_id = ? AND topic_id = ?", (query_id, topic_id.bytes)
    )
    return found


def list_unadopted(tx: Tx, keys: Sequence[PartitionKey]) -> list[tuple[IntentKey, int]]:
    # An agent asks about thousands of partitions, each time some of them open, and there is mostly nothing.
    waiting = set(tx.rows("SELECT DISTINCT topic_id, partition_id FROM sink_slices WHERE adopted_base_offset IS NULL"))
    found: set[Row] = set()
    for key in waiting.intersection(map(sql_key, keys) if waiting else ()):
        found.update(
            tx.rows(
                "SELECT q.registered_at, s.query_id, s.topic_id, s.batch_id, s.partition_id FROM sink_slices s "
                "JOIN sink_queries q ON q.query_id = s.query_id AND q.topic_id = s.topic_id "
                "WHERE s.topic_id = ? AND s.partition_id = ? AND s.adopted_base_offset IS NULL",
                key,
            )
        )
    return [
        (IntentKey(query_id=query_id, topic_id=topic_id_of(topic_id), batch_id=batch_id), partition)
        for _, query_id, topic_id, batch_id, partition in sorted(found)
    ]


def adopt_intent(tx: Tx, key: IntentKey, partition: int, *, epoch: int, base_offset: int | None) -> SliceOutcome:
    share = tx.rows(
        f"SELECT seq, adopted_base_offset, adopted_end_offset, {_SLICE_COLUMNS} FROM sink_slices "
        f"WHERE {_OF_BATCH} AND partition_id = ? ORDER BY seq",
        (*_sql_key(key), partition),
    )
    if not share:
        raise NotFound(f"batch {key.batch_id} of query {key.query_id} has nothing for partition {partition}")
    log = PartitionKey(key.topic_id, partition)
    tail = find_tails(tx, [log]).get(log)
    if tail is None:
        return SliceOutcome(key=log, verdict=Verdict.GONE)
    if share[0][1] is not None:
        return _adopted(tail, share[0][1], share[-1][2], repeated=True)
    # An intent's objects are referenced from its registration on, so their age is no reason against them (R6).
    if base_offset is None:
        against = judge_leaderless(tail, object_stamp_ms=None) if epoch == 0 else Verdict.FENCED
    else:
        against = judge_leased(tail, epoch=epoch, base_offset=base_offset, object_stamp_ms=None)
    if against is not None:
        return refusal(tail, against)
    _append_share(tx, key, tail, share)
    return _adopted(tail, tail.found_watermark, tail.watermark - 1, repeated=False)


def _append_share(tx: Tx, key: IntentKey, tail: Tail, share: Sequence[Row]) -> None:
    """Entries, watermark and the mark on the share in one step, so that nobody can do it twice (R8).

    From here on the entries hold the objects, and the manifest does not: it stays for as long as its query has no later
    batch, which for most batch writes is for ever, and would keep objects from vacuum that retention has let go of.
    """
    appends = Appends(tx)
    marks: list[Row] = []
    adopted: list[str] = []
    for seq, _, _, *columns in share:
        piece = _slice_of(columns)
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
        marks.append((base, tail.watermark - 1, *_sql_key(key), seq))
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


def forget_intents(tx: Tx, topic_id: TopicId) -> None:
    """Everything queries have sent to a topic that is being deleted."""
    for (query_id,) in tx.rows("SELECT query_id FROM sink_queries WHERE topic_id = ?", (topic_id.bytes,)):
        of_query = (query_id, topic_id.bytes)
        _forget_slices(tx, of_query)
        tx.run("DELETE FROM sink_queries WHERE query_id = ? AND topic_id = ?", of_query)


def _forget_slices(tx: Tx, of_query: tuple[str, bytes]) -> None:
    """Only what was never adopted still holds its object."""
    where = "WHERE query_id = ? AND topic_id = ?"
    held = tx.rows(f"SELECT object_key FROM sink_slices {where} AND adopted_base_offset IS NULL", of_query)
    tx.run(f"DELETE FROM sink_slices {where}", of_query)
    drop_references(tx, [object_key for (object_key,) in held])


def _sql_key(key: IntentKey) -> tuple[str, bytes, int]:
    return key.query_id, key.topic_id.bytes, key.batch_id


def _slice_row(piece: IntentSlice) -> Row:
    return (
        piece.partition,
        piece.object.key,
        piece.object.size_bytes,
        piece.object.created_at_ms,
        piece.byte_offset,
        piece.byte_length,
        piece.record_count,
        piece.encoding,
        piece.min_timestamp_ms,
        piece.max_timestamp_ms,
    )


def _slice_of(columns: Sequence[Any]) -> IntentSlice:
    partition, key, size, created_at, byte_offset, byte_length, records, encoding, min_time, max_time = columns
    return IntentSlice(
        partition=partition,
        object=ObjectRef(key=key, size_bytes=size, created_at_ms=created_at),
        byte_offset=byte_offset,
        byte_length=byte_length,
        record_count=records,
        encoding=encoding,
        min_timestamp_ms=min_time,
        max_timestamp_ms=max_time,
    )


class IntentCalls(Shell):
    async def register_intent(self, intent: Intent) -> IntentOutcome:
        checks.check_intent(intent)
        return await self._write(register_intent, intent)

    async def get_intent(self, key: IntentKey) -> Intent | None:
        checks.check_text(key.query_id, "a query id")
        return await self._read(get_intent, key)

    async def last_batch(self, query_id: str, topic_id: TopicId) -> int | None:
        checks.check_text(query_id, "a query id")
        return await self._read(last_batch, query_id, topic_id)

    async def list_unadopted(self, keys: Sequence[PartitionKey]) -> list[tuple[IntentKey, int]]:
        checks.check_keys(keys, "partitions")
        return await self._read(list_unadopted, tuple(keys))

    async def adopt_intent(
        self, key: IntentKey, partition: int, *, epoch: int, base_offset: int | None
    ) -> SliceOutcome:
        checks.check_text(key.query_id, "a query id")
        return await self._write(adopt_intent, key, partition, epoch=epoch, base_offset=base_offset)
