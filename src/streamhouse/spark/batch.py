"""A batch read: planned once on the driver, carried out by tasks. Knows nothing of pyspark.

Spark plans a loaded DataFrame once and keeps the plan. It does not say when the last query on it has ended. So the plan
is a snapshot: every action on the same ``load()`` gives the same rows, and its pin exists as long as tasks renew it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from streamhouse.core.errors import ObjectNotFound
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.connection import Connection, connect
from streamhouse.spark.fetching import read_ranges
from streamhouse.spark.flushing import Flushes
from streamhouse.spark.offsets import LATEST, Offsets
from streamhouse.spark.options import Edge, Position, ReadOptions
from streamhouse.spark.pins import PinTicket, keep_renewed, pin
from streamhouse.spark.plan import ReadRange, Split, SplitRules, plan_splits
from streamhouse.spark.snapshot import DataLoss, Snapshot, resolve_ending, resolve_starting, scan_ranges, take_snapshot

OWNER: Final = "spark batch read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One Spark task's share."""

    split: Split
    pin: PinTicket


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReader:
    """Reads the rows of a task. Spark sends it to the executors."""

    address: StoreAddress
    columns: tuple[str, ...]
    fail_on_data_loss: bool

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        connection = connect(self.address)
        renewal = connection.spawn(keep_renewed(connection, task.pin))
        try:
            loss = DataLoss(fails=self.fail_on_data_loss)
            yield from read_ranges(connection, task.split.ranges, self.columns, loss)
        finally:
            renewal.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRead:
    address: StoreAddress
    options: ReadOptions

    def plan(self) -> list[Task]:
        """Raises errors of topics, offsets and stores before any task exists."""
        connection = connect(self.address)
        return connection.run(_plan(connection, self.options))


async def _plan(connection: Connection, options: ReadOptions) -> list[Task]:
    metadata = await connection.metadata()
    await connection.objects()
    loss = DataLoss(fails=options.fail_on_data_loss)
    snapshot = await take_snapshot(metadata, options, must_exist=True)
    if _reaches_the_tail(options.ending, snapshot):
        flushes = Flushes(metadata, clock=connection.clock, randomness=connection.randomness)
        keys = [log.key for log in snapshot.logs.values()]
        await flushes.ask(keys, timeout_ms=options.flush_timeout_ms)
    ticket = await pin(connection, owner=OWNER, ttl_ms=options.pin_ttl_ms)
    snapshot = await take_snapshot(metadata, options, must_exist=True)
    lookup = connection.offset_for_time
    starting = await resolve_starting(snapshot, options, lookup, loss)
    ending = await resolve_ending(snapshot, options, lookup, loss)
    ranges = ranges_between(snapshot, starting, ending)
    splits = plan_splits(await scan_ranges(metadata, ranges), split_rules(options))
    await check_objects(connection, splits)
    return [Task(split=split, pin=ticket) for split in splits]


def _reaches_the_tail(ending: Position, snapshot: Snapshot) -> bool:
    """Whether the read wants what may be only in a leader's hands yet: the latest, or offsets past what is in objects,
    which a producer may have been told a moment ago.
    """
    if ending.edge is not Edge.OFFSETS:
        return True
    said = ending.by_partition or {}
    return any(
        said.get(each, LATEST) == LATEST or said.get(each, LATEST) > log.end for each, log in snapshot.logs.items()
    )


async def check_objects(connection: Connection, splits: Sequence[Split]) -> None:
    """Check once, on the driver, that the object store answers. Raises StoreError."""
    if splits:
        with suppress(ObjectNotFound):  # compaction may have been quicker; tasks know what to do about it
            await (await connection.objects()).head(splits[0].ranges[0].entries[0].object_key)


def ranges_between(snapshot: Snapshot, starting: Offsets, ending: Offsets) -> list[ReadRange]:
    """Return the ranges that hold something, without entries yet."""
    return [
        ReadRange(
            topic=each.topic,
            key=snapshot.logs[each].key,
            from_offset=starting.get(each, 0),
            to_offset=offset,
            entries=(),
        )
        for each, offset in sorted(ending.items())
        if offset > starting.get(each, 0)
    ]


def split_rules(options: ReadOptions) -> SplitRules:
    return SplitRules(
        parallelism=options.parallelism or os.cpu_count() or 1,
        split_bytes=options.split_bytes,
        min_splits=options.min_partitions,
        max_records=options.max_records_per_split,
    )
