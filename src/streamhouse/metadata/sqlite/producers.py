"""Producer windows and producer ids (R9)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_PRODUCERS_PER_PARTITION
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    NO_PRODUCER,
    BatchOutcome,
    BatchRun,
    LeaderlessSlice,
    LeasedSlice,
    ProducerBatch,
    ProducerPage,
    ProducerState,
)
from streamhouse.metadata.dedup import ProducerWindow
from streamhouse.metadata.sqlite.rows import sql_key
from streamhouse.metadata.sqlite.transactions import Tx

_INT64_MAX: Final = 2**63 - 1

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


def load_producers(
    tx: Tx,
    keys: Sequence[PartitionKey],
    *,
    limit: int = MAX_PRODUCERS_PER_PARTITION,
    after: Mapping[PartitionKey, ProducerState] | None = None,
    idle_ms: int | None = None,
) -> dict[PartitionKey, ProducerPage]:
    checks.check_keys(keys, "partitions")
    checks.check_producer_page(limit, idle_ms)
    oldest_ms = 0 if idle_ms is None else tx.now_ms - idle_ms
    return {key: _page_of(tx, key, limit, (after or {}).get(key), oldest_ms) for key in keys}


def _page_of(tx: Tx, key: PartitionKey, limit: int, last: ProducerState | None, oldest_ms: int) -> ProducerPage:
    place = (_INT64_MAX, _INT64_MAX) if last is None else (last.updated_at_ms, last.producer_id)
    rows = tx.rows(
        "SELECT producer_id, producer_epoch, batches, updated_at FROM producer_windows "
        "WHERE topic_id = ? AND partition_id = ? AND (updated_at, producer_id) < (?, ?) AND updated_at >= ? "
        "ORDER BY updated_at DESC, producer_id DESC LIMIT ?",
        (*sql_key(key), *place, oldest_ms, limit + 1),
    )
    states = tuple(
        ProducerState(
            producer_id=number, producer_epoch=epoch, batches=tuple(_batches_of(json.loads(text))), updated_at_ms=at
        )
        for number, epoch, text, at in rows[:limit]
    )
    oldest_for_idle_ms = oldest_ms if last is None else 0  # the first page tells of all
    highest_id, marked_id, idle_id = tx.rows(
        "SELECT coalesce((SELECT max(producer_id) FROM producer_windows WHERE topic_id = :topic"
        " AND partition_id = :partition), -1), "
        "coalesce((SELECT up_to_producer_id FROM forgotten_producers WHERE topic_id = :topic"
        " AND partition_id = :partition), -1), "
        "coalesce((SELECT max(producer_id) FROM producer_windows "
        "WHERE topic_id = :topic AND partition_id = :partition AND updated_at < :oldest), -1)",
        dict(zip(("topic", "partition"), sql_key(key), strict=True)) | {"oldest": oldest_for_idle_ms},
    )[0]
    return ProducerPage(
        states=states,
        more=len(rows) > limit,
        forgotten_up_to=max(marked_id, idle_id),
        highest_id=highest_id,
    )


def expire_producers(tx: Tx, *, idle_ms: int, limit: int) -> int:
    checks.check_duration(idle_ms, "an idle time")
    checks.check_sweep_limit(limit)
    rows = tx.rows(
        "SELECT topic_id, partition_id, producer_id FROM producer_windows WHERE updated_at < ? "
        "ORDER BY updated_at LIMIT ?",
        (tx.now_ms - idle_ms, limit),
    )
    found = [tuple(row) for row in rows]
    # Producers up to this id may have written there before (R21).
    tx.run_many(
        "INSERT INTO forgotten_producers (topic_id, partition_id, up_to_producer_id) VALUES (?, ?, ?) "
        "ON CONFLICT (topic_id, partition_id) DO UPDATE SET "
        "up_to_producer_id = max(up_to_producer_id, excluded.up_to_producer_id)",
        found,
    )
    delete = "DELETE FROM producer_windows WHERE topic_id = ? AND partition_id = ? AND producer_id = ?"
    return tx.run_many(delete, found)


def allocate_producer_ids(tx: Tx, count: int) -> range:
    checks.check_producer_id_count(count)
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
