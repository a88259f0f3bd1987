"""What a commit or an adoption puts into the logs, gathered while partitions are judged and written together.

The one place where watermarks move and entries appear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import MetadataError
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import EntryKind, ObjectRef
from streamhouse.metadata.sqlite.objects import add_references
from streamhouse.metadata.sqlite.rows import sql_key
from streamhouse.metadata.sqlite.transactions import Row, Tx

# CROSS JOIN: look each asked one up, never the other way round.
_FIND: Final = """
    WITH asked (number, topic_id, partition_id) AS (VALUES {rows})
    SELECT json_group_array(json_array(
        number, log_state, write_mode, high_watermark, leader_epoch, gc_horizon_ms, max_timestamp))
    FROM asked CROSS JOIN partitions p ON p.topic_id = asked.topic_id AND p.partition_id = asked.partition_id"""

# The transaction holds the write lock, so what was judged still stands. The fence stands in this statement all the
# same: the write that moves the watermark is the one that checks (R1).
# It cannot begin with WITH: sqlite3 counts changed rows only of what begins with UPDATE.
_MOVE: Final = """
    UPDATE partitions SET high_watermark = moved.watermark, max_timestamp = moved.newest
    FROM (SELECT column1 AS topic_id, column2 AS partition_id, column3 AS found, column4 AS epoch,
            column5 AS watermark, column6 AS newest FROM (VALUES {rows})) AS moved
    WHERE partitions.topic_id = moved.topic_id AND partitions.partition_id = moved.partition_id
        AND high_watermark = moved.found AND leader_epoch = moved.epoch AND log_state = 'OPEN'"""

_INSERT: Final = """
    INSERT INTO entries (topic_id, partition_id, base_offset, end_offset, kind, object_key, byte_offset, byte_length,
        record_count, encoding, min_timestamp, max_timestamp, running_max_timestamp, epoch, created_at)
    VALUES {rows}"""


@dataclass(slots=True)
class Tail:
    """The end of one partition's log: as found, and how far this step has moved it."""

    key: PartitionKey
    is_open: bool
    write_mode: str
    found_watermark: int
    leader_epoch: int
    gc_horizon_ms: int
    watermark: int
    max_timestamp_ms: int


def find_tails(tx: Tx, keys: Sequence[PartitionKey]) -> dict[PartitionKey, Tail]:
    """The tails of those partitions that exist."""
    asked = [(number, *sql_key(key)) for number, key in enumerate(keys)]
    return {
        (key := keys[number]): Tail(key, state == "OPEN", mode, watermark, epoch, horizon, watermark, max_time)
        for number, state, mode, watermark, epoch, horizon, max_time in tx.json_rows(_FIND, asked)
    }


class Appends:
    """Entries and watermarks of one step, written by ``write``."""

    __slots__ = ("_moved", "_named", "_rows", "_tx")

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._moved: dict[PartitionKey, Tail] = {}
        self._rows: list[Row] = []
        self._named: list[ObjectRef] = []

    @property
    def moved(self) -> tuple[PartitionKey, ...]:
        return tuple(self._moved)

    def append(
        self,
        tail: Tail,
        *,
        kind: EntryKind,
        reference: ObjectRef,
        byte_offset: int,
        byte_length: int,
        record_count: int,
        encoding: str,
        min_timestamp_ms: int,
        max_timestamp_ms: int,
    ) -> int:
        """One entry at the tail; returns its base offset."""
        base = tail.watermark
        tail.watermark += record_count
        tail.max_timestamp_ms = max(tail.max_timestamp_ms, max_timestamp_ms)
        self._rows.append(
            (
                *sql_key(tail.key),
                base,
                tail.watermark - 1,
                kind.value,
                reference.key,
                byte_offset,
                byte_length,
                record_count,
                encoding,
                min_timestamp_ms,
                max_timestamp_ms,
                tail.max_timestamp_ms,
                tail.leader_epoch,
                self._tx.now_ms,
            )
        )
        self._named.append(reference)
        self._moved[tail.key] = tail
        return base

    def write(self) -> None:
        moved = self._tx.run_rows(
            _MOVE,
            [
                (*sql_key(tail.key), tail.found_watermark, tail.leader_epoch, tail.watermark, tail.max_timestamp_ms)
                for tail in self._moved.values()
            ],
        )
        if moved != len(self._moved):
            raise MetadataError(f"{len(self._moved) - moved} partitions changed under the write lock")
        self._tx.run_rows(_INSERT, self._rows)
        add_references(self._tx, self._named)
