"""Rows of the database turned into the contract's dataclasses, and lists of keys into columns. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import (
    Entry,
    EntryKind,
    Lease,
    LeaseKey,
    LogState,
    PartitionState,
    SlotKey,
    Topic,
    WriteMode,
)
from streamhouse.metadata.postgres.session import Row

PARTITION_COLUMNS: Final = """
    p.topic_id, p.partition_id, p.log_state, p.high_watermark, p.log_start_offset,
    coalesce(p.first_unstable_offset, p.high_watermark) AS last_stable_offset,
    p.leader_epoch, p.write_mode, p.gc_horizon_ms, p.compaction_cursor
"""
ENTRY_COLUMNS: Final = """
    e.base_offset, e.end_offset, e.kind, e.object_key, e.byte_offset, e.byte_length, e.record_count, e.encoding,
    e.min_timestamp, e.max_timestamp, e.epoch, e.created_at
"""
TOPIC_COLUMNS: Final = """
    t.topic_id, t.name, t.partition_count, t.write_mode, t.config::text AS config, t.created_at, t.version
"""


def plain_uuid(value: UUID) -> UUID:
    """asyncpg's own UUID class compares equal, but does not pickle into a process without asyncpg."""
    return UUID(int=value.int)


def key_columns(keys: Iterable[PartitionKey]) -> tuple[list[UUID], list[int]]:
    listed = list(keys)
    return [key.topic_id for key in listed], [key.partition for key in listed]


def to_key(row: Row) -> PartitionKey:
    return PartitionKey(TopicId(plain_uuid(row["topic_id"])), row["partition_id"])


def to_topic(row: Row) -> Topic:
    return Topic(
        topic_id=TopicId(plain_uuid(row["topic_id"])),
        name=row["name"],
        partition_count=row["partition_count"],
        configs=json.loads(row["config"]),
        write_mode=WriteMode(row["write_mode"]),
        created_at_ms=row["created_at"],
        version=row["version"],
    )


def to_partition(row: Row) -> PartitionState:
    return PartitionState(
        key=to_key(row),
        log_state=LogState(row["log_state"]),
        high_watermark=row["high_watermark"],
        log_start_offset=row["log_start_offset"],
        last_stable_offset=row["last_stable_offset"],
        leader_epoch=row["leader_epoch"],
        write_mode=WriteMode(row["write_mode"]),
        gc_horizon_ms=row["gc_horizon_ms"],
        compaction_cursor=row["compaction_cursor"],
    )


def to_entry(row: Row) -> Entry:
    return Entry(
        base_offset=row["base_offset"],
        end_offset=row["end_offset"],
        kind=EntryKind(row["kind"]),
        object_key=row["object_key"],
        byte_offset=row["byte_offset"],
        byte_length=row["byte_length"],
        record_count=row["record_count"],
        encoding=row["encoding"],
        min_timestamp_ms=row["min_timestamp"],
        max_timestamp_ms=row["max_timestamp"],
        epoch=row["epoch"],
        created_at_ms=row["created_at"],
    )


def to_lease(key: LeaseKey, row: Row) -> Lease:
    incarnation = row["incarnation"]
    return Lease(
        key=key,
        topic=row["topic"],
        agent_id=row["agent_id"],
        incarnation=None if incarnation is None else plain_uuid(incarnation),
        epoch=row["epoch"],
        acquired_at_ms=row["acquired_at"],
        expires_at_ms=row["expires_at"],
        expired=row["expired"],
        high_watermark=row["high_watermark"],
    )


def split_lease_keys(keys: Sequence[LeaseKey]) -> tuple[list[Any], list[Any], list[Any], list[Any], list[Any]]:
    """Columns of topic ids, partition ids and their places, and of slots and their places, among ``keys``."""
    partitions = [(key, place) for place, key in enumerate(keys) if isinstance(key, PartitionKey)]
    slots = [(key, place) for place, key in enumerate(keys) if isinstance(key, SlotKey)]
    return (
        [key.topic_id for key, _ in partitions],
        [key.partition for key, _ in partitions],
        [place for _, place in partitions],
        [key.slot for key, _ in slots],
        [place for _, place in slots],
    )


def changed_rows(status: str) -> int:
    """How many rows a statement touched, from its tag: ``DELETE 3``."""
    return int(status.rpartition(" ")[2])
