"""A streaming read, on the driver: where each micro-batch ends, what it reads, how far the query has come.

A ``StreamRead`` exists as long as its query, in one process of Spark. What a restart needs is in the offsets
(offsets.py), not in its memory. Knows nothing of pyspark.

    latest(start)      publishes start as the group's progress (Spark asks once more after the last batch, so that lag
                       reaches 0), lets go of the pin of the batch that ended there, and says how far the next one goes
    plan(start, end)   pins, then looks up the entries between the two
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from streamhouse.core.errors import GroupNotEmpty, StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import Entry, OffsetCommit, ScanRange
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.admission import holds_back, limit_bytes, limit_rows, rows_between
from streamhouse.spark.batch import Task, check_objects, ranges_between, split_rules
from streamhouse.spark.connection import connect
from streamhouse.spark.flushing import Flushes
from streamhouse.spark.offsets import Offsets, StreamOffset, TopicPartition, offsets_document, read_stream_offset
from streamhouse.spark.options import ReadOptions
from streamhouse.spark.pins import PinTicket, keep_renewed, pin, release
from streamhouse.spark.plan import plan_splits
from streamhouse.spark.snapshot import DataLoss, Snapshot, resolve_starting, scan_ranges, take_snapshot

LOG: Final = logging.getLogger("streamhouse.spark")
OWNER: Final = "spark stream"

_ASK_INTERVAL_MS: Final = 500
"""How often a stream that has nothing to do asks for a flush."""
_IDLE_WAIT_S: Final = 0.1
"""Without this wait, Spark would ask again every 10 ms and keep a core busy."""
_ENTRIES_PER_LOOK: Final = 1_000


class StreamRead:
    def __init__(self, address: StoreAddress, options: ReadOptions) -> None:
        self._options = options
        self._connection = connect(address)
        self._loss = DataLoss(fails=options.fail_on_data_loss)
        self._target: dict[TopicPartition, int] | None = None
        """How far an available-now query goes; None for other queries."""
        self._latest: Snapshot | None = None
        self._last_batch_ms = self._connection.clock.boot_ms()
        self._last_flush_ms: int | None = None
        self._flushes: Flushes | None = None
        self._published: Offsets = {}
        self._publishes = True
        self._objects_answer = False
        self._held: list[tuple[PinTicket, Future[None]]] = []

    # Called by Spark.

    def latest(self, start: Mapping[str, Any], *, is_unlimited: bool) -> dict[str, Any]:
        """Where the batch that begins at ``start`` ends; ``start`` itself when there is nothing to do."""
        known = read_stream_offset(start)
        end = self._connection.run(self._first_end() if known is None else self._next_end(known, is_unlimited))
        if end is None:
            return dict(start)
        self._last_batch_ms = self._connection.clock.boot_ms()
        return end.to_json()

    def prepare_available_now(self) -> None:
        self._target = self._connection.run(self._flushed_snapshot()).ends()

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Task]:
        known, until = read_stream_offset(start), read_stream_offset(end)
        if until is None:
            return []
        began = until.began_at or {} if known is None else _going_on(known, until.topic_ids)
        return self._connection.run(self._plan(began, until))

    def report(self) -> dict[str, Any] | None:
        return None if self._latest is None else offsets_document(self._latest.ends())

    def stop(self) -> None:
        """The query has ended. Pins that are not released here expire."""
        try:
            self._connection.run(self._let_go(), timeout_s=5)
        except StreamHouseError as error:
            LOG.warning("pins were not released and will expire: %s", error)

    # Ends of batches.

    async def _first_end(self) -> StreamOffset:
        """Resolves what the query starts from, once. It counts from the moment that Spark has written this offset down,
        so it is a new one also when there is nothing to read yet: batch 0 is empty then.
        """
        metadata = await self._connection.metadata()
        await self._connection.objects()
        await take_snapshot(metadata, self._options, must_exist=not self._options.subscription.pattern)
        snapshot = await self._flushed_snapshot()
        starting = await resolve_starting(snapshot, self._options, self._connection.offset_for_time, self._loss)
        end = await self._admit(snapshot, starting, self._reachable(snapshot), is_unlimited=False)
        return StreamOffset(
            offsets=end or starting,
            topic_ids=snapshot.topic_ids,
            query=self._connection.randomness.uuid().hex,
            began_at=starting,
        )

    async def _next_end(self, start: StreamOffset, is_unlimited: bool) -> StreamOffset | None:
        await self._let_go()
        await self._publish(start)
        snapshot = await self._look(start)
        known, reachable = self._known_starts(start, snapshot), self._reachable(snapshot)
        # What is gone takes no room in a batch: a query that reads on past it would crawl through empty ones.
        left = {each: max(offset, snapshot.logs[each].start) for each, offset in known.items()}
        end = await self._admit(snapshot, left, reachable, is_unlimited=is_unlimited)
        if end is None:
            beyond = {each: max(known[each], min(left[each], offset)) for each, offset in reachable.items()}
            end = beyond if rows_between(known, beyond) else None
        if end is None:
            await asyncio.sleep(_IDLE_WAIT_S)
            return None
        return StreamOffset(offsets=end, topic_ids=snapshot.topic_ids, query=start.query)

    async def _look(self, start: StreamOffset) -> Snapshot:
        """The logs as they stand; when nothing seems to be new, after asking for what is only in a leader's hands."""
        snapshot = await self._snapshot()
        if rows_between(start.offsets, snapshot.ends()) or self._target is not None:
            return snapshot
        now_ms = self._connection.clock.boot_ms()
        if self._last_flush_ms is not None and now_ms - self._last_flush_ms < _ASK_INTERVAL_MS:
            return snapshot
        return await self._flushed_snapshot()

    async def _flushed_snapshot(self) -> Snapshot:
        snapshot = await self._snapshot()
        metadata = await self._connection.metadata()
        if self._flushes is None:
            self._flushes = Flushes(metadata, clock=self._connection.clock, randomness=self._connection.randomness)
        await self._flushes.ask([log.key for log in snapshot.logs.values()], timeout_ms=self._options.flush_timeout_ms)
        self._last_flush_ms = self._connection.clock.boot_ms()
        return await self._snapshot()

    async def _snapshot(self) -> Snapshot:
        metadata = await self._connection.metadata()
        self._latest = await take_snapshot(metadata, self._options, must_exist=False)
        return self._latest

    def _reachable(self, snapshot: Snapshot) -> dict[TopicPartition, int]:
        ends = snapshot.ends()
        if self._target is None:
            return ends
        return {each: min(offset, self._target[each]) for each, offset in ends.items() if each in self._target}

    def _known_starts(self, start: StreamOffset, snapshot: Snapshot) -> dict[TopicPartition, int]:
        """Where each partition that is there now goes on; new ones begin at 0. What is gone is reported."""
        for topic, topic_id in start.topic_ids.items():
            found = snapshot.topic_ids.get(topic)
            if found is None:
                self._loss.report(f"the topic {topic} is gone")
            elif found != topic_id:
                self._loss.report(f"the topic {topic} was deleted and created again")
        going_on = _going_on(start, snapshot.topic_ids)
        return {each: going_on.get(each, 0) for each in snapshot.logs}

    async def _admit(
        self, snapshot: Snapshot, start: Offsets, end: Mapping[TopicPartition, int], *, is_unlimited: bool
    ) -> dict[TopicPartition, int] | None:
        """How far one batch goes; None when there is nothing for it, or too little yet."""
        end = {each: max(offset, start.get(each, 0)) for each, offset in end.items()}
        if not rows_between(start, end):
            return None
        limits = self._options.limits
        if is_unlimited and self._target is None:
            return end
        since_last_ms = self._connection.clock.boot_ms() - self._last_batch_ms
        if self._target is None and holds_back(start, end, limits, since_last_ms=since_last_ms):
            return None
        if limits.max_rows is not None:
            end = limit_rows(start, end, limits.max_rows)
        if limits.max_bytes is not None:
            entries = await self._entries(snapshot, start, end, limits.max_bytes)
            end = limit_bytes(start, end, entries, limits.max_bytes)
        return dict(end)

    async def _entries(
        self, snapshot: Snapshot, start: Offsets, end: Offsets, max_bytes: int
    ) -> dict[TopicPartition, list[Entry]]:
        """The next entries of each partition, as many as fit into ``max_bytes``."""
        metadata = await self._connection.metadata()
        found: dict[TopicPartition, list[Entry]] = {}
        for each, offset in end.items():
            found[each] = []
            at, size = start.get(each, 0), 0
            while at < offset and size < max_bytes:
                wanted = ScanRange(key=snapshot.logs[each].key, from_offset=at, to_offset=offset)
                pages = await metadata.scan_entries([wanted], limit=_ENTRIES_PER_LOOK)
                if not pages or not pages[0].entries:
                    break
                found[each] += pages[0].entries
                size += sum(entry.byte_length for entry in pages[0].entries)
                at = pages[0].entries[-1].end_offset + 1
        return found

    # Batches.

    async def _plan(self, began: Offsets, until: StreamOffset) -> list[Task]:
        metadata = await self._connection.metadata()
        ticket = await pin(self._connection, owner=OWNER, ttl_ms=self._options.pin_ttl_ms)
        self._held.append((ticket, self._connection.spawn(keep_renewed(self._connection, ticket))))
        snapshot = await take_snapshot(metadata, self._options, must_exist=False)
        starts, ends = dict(began), dict(until.offsets)
        for each in sorted(ends):
            log = snapshot.logs.get(each)
            begin = starts.get(each, 0)
            if log is None or snapshot.topic_ids[each.topic] != until.topic_ids.get(each.topic):
                if ends[each] > begin:
                    self._loss.report(f"{each} is gone, offsets {begin} to {ends[each] - 1} were to be read")
                del ends[each]
                continue
            if begin < log.start and ends[each] > begin:
                self._loss.report(f"{each} starts at offset {log.start} now, {begin} was to be read")
                starts[each] = min(log.start, ends[each])
            if ends[each] > log.end:
                self._loss.report(f"{each} ends at offset {log.end}, up to {ends[each] - 1} was to be read")
                ends[each] = log.end
        ranges = ranges_between(snapshot, starts, ends)
        splits = plan_splits(await scan_ranges(metadata, ranges), split_rules(self._options))
        if splits and not self._objects_answer:
            await check_objects(self._connection, splits)
            self._objects_answer = True
        return [Task(split=split, pin=ticket) for split in splits]

    async def _let_go(self) -> None:
        """Release the pins of the batch before, which has ended."""
        held, self._held = self._held, []
        for ticket, renewal in held:
            renewal.cancel()
            await release(self._connection, ticket)

    async def _publish(self, start: StreamOffset) -> None:
        """Commit ``start`` as the group's offsets, for lag tools: all records before it are finished."""
        if not self._publishes or start.offsets == self._published:
            return
        group = self._options.group_id or f"{self._options.group_prefix}-{start.query[:12]}"
        commits = [
            OffsetCommit(key=PartitionKey(start.topic_ids[each.topic], each.partition), offset=offset)
            for each, offset in start.offsets.items()
            if each.topic in start.topic_ids
        ]
        try:
            await (await self._connection.metadata()).commit_offsets_simple(group, commits)
            self._published = start.offsets
        except GroupNotEmpty:
            self._publishes = False
            LOG.warning("the group %s has members of its own: this query's progress is not published there", group)
        except StreamHouseError as error:
            LOG.warning("progress of the group %s was not published: %s", group, error)


def _going_on(start: StreamOffset, topic_ids: Mapping[str, TopicId]) -> dict[TopicPartition, int]:
    """Where partitions go on. Those of a topic that was created again are left out: they begin at 0 (R19)."""
    return {
        each: offset
        for each, offset in start.offsets.items()
        if each.topic in topic_ids and start.topic_ids.get(each.topic) == topic_ids[each.topic]
    }
