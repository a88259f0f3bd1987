"""Turns the bytes of entries into the bytes of one segment without superseded records. Pure: no IO, no clock.

The segment is *sparse*, also when nothing is missing in it. That mark is how the next pass knows what is clean
(looking.py). A batch that lost all of its records is left out, and its offsets become a hole. Only the last batch of
the range stays, without records: a segment has a batch at least, and the hole before the next object ends with one
(R18).

Kafka also keeps the last batch of every idempotent producer, because it reads its producers' state back from the log.
Here that state is committed beside the entries and is never read from batches (R9).
"""

from __future__ import annotations

from collections.abc import Sequence

from streamhouse.core.errors import CorruptData, UnsupportedVersion
from streamhouse.core.ids import PartitionKey
from streamhouse.formats.segment_v1_writer import FinishedSegment, SegmentWriter
from streamhouse.maintenance.compaction.copying import Placed, SourceWalk
from streamhouse.maintenance.compaction.sources import SourceRead
from streamhouse.maintenance.key_compaction.thinning import KeepRule, RecordCounts, empty_batch, thin_batch
from streamhouse.metadata.contract import Entry
from streamhouse.wire.batch import BatchHeader
from streamhouse.wire.buffers import BytesLike


class ThinnedCopy:
    """With ``needed`` the segment is to replace the entries in any case: it merges them, or marks them as clean."""

    def __init__(self, *, key: PartitionKey, sources: Sequence[Entry], rule: KeepRule, needed: bool) -> None:
        self.counts = RecordCounts()
        self._rule = rule
        self._needed = needed
        self._end_offset = sources[-1].end_offset
        self._writer = SegmentWriter(key=key, compression="lz4", sparse=True)
        self._walk = SourceWalk(key=key, sources=sources, thinned=True)
        self._last: BatchHeader | None = None
        """The last batch, as long as nothing was written behind it."""

    def feed(self, read: SourceRead, buffers: Sequence[memoryview]) -> Sequence[BytesLike]:
        """Take one read and return the blocks that are full. Raises DamagedObject, LimitExceeded."""
        ready: list[BytesLike] = []
        for batch, header in self._walk.batches(read, buffers):
            try:
                thinned = thin_batch(batch, header, self._rule, self.counts)
            except (CorruptData, UnsupportedVersion) as error:
                raise self._walk.damaged(error) from error
            if thinned is None or thinned[1] is not header:
                self._needed |= thinned is not None or bool(header.record_count)
            self._last = header if thinned is None else None
            if thinned is not None:
                ready.extend(self._append(thinned))
        return ready

    def finish(self) -> FinishedSegment | None:
        """Close the segment; None if the entries are as they should be. Raises DamagedObject."""
        self._walk.check_ended()
        if not self._needed:
            return None
        ready: tuple[BytesLike, ...] = ()
        if self._last is not None:
            ready = self._append(empty_batch(self._last))
        finished = self._writer.finish()
        return FinishedSegment(
            buffers=(*ready, *finished.buffers), footer=finished.footer, blocks=finished.blocks, size=finished.size
        )

    def _append(self, placed: Placed) -> tuple[BytesLike, ...]:
        batch, header = placed
        return self._writer.append(batch, header)
