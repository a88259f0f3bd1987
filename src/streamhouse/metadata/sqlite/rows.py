"""Keys and partitions as SQLite's own statements use them."""

from __future__ import annotations

from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import PartitionState
from streamhouse.metadata.rows.layer import PARTITION_COLUMNS, found_partition, to_partition
from streamhouse.metadata.sqlite.transactions import Tx

_PARTITION: Final = f"SELECT {PARTITION_COLUMNS} FROM partitions AS p WHERE p.topic_id = ? AND p.partition_id = ?"


def sql_key(key: PartitionKey) -> tuple[bytes, int]:
    return key.topic_id.bytes, key.partition


def lock_order(key: PartitionKey) -> tuple[int, int]:
    """(topic id, partition), the order of every multi-row step (R10); cheaper to compare than the key itself."""
    return key.topic_id.int, key.partition


def find_partition(tx: Tx, key: PartitionKey) -> PartitionState | None:
    row = tx.row(_PARTITION, sql_key(key))
    return None if row is None else to_partition(row)


def need_partition(tx: Tx, key: PartitionKey) -> PartitionState:
    return to_partition(found_partition(tx.row(_PARTITION, sql_key(key)), key))
