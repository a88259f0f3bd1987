"""Topics, their configs and their partitions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from streamhouse.core.errors import (
    Conflict,
    InvalidPartitions,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
)
from streamhouse.core.ids import PartitionKey, TopicId, topic_id_text
from streamhouse.metadata import checks
from streamhouse.metadata.contract import LogState, NewTopic, PartitionState, Topic, Topics
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.postgres.rows import PARTITION_COLUMNS, TOPIC_COLUMNS, key_columns, to_partition, to_topic
from streamhouse.metadata.postgres.session import Connection, Row

# Held while partitions are added, so that the horizon cannot be raised past some that nobody sees yet (R6).
_HOLD_HORIZON: Final = "SELECT gc_horizon_ms FROM store_info FOR SHARE"
_BY_ID: Final = f"SELECT {TOPIC_COLUMNS} FROM topics AS t WHERE t.topic_id = $1"
_BY_NAME: Final = f"SELECT {TOPIC_COLUMNS} FROM topics AS t WHERE t.name = $1"
_INSERT: Final = f"""
INSERT INTO topics AS t (topic_id, name, partition_count, write_mode, config, created_at, version)
VALUES ($1, $2, $3, $4, $5::text::jsonb, sh_now_ms(), 1)
ON CONFLICT DO NOTHING
RETURNING {TOPIC_COLUMNS}
"""
_HAS_ENTRIES: Final = "SELECT EXISTS (SELECT 1 FROM entries AS e WHERE e.topic_id = $1)"
# Lease rows outlive their topic. Producers that wrote to an earlier topic of this name go on where they were.
_MARK_FORGOTTEN: Final = """
INSERT INTO forgotten_producers (topic_id, partition_id, up_to_producer_id)
SELECT $1, number, s.next_producer_id - 1 FROM store_info AS s, generate_series(0, $3 - 1) AS number
WHERE EXISTS (SELECT 1 FROM partition_leases AS l WHERE l.topic = $2 AND l.topic_id IS NOT NULL)
"""
_NOTIFY: Final = "SELECT sh_notify_name('topics', $1)"

# What a deletion takes along, in the order of locks: partitions, then lease rows, then the rest.
_DELETE_PARTITIONS: Final = """
WITH held AS (
    SELECT p.topic_id, p.partition_id FROM partitions AS p WHERE p.topic_id = $1 ORDER BY p.partition_id FOR UPDATE
)
DELETE FROM partitions AS p USING held AS h WHERE p.topic_id = h.topic_id AND p.partition_id = h.partition_id
"""
_END_LEASES: Final = """
WITH held AS (
    SELECT l.topic, l.partition_id FROM partition_leases AS l WHERE l.topic_id = $1
    ORDER BY l.topic, l.partition_id FOR UPDATE
)
UPDATE partition_leases AS l SET lease_expires_at = least(l.lease_expires_at, $2), epoch = l.epoch + 1
FROM held AS h WHERE l.topic = h.topic AND l.partition_id = h.partition_id
"""
_BUMP_GROUPS: Final = """
WITH held AS (
    SELECT g.group_id FROM consumer_groups AS g
    WHERE g.group_id IN (SELECT DISTINCT o.group_id FROM group_offsets AS o WHERE o.topic_id = $1)
    ORDER BY g.group_id FOR UPDATE
)
UPDATE consumer_groups AS g SET offsets_version = g.offsets_version + 1 FROM held AS h WHERE g.group_id = h.group_id
"""
_DELETE_REST: Final = (
    "DELETE FROM lease_transfers WHERE topic_id = $1 AND ended_at IS NULL",
    _BUMP_GROUPS,
    "DELETE FROM group_offsets WHERE topic_id = $1",
    "DELETE FROM producer_windows WHERE topic_id = $1",
    # After the windows: an expiry under way has locked some of them, and leaves its mark with them.
    "DELETE FROM forgotten_producers WHERE topic_id = $1",
    "DELETE FROM epoch_history WHERE topic_id = $1",
    "DELETE FROM flush_requests WHERE topic_id = $1",
    "DELETE FROM aborted_transactions WHERE topic_id = $1",
    "DELETE FROM sink_queries WHERE topic_id = $1",
)
_DEREFERENCE_REST: Final = """
WITH slices AS (DELETE FROM sink_slices WHERE topic_id = $1 RETURNING object_key, adopted_base_offset),
     pending AS (DELETE FROM compactions WHERE topic_id = $1 RETURNING object_key)
