"""Fills the map of keys from the dirty entries of a partition: fetches ahead, decodes keys. It writes nothing.

An entry is mapped whole or not at all, because an entry is the least that can be committed. When the map is full, the
entries before the present one are what is compacted; the next pass goes on behind them. Keys of the present entry may
stay in the map: a record that they supersede is superseded, whatever is compacted now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing

from streamhouse.core.errors import CorruptData, UnsupportedVersion
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_INFLATED_BATCH_BYTES
from streamhouse.log.offload import Offload
from streamhouse.maintenance.compaction.copying import SourceWalk
from streamhouse.maintenance.compaction.rewrite import Copied, fetched_reads
from streamhouse.maintenance.compaction.sources import SourceRead
from streamhouse.maintenance.key_compaction.key_map import KeyMap
from streamhouse.metadata.contract import Entry
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.wire.record_keys import RecordKeys
from streamhouse.wire.records import inflate_body


class KeyMapping:
    """Maps the records of consecutive entries, read by read. Pure."""

    def __init__(self, *, key: PartitionKey, sources: Sequence[Entry], newest: KeyMap) -> None:
        self._newest = newest
        self._walk = SourceWalk(key=key, sources=sources, thinned=True)
        self._ends_at = sources[-1].end_offset + 1
        self._is_full = False

    @property
    def end_offset(self) -> int:
        """The offset after the last entry that is mapped whole."""
        return self._walk.source.base_offset if self._is_full else self._ends_at

    def feed(self, read: SourceRead, buffers: Sequence[memoryview]) -> bool:
        """False when the map is full. Raises DamagedObject."""
        for records in keyed_records(self._walk, read, buffers):
            self._is_full = not self._newest.put_all(records)
            if self._is_full:
                return False
        return True

    def finish(self) -> None:
        """Raises DamagedObject when the last entry has not come to its end."""
        self._walk.check_ended()


def keyed_records(walk: SourceWalk, read: SourceRead, buffers: Sequence[memoryview]) -> Iterator[RecordKeys]:
    """The records of one read, batch by batch, without those that key compaction never drops. Raises DamagedObject."""
    for batch, header in walk.batches(read, buffers):
        if header.is_control or not header.record_count:
            continue
        try:
            body = inflate_body(batch, 0, header, max_bytes=MAX_INFLATED_BATCH_BYTES)
            records = RecordKeys(body, header, values=False)
        except (CorruptData, UnsupportedVersion) as error:
            raise walk.damaged(error) from error
        yield records


async def map_keys(
    key: PartitionKey,
    sources: Sequence[Entry],
    newest: KeyMap,
    *,
    store: ObjectStore,
    offload: Offload,
    copied: Copied,
) -> int:
    """Returns the offset after the last entry that is mapped whole. Raises DamagedObject, StoreError, and what
    ``copied`` raises."""
    mapping = KeyMapping(key=key, sources=sources, newest=newest)
    async with aclosing(fetched_reads(key, sources, store)) as fetched:
        async for read, buffers in fetched:
            has_room = await offload.run(mapping.feed, read, buffers)
            await copied(sum(map(len, buffers)))
            if not has_room:
                return mapping.end_offset
    mapping.finish()
    return mapping.end_offset
