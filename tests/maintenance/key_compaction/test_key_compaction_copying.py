"""Bytes of entries into bytes of a sparse segment, and into the map: what is refused, and when nothing is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compaction_ground import START_MS, built
from keyed_logs import keyed, pairs_of, seen

from streamhouse.core.errors import DamagedObject
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.segment_v1 import ByteRange
from streamhouse.formats.segment_v1_reader import verify_segment
from streamhouse.formats.segment_v1_writer import write_segment
from streamhouse.maintenance.compaction.sources import SourcePart, SourceRead
from streamhouse.maintenance.key_compaction.copying import ThinnedCopy
from streamhouse.maintenance.key_compaction.key_map import KeyMap
from streamhouse.maintenance.key_compaction.mapping import KeyMapping
from streamhouse.maintenance.key_compaction.thinning import KeepRule
from streamhouse.metadata.contract import KAFKA_BATCHES, SEGMENT_V1, Entry, EntryKind
from streamhouse.wire.batch import validate

KEY = PartitionKey(TopicId(SeededRandomness(1).uuid()), 0)
SLICE = [built(keyed((b"a", b"1"), (b"b", b"1"))), built(keyed((b"a", b"2")))]
"""Of a shared blob: not placed yet."""


def entry(data: bytes, *, records: int = 3, encoding: str = KAFKA_BATCHES) -> Entry:
    return Entry(
        base_offset=0,
        end_offset=records - 1,
        kind=EntryKind.WAL if encoding == KAFKA_BATCHES else EntryKind.COMPACTED,
        object_key="o",
        byte_offset=0,
        byte_length=len(data),
        record_count=records,
        encoding=encoding,
        min_timestamp_ms=START_MS,
        max_timestamp_ms=START_MS,
        epoch=1,
        created_at_ms=START_MS,
    )


def read_of(source: Entry) -> SourceRead:
    part = SourcePart(source=source, range=ByteRange(offset=0, length=source.byte_length))
    return SourceRead(object_key="o", parts=(part,))


def mapped(source: Entry, data: bytes) -> KeyMap:
    newest = KeyMap(10)
    mapping = KeyMapping(key=KEY, sources=[source], newest=newest)
    mapping.feed(read_of(source), [memoryview(data)])
    mapping.finish()
    return newest


def copied(source: Entry, data: bytes, *, needed: bool, newest: KeyMap | None = None) -> bytes | None:
    rule = KeepRule(newer=newest or KeyMap(1), now_ms=START_MS, delete_retention_ms=0)
    copy = ThinnedCopy(key=KEY, sources=[source], rule=rule, needed=needed)
    ready = copy.feed(read_of(source), [memoryview(data)])
    finished = copy.finish()
    return None if finished is None else b"".join([*ready, *finished.buffers])


def test_p4_a_slice_becomes_a_sparse_segment_without_its_superseded_records() -> None:
    data = b"".join(SLICE)
    made = copied(entry(data), data, needed=True, newest=mapped(entry(data), data))
    assert made is not None
    segment = verify_segment(made)
    assert (segment.footer.sparse, segment.footer.record_count, segment.footer.end_offset) == (True, 2, 2)
    assert pairs_of([kept for run in segment.runs() for kept in seen(bytes(run))]) == [(1, b"b", b"1"), (2, b"a", b"2")]


@pytest.mark.parametrize("records", [2, 4])
def test_invariant_5_an_entry_with_another_number_of_records_is_damaged(records: int) -> None:
    data = b"".join(SLICE)
    source = entry(data, records=records)
    with pytest.raises(DamagedObject):
        mapped(source, data)
    with pytest.raises(DamagedObject):
        copied(source, data, needed=True)


def test_invariant_5_a_thinned_segment_must_have_the_records_that_its_entry_says() -> None:
    batch = built(keyed((b"a", b"1"), (b"b", b"1")), at=1)
    data = b"".join(write_segment([(batch, validate(batch))], key=KEY, sparse=True).buffers)
    source = replace(entry(data, records=2, encoding=SEGMENT_V1), end_offset=5)
    assert len(mapped(source, data)) == 2
    with pytest.raises(DamagedObject):
        mapped(replace(source, record_count=3), data)


def test_p4_a_segment_that_loses_nothing_is_written_only_where_it_is_needed() -> None:
    batch = built(keyed((b"a", b"1"), (b"b", b"1")), at=0)
    data = b"".join(write_segment([(batch, validate(batch))], key=KEY, sparse=True).buffers)
    source = entry(data, records=2, encoding=SEGMENT_V1)
    assert copied(source, data, needed=False) is None
    assert copied(source, data, needed=True) is not None
    newest = KeyMap(1)
    newest.put(b"a", 7)
    assert copied(source, data, needed=False, newest=newest) is not None