SELECT array_agg(object_key)
FROM (
    SELECT object_key FROM slices WHERE adopted_base_offset IS NULL
    UNION ALL SELECT object_key FROM pending
) AS dropped
"""


class PostgresTopics(Topics):
    _database: Database

    async def create_topic(self, new: NewTopic) -> Topic:
        checks.check_new_topic(new)

        async def work(connection: Connection) -> Topic:
            await connection.execute(_HOLD_HORIZON)
            config = json.dumps(dict(new.configs))
            inserted = await connection.fetchrow(
                _INSERT, new.topic_id, new.name, new.partition_count, str(new.write_mode), config
            )
            if inserted is None:
                mine = await connection.fetchrow(_BY_ID, new.topic_id)
                if mine is None:
                    raise TopicExists(f"topic {new.name} exists already")
                return to_topic(mine)
            if await connection.fetchval(_HAS_ENTRIES, new.topic_id):
                raise TopicExists(
                    f"topic id {new.topic_id} belongs to a deleted topic whose entries are not purged yet",
                    hint="create it under a new id",
                )
            await connection.execute("SELECT sh_add_partitions($1, 0, $2)", new.topic_id, new.partition_count)
            await connection.execute(_MARK_FORGOTTEN, new.topic_id, new.name, new.partition_count)
            await connection.execute(_NOTIFY, new.name)
            return to_topic(inserted)

        return await self._database.transact(work)

    async def get_topic(self, name: str) -> Topic:
        row = await self._database.fetchrow(_BY_NAME, name)
        if row is None:
            raise TopicNotFound(f"there is no topic {name}")
        return to_topic(row)

    async def get_topic_by_id(self, topic_id: TopicId) -> Topic:
        return _found(await self._database.fetchrow(_BY_ID, topic_id), topic_id)

    async def list_topics(self) -> list[Topic]:
        rows = await self._database.fetch(f"SELECT {TOPIC_COLUMNS} FROM topics AS t ORDER BY t.name")
        return [to_topic(row) for row in rows]

    async def delete_topic(self, topic_id: TopicId) -> bool:
        async def work(connection: Connection) -> bool:
            name = await connection.fetchval("DELETE FROM topics WHERE topic_id = $1 RETURNING name", topic_id)
            if name is None:
                return False
            await connection.execute(_DELETE_PARTITIONS, topic_id)
            await connection.execute(_END_LEASES, topic_id, await connection.fetchval("SELECT sh_now_ms()"))
            for statement in _DELETE_REST:
                await connection.execute(statement, topic_id)
            dropped = await connection.fetchval(_DEREFERENCE_REST, topic_id)
            if dropped:
                await connection.execute("SELECT sh_dereference($1)", dropped)
            await connection.execute(_NOTIFY, name)
            return True

        return await self._database.transact(work)

    async def alter_topic_configs(
        self,
        topic_id: TopicId,
        *,
        set_configs: Mapping[str, str],
        delete_configs: Sequence[str] = (),
        expected_version: int | None = None,
    ) -> Topic:
        checks.check_configs(set_configs)

        async def work(connection: Connection) -> Topic:
            topic = _found(await connection.fetchrow(f"{_BY_ID} FOR UPDATE", topic_id), topic_id)
            wanted = {name: value for name, value in topic.configs.items() if name not in delete_configs}
            wanted |= set_configs
            if wanted == topic.configs:
                return topic
            if expected_version is not None and expected_version != topic.version:
                raise Conflict(
                    f"topic {topic.name} is at version {topic.version}, not {expected_version}",
                    hint="read the topic again and repeat the change",
                )
            row = await connection.fetchrow(
                f"""UPDATE topics AS t SET config = $2::text::jsonb, version = t.version + 1 WHERE t.topic_id = $1
                    RETURNING {TOPIC_COLUMNS}""",
                topic_id,
                json.dumps(wanted),
            )
            await connection.execute(_NOTIFY, topic.name)
            return _found(row, topic_id)

        return await self._database.transact(work)

    async def grow_topic(self, topic_id: TopicId, partition_count: int) -> Topic:
        checks.check_partition_count(partition_count)

        async def work(connection: Connection) -> Topic:
            await connection.execute(_HOLD_HORIZON)
            topic = _found(await connection.fetchrow(f"{_BY_ID} FOR UPDATE", topic_id), topic_id)
            if partition_count < topic.partition_count:
                raise InvalidPartitions(
                    f"topic {topic.name} has {topic.partition_count} partitions; it cannot shrink to {partition_count}"
                )
            if partition_count == topic.partition_count:
                return topic
            row = await connection.fetchrow(
                f"""UPDATE topics AS t SET partition_count = $2, version = t.version + 1 WHERE t.topic_id = $1
                    RETURNING {TOPIC_COLUMNS}""",
                topic_id,
                partition_count,
            )
            await connection.execute(
                "SELECT sh_add_partitions($1, $2, $3)", topic_id, topic.partition_count, partition_count
            )
            await connection.execute(_NOTIFY, topic.name)
            return _found(row, topic_id)

        return await self._database.transact(work)

    async def get_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionState]:
        checks.check_keys(keys, "partitions")
        rows = await self._database.fetch(
            f"""SELECT {PARTITION_COLUMNS}
                FROM unnest($1::uuid[], $2::integer[]) WITH ORDINALITY AS k (topic_id, partition_id, n)
                JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
                ORDER BY k.n""",
            *key_columns(keys),
        )
        return [to_partition(row) for row in rows]

    async def set_log_state(self, key: PartitionKey, state: LogState) -> PartitionState:
        row = await self._database.fetchrow(
            f"""UPDATE partitions AS p SET log_state = $3 WHERE p.topic_id = $1 AND p.partition_id = $2
                RETURNING {PARTITION_COLUMNS}""",
            key.topic_id,
            key.partition,
            str(state),
        )
        if row is None:
            raise PartitionNotFound(f"there is no partition {key}")
        return to_partition(row)


def _found(row: Row | None, topic_id: TopicId) -> Topic:
    if row is None:
        raise TopicNotFound(f"there is no topic with id {topic_id_text(topic_id)}")
    return to_topic(row)
