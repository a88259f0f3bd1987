"""Sink intents: the manifest of one Spark batch into one topic (R8). Adoption, a commit, is each store's own (R13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streamhouse.core.errors import BatchRegressed, PartitionNotFound, TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId, topic_id_text
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    Change,
    ChangeKind,
    Intent,
    IntentKey,
    IntentOutcome,
    IntentSlice,
    IntentVerdict,
    ObjectRef,
    Pipeline,
)
from streamhouse.metadata.rows.layer import Row, RowStore, RowTx, as_topic_id, key_columns

_NO_BATCH: Final = -1
SLICE_COLUMNS: Final = """
    s.seq, s.partition_id, s.object_key, s.object_size, s.object_created_at, s.byte_offset, s.byte_length,
    s.record_count, s.encoding, s.min_timestamp, s.max_timestamp, s.adopted_base_offset, s.adopted_end_offset
"""
# The batch asked for if it is the query's last, slice by slice; one row of NULLs when it has none.
_LATEST: Final = f"""
SELECT {SLICE_COLUMNS} FROM sink_queries AS q
LEFT JOIN sink_slices AS s ON s.query_id = q.query_id AND s.topic_id = q.topic_id AND s.batch_id = q.last_batch_id
WHERE q.query_id = $1 AND q.topic_id = $2 AND q.last_batch_id = $3
ORDER BY s.seq
"""
_INSERT_SLICES: Final = """
INSERT INTO sink_slices (
    query_id, topic_id, batch_id, seq, partition_id, object_key, object_size, object_created_at, byte_offset,
    byte_length, record_count, encoding, min_timestamp, max_timestamp
)
SELECT $1, $2, $3, s.n, s.partition_id, s.object_key, s.object_size, s.object_created_at, s.byte_offset, s.byte_length,
       s.record_count, s.encoding, s.min_timestamp, s.max_timestamp
FROM unnest($4::integer[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],
            $11::text[], $12::bigint[], $13::bigint[])
    WITH ORDINALITY AS s (partition_id, object_key, object_size, object_created_at, byte_offset, byte_length,
                          record_count, encoding, min_timestamp, max_timestamp, n)
"""
_UNADOPTED: Final = """
SELECT DISTINCT q.registered_at, s.query_id, s.topic_id, s.batch_id, s.partition_id
FROM unnest($1::uuid[], $2::integer[]) AS k (topic_id, partition_id)
JOIN sink_slices AS s
    ON s.topic_id = k.topic_id AND s.partition_id = k.partition_id AND s.adopted_base_offset IS NULL
