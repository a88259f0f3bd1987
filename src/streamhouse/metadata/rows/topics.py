"""Topics, their configs and their partitions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from streamhouse.core.errors import Conflict, InvalidPartitions, TopicExists, TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId, topic_id_text
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Change, ChangeKind, LogState, NewTopic, PartitionState, Topic, Topics
from streamhouse.metadata.rows.layer import (
    PARTITION_COLUMNS,
    TOPIC_COLUMNS,
    Row,
    RowStore,
    RowTx,
    found_partition,
    key_columns,
    to_partition,
    to_topic,
)

# Locked while partitions are added, so that the horizon cannot be raised past partitions that are not visible yet (R6).
_HOLD_HORIZON: Final = "SELECT gc_horizon_ms FROM store_info FOR SHARE"
_BY_ID: Final = f"SELECT {TOPIC_COLUMNS} FROM topics AS t WHERE t.topic_id = $1"
_INSERT: Final = f"""
INSERT INTO topics AS t (topic_id, name, partition_count, write_mode, config, created_at, version)
VALUES ($1, $2, $3, $4, $5::text::jsonb, sh_now_ms(), 1)
ON CONFLICT DO NOTHING
RETURNING {TOPIC_COLUMNS}
"""
# Lease rows outlive their topic. A producer that wrote to an earlier topic of this name continues its sequence.
_MARK_FORGOTTEN: Final = """
INSERT INTO forgotten_producers (topic_id, partition_id, up_to_producer_id)
SELECT $1, k.number, s.next_producer_id - 1 FROM store_info AS s CROSS JOIN unnest($3::integer[]) AS k (number)
WHERE EXISTS (SELECT 1 FROM partition_leases AS l WHERE l.topic = $2 AND l.topic_id IS NOT NULL)
"""
# A leaderless partition has no epochs. A leased one continues the epochs of the name's lease rows, so that an epoch
# never goes back. New partitions start at the horizon of the whole store.
_ADD_PARTITIONS: Final = """
INSERT INTO partitions (topic_id, partition_id, topic, write_mode, leader_epoch, gc_horizon_ms)
SELECT t.topic_id, k.number, t.name, t.write_mode,
       CASE WHEN t.write_mode = 'leased' THEN coalesce(l.epoch, 0) ELSE 0 END, s.gc_horizon_ms
