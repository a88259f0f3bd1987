"""Producer windows and producer ids (R9)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import ProducerBatch, ProducerState
from streamhouse.metadata.dedup import ProducerWindow
from streamhouse.metadata.sqlite.rows import sql_key
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Tx


class Windows:
    """The windows that one commit touches: each loaded once, all written back together."""

    __slots__ = ("_loaded", "_tx")

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._loaded: dict[tuple[PartitionKey, int], ProducerWindow] = {}

    def of(self, key: PartitionKey, producer_id: int) -> ProducerWindow:
        window = self._loaded.get((key, producer_id))
        if window is None:
            window = self._loaded[key, producer_id] = self._load(key, producer_id)
        return window

    def _load(self, key: PartitionKey, producer_id: int) -> ProducerWindow:
        row = self._tx.row(
            "SELECT producer_epoch, batches FROM producer_windows "
            "WHERE topic_id = ? AND partition_id = ? AND producer_id = ?",
            (*sql_key(key), producer_id),
        )
        return ProducerWindow() if row is None else ProducerWindow(row[0], _batches_of(row[1]))

    def write(self) -> None:
        """A window that was only looked at counts as touched too: its producer is alive."""
        self._tx.run_many(
            "INSERT INTO producer_windows (topic_id, partition_id, producer_id, producer_epoch, batches, updated_at) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (topic_id, partition_id, producer_id) DO UPDATE SET "
            "producer_epoch = excluded.producer_epoch, batches = excluded.batches, updated_at = excluded.updated_at",
            [
                (*sql_key(key), producer_id, window.producer_epoch, _batches_json(window.batches), self._tx.now_ms)
                for (key, producer_id), window in self._loaded.items()
                if window.batches
            ],
        )


def load_producers(tx: Tx, keys: Sequence[PartitionKey]) -> dict[PartitionKey, list[ProducerState]]:
    return {key: _producers_of(tx, key) for key in keys}


def _producers_of(tx: Tx, key: PartitionKey) -> list[ProducerState]:
    rows = tx.rows(
        "SELECT producer_id, producer_epoch, batches, updated_at FROM producer_windows "
        "WHERE topic_id = ? AND partition_id = ? ORDER BY producer_id",
        sql_key(key),
    )
    return [
        ProducerState(producer_id=number, producer_epoch=epoch, batches=tuple(_batches_of(text)), updated_at_ms=at)
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


def _batches_of(text: str) -> list[ProducerBatch]:
    return [
        ProducerBatch(base_sequence=sequence, record_count=count, base_offset=offset)
        for sequence, count, offset in json.loads(text)
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
