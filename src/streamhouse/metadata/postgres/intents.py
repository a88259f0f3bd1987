"""Sink intents: the manifest of one Spark batch into one topic, and the adoption of its shares (R8, R13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streamhouse.core.errors import BatchRegressed, NotFound, PartitionNotFound, TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId, topic_id_text
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    Intent,
    IntentKey,
    IntentOutcome,
    IntentSlice,
    IntentVerdict,
    ObjectRef,
    Pipeline,
    SliceOutcome,
)
from streamhouse.metadata.postgres.commits import REPEATED, VERDICTS
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.postgres.rows import key_columns, plain_uuid
from streamhouse.metadata.postgres.session import Connection, Row

_NO_BATCH: Final = -1
# The batch asked for if it is the query's last, slice by slice; one row of NULLs when it has none.
_LATEST: Final = """
SELECT s.seq, s.partition_id, s.object_key, s.object_size, s.object_created_at, s.byte_offset, s.byte_length,
       s.record_count, s.encoding, s.min_timestamp, s.max_timestamp, s.adopted_base_offset
FROM sink_queries AS q
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
_DROP_EARLIER: Final = "DELETE FROM sink_slices WHERE query_id = $1 AND topic_id = $2"


class PostgresIntents(Pipeline):
    _database: Database

    async def register_intent(self, intent: Intent) -> IntentOutcome:
        checks.check_intent(intent)
        return await self._database.transact(lambda connection: _register(connection, intent))

    async def get_intent(self, key: IntentKey) -> Intent | None:
        # One statement, so that a later batch cannot replace it between two looks.
        rows = await self._database.fetch(_LATEST, key.query_id, key.topic_id, key.batch_id)
        return _to_intent(key, rows) if rows else None

    async def last_batch(self, query_id: str, topic_id: TopicId) -> int | None:
        last = await self._database.fetchval(
            "SELECT last_batch_id FROM sink_queries WHERE query_id = $1 AND topic_id = $2", query_id, topic_id
        )
        return None if last is None or last == _NO_BATCH else int(last)

    async def list_unadopted(self, keys: Sequence[PartitionKey]) -> list[tuple[IntentKey, int]]:
        checks.check_keys(keys, "partitions")
        rows = await self._database.fetch(_UNADOPTED, *key_columns(keys))
        return [
            (
                IntentKey(
                    query_id=row["query_id"], topic_id=TopicId(plain_uuid(row["topic_id"])), batch_id=row["batch_id"]
                ),
                row["partition_id"],
            )
            for row in rows
        ]

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


async def _register(connection: Connection, intent: Intent) -> IntentOutcome:
    key = intent.key
    await _check_partitions(connection, intent)
    await connection.execute(
        """INSERT INTO sink_queries (query_id, topic_id, last_batch_id, complete, registered_at)
           VALUES ($1, $2, $3, true, sh_now_ms()) ON CONFLICT DO NOTHING""",
        key.query_id,
        key.topic_id,
        _NO_BATCH,
    )
    query = await connection.fetchrow(
        "SELECT last_batch_id, complete FROM sink_queries WHERE query_id = $1 AND topic_id = $2 FOR UPDATE",
        key.query_id,
        key.topic_id,
    )
    assert query is not None
    last = query["last_batch_id"]
    if key.batch_id < last:
        raise BatchRegressed(f"batch {key.batch_id} of query {key.query_id} comes after its batch {last}")
    if key.batch_id == last:
        return _judge_again(intent, await _read(connection, key))
    if not query["complete"]:
        earlier = IntentKey(query_id=key.query_id, topic_id=key.topic_id, batch_id=last)
        return IntentOutcome(verdict=IntentVerdict.PREVIOUS_INCOMPLETE, intent=await _read(connection, earlier))
    # Held to the end of this transaction: whoever raises it finds our references, or we find it raised (R6).
    horizon = await connection.fetchval("SELECT gc_horizon_ms FROM store_info FOR SHARE")
    if any(piece.object.created_at_ms < horizon for piece in intent.slices):
        return IntentOutcome(verdict=IntentVerdict.STALE_OBJECT, intent=None)
    return await _write(connection, intent)


def _judge_again(intent: Intent, winner: Intent) -> IntentOutcome:
    if not winner.slices and not intent.slices:
        return IntentOutcome(verdict=IntentVerdict.COMPLETE, intent=winner)
    if winner.slices == intent.slices:
        # Complete or not: COMPLETE says "discard mine", and mine are what stands in the log.
        return IntentOutcome(verdict=IntentVerdict.REGISTERED, intent=winner)
    verdict = IntentVerdict.COMPLETE if winner.complete else IntentVerdict.PENDING
    return IntentOutcome(verdict=verdict, intent=winner)


async def _check_partitions(connection: Connection, intent: Intent) -> None:
    """Holds the topic, so that its deletion cannot pass by and leave this intent behind."""
    count = await connection.fetchval(
        "SELECT partition_count FROM topics WHERE topic_id = $1 FOR KEY SHARE", intent.key.topic_id
    )
    if count is None:
        raise TopicNotFound(f"there is no topic with id {topic_id_text(intent.key.topic_id)}")
    beyond = next((piece.partition for piece in intent.slices if piece.partition >= count), None)
    if beyond is not None:
        raise PartitionNotFound(f"intent {intent.key} writes partition {beyond}; the topic has {count}")


async def _write(connection: Connection, intent: Intent) -> IntentOutcome:
    key, slices = intent.key, intent.slices
    await connection.execute(
        """UPDATE sink_queries SET last_batch_id = $3, complete = $4, registered_at = sh_now_ms()
           WHERE query_id = $1 AND topic_id = $2""",
        key.query_id,
        key.topic_id,
        key.batch_id,
        not slices,
    )
    # The former batch is in the log: its references became its entries' when they were adopted.
    await connection.execute(_DROP_EARLIER, key.query_id, key.topic_id)
    if slices:
        await connection.execute(_INSERT_SLICES, key.query_id, key.topic_id, key.batch_id, *_columns(slices))
        await connection.execute(
            "SELECT sh_reference($1, $2, $3, $4)",
            [piece.object.key for piece in slices],
            [piece.object.size_bytes for piece in slices],
            [piece.object.created_at_ms for piece in slices],
            [1] * len(slices),
        )
        partitions = sorted({piece.partition for piece in slices})
        await connection.execute(
            "SELECT sh_notify_keys('intents', $1, $2)", [key.topic_id] * len(partitions), partitions
        )
    verdict = IntentVerdict.REGISTERED if slices else IntentVerdict.COMPLETE
    return IntentOutcome(verdict=verdict, intent=Intent(key=key, slices=slices))


async def _read(connection: Connection, key: IntentKey) -> Intent:
    return _to_intent(key, await connection.fetch(_LATEST, key.query_id, key.topic_id, key.batch_id))


def _to_intent(key: IntentKey, rows: Sequence[Row]) -> Intent:
    slices = [row for row in rows if row["seq"] is not None]
    return Intent(
        key=key,
        slices=tuple(_to_slice(row) for row in slices),
        adopted=frozenset(row["partition_id"] for row in slices if row["adopted_base_offset"] is not None),
    )


def _columns(slices: Sequence[IntentSlice]) -> tuple[Any, ...]:
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


def _to_slice(row: Row) -> IntentSlice:
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