FROM topics AS t CROSS JOIN store_info AS s CROSS JOIN unnest($2::integer[]) AS k (number)
LEFT JOIN partition_leases AS l ON l.topic = t.name AND l.partition_id = k.number
WHERE t.topic_id = $1
"""

# What a deletion removes, in the order of locks: partitions, then lease rows, then the rest. Entries stay for
# ``purge_deleted_topics``; lease rows stay for good. An expiry of producers under way has locked some windows and
# leaves its mark with them, so the marks go after the windows.
_DELETE: Final = (
    "SELECT 1 FROM partitions WHERE topic_id = $1 ORDER BY partition_id FOR UPDATE",
    "DELETE FROM partitions WHERE topic_id = $1",
    "SELECT 1 FROM partition_leases WHERE topic_id = $1 ORDER BY topic, partition_id FOR UPDATE",
    """UPDATE partition_leases SET lease_expires_at = least(lease_expires_at, sh_now_ms()), epoch = epoch + 1
       WHERE topic_id = $1""",
    "DELETE FROM lease_transfers WHERE topic_id = $1 AND ended_at IS NULL",
    """SELECT 1 FROM consumer_groups
       WHERE group_id IN (SELECT DISTINCT o.group_id FROM group_offsets AS o WHERE o.topic_id = $1)
       ORDER BY group_id FOR UPDATE""",
    """UPDATE consumer_groups SET offsets_version = offsets_version + 1
       WHERE group_id IN (SELECT DISTINCT o.group_id FROM group_offsets AS o WHERE o.topic_id = $1)""",
    "DELETE FROM group_offsets WHERE topic_id = $1",
    "DELETE FROM producer_windows WHERE topic_id = $1",
    "DELETE FROM forgotten_producers WHERE topic_id = $1",
    "DELETE FROM epoch_history WHERE topic_id = $1",
    "DELETE FROM flush_requests WHERE topic_id = $1",
    "DELETE FROM aborted_transactions WHERE topic_id = $1",
    "DELETE FROM sink_queries WHERE topic_id = $1",
)


class TopicRows(RowStore, Topics):
    async def _claim_leases(self, tx: RowTx, topic: NewTopic) -> None:
        """Called when a topic is new: what to do with lease rows that an operator wrote before it existed."""

    async def create_topic(self, new: NewTopic) -> Topic:
        checks.check_new_topic(new)

        async def step(tx: RowTx) -> Topic:
            await tx.fetch(_HOLD_HORIZON)
            config = json.dumps(dict(new.configs))
            inserted = await tx.fetchrow(
                _INSERT, new.topic_id, new.name, new.partition_count, str(new.write_mode), config
            )
            if inserted is None:
                same_id = await tx.fetchrow(_BY_ID, new.topic_id)
                if same_id is None:
                    raise TopicExists(f"there is a topic {new.name} already")
                return to_topic(same_id)
            if await tx.fetchval("SELECT 1 FROM entries WHERE topic_id = $1 LIMIT 1", new.topic_id):
                raise TopicExists(
                    f"topic id {new.topic_id} belongs to a deleted topic whose entries are not purged yet",
                    hint="create it under a new id",
                )
            numbers = list(range(new.partition_count))
            await tx.execute(_MARK_FORGOTTEN, new.topic_id, new.name, numbers)
            await tx.execute(_ADD_PARTITIONS, new.topic_id, numbers)
            await self._claim_leases(tx, new)
            await tx.notify(Change(kind=ChangeKind.TOPICS, name=new.name))
            return to_topic(inserted)

        return await self._transact(step)

    async def get_topic(self, name: str) -> Topic:
        row = await self._fetchrow(f"SELECT {TOPIC_COLUMNS} FROM topics AS t WHERE t.name = $1", name)
        if row is None:
            raise TopicNotFound(f"there is no topic {name[:260]!r}")
        return to_topic(row)

    async def get_topic_by_id(self, topic_id: TopicId) -> Topic:
        return _found(await self._fetchrow(_BY_ID, topic_id), topic_id)

    async def list_topics(self) -> list[Topic]:
        return [to_topic(row) for row in await self._fetch(f"SELECT {TOPIC_COLUMNS} FROM topics AS t ORDER BY t.name")]

    async def delete_topic(self, topic_id: TopicId) -> bool:
        async def step(tx: RowTx) -> bool:
            name = await tx.fetchval("DELETE FROM topics WHERE topic_id = $1 RETURNING name", topic_id)
            if name is None:
                return False
            for statement in _DELETE:
                await tx.execute(statement, topic_id)
            slices = await tx.fetch(
                "DELETE FROM sink_slices WHERE topic_id = $1 RETURNING object_key, adopted_base_offset", topic_id
            )
            pending = await tx.fetch("DELETE FROM compactions WHERE topic_id = $1 RETURNING object_key", topic_id)
            # An adopted slice holds its object no longer: the entry does.
            held = [row["object_key"] for row in slices if row["adopted_base_offset"] is None]
            await tx.dereference([*held, *(row["object_key"] for row in pending)])
            await tx.notify(Change(kind=ChangeKind.TOPICS, name=name))
            return True

        return await self._transact(step)

    async def alter_topic_configs(
        self,
        topic_id: TopicId,
        *,
        set_configs: Mapping[str, str],
        delete_configs: Sequence[str] = (),
        expected_version: int | None = None,
    ) -> Topic:
        checks.check_configs(set_configs)

        async def step(tx: RowTx) -> Topic:
            topic = _found(await tx.fetchrow(f"{_BY_ID} FOR UPDATE", topic_id), topic_id)
            wanted = {name: value for name, value in topic.configs.items() if name not in delete_configs}
            wanted |= set_configs
            if wanted == topic.configs:
                return topic
            if expected_version is not None and expected_version != topic.version:
                raise Conflict(
                    f"topic {topic.name} is at version {topic.version}, not {expected_version}",
                    hint="read the topic again and repeat the change",
                )
            row = await tx.fetchrow(
                f"""UPDATE topics AS t SET config = $2::text::jsonb, version = t.version + 1 WHERE t.topic_id = $1
                    RETURNING {TOPIC_COLUMNS}""",
                topic_id,
                json.dumps(wanted),
            )
            await tx.notify(Change(kind=ChangeKind.TOPICS, name=topic.name))
            return _found(row, topic_id)

        return await self._transact(step)

    async def grow_topic(self, topic_id: TopicId, partition_count: int) -> Topic:
        checks.check_partition_count(partition_count)

        async def step(tx: RowTx) -> Topic:
            await tx.fetch(_HOLD_HORIZON)
            topic = _found(await tx.fetchrow(f"{_BY_ID} FOR UPDATE", topic_id), topic_id)
            if partition_count < topic.partition_count:
                raise InvalidPartitions(
                    f"topic {topic.name} has {topic.partition_count} partitions; it cannot shrink to {partition_count}"
                )
            if partition_count == topic.partition_count:
                return topic
            row = await tx.fetchrow(
                f"""UPDATE topics AS t SET partition_count = $2, version = t.version + 1 WHERE t.topic_id = $1
                    RETURNING {TOPIC_COLUMNS}""",
                topic_id,
                partition_count,
            )
            await tx.execute(_ADD_PARTITIONS, topic_id, list(range(topic.partition_count, partition_count)))
            await tx.notify(Change(kind=ChangeKind.TOPICS, name=topic.name))
            return _found(row, topic_id)

        return await self._transact(step)

    async def get_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionState]:
        checks.check_keys(keys, "partitions")
        rows = await self._fetch(
            f"""SELECT {PARTITION_COLUMNS}
                FROM unnest($1::uuid[], $2::integer[]) WITH ORDINALITY AS k (topic_id, partition_id, n)
                JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
                ORDER BY k.n""",
            *key_columns(keys),
        )
        return [to_partition(row) for row in rows]

    async def set_log_state(self, key: PartitionKey, state: LogState) -> PartitionState:
        async def step(tx: RowTx) -> PartitionState:
            row = await tx.fetchrow(
                f"""UPDATE partitions AS p SET log_state = $3 WHERE p.topic_id = $1 AND p.partition_id = $2
                    RETURNING {PARTITION_COLUMNS}, p.topic""",
                key.topic_id,
                key.partition,
                str(state),
            )
            found = found_partition(row, key)
            await tx.notify(Change(kind=ChangeKind.TOPICS, name=found["topic"]))
            return to_partition(found)

        return await self._transact(step)


def _found(row: Row | None, topic_id: TopicId) -> Topic:
    if row is None:
        raise TopicNotFound(f"there is no topic with id {topic_id_text(topic_id)}")
    return to_topic(row)
