"""Leases as rows and as columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import Lease, LeaseKey, SlotKey
from streamhouse.metadata.rows.layer import Row, optional_uuid


def to_lease(key: LeaseKey, row: Row) -> Lease:
    return Lease(
        key=key,
        topic=row["topic"],
        agent_id=row["agent_id"],
        incarnation=optional_uuid(row["incarnation"]),
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
