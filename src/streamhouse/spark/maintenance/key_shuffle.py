"""What runs in the tasks of a key compaction that several tasks share (key_pairs.py has what they send each other).

    map_range       reads the entries of one item, and sends a pair for each key to the key's bucket
    reduce_bucket   finds the newest offset of each key in a bucket, and sends the offsets to their items
    write_item      rewrites the entries of one item with them, and uploads the object; it commits nothing

The items are those of the compaction itself, so each is read twice. Functions and messages are plain, because Spark
unpickles them where StreamHouse is not importable yet. A task that is tried again, or runs twice, sends the same, and
Spark takes the messages of one of its attempts. An object that was uploaded in vain is deleted by the next vacuum.

An error of ours travels as a message to all items, and each answers with it. Spark would try such a task again.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from streamhouse.core.errors import CompactionConflict, DamagedObject, StreamHouseError, as_result
from streamhouse.formats.segment_v1_writer import FinishedSegment
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.compaction.commit import ItemCompaction
from streamhouse.maintenance.compaction.copying import SourceWalk
from streamhouse.maintenance.compaction.plan import CompactionItem
from streamhouse.maintenance.compaction.rewrite import fetched_reads
from streamhouse.maintenance.key_compaction.copying import ThinnedCopy
from streamhouse.maintenance.key_compaction.mapping import keyed_records
from streamhouse.maintenance.key_compaction.thinning import KeepRule
from streamhouse.objectstore.metering import Meter
from streamhouse.spark.connection import Connection, connect
from streamhouse.spark.maintenance.key_pairs import (
    Heard,
    KeptOffsets,
    KeyPairs,
    Message,
    MessageKind,
    newest_offsets,
    offsets_by_item,
)
from streamhouse.spark.maintenance.key_sharing import ItemOrder, KeyShuffle, MapReport, WrittenItem, bucket_size
from streamhouse.spark.maintenance.tasks import TaskAnswer, TaskStores, Work, dump, open_stores, run_work

R = TypeVar("R")

_READS: Final = 2
"""Entries that fail their checks are read again: the download may have been damaged, not the object."""
_REPORTS_GO_TO: Final = 0


# The first stage.


def map_range(payload: bytes, works: Iterable[bytes]) -> Iterator[tuple[int, Message]]:
    """``works``: pickles of an item and its number."""
    shuffle: KeyShuffle = pickle.loads(payload)
    for work in works:
        number, item = pickle.loads(work)
        yield from _map_item(shuffle, number, item)


def _map_item(shuffle: KeyShuffle, number: int, item: CompactionItem) -> Iterator[tuple[int, Message]]:
    mapping = _ItemMapping(shuffle, number, item)
    try:
        yield from mapping.messages()
    except StreamHouseError as error:
        failed = dump(TaskAnswer(error=as_result(error), requests=mapping.meter.read().totals))
        for bucket in range(shuffle.buckets):
            yield bucket, (MessageKind.ERROR, number, 0, failed)
        return
    for bucket, sent in enumerate(mapping.pairs.sent):
        yield bucket, (MessageKind.END, number, sent, b"")
    report = MapReport(answer=TaskAnswer(requests=mapping.meter.read().totals), read_bytes=mapping.read_bytes)
    yield _REPORTS_GO_TO, (MessageKind.REPORT, number, 0, pickle.dumps(report))


class _ItemMapping:
    """Reads in the connection's thread, and hashes in the task's own."""

    def __init__(self, shuffle: KeyShuffle, number: int, item: CompactionItem) -> None:
        self.meter = Meter()
        self.pairs = KeyPairs(secret=shuffle.secret, buckets=shuffle.buckets)
        self.read_bytes = 0
        self._cluster = shuffle.cluster
        self._number = number
        self._item = item

    def messages(self) -> Iterator[tuple[int, Message]]:
        connection = connect(self._cluster.address)
        offload = InlineOffload()
        stores = connection.run(open_stores(self._cluster, connection, meter=self.meter, offload=offload))
        for reads_left in reversed(range(_READS)):
            try:
                yield from self._read(connection, stores)
                return
            except DamagedObject as error:
                if not connection.run(_item_compaction(stores).stands(self._item)):
                    raise CompactionConflict(
                        f"the entries of {self._item.key} were replaced while they were read"
                    ) from error
                if not reads_left:
                    raise

    def _read(self, connection: Connection, stores: TaskStores) -> Iterator[tuple[int, Message]]:
        key, sources = self._item.key, self._item.sources
        walk = SourceWalk(key=key, sources=sources, thinned=True)
        reads = fetched_reads(key, sources, stores.objects)
        try:
            while (fetched := connection.run(_next(reads))) is not None:
                for records in keyed_records(walk, *fetched):
                    self.pairs.put_all(records)
                    if self.pairs.is_full:
                        yield from self.pairs.take(self._number)
                self.read_bytes += sum(map(len, fetched[1]))
        finally:
            connection.run(_close(reads))
        walk.check_ended()
        yield from self.pairs.take(self._number)


# The second stage.


def reduce_bucket(payload: bytes, messages: Iterable[tuple[int, Message]]) -> Iterator[tuple[int, Message]]:
    shuffle: KeyShuffle = pickle.loads(payload)
    items = len(shuffle.item_ends)
    heard, bucket = Heard(), _Receiver()
    try:
        blocks = heard.blocks(bucket.messages(messages))
        newest = newest_offsets(blocks, bucket_size(shuffle.record_count, shuffle.buckets))
        if heard.error is None:
            heard.check(items)
            yield from offsets_by_item(newest, shuffle.item_ends, bucket.number)
    except StreamHouseError as error:
        heard.error = heard.error or dump(TaskAnswer(error=as_result(error)))
    if heard.error is not None:
        for item in range(items):
            yield item, (MessageKind.ERROR, bucket.number, 0, heard.error)
        return
    keys = pickle.dumps(MapReport(answer=TaskAnswer(), keys=len(newest)))
    for report in (*heard.reports, keys):
        yield _REPORTS_GO_TO, (MessageKind.REPORT, bucket.number, 0, report)


class _Receiver:
    """Learns from the pairs that Spark brings which partition of the shuffle they are for."""

    number = -1

    def messages(self, pairs: Iterable[tuple[int, Message]]) -> Iterator[Message]:
        for self.number, message in pairs:
            yield message


# The third stage.


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteItem(Work[WrittenItem]):
    """A ItemOrder with what the shuffle has brought. It is made in its task."""

    doing = ItemOrder.doing
    order: ItemOrder
    kept: KeptOffsets
    reports: Sequence[MapReport]

    async def run(self, stores: TaskStores) -> WrittenItem:
        copies: list[_CheckedCopy] = []
        read_bytes = sum(report.read_bytes for report in self.reports)

        def new_copy(item: CompactionItem) -> _CheckedCopy:
            copies.append(_CheckedCopy(self.order, self.kept.read_again()))
            return copies[-1]

        async def copied(size_bytes: int) -> None:
            nonlocal read_bytes
            read_bytes += size_bytes

        rewritten = await _item_compaction(stores)._rewrite(self.order.item, copied, new_copy)
        keys = sum(report.keys for report in self.reports)
        return WrittenItem(rewritten=rewritten, counts=copies[-1].counts, read_bytes=read_bytes, keys=keys)


class _CheckedCopy(ThinnedCopy):
    """It is no object before all records that should stay were found."""

    def __init__(self, order: ItemOrder, kept: KeptOffsets) -> None:
        rule = KeepRule(newer=kept, now_ms=order.now_ms, delete_retention_ms=order.delete_retention_ms)
        super().__init__(key=order.item.key, sources=order.item.sources, rule=rule, needed=order.needed)
        self._kept = kept

    def finish(self) -> FinishedSegment | None:
        finished = super().finish()
        self._kept.check()
        return finished


def write_item(payload: bytes, messages: Iterable[tuple[int, Message]]) -> list[bytes]:
    """``payload``: the pickles of the cluster and a ItemOrder."""
    cluster, order = pickle.loads(payload)
    heard, item = Heard(), _Receiver()
    try:
        kept = KeptOffsets(heard.blocks(item.messages(messages)))
        if heard.error is not None:
            return [heard.error]
        heard.check(order.buckets)
    except StreamHouseError as error:
        return [dump(TaskAnswer(error=as_result(error)))]
    reports = [pickle.loads(report) for report in heard.reports]
    answer = run_work(cluster, WriteItem(order=order, kept=kept, reports=reports))
    requests = Meter()
    for each in (answer, *(report.answer for report in reports)):
        for operation, totals in each.requests.items():
            requests.count(operation, totals)
    return [dump(replace(answer, requests=requests.read().totals))]


def _item_compaction(stores: TaskStores) -> ItemCompaction:
    return ItemCompaction(
        metadata=stores.metadata, store=stores.objects, offload=stores.offload, randomness=stores.randomness
    )


async def _next(reads: AsyncGenerator[R, None]) -> R | None:
    return await anext(reads, None)


async def _close(reads: AsyncGenerator[Any, None]) -> None:
    await reads.aclose()
