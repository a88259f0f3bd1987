"""The new segment of one damaged entry: every batch proven, or none written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from verify_entries import KEY, batch, entry, led
from verify_world import segment_of

from streamhouse.core.errors import DamagedObject
from streamhouse.formats.segment_v1 import HEAD_BYTES, ByteRange
from streamhouse.formats.segment_v1_reader import read_segment, verify_segment
from streamhouse.maintenance.compaction.sources import READ_BYTES, SourcePart, SourceRead
from streamhouse.maintenance.repair.layout import SegmentLayout
from streamhouse.maintenance.repair.salvage import SalvageCopy, UnindexedWalk, salvage_reads
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.metadata.contract import Entry, EntryKind

BATCHES = [batch(0), batch(2, 3), batch(5, 1)]
DATA = segment_of(KEY, BATCHES)
ENTRY = entry(0, 5, byte_length=len(DATA))
INDEX = read_segment(DATA).footer.index_range
EPOCHS = EpochLine(led((1, 0)))


def layout(*, end: int = INDEX.offset, is_exact: bool = True, is_sparse: bool = False) -> SegmentLayout:
    whole = ByteRange(offset=HEAD_BYTES, length=end - HEAD_BYTES)
    return SegmentLayout(index=None, batch_bytes=whole, is_exact=is_exact, is_sparse=is_sparse)


def rewritten(
    pieces: Sequence[bytes], of: Entry = ENTRY, known: SegmentLayout | None = None, epochs: EpochLine = EPOCHS
) -> bytes:
    """The new segment out of these pieces of the old one's blocks."""
    copy = SalvageCopy(key=KEY, entry=of, layout=known or layout(), epochs=epochs)
    out = bytearray()
    for piece in pieces:
        part = SourcePart(source=of, range=ByteRange(offset=0, length=len(piece)))
        out += b"".join(copy.feed(SourceRead(object_key=of.object_key, parts=(part,)), [memoryview(piece)]))
    for buffer in copy.finish().buffers:
        out += buffer
    return bytes(out)


def batches_of(segment: bytes) -> bytes:
    return b"".join(bytes(run) for run in verify_segment(segment).runs())


def test_i6_batches_are_found_wherever_the_reads_cut_them() -> None:
    blocks = DATA[HEAD_BYTES : INDEX.offset]
    for cut in range(len(blocks) + 1):
        assert batches_of(rewritten([blocks[:cut], blocks[cut:]])) == b"".join(BATCHES), cut
    assert batches_of(rewritten([bytes([each]) for each in blocks])) == b"".join(BATCHES)


def test_i6_without_a_footer_what_follows_the_last_batch_is_left_alone() -> None:
    loose = layout(end=len(DATA) - 96, is_exact=False)
    for tail in (DATA[HEAD_BYTES:-96], DATA[HEAD_BYTES : INDEX.offset] + b"\xff" * (INDEX.length)):
        assert batches_of(rewritten([tail], known=loose)) == b"".join(BATCHES)


def test_i5_every_flipped_bit_of_a_batch_is_refused() -> None:
    """Without the index nothing but the batches vouches for them: also for the fields that their CRC leaves out."""
    blocks = DATA[HEAD_BYTES : INDEX.offset]
    for position in range(len(blocks)):
        changed = bytearray(blocks)
        changed[position] ^= 1 << position % 8
        with pytest.raises(DamagedObject):
            rewritten([bytes(changed)])


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([batch(0), batch(2, 3)], "its batches end before offset 5, its entry at 5"),
        ([batch(0), batch(2, 3), batch(5, 2)], "offsets 5 to 6 where 5 is next, and 5 the last one"),
        ([batch(0), batch(3, 2), batch(5, 1)], "offsets 3 to 4 where 2 is next"),
        ([batch(0), batch(2, 3), batch(5, 1, epoch=2)], "has leader epoch 2, and 1 led there"),
        ([batch(0), batch(2, 3), batch(5, 1), batch(6)], "bytes between its last batch and its index"),
        ([], "its batches end before offset 0"),
    ],
)
def test_i5_batches_that_are_not_exactly_those_of_the_entry_are_refused(batches: list[bytes], words: str) -> None:
    blocks = b"".join(batches)
    with pytest.raises(DamagedObject, match=words):
        rewritten([blocks], known=layout(end=HEAD_BYTES + len(blocks)))


def test_i4_a_compacted_segment_may_hold_batches_of_several_leaderships_each_in_its_place() -> None:
    epochs = EpochLine(led((1, 0), (4, 2)))
    of = entry(0, 5, EntryKind.COMPACTED, epoch=4)
    right, wrong = [batch(0), batch(2, 4, epoch=4)], [batch(0), batch(2, 4, epoch=1)]
    known = layout(end=HEAD_BYTES + len(b"".join(right)))
    assert batches_of(rewritten(right, of, known, epochs)) == b"".join(right)
    with pytest.raises(DamagedObject, match="offset 2 has leader epoch 1, and 4 led there"):
        rewritten(wrong, of, known, epochs)


def test_r18_a_segment_with_holes_is_not_walked_without_its_index() -> None:
    with pytest.raises(DamagedObject, match="key compaction has left holes in it"):
        UnindexedWalk(key=KEY, entry=ENTRY, layout=layout(is_sparse=True))


def test_i5_compressed_blocks_are_named_as_the_likely_reason() -> None:
    of = replace(ENTRY, kind=EntryKind.COMPACTED)
    with pytest.raises(DamagedObject, match="only the index says where each of them begins"):
        rewritten([b"\xf0" * 200], of, layout(end=HEAD_BYTES + 200))


async def test_a_large_segment_is_read_in_pieces_of_bounded_size() -> None:
    end = HEAD_BYTES + 2 * READ_BYTES + 5
    plan = salvage_reads(layout(end=end))
    ranges = [part.range async for read in plan(KEY, [ENTRY], None) for part in read.parts]  # type: ignore[arg-type]
    assert [(each.offset, each.length) for each in ranges] == [
        (HEAD_BYTES, READ_BYTES),
        (HEAD_BYTES + READ_BYTES, READ_BYTES),
        (HEAD_BYTES + 2 * READ_BYTES, 5),
    ]
