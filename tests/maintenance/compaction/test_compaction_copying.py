"""Batches that go from small entries into a segment: the same bytes at the same places, or an error (invariant 6)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import pytest
from compaction_ground import Batch, built, placed, records_of, some_batch
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import DamagedObject
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.formats import batch_runs
from streamhouse.formats.segment_v1 import BlockCodec
from streamhouse.formats.segment_v1_reader import read_segment, verify_segment
from streamhouse.formats.segment_v1_writer import SegmentWriter
from streamhouse.maintenance.compaction.copying import SegmentCopy
from streamhouse.maintenance.compaction.sources import IndexNeeded, SourceRead, block_reads, source_reads
from streamhouse.metadata.contract import KAFKA_BATCHES, SEGMENT_V1, Entry, EntryKind
from streamhouse.wire.batch import iter_batches, validate
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record

KEY = PartitionKey(TopicId(UUID(int=1)), 3)


@dataclass(slots=True)
class Stored:
    """Entries of one log and the objects that hold them."""

    entries: list[Entry]
    objects: dict[str, bytearray]
    log: bytes
    """What a reader finds."""


def stored(groups: Sequence[tuple[EntryKind, int, Sequence[Batch]]], *, blob: str | None = None) -> Stored:
    """One object for each (kind, epoch, batches). ``blob``: all slices lie in one object of this name."""
    made = Stored([], {}, b"")
    at = 1_000
    for number, (kind, epoch, batches) in enumerate(groups):
        log = placed(batches, at=at, epoch=epoch)
        headers = [validate(batch) for batch in log]
        key = blob if blob and kind is EntryKind.WAL else f"objects/{number}"
        body = made.objects.setdefault(key, bytearray())
        if kind is EntryKind.WAL:
            body += b"neighbour"
            start = len(body)
            body += b"".join(built(batch) for batch in batches)
        else:
            start = 0
            writer = SegmentWriter(key=KEY, compression="lz4", target_block_bytes=300)
            for batch, header in zip(log, headers, strict=True):
                for buffer in writer.append(batch, header):
                    body += buffer
            for buffer in writer.finish().buffers:
                body += buffer
        count = sum(header.record_count for header in headers)
        made.entries.append(
            Entry(
                base_offset=at,
                end_offset=at + count - 1,
                kind=kind,
                object_key=key,
                byte_offset=start,
                byte_length=len(body) - start,
                record_count=count,
                encoding=KAFKA_BATCHES if kind is EntryKind.WAL else SEGMENT_V1,
                min_timestamp_ms=0,
                max_timestamp_ms=0,
                epoch=epoch,
                created_at_ms=0,
            )
        )
        made.log += b"".join(log)
        at += count
    return made


def reads_of(made: Stored, read_bytes: int) -> list[SourceRead]:
    reads: list[SourceRead] = []
    for read in source_reads(made.entries, read_bytes=read_bytes):
        if isinstance(read, IndexNeeded):
            index = read_segment(bytes(made.objects[read.source.object_key])).index
            reads += block_reads(read.source, index, read_bytes=read_bytes)
        else:
            reads.append(read)
    return reads


def copied(made: Stored, *, read_bytes: int = 1 << 20) -> bytes:
    copy = SegmentCopy(key=KEY, sources=made.entries)
    out = bytearray()
    for read in reads_of(made, read_bytes):
        data = memoryview(bytes(made.objects[read.object_key]))
        out += b"".join(copy.feed(read, [data[start : start + length] for start, length in read.ranges]))
    finished = copy.finish()
    for buffer in finished.buffers:
        out += buffer
    assert len(out) == finished.size
    return bytes(out)


def some_groups(rng: random.Random, objects: int = 6) -> list[tuple[EntryKind, int, list[Batch]]]:
    epoch, groups = 1, []
    for _ in range(objects):
        epoch += rng.randrange(2)
        kind = rng.choice([EntryKind.WAL, EntryKind.SEGMENT])
        groups.append((kind, epoch, [some_batch(rng) for _ in range(rng.randrange(1, 6))]))
    return groups


@given(seed=st.integers(0, 2**32), read_bytes=st.integers(40, 3_000), one_blob=st.booleans())
def test_invariant_6_any_mix_is_copied_byte_for_byte_however_it_is_cut(
    seed: int, read_bytes: int, one_blob: bool
) -> None:
    made = stored(some_groups(random.Random(seed)), blob="blob" if one_blob else None)
    segment = verify_segment(copied(made, read_bytes=read_bytes))
    log = b"".join(segment.runs())
    assert log == made.log
    assert records_of(log) == records_of(made.log)
    footer = segment.footer
    assert (footer.key, footer.base_offset, footer.end_offset) == (KEY, 1_000, made.entries[-1].end_offset)
    assert footer.record_count == sum(entry.record_count for entry in made.entries)
    assert not footer.sparse


@given(seed=st.integers(0, 2**32), read_bytes=st.integers(40, 3_000))
def test_invariant_6_batches_taken_in_runs_and_one_by_one_make_the_same_object(seed: int, read_bytes: int) -> None:
    made = stored(some_groups(random.Random(seed)))
    in_runs = copied(made, read_bytes=read_bytes)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batch_runs, "_walk", None)
        assert copied(made, read_bytes=read_bytes) == in_runs


def test_invariant_6_every_batch_keeps_the_epoch_of_its_entry_and_its_producer() -> None:
    record = [Record(value=b"v", timestamp_ms=5)]
    batch: Batch = {"records": record, "producer_id": 7, "producer_epoch": 2, "base_sequence": 40}
    made = stored([(EntryKind.WAL, 3, [batch]), (EntryKind.SEGMENT, 4, [batch]), (EntryKind.WAL, 9, [batch])])
    headers = [header for run in read_segment(copied(made)).runs() for _, header in iter_batches(run)]
    assert [header.partition_leader_epoch for header in headers] == [3, 4, 9]
    assert [header.base_offset for header in headers] == [1_000, 1_001, 1_002]
    assert {(header.producer_id, header.producer_epoch, header.base_sequence) for header in headers} == {(7, 2, 40)}


def test_blocks_of_plain_batches_are_compressed_and_those_of_compressed_ones_stay_raw() -> None:
    rng = random.Random(1)
    plain: Batch = {"records": [Record(value=b"the same again " * 200)]}
    packed: list[Batch] = [{"records": [Record(value=rng.randbytes(3_000))], "codec": Codec.ZSTD} for _ in range(5)]
    for batches, codec in (([plain] * 5, BlockCodec.LZ4), (packed, BlockCodec.RAW)):
        data = copied(stored([(EntryKind.WAL, 1, batches)]))
        assert {block.codec for block in read_segment(data).index.blocks} == {codec}


def test_neighbouring_slices_of_one_blob_share_a_read() -> None:
    made = stored([(EntryKind.WAL, 1, [{"records": [Record(value=b"v")]}])] * 4, blob="blob")
    (read,) = reads_of(made, 1 << 20)
    assert len(read.parts) == 4
    assert [each.size_bytes <= 200 for each in reads_of(made, 200)] == [True] * 2


# Damage.


def refused(made: Stored, *, read_bytes: int = 1 << 20) -> DamagedObject:
    with pytest.raises(DamagedObject) as error:
        copied(made, read_bytes=read_bytes)
    return error.value


def plain_log(*kinds: EntryKind, batches: int = 2) -> Stored:
    batch: Batch = {"records": [Record(value=b"one"), Record(value=b"two")]}
    return stored([(kind, 1, [batch] * batches) for kind in kinds])


WAL, SEGMENT = EntryKind.WAL, EntryKind.SEGMENT


@given(at=st.integers(0, 2**30), bit=st.integers(0, 7), kind=st.sampled_from([WAL, SEGMENT]), cut=st.integers(40, 600))
def test_invariant_5_any_flipped_bit_of_a_source_is_found(at: int, bit: int, kind: EntryKind, cut: int) -> None:
    made = plain_log(WAL, kind, WAL)
    entry = made.entries[1]
    made.objects[entry.object_key][entry.byte_offset + at % entry.byte_length] ^= 1 << bit
    error = refused(made, read_bytes=cut if kind is WAL else 1 << 20)
    assert (error.object_key, error.base_offset) == (entry.object_key, entry.base_offset)
    assert error.end_offset == entry.end_offset
    assert str(KEY) in str(error)


@pytest.mark.parametrize("kind", [WAL, SEGMENT])
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda entry: replace(entry, end_offset=entry.end_offset + 1), id="fewer records than its entry"),
        pytest.param(lambda entry: replace(entry, end_offset=entry.end_offset - 1), id="more records than its entry"),
    ],
)
def test_invariant_5_records_that_are_not_those_of_the_entry_are_found(kind: EntryKind, wrong: object) -> None:
    made = plain_log(kind)
    made.entries[0] = wrong(made.entries[0])  # type: ignore[operator]
    assert refused(made).object_key == "objects/0"


@pytest.mark.parametrize("missing", [1, 30, 61, 75])
@pytest.mark.parametrize("read_bytes", [50, 1 << 20])
def test_invariant_5_a_slice_that_ends_within_a_batch_is_found(missing: int, read_bytes: int) -> None:
    made = plain_log(WAL, WAL)
    made.entries[0] = replace(made.entries[0], byte_length=made.entries[0].byte_length - missing)
    assert refused(made, read_bytes=read_bytes).base_offset == 1_000


@pytest.mark.parametrize("read_bytes", [50, 1 << 20])
def test_invariant_5_bytes_behind_the_last_batch_are_found(read_bytes: int) -> None:
    made = plain_log(WAL, WAL)
    made.objects["objects/0"] += b"more"
    made.entries[0] = replace(made.entries[0], byte_length=made.entries[0].byte_length + 4)
    assert refused(made, read_bytes=read_bytes).base_offset == 1_000


def test_invariant_5_another_partitions_segment_is_found() -> None:
    made = plain_log(SEGMENT)
    other = PartitionKey(KEY.topic_id, 4)
    copy = SegmentCopy(key=other, sources=made.entries)
    (read,) = reads_of(made, 1 << 20)
    with pytest.raises(DamagedObject, match="the object is not the one its metadata speaks of"):
        copy.feed(read, [memoryview(bytes(made.objects["objects/0"]))])


def test_a_slice_with_places_of_its_own_is_found() -> None:
    """A blob's batches have no offset and no epoch before they are committed: any other value is damage."""
    made = plain_log(WAL)
    body = made.objects["objects/0"]
    start = made.entries[0].byte_offset
    body[start : start + 8] = (1_000).to_bytes(8, "big")
    assert "base offset 1000" in str(refused(made))


@given(length=st.integers(-(2**31), 2**31 - 1))
def test_a_damaged_length_never_makes_it_wait_for_bytes_that_are_not_the_slices(length: int) -> None:
    made = plain_log(WAL, batches=3)
    start = made.entries[0].byte_offset
    body = made.objects["objects/0"]
    if body[start + 8 : start + 12] != length.to_bytes(4, "big", signed=True):
        body[start + 8 : start + 12] = length.to_bytes(4, "big", signed=True)
        refused(made, read_bytes=100)


def test_nothing_comes_of_a_log_whose_last_source_was_not_read() -> None:
    made = plain_log(WAL, WAL)
    copy = SegmentCopy(key=KEY, sources=made.entries)
    data = memoryview(bytes(made.objects["objects/0"]))
    read = reads_of(made, 1 << 20)[0]
    copy.feed(read, [data[start : start + length] for start, length in read.ranges])
    with pytest.raises(AssertionError):
        copy.finish()
