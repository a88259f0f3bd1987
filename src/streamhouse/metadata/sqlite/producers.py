"""Producer windows and producer ids (R9)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    NO_PRODUCER,
    BatchOutcome,
    BatchRun,
    LeaderlessSlice,
    LeasedSlice,
    ProducerBatch,
    ProducerState,
)
from streamhouse.metadata.dedup import ProducerWindow
from streamhouse.metadata.sqlite.rows import sql_key
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Tx

_FIND: Final = """
    WITH asked (number, topic_id, partition_id, producer_id) AS (VALUES {rows})
    SELECT json_group_array(json_array(number, producer_epoch, json(batches)))
    FROM asked CROSS JOIN producer_windows w
        ON w.topic_id = asked.topic_id AND w.partition_id = asked.partition_id AND w.producer_id = asked.producer_id"""

_SAVE: Final = """
    INSERT INTO producer_windows (topic_id, partition_id, producer_id, producer_epoch, batches, updated_at)
    VALUES {rows}
    ON CONFLICT (topic_id, partition_id, producer_id) DO UPDATE SET
        producer_epoch = excluded.producer_epoch, batches = excluded.batches, updated_at = excluded.updated_at"""


class Windows:
    """The windows of every producer that a commit lists: loaded together, written back together."""

    __slots__ = ("_touched", "_tx", "_windows")

    def __init__(self, tx: Tx, slices: Sequence[LeasedSlice] | Sequence[LeaderlessSlice]) -> None:
        self._tx = tx
        self._touched: set[tuple[PartitionKey, int]] = set()
        listed = {
            (piece.key, batch.producer_id): None
            for piece in slices
            for batch in piece.batches
            if batch.producer_id != NO_PRODUCER
        }
        names = list(listed)
        self._windows = {name: ProducerWindow() for name in names}
        asked = [(number, *sql_key(key), producer_id) for number, (key, producer_id) in enumerate(names)]
        for number, epoch, batches in tx.json_rows(_FIND, asked):
            self._windows[names[number]] = ProducerWindow(epoch, _batches_of(batches))

    def judge(self, key: PartitionKey, batch: BatchRun) -> BatchOutcome | None:
        return self._windows[key, batch.producer_id].judge(batch)

    def record(self, key: PartitionKey, batch: BatchRun, base_offset: int) -> None:
        self._windows[key, batch.producer_id].record(batch, base_offset)
        self._touched.add((key, batch.producer_id))

    def write(self) -> None:
        rows = [
            (*sql_key(key), producer_id, window.producer_epoch, _batches_json(window.batches), self._tx.now_ms)
            for (key, producer_id), window in self._windows.items()
            if (key, producer_id) in self._touched
        ]
        self._tx.run_rows(_SAVE, rows)


def load_producers(tx: Tx, keys: Sequence[PartitionKey]) -> dict[PartitionKey, list[ProducerState]]:
    return {key: _producers_of(tx, key) for key in keys}


def _producers_of(tx: Tx, key: PartitionKey) -> list[ProducerState]:
    rows = tx.rows(
        "SELECT producer_id, producer_epoch, batches, updated_at FROM producer_windows "
        "WHERE topic_id = ? AND partition_id = ? ORDER BY producer_id",
        sql_key(key),
    )
    return [
        ProducerState(
            producer_id=number, producer_epoch=epoch, batches=tuple(_batches_of(json.loads(text))), updated_at_ms=at
        )
        for number, epoch, text, at in rows
    ]


def expire_producers(tx: Tx, *, idle_ms: int, limit: int) -> int:
    rows = tx.rows(
        "SELECT topic_id, partition_id, producer_id FROM producer_windows WHERE updated_at <= ? "
        "ORDER BY updated_at LIMIT ?",
        (tx.now_ms - idle_ms, limit),
    )
    return tx.run_many("DELETE FROM producer_windows WHERE topic_id = ? AND partition_id = ? AND producer_id = ?", rows)


def allocate_producer_ids(tx: Tx, count: int) -> range:
    end = int(
        tx.value("UPDATE store_info SET next_producer_id = next_producer_id + ? RETURNING next_producer_id", (count,))
    )
    return range(end - count, end)


def _batches_of(stored: list[list[int]]) -> list[ProducerBatch]:
    return [
        ProducerBatch(base_sequence=sequence, record_count=count, base_offset=offset)
        for sequence, count, offset in stored
    ]


def _batches_json(batches: Iterable[ProducerBatch]) -> str:
    return json.dumps(
        [(batch.base_sequence, batch.record_count, batch.base_offset) for batch in batches], separators=(",", ":")
    )


class ProducerCalls(Shell):
    async def load_producers(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, list[ProducerState]]:
        checks.check_keys(keys, "partitions")
        return await self._read(load_producers, tuple(keys))

    async def expire_producers(self, *, idle_ms: int, limit: int) -> int:
        checks.check_duration(idle_ms, "an idle time")
        checks.check_sweep_limit(limit)
        return await self._write(expire_producers, idle_ms=idle_ms, limit=limit)

    async def allocate_producer_ids(self, count: int) -> range:
        checks.check_producer_id_count(count)
        return await self._write(allocate_producer_ids, count)
