"""Topics and their partitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from streamhouse.core.errors import Conflict, InvalidPartitions, TopicExists, TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId, topic_id_text
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    Change,
    ChangeKind,
    LogState,
    NewTopic,
    PartitionState,
    Topic,
    WriteMode,
)
from streamhouse.metadata.sqlite.intents import forget_intents
from streamhouse.metadata.sqlite.objects import drop_references
from streamhouse.metadata.sqlite.producers import mark_forgotten
from streamhouse.metadata.sqlite.rows import find_partition, need_partition, sql_key, topic_id_of
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Row, Tx

_COLUMNS: Final = "topic_id, name, partition_count, config, write_mode, created_at, version"

# A leaderless partition has no epochs. A leased one goes on from the name's lease rows: epochs never go back (S1.13).
_ADD_PARTITION: Final = """
    INSERT INTO partitions (topic_id, partition_id, topic, write_mode, leader_epoch, gc_horizon_ms)
    SELECT :topic_id, :partition, :name, :mode,
        CASE :mode WHEN 'leased' THEN coalesce(
            (SELECT epoch FROM partition_leases WHERE topic = :name AND partition_id = :partition), 0) ELSE 0 END,
        gc_horizon_ms
    FROM store_info"""

# What goes with a topic at once. Entries stay for purge_deleted_topics; lease rows stay for good.
_OWNED: Final = (
    "partitions",
    "epoch_history",
    "producer_windows",
    "forgotten_producers",
    "group_offsets",
    "flush_requests",
    "compactions",
    "aborted_transactions",
)


def create_topic(tx: Tx, new: NewTopic) -> Topic:
    standing = _by_id(tx, new.topic_id)
    if standing is not None:
        return standing
    if tx.value("SELECT 1 FROM topics WHERE name = ?", (new.name,)):
        raise TopicExists(f"there is a topic {new.name} already")
    if tx.value("SELECT 1 FROM entries WHERE topic_id = ? LIMIT 1", (new.topic_id.bytes,)):
        raise TopicExists(
            f"topic id {new.topic_id} belongs to a deleted topic whose entries are not purged yet",
            hint="create it under a new id",
        )
    tx.run(
        "INSERT INTO topics (topic_id, name, partition_count, write_mode, config, created_at, version) "
        "VALUES (?, ?, ?, ?, ?, ?, 1)",
        (
            new.topic_id.bytes,
            new.name,
            new.partition_count,
            new.write_mode.value,
            json.dumps(dict(new.configs)),
            tx.now_ms,
        ),
    )
    _add_partitions(tx, new.topic_id, new.name, new.write_mode, range(new.partition_count))
    # Lease rows outlive their topic. Producers that wrote to an earlier topic of this name go on where they were.
    if tx.row("SELECT 1 FROM partition_leases WHERE topic = ? AND topic_id IS NOT NULL LIMIT 1", (new.name,)):
        newest = int(tx.value("SELECT next_producer_id FROM store_info")) - 1
        mark_forgotten(tx, [(new.topic_id.bytes, number, newest) for number in range(new.partition_count)])
    # Leases that an operator wrote before the topic existed now belong to it.
    tx.run(
        "UPDATE partition_leases SET topic_id = ? WHERE topic = ? AND topic_id IS NULL", (new.topic_id.bytes, new.name)
    )
    tx.notify(Change(kind=ChangeKind.TOPICS, name=new.name))
    return _need(tx, new.topic_id)


def get_topic(tx: Tx, name: str) -> Topic:
    row = tx.row(f"SELECT {_COLUMNS} FROM topics WHERE name = ?", (name,))
    if row is None:
        raise TopicNotFound(f"there is no topic {name[:260]!r}")
    return _topic_of(row)


def get_topic_by_id(tx: Tx, topic_id: TopicId) -> Topic:
    return _need(tx, topic_id)


def list_topics(tx: Tx) -> list[Topic]:
    return [_topic_of(row) for row in tx.rows(f"SELECT {_COLUMNS} FROM topics ORDER BY name")]


def delete_topic(tx: Tx, topic_id: TopicId) -> bool:
    topic = _by_id(tx, topic_id)
    if topic is None:
        return False
    of_topic = (topic_id.bytes,)
    drop_references(tx, (key for (key,) in tx.rows("SELECT object_key FROM compactions WHERE topic_id = ?", of_topic)))
    forget_intents(tx, topic_id)
    tx.run(
        "UPDATE consumer_groups SET offsets_version = offsets_version + 1 "
        "WHERE group_id IN (SELECT group_id FROM group_offsets WHERE topic_id = ?)",
        of_topic,
    )
    for table in _OWNED:
        tx.run(f"DELETE FROM {table} WHERE topic_id = ?", of_topic)
    tx.run("DELETE FROM lease_transfers WHERE topic_id = ? AND ended_at IS NULL", of_topic)
    tx.run(
        "UPDATE partition_leases SET epoch = epoch + 1, lease_expires_at = min(lease_expires_at, ?) WHERE topic_id = ?",
        (tx.now_ms, topic_id.bytes),
    )
    tx.run("DELETE FROM topics WHERE topic_id = ?", of_topic)
    tx.notify(Change(kind=ChangeKind.TOPICS, name=topic.name))
    return True


def alter_topic_configs(
    tx: Tx,
    topic_id: TopicId,
    *,
    set_configs: Mapping[str, str],
    delete_configs: Sequence[str],
    expected_version: int | None,
) -> Topic:
    topic = _need(tx, topic_id)
    merged = {name: value for name, value in topic.configs.items() if name not in delete_configs} | dict(set_configs)
    if merged == topic.configs:
        return topic
    if expected_version is not None and expected_version != topic.version:
        raise Conflict(
            f"the configs of {topic.name} are at version {topic.version}, not {expected_version}",
            hint="read them again",
        )
    tx.run(
        "UPDATE topics SET config = ?, version = version + 1 WHERE topic_id = ?", (json.dumps(merged), topic_id.bytes)
    )
    tx.notify(Change(kind=ChangeKind.TOPICS, name=topic.name))
    return _need(tx, topic_id)


def grow_topic(tx: Tx, topic_id: TopicId, partition_count: int) -> Topic:
    topic = _need(tx, topic_id)
    if partition_count < topic.partition_count:
        raise InvalidPartitions(
            f"{topic.name} has {topic.partition_count} partitions and cannot shrink to {partition_count}"
        )
    if partition_count == topic.partition_count:
        return topic
    _add_partitions(tx, topic_id, topic.name, topic.write_mode, range(topic.partition_count, partition_count))
    tx.run(
        "UPDATE topics SET partition_count = ?, version = version + 1 WHERE topic_id = ?",
        (partition_count, topic_id.bytes),
    )
    tx.notify(Change(kind=ChangeKind.TOPICS, name=topic.name))
    return _need(tx, topic_id)


def get_partitions(tx: Tx, keys: Sequence[PartitionKey]) -> list[PartitionState]:
    return [state for key in keys if (state := find_partition(tx, key)) is not None]


def set_log_state(tx: Tx, key: PartitionKey, state: LogState) -> PartitionState:
    before = need_partition(tx, key)
    if before.log_state is not state:
        tx.run(
            "UPDATE partitions SET log_state = ? WHERE topic_id = ? AND partition_id = ?", (state.value, *sql_key(key))
        )
        tx.notify(Change(kind=ChangeKind.TOPICS, name=_need(tx, key.topic_id).name))
    return need_partition(tx, key)


def _add_partitions(tx: Tx, topic_id: TopicId, name: str, mode: WriteMode, numbers: Iterable[int]) -> None:
    tx.run_many(
        _ADD_PARTITION,
        [{"topic_id": topic_id.bytes, "partition": number, "name": name, "mode": mode.value} for number in numbers],
    )


def _by_id(tx: Tx, topic_id: TopicId) -> Topic | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM topics WHERE topic_id = ?", (topic_id.bytes,))
    return None if row is None else _topic_of(row)


def _need(tx: Tx, topic_id: TopicId) -> Topic:
    topic = _by_id(tx, topic_id)
    if topic is None:
        raise TopicNotFound(f"there is no topic with id {topic_id_text(topic_id)}")
    return topic


def _topic_of(row: Row) -> Topic:
    topic_id, name, partition_count, config, write_mode, created_at, version = row
    return Topic(
        topic_id=topic_id_of(topic_id),
        name=name,
        partition_count=partition_count,
        configs=json.loads(config),
        write_mode=WriteMode(write_mode),
        created_at_ms=created_at,
        version=version,
    )


class TopicCalls(Shell):
    async def create_topic(self, new: NewTopic) -> Topic:
        checks.check_new_topic(new)
        return await self._write(create_topic, new)

    async def get_topic(self, name: str) -> Topic:
        return await self._read(get_topic, name)

    async def get_topic_by_id(self, topic_id: TopicId) -> Topic:
        return await self._read(get_topic_by_id, topic_id)

    async def list_topics(self) -> list[Topic]:
        return await self._read(list_topics)

    async def delete_topic(self, topic_id: TopicId) -> bool:
        return await self._write(delete_topic, topic_id)

    async def alter_topic_configs(
        self,
        topic_id: TopicId,
        *,
        set_configs: Mapping[str, str],
        delete_configs: Sequence[str] = (),
        expected_version: int | None = None,
    ) -> Topic:
        checks.check_configs(set_configs)
        return await self._write(
            alter_topic_configs,
            topic_id,
            set_configs=dict(set_configs),
            delete_configs=tuple(delete_configs),
            expected_version=expected_version,
        )

    async def grow_topic(self, topic_id: TopicId, partition_count: int) -> Topic:
        checks.check_partition_count(partition_count)
        return await self._write(grow_topic, topic_id, partition_count)

    async def get_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionState]:
        checks.check_keys(keys, "partitions")
        return await self._read(get_partitions, tuple(keys))

    async def set_log_state(self, key: PartitionKey, state: LogState) -> PartitionState:
        return await self._write(set_log_state, key, state)
