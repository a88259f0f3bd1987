"""Sweeps over the epoch histories of all partitions: leaderships go when nothing needs their rows any more (R3, R22).

Which rows may go, and why that changes no answer:

    epoch  WAL  start   log start 40, nothing below 30 left of the first entry
      3     A     0     goes (a): the next begins at 20, and offsets below 30 are gone
      4     B    20     stays: it covers offset 30
      5     A    40     stays
      6     A    40     goes (b): like epoch 5, with nothing written in between
      7     A    40     goes (b)
      8     B    40     stays: it is the newest

(a) drops the oldest rows of a history, up to the one that covers the first offset left: a leader answers with the log
start for an epoch older than its history, and with the log start for one that ends below it. (b) leaves the first row
of its like. A later leadership of the same WAL at the same offset ends no epoch earlier and makes no frame foreign, so
F (R3) is the same for all rows that stay. Not so for a leadership of *another* WAL that wrote nothing: it is what makes
the frames of the one before foreign, and ``lost_commits.py`` writes such rows on purpose (R23). Those stay.

A row that is gone is missed by frames of its own epoch only: the store does not know their leadership any more. Their
agent decides about them when it leads the partition again, at the latest; other agents' leaderships make them foreign.
So ``keep_ms`` is the time that an agent has for this, counted from the end of the leadership.

Both rules stay true of a row once they are true: a log start never goes back, and rows are added at the end only. So
two sweeps at once are harmless, and each passes by what the other is deleting.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata import checks
from streamhouse.metadata.contract import HistoryPlace, HistorySweep, Log
from streamhouse.metadata.rows.layer import RowStore, RowTx, to_key

_BEGINNING: Final = HistoryPlace(key=PartitionKey(TopicId(UUID(int=0)), -1), epoch=-1)
_END: Final = HistoryPlace(key=PartitionKey(TopicId(UUID(int=2**128 - 1)), 2**31 - 1), epoch=2**63 - 1)

# By the primary key, and not by age: most old rows must stay, and would be looked at again by every batch.
_LAST_OF_STEP: Final = """
SELECT h.topic_id, h.partition_id, h.epoch FROM epoch_history AS h
WHERE (h.topic_id, h.partition_id, h.epoch) > ($1, $2, $3)
ORDER BY h.topic_id, h.partition_id, h.epoch LIMIT 1 OFFSET $4
"""
# ``n`` is the leadership after ``h``; ``b`` is the one before it. An entry may begin below the log start.
_EXPIRE: Final = """
WITH old AS MATERIALIZED (
    SELECT h.topic_id, h.partition_id, h.epoch FROM epoch_history AS h
    JOIN epoch_history AS n ON n.topic_id = h.topic_id AND n.partition_id = h.partition_id AND n.epoch = (
        SELECT min(m.epoch) FROM epoch_history AS m
        WHERE m.topic_id = h.topic_id AND m.partition_id = h.partition_id AND m.epoch > h.epoch)
    JOIN partitions AS p ON p.topic_id = h.topic_id AND p.partition_id = h.partition_id
    WHERE (h.topic_id, h.partition_id, h.epoch) > ($1, $2, $3)
        AND (h.topic_id, h.partition_id, h.epoch) <= ($4, $5, $6)
        AND greatest(h.started_at, n.started_at) < (SELECT sh_now_ms()) - $7::bigint
        AND (
            n.start_offset <= least(p.log_start_offset, coalesce(
                (SELECT e.base_offset FROM entries AS e
                 WHERE e.topic_id = p.topic_id AND e.partition_id = p.partition_id
                     AND e.end_offset >= p.log_start_offset
                 ORDER BY e.end_offset LIMIT 1),
                p.log_start_offset))
            OR (n.start_offset = h.start_offset AND EXISTS (
                SELECT 1 FROM epoch_history AS b
                WHERE b.topic_id = h.topic_id AND b.partition_id = h.partition_id
                    AND b.wal_id = h.wal_id AND b.start_offset = h.start_offset AND b.epoch = (
                        SELECT max(m.epoch) FROM epoch_history AS m
                        WHERE m.topic_id = h.topic_id AND m.partition_id = h.partition_id AND m.epoch < h.epoch)))
        )
    ORDER BY h.topic_id, h.partition_id, h.epoch FOR UPDATE OF h SKIP LOCKED
)
DELETE FROM epoch_history WHERE (topic_id, partition_id, epoch) IN (SELECT topic_id, partition_id, epoch FROM old)
RETURNING epoch
"""


class EpochRows(RowStore, Log):
    async def expire_epochs(self, *, keep_ms: int, limit: int, after: HistoryPlace | None = None) -> HistorySweep:
        checks.check_duration(keep_ms, "an age")
        checks.check_sweep_limit(limit)
        start = _columns(after or _BEGINNING)

        async def step(tx: RowTx) -> HistorySweep:
            row = await tx.fetchrow(_LAST_OF_STEP, *start, limit - 1)
            last = None if row is None else HistoryPlace(key=to_key(row), epoch=row["epoch"])
            deleted = await tx.fetch(_EXPIRE, *start, *_columns(last or _END), keep_ms)
            return HistorySweep(deleted=len(deleted), after=last)

        return await self._transact(step)


def _columns(place: HistoryPlace) -> tuple[Any, ...]:
    return place.key.topic_id, place.key.partition, place.epoch
