"""What a step sees of its transaction, what an area sees of its store, and rows turned into the contract's values."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from streamhouse.core.errors import PartitionNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import (
    Change,
    Entry,
    EntryKind,
    LogState,
    ObjectRef,
    PartitionState,
    Topic,
    WriteMode,
)

T = TypeVar("T")

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


class Row(Protocol):
    """One row of an answer. Columns have a name and a place."""

    def __getitem__(self, key: Any, /) -> Any: ...


class RowTx(ABC):
    """A step's view of its transaction."""

    @abstractmethod
    async def fetch(self, query: str, *args: Any) -> list[Row]: ...

    @abstractmethod
    async def fetchrow(self, query: str, *args: Any) -> Row | None: ...

    @abstractmethod
    async def execute(self, query: str, *args: Any) -> int:
        """Returns how many rows were changed."""

    async def fetchval(self, query: str, *args: Any) -> Any:
        """The first column of the first row; None when there is no row."""
        row = await self.fetchrow(query, *args)
        return None if row is None else row[0]

    @abstractmethod
    async def notify(self, change: Change) -> None:
        """Tell every subscriber, once the transaction is committed."""

    @abstractmethod
    async def reference(self, objects: Sequence[ObjectRef]) -> None:
        """Add one reference for each time that an object is named."""

    @abstractmethod
    async def dereference(self, keys: Sequence[str]) -> None:
        """Drop one reference for each time that a key is named. Grace counts from the last one (R7)."""


Step = Callable[[RowTx], Coroutine[Any, Any, T]]


class RowStore(ABC):
    """The operations that the areas of this package need of a store."""

    @abstractmethod
    async def _query(self, step: Step[T]) -> T:
        """Run one statement that only reads."""

    @abstractmethod
    async def _statement(self, step: Step[T]) -> T:
        """Run one statement that writes."""

    @abstractmethod
    async def _transact(self, step: Step[T]) -> T:
        """Run several statements: all of them take effect, or none."""

    async def _fetch(self, query: str, *args: Any) -> list[Row]:
        return await self._query(lambda tx: tx.fetch(query, *args))

    async def _fetchrow(self, query: str, *args: Any) -> Row | None:
        return await self._query(lambda tx: tx.fetchrow(query, *args))


def as_uuid(stored: Any) -> UUID:
    """SQLite stores 16 bytes. asyncpg's own class does not pickle into a process without asyncpg."""
    return UUID(bytes=stored) if isinstance(stored, bytes) else UUID(int=stored.int)


def optional_uuid(stored: Any) -> UUID | None:
    return None if stored is None else as_uuid(stored)


def as_topic_id(stored: Any) -> TopicId:
    return TopicId(as_uuid(stored))


def key_columns(keys: Iterable[PartitionKey]) -> tuple[list[UUID], list[int]]:
    """Return keys as two lists, for ``unnest($1::uuid[], $2::integer[])``."""
    listed = list(keys)
    return [key.topic_id for key in listed], [key.partition for key in listed]


def to_key(row: Row) -> PartitionKey:
    return PartitionKey(as_topic_id(row["topic_id"]), row["partition_id"])


def to_topic(row: Row) -> Topic:
    return Topic(
        topic_id=as_topic_id(row["topic_id"]),
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


def found_partition(row: Row | None, key: PartitionKey) -> Row:
    if row is None:
        raise PartitionNotFound(f"there is no partition {key}")
    return row


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