JOIN sink_queries AS q ON q.query_id = s.query_id AND q.topic_id = s.topic_id
ORDER BY q.registered_at, s.query_id, s.topic_id, s.batch_id, s.partition_id
"""


class IntentRows(RowStore, Pipeline):
    async def register_intent(self, intent: Intent) -> IntentOutcome:
        checks.check_intent(intent)
        key = intent.key

        async def step(tx: RowTx) -> IntentOutcome:
            await _check_partitions(tx, intent)
            await tx.execute(
                """INSERT INTO sink_queries (query_id, topic_id, last_batch_id, complete, registered_at)
                   VALUES ($1, $2, $3, true, sh_now_ms()) ON CONFLICT DO NOTHING""",
                key.query_id,
                key.topic_id,
                _NO_BATCH,
            )
            query = await tx.fetchrow(
                "SELECT last_batch_id, complete FROM sink_queries WHERE query_id = $1 AND topic_id = $2 FOR UPDATE",
                key.query_id,
                key.topic_id,
            )
            assert query is not None
            last, complete = query["last_batch_id"], bool(query["complete"])
            if key.batch_id < last:
                raise BatchRegressed(
                    f"query {key.query_id} sends batch {key.batch_id} to {topic_id_text(key.topic_id)}, "
                    f"which already has its batch {last}"
                )
            if key.batch_id == last:
                return await _again(tx, intent, complete=complete)
            if not complete:
                earlier = IntentKey(query_id=key.query_id, topic_id=key.topic_id, batch_id=last)
                return IntentOutcome(verdict=IntentVerdict.PREVIOUS_INCOMPLETE, intent=await read_intent(tx, earlier))
            # Locked until we commit: who raises the horizon finds our references, or we find it raised (R6).
            horizon_ms = await tx.fetchval("SELECT gc_horizon_ms FROM store_info FOR SHARE")
            if any(piece.object.created_at_ms < horizon_ms for piece in intent.slices):
                return IntentOutcome(verdict=IntentVerdict.STALE_OBJECT, intent=None)
            await _replace(tx, intent)
            verdict = IntentVerdict.REGISTERED if intent.slices else IntentVerdict.COMPLETE
            return IntentOutcome(verdict=verdict, intent=Intent(key=key, slices=intent.slices))

        return await self._transact(step)

    async def get_intent(self, key: IntentKey) -> Intent | None:
        checks.check_text(key.query_id, "a query id")
        return await self._query(lambda tx: read_intent(tx, key))

    async def last_batch(self, query_id: str, topic_id: TopicId) -> int | None:
        checks.check_text(query_id, "a query id")
        row = await self._fetchrow(
            "SELECT last_batch_id FROM sink_queries WHERE query_id = $1 AND topic_id = $2", query_id, topic_id
        )
        return None if row is None or row[0] == _NO_BATCH else int(row[0])

    async def list_unadopted(self, keys: Sequence[PartitionKey]) -> list[tuple[IntentKey, int]]:
        checks.check_keys(keys, "partitions")
        return [
            (
                IntentKey(query_id=row["query_id"], topic_id=as_topic_id(row["topic_id"]), batch_id=row["batch_id"]),
                row["partition_id"],
            )
            for row in await self._fetch(_UNADOPTED, *key_columns(keys))
        ]


async def read_intent(tx: RowTx, key: IntentKey) -> Intent | None:
    """One statement, so that a later batch cannot replace the intent between two looks."""
    rows = await tx.fetch(_LATEST, key.query_id, key.topic_id, key.batch_id)
    if not rows:
        return None
    slices = [row for row in rows if row["seq"] is not None]
    return Intent(
        key=key,
        slices=tuple(to_slice(row) for row in slices),
        adopted=frozenset(row["partition_id"] for row in slices if row["adopted_base_offset"] is not None),
    )


async def _check_partitions(tx: RowTx, intent: Intent) -> None:
    """Locks the topic, so that its deletion cannot pass by and leave this intent behind."""
    count = await tx.fetchval(
        "SELECT partition_count FROM topics WHERE topic_id = $1 FOR KEY SHARE", intent.key.topic_id
    )
    if count is None:
        raise TopicNotFound(f"there is no topic with id {topic_id_text(intent.key.topic_id)}")
    beyond = next((piece.partition for piece in intent.slices if piece.partition >= count), None)
    if beyond is not None:
        raise PartitionNotFound(f"intent {intent.key} writes partition {beyond}; the topic has {count}")


async def _again(tx: RowTx, intent: Intent, *, complete: bool) -> IntentOutcome:
    """The answer to a batch that is registered already.

    The sender of the winning slices gets REGISTERED, complete or not. COMPLETE would tell it to discard them, and they
    are what stands in the log.
    """
    winner = await read_intent(tx, intent.key)
    if winner is not None and winner.slices and winner.slices == tuple(intent.slices):
        return IntentOutcome(verdict=IntentVerdict.REGISTERED, intent=winner)
    return IntentOutcome(verdict=IntentVerdict.COMPLETE if complete else IntentVerdict.PENDING, intent=winner)


async def _replace(tx: RowTx, intent: Intent) -> None:
    """The earlier batch is in the log, and its entries hold its objects. Its manifest is deleted."""
    key, slices = intent.key, intent.slices
    await tx.execute(
        """UPDATE sink_queries SET last_batch_id = $3, complete = $4, registered_at = sh_now_ms()
           WHERE query_id = $1 AND topic_id = $2""",
        key.query_id,
        key.topic_id,
        key.batch_id,
        not slices,
    )
    await tx.execute("DELETE FROM sink_slices WHERE query_id = $1 AND topic_id = $2", key.query_id, key.topic_id)
    if slices:
        await tx.execute(_INSERT_SLICES, key.query_id, key.topic_id, key.batch_id, *_columns(slices))
        await tx.reference([piece.object for piece in slices])
        partitions = sorted({piece.partition for piece in slices})
        keys = tuple(PartitionKey(key.topic_id, partition) for partition in partitions)
        await tx.notify(Change(kind=ChangeKind.INTENTS, keys=keys))


def _columns(slices: Sequence[IntentSlice]) -> tuple[list[Any], ...]:
    return (
        [piece.partition for piece in slices],
        [piece.object.key for piece in slices],
        [piece.object.size_bytes for piece in slices],
        [piece.object.created_at_ms for piece in slices],
        [piece.byte_offset for piece in slices],
        [piece.byte_length for piece in slices],
        [piece.record_count for piece in slices],
        [piece.encoding for piece in slices],
        [piece.min_timestamp_ms for piece in slices],
        [piece.max_timestamp_ms for piece in slices],
    )


def to_slice(row: Row) -> IntentSlice:
    return IntentSlice(
        partition=row["partition_id"],
        object=ObjectRef(key=row["object_key"], size_bytes=row["object_size"], created_at_ms=row["object_created_at"]),
        byte_offset=row["byte_offset"],
        byte_length=row["byte_length"],
        record_count=row["record_count"],
        encoding=row["encoding"],
        min_timestamp_ms=row["min_timestamp"],
        max_timestamp_ms=row["max_timestamp"],
    )
