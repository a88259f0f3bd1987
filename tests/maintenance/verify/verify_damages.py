"""The list of injected damages, each done to a small healthy fleet of logs, in rows or in objects, as a broken disk, a
broken program or a person would do it; with the findings that a verification must tell of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from crc32c import crc32c
from verify_world import START_MS, World, Written, segment_of

from streamhouse.formats.segment_v1 import FOOTER_BYTES, HEAD_BYTES, BlockCodec
from streamhouse.formats.segment_v1_reader import Segment, read_segment
from streamhouse.formats.shared_blob_v1 import CRC_TAIL_BYTES
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.maintenance.verify import Finding, FindingKind
from streamhouse.metadata.contract import Entry
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.batch import read_header as read_batch_header

K = FindingKind


@dataclass
class Fleet:
    """What is damaged. Every partition has more entries than the one that is hit."""

    world: World
    left: Written
    right: Written
    clicks: Written
    slices: list[Entry]
    """Of one blob: left 0 … 5, right 0 … 3."""
    segments: list[Entry]
    """Left 6 … 17 in several blocks, right 4 … 7 in one; both in epoch 1."""
    twins: list[Entry]
    """Segments of equal size: left 18 … 19, right 8 … 9, in epoch 2."""
    packed: Entry
    """The compacted object of ``right`` 10 … 13, LZ4."""
    tails: list[Entry]
    """Of a second blob: left 20 … 23, right 14 … 17."""
    runs: list[Entry]
    """Of clicks, which is leaderless: two runs of one body, between which a duplicate was dropped."""

    async def read_segment(self, entry: Entry) -> Segment:
        return read_segment(await self.world.store.get(entry.object_key))

    async def batch_places(self, entry: Entry) -> list[tuple[int, int]]:
        """Offset in the object and length of each batch of a slice."""
        data = await self.world.store.get_range(entry.object_key, entry.byte_offset, entry.byte_length)
        return [(entry.byte_offset + at, header.size) for at, header in iter_batches(data)]


async def build(world: World) -> Fleet:
    left, right = await world.topic("orders", 2)
    (clicks,) = await world.topic("clicks", leaderless=True)
    slices = await world.blob((left, left.batches(2, 2, 2)), (right, right.batches(2, 2)))
    segments = [
        await world.segment(left, left.batches(2, 2, 2, 2, 2, 2)),
        await world.segment(right, right.batches(2, 2), block_bytes=10_000),
    ]
    for log in (left, right):
        await world.take_over(log)
    twins = [
        await world.segment(left, [left.batch(2, first_ms=START_MS)]),
        await world.segment(right, [right.batch(2, first_ms=START_MS)]),
    ]
    # Text that LZ4 shrinks.
    source = await world.segment(right, [right.batch(1, first_ms=START_MS + each) for each in range(4)])
    packed = await world.compact(right, [source])
    tails = await world.blob((left, left.batches(2, 2)), (right, right.batches(2, 2)))
    first, second = (clicks.batch(2, at=0, producer_id=7, producer_epoch=0, base_sequence=each) for each in (0, 2))
    await world.leaderless(clicks, [first])
    runs = await world.leaderless(clicks, [clicks.batch(1, at=0), first, second])
    return Fleet(world, left, right, clicks, slices, segments, twins, packed, tails, runs[1:])


Hit = tuple[FindingKind, str, int, int, str, int, int]


def hit(
    kind: FindingKind,
    log: Written,
    entry: Entry,
    at: int | None = None,
    length: int | None = None,
    *,
    base: int | None = None,
    end: int | None = None,
) -> Hit:
    """The finding that is expected: by default about the whole entry and its bytes."""
    return (
        kind,
        f"{log.topic.name}/{log.key.partition}",
        entry.base_offset if base is None else base,
        entry.end_offset if end is None else end,
        entry.object_key,
        entry.byte_offset if at is None else at,
        entry.byte_length if length is None else length,
    )


def in_index(kind: FindingKind, log: Written, base: int, end: int) -> Hit:
    return kind, f"{log.topic.name}/{log.key.partition}", base, end, "", 0, 0


def as_hit(finding: Finding) -> Hit:
    return (
        finding.kind,
        f"{finding.topic}/{finding.key.partition}",
        finding.base_offset,
        finding.end_offset,
        finding.object_key,
        finding.byte_offset,
        finding.byte_length,
    )


Damage = Callable[[Fleet], Awaitable[list[Hit]]]
DAMAGES: dict[str, Damage] = {}
ROWS: list[str] = []
"""Damage to rows, which is done on PostgreSQL too."""


def damage(do: Damage) -> Damage:
    DAMAGES[do.__name__] = do
    return do


def rows(do: Damage) -> Damage:
    ROWS.append(do.__name__)
    return damage(do)


# Segments.


@damage
async def head_of_a_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    await fleet.world.flip(entry.object_key, 1)
    return [hit(K.SEGMENT_HEAD, fleet.left, entry, 0, HEAD_BYTES)]


@damage
async def version_of_a_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    await fleet.world.flip(entry.object_key, 5, 0x02)
    return [hit(K.SEGMENT_HEAD, fleet.left, entry, 0, HEAD_BYTES)]


@damage
async def footer_of_a_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    await fleet.world.flip(entry.object_key, entry.byte_length - FOOTER_BYTES + 40)
    return [hit(K.SEGMENT_FOOTER, fleet.left, entry, entry.byte_length - FOOTER_BYTES, FOOTER_BYTES)]


@damage
async def magic_at_the_end_of_a_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    await fleet.world.flip(entry.object_key, entry.byte_length - 1)
    return [hit(K.SEGMENT_FOOTER, fleet.left, entry, entry.byte_length - FOOTER_BYTES, FOOTER_BYTES)]


@damage
async def index_of_a_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    index = (await fleet.read_segment(entry)).footer.index_range
    await fleet.world.flip(entry.object_key, index.offset + 3)
    return [hit(K.SEGMENT_INDEX, fleet.left, entry, index.offset, index.length)]


@damage
async def batch_header_in_a_block(fleet: Fleet) -> list[Hit]:
    """The base offset of a batch, which the batch's own CRC does not cover."""
    entry = fleet.segments[0]
    block = (await fleet.read_segment(entry)).index.blocks[1]
    await fleet.world.flip(entry.object_key, block.file_offset + 7)
    place = {"base": block.base_offset, "end": block.end_offset}
    return [hit(K.BLOCK, fleet.left, entry, block.file_offset, block.stored_length, **place)]


@damage
async def payloads_in_two_blocks(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    blocks = (await fleet.read_segment(entry)).index.blocks
    hits = []
    for block in (blocks[0], blocks[-1]):
        await fleet.world.flip(entry.object_key, block.file_offset + block.stored_length - 1)
        place = {"base": block.base_offset, "end": block.end_offset}
        hits.append(hit(K.BLOCK, fleet.left, entry, block.file_offset, block.stored_length, **place))
    return hits


@damage
async def compressed_block(fleet: Fleet) -> list[Hit]:
    entry = fleet.packed
    block = (await fleet.read_segment(entry)).index.blocks[0]
    assert block.codec is BlockCodec.LZ4
    await fleet.world.flip(entry.object_key, block.file_offset + 20)
    place = {"base": block.base_offset, "end": block.end_offset}
    return [hit(K.BLOCK, fleet.right, entry, block.file_offset, block.stored_length, **place)]


@damage
async def head_of_a_compacted_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.packed
    await fleet.world.flip(entry.object_key, 1)
    return [hit(K.SEGMENT_HEAD, fleet.right, entry, 0, HEAD_BYTES)]


@damage
async def footer_of_a_compacted_segment(fleet: Fleet) -> list[Hit]:
    """Its blocks are compressed, so that only the index tells where they begin."""
    entry = fleet.packed
    await fleet.world.flip(entry.object_key, entry.byte_length - FOOTER_BYTES + 40)
    return [hit(K.SEGMENT_FOOTER, fleet.right, entry, entry.byte_length - FOOTER_BYTES, FOOTER_BYTES)]


@damage
async def index_of_a_compacted_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.packed
    index = (await fleet.read_segment(entry)).footer.index_range
    await fleet.world.flip(entry.object_key, index.offset + 3)
    return [hit(K.SEGMENT_INDEX, fleet.right, entry, index.offset, index.length)]


@damage
async def index_and_a_payload(fleet: Fleet) -> list[Hit]:
    """Without the index nothing leads to the batches, so a verification tells of the index alone."""
    entry = fleet.segments[0]
    segment = await fleet.read_segment(entry)
    block, index = segment.index.blocks[1], segment.footer.index_range
    await fleet.world.flip(entry.object_key, block.file_offset + block.stored_length - 1)
    await fleet.world.flip(entry.object_key, index.offset + 3)
    return [hit(K.SEGMENT_INDEX, fleet.left, entry, index.offset, index.length)]


@damage
async def footer_and_the_offset_of_a_batch(fleet: Fleet) -> list[Hit]:
    """The CRC of a batch does not cover its base offset; that of its block does, and only the footer leads to it."""
    entry = fleet.segments[0]
    block = (await fleet.read_segment(entry)).index.blocks[1]
    await fleet.world.flip(entry.object_key, block.file_offset + 7)
    await fleet.world.flip(entry.object_key, entry.byte_length - 1)
    return [hit(K.SEGMENT_FOOTER, fleet.left, entry, entry.byte_length - FOOTER_BYTES, FOOTER_BYTES)]


@damage
async def segment_of_a_newer_version(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]

    def change(data: bytearray) -> None:
        data[-11] = 2  # the low byte of the version, which the footer's CRC covers
        data[-8:-4] = crc32c(data[-FOOTER_BYTES:-8]).to_bytes(4, "big")

    await fleet.world.change_object(entry.object_key, change)
    return [hit(K.NEWER_FORMAT, fleet.left, entry, entry.byte_length - FOOTER_BYTES, FOOTER_BYTES)]


@damage
async def truncated_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    await fleet.world.change_object(entry.object_key, lambda data: data[:-1])
    return [hit(K.OBJECT_SIZE, fleet.left, entry)]


@damage
async def extended_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    await fleet.world.change_object(entry.object_key, lambda data: data + b"\0")
    return [hit(K.OBJECT_SIZE, fleet.left, entry)]


@damage
async def emptied_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    await fleet.world.change_object(entry.object_key, lambda data: b"")
    return [hit(K.OBJECT_SIZE, fleet.left, entry)]


@damage
async def missing_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    await fleet.world.store.delete([entry.object_key])
    return [hit(K.MISSING_OBJECT, fleet.left, entry)]


@damage
async def swapped_bytes_of_two_partitions(fleet: Fleet) -> list[Hit]:
    """Equal in size, so that only the footers tell."""
    left, right = fleet.twins
    mine, other = [bytes(await fleet.world.store.get(entry.object_key)) for entry in fleet.twins]
    assert len(mine) == len(other)
    await fleet.world.change_object(left.object_key, lambda data: other)
    await fleet.world.change_object(right.object_key, lambda data: mine)
    return [hit(K.WRONG_OBJECT, fleet.left, left), hit(K.WRONG_OBJECT, fleet.right, right)]


@damage
async def segment_of_other_offsets(fleet: Fleet) -> list[Hit]:
    entry = fleet.twins[0]
    other = segment_of(fleet.left.key, [fleet.left.batch(2, at=50, first_ms=START_MS)])
    assert len(other) == entry.byte_length
    await fleet.world.change_object(entry.object_key, lambda data: other)
    return [hit(K.WRONG_OBJECT, fleet.left, entry)]


# Segments that a broken program wrote, under right CRCs.


async def rewritten(fleet: Fleet, batches: list[bytes], **claims: object) -> tuple[Entry, int]:
    """Puts other batches into the twin of ``left``; returns the entry, corrected to the new size, and where the first
    batch begins."""
    entry = fleet.twins[0]
    data = segment_of(fleet.left.key, batches, **claims)
    await fleet.world.change_object(entry.object_key, lambda _: data)
    return await fleet.world.change_entry(fleet.left, entry, byte_length=len(data)), HEAD_BYTES


@damage
async def batch_of_another_epoch_in_a_segment(fleet: Fleet) -> list[Hit]:
    stale = replace(fleet.left, epoch=1).batch(2, at=18, first_ms=START_MS)
    entry, at = await rewritten(fleet, [stale])
    return [hit(K.EPOCH, fleet.left, entry, at, len(stale))]


@damage
async def batch_without_its_crc_in_a_sound_block(fleet: Fleet) -> list[Hit]:
    made = bytearray(fleet.left.batch(2, at=18, first_ms=START_MS))
    made[-1] ^= 1
    entry, at = await rewritten(fleet, [bytes(made)])
    return [hit(K.BATCH, fleet.left, entry, at, len(made))]


@damage
async def index_with_a_wrong_largest_time(fleet: Fleet) -> list[Hit]:
    made = fleet.left.batch(2, at=18, first_ms=START_MS)
    entry, at = await rewritten(fleet, [made], max_timestamp=START_MS)
    return [hit(K.TIMESTAMPS, fleet.left, entry, at, len(made))]


@damage
async def footer_with_a_wrong_smallest_time(fleet: Fleet) -> list[Hit]:
    made = fleet.left.batch(2, at=18, first_ms=START_MS)
    entry, _ = await rewritten(fleet, [made], base_timestamp=START_MS - 5)
    return [hit(K.TIMESTAMPS, fleet.left, entry)]


@damage
async def batch_at_other_offsets_than_its_index(fleet: Fleet) -> list[Hit]:
    made = fleet.left.batch(2, at=17, first_ms=START_MS)
    entry, at = await rewritten(fleet, [made], base_offset=18)
    return [hit(K.OFFSETS, fleet.left, entry, at, len(made))]


@damage
async def segment_with_a_record_more_than_its_entry(fleet: Fleet) -> list[Hit]:
    made = fleet.left.batch(3, at=18, first_ms=START_MS - 1)
    entry, _ = await rewritten(fleet, [made])
    return [hit(K.OFFSETS, fleet.left, entry), hit(K.RECORD_COUNT, fleet.left, entry)]


# Shared blobs.


@damage
async def missing_blob(fleet: Fleet) -> list[Hit]:
    await fleet.world.store.delete([fleet.slices[0].object_key])
    return [
        hit(K.MISSING_OBJECT, log, entry) for log, entry in zip((fleet.left, fleet.right), fleet.slices, strict=True)
    ]


@damage
async def truncated_blob(fleet: Fleet) -> list[Hit]:
    """The header is told of once, and the last slice reaches past the end."""
    left, right = fleet.slices
    await fleet.world.change_object(left.object_key, lambda data: data[:-1])
    size = left.byte_offset + left.byte_length + right.byte_length - 1
    return [hit(K.BLOB_HEADER, fleet.left, left, 0, size), hit(K.BYTE_RANGE, fleet.right, right)]


@damage
async def extended_blob(fleet: Fleet) -> list[Hit]:
    left, right = fleet.slices
    await fleet.world.change_object(left.object_key, lambda data: data + b"\0")
    return [hit(K.BLOB_HEADER, fleet.left, left, 0, right.byte_offset + right.byte_length + 1)]


@damage
async def header_of_a_blob(fleet: Fleet) -> list[Hit]:
    left, right = fleet.slices
    await fleet.world.flip(left.object_key, 30)
    return [hit(K.BLOB_HEADER, fleet.left, left, 0, right.byte_offset + right.byte_length)]


@damage
async def blob_of_a_newer_version(fleet: Fleet) -> list[Hit]:
    left, right = fleet.slices

    def change(data: bytearray) -> None:
        tail = left.byte_offset - CRC_TAIL_BYTES
        at = data.index(b'"version":1') + len(b'"version":')
        data[at : at + 1] = b"2"
        data[tail : left.byte_offset] = b'%08x"}' % crc32c(data[:tail])

    await fleet.world.change_object(left.object_key, change)
    return [hit(K.NEWER_FORMAT, fleet.left, left, 0, right.byte_offset + right.byte_length)]


@damage
async def emptied_blob(fleet: Fleet) -> list[Hit]:
    left, right = fleet.slices
    await fleet.world.change_object(left.object_key, lambda data: b"")
    return [
        hit(K.BLOB_HEADER, fleet.left, left, 0, 0),
        hit(K.BYTE_RANGE, fleet.left, left),
        hit(K.BYTE_RANGE, fleet.right, right),
    ]


def in_batch(position: int, kind: FindingKind, *, to_the_end: bool) -> Damage:
    """A flipped bit in the second of the three batches of a slice, which has offsets 2 and 3."""

    async def do(fleet: Fleet) -> list[Hit]:
        entry = fleet.slices[0]
        at, length = (await fleet.batch_places(entry))[1]
        await fleet.world.flip(entry.object_key, at + (position if position >= 0 else length + position))
        return [hit(kind, fleet.left, entry, at, length, base=2, end=5 if to_the_end else 3)]

    return do


DAMAGES["base_offset_in_a_slice"] = in_batch(7, K.OFFSETS, to_the_end=False)
DAMAGES["leader_epoch_in_a_slice"] = in_batch(15, K.EPOCH, to_the_end=False)
DAMAGES["crc_in_a_slice"] = in_batch(17, K.BATCH, to_the_end=True)
DAMAGES["attributes_in_a_slice"] = in_batch(22, K.BATCH, to_the_end=True)
DAMAGES["record_count_in_a_slice"] = in_batch(60, K.BATCH, to_the_end=True)
DAMAGES["payload_in_a_slice"] = in_batch(-1, K.BATCH, to_the_end=True)


@damage
async def magic_of_a_batch_in_a_slice(fleet: Fleet) -> list[Hit]:
    entry = fleet.slices[0]
    places = await fleet.batch_places(entry)
    await fleet.world.flip(entry.object_key, places[1][0] + 16)
    rest = entry.byte_offset + entry.byte_length - places[1][0]
    return [hit(K.BATCH, fleet.left, entry, places[1][0], rest, base=2)]


@damage
async def length_of_a_batch_in_a_slice(fleet: Fleet) -> list[Hit]:
    """Far too long now: it reaches past the slice."""
    entry = fleet.slices[0]
    places = await fleet.batch_places(entry)
    await fleet.world.flip(entry.object_key, places[1][0] + 9, 0x10)
    rest = entry.byte_offset + entry.byte_length - places[1][0]
    return [hit(K.BATCH, fleet.left, entry, places[1][0], rest, base=2)]


@damage
async def batches_that_changed_places(fleet: Fleet) -> list[Hit]:
    entry = fleet.slices[0]
    (first, length), (second, same), _ = await fleet.batch_places(entry)
    assert length == same

    def swap(data: bytearray) -> None:
        data[first : first + length], data[second : second + length] = (
            data[second : second + length],
            data[first : first + length],
        )

    await fleet.world.change_object(entry.object_key, swap)
    return [hit(K.BLOB_BODY, fleet.left, entry)]


async def refill(fleet: Fleet, made: bytes) -> tuple[Entry, int]:
    """Replaces the first batch of the last slice by another of the same size, under right CRCs of body and header: what
    a broken writer would have uploaded. The writer is told the header of the old batch."""
    world, logs = fleet.world, (fleet.left, fleet.right)
    writer = BlobWriter(created_at_ms=START_MS)
    for log, entry in zip(logs, fleet.tails, strict=True):
        body = writer.add(log.topic.name, log.key)
        for number, batch in enumerate(await world.batches_of(entry)):
            body.append(made if log is fleet.left and not number else batch, read_batch_header(batch))
    blob = writer.finish()
    await world.change_object(fleet.tails[0].object_key, lambda data: b"".join(blob.buffers))
    # The numbers in the header may have more digits now, and all bodies begin later.
    for log, entry, piece in zip(logs, list(fleet.tails), blob.slices, strict=True):
        moved = await world.change_entry(log, entry, byte_offset=piece.byte_offset)
        fleet.tails[fleet.tails.index(entry)] = moved
    return fleet.tails[0], fleet.tails[0].byte_offset


def with_crc(made: bytearray) -> bytes:
    made[17:21] = crc32c(made[21:]).to_bytes(4, "big")
    return bytes(made)


@damage
async def records_that_cannot_be_decoded(fleet: Fleet) -> list[Hit]:
    """Under right CRCs everywhere, so only a deep verification sees it."""
    made = bytearray(fleet.left.batch(2, at=20))
    made[61] ^= 0x40
    entry, at = await refill(fleet, with_crc(made))
    return [hit(K.RECORDS, fleet.left, entry, at, len(made), base=20, end=21)]


@damage
async def batch_that_counts_more_records_than_it_holds(fleet: Fleet) -> list[Hit]:
    made = bytearray(fleet.left.batch(2, at=20))
    made[26], made[60] = 2, 3  # last offset delta and record count
    entry, at = await refill(fleet, with_crc(made))
    return [
        hit(K.RECORDS, fleet.left, entry, at, len(made), base=20, end=22),
        hit(K.RECORD_COUNT, fleet.left, entry),
        hit(K.RECORD_COUNT, fleet.left, entry),
    ]


@damage
async def batch_with_fewer_records_than_offsets(fleet: Fleet) -> list[Hit]:
    """Only key compaction makes such batches, and never in a blob (R18)."""
    made = bytearray(fleet.left.batch(2, at=20))
    made[26] = 2
    entry, at = await refill(fleet, with_crc(made))
    return [hit(K.RECORD_COUNT, fleet.left, entry, at, len(made), base=20, end=22)]


@damage
async def record_that_is_newer_than_its_batch_says(fleet: Fleet) -> list[Hit]:
    made = bytearray(fleet.left.batch(2, at=20))
    made[35:43] = (START_MS + 20).to_bytes(8, "big")  # the second record is a millisecond younger
    entry, at = await refill(fleet, with_crc(made))
    return [hit(K.RECORD_TIMES, fleet.left, entry, at, len(made), base=20, end=21)]


@damage
async def batch_that_is_newer_than_its_entry(fleet: Fleet) -> list[Hit]:
    made = bytearray(fleet.left.batch(2, at=20))
    made[35:43] = (START_MS + 900).to_bytes(8, "big")
    entry, at = await refill(fleet, with_crc(made))
    return [hit(K.TIMESTAMPS, fleet.left, entry, at, len(made), base=20, end=21)]


# Rows.


@rows
async def swapped_objects_of_two_partitions(fleet: Fleet) -> list[Hit]:
    world, (left, right) = fleet.world, fleet.twins
    wrong_left = await world.change_entry(fleet.left, left, object_key=right.object_key)
    wrong_right = await world.change_entry(fleet.right, right, object_key=left.object_key)
    return [hit(K.WRONG_OBJECT, fleet.left, wrong_left), hit(K.WRONG_OBJECT, fleet.right, wrong_right)]


@rows
async def slice_of_another_blob(fleet: Fleet) -> list[Hit]:
    """A blob that holds nothing of this partition."""
    entry = fleet.slices[0]
    other = fleet.runs[0]
    wrong = await fleet.world.change_entry(
        fleet.left, entry, object_key=other.object_key, byte_offset=0, byte_length=50
    )
    return [hit(K.WRONG_OBJECT, fleet.left, wrong)]


@rows
async def slice_shifted_by_a_byte(fleet: Fleet) -> list[Hit]:
    entry = fleet.slices[0]
    wrong = await fleet.world.change_entry(fleet.left, entry, byte_offset=entry.byte_offset + 1)
    return [hit(K.BYTE_RANGE, fleet.left, wrong), overlap_hit(fleet)]


def overlap_hit(fleet: Fleet) -> Hit:
    """The partitions are walked side by side, and the second one's entry is the one that meets the other."""
    return hit(K.SLICE_OVERLAP, fleet.right, fleet.slices[1])


@rows
async def slice_of_another_partition(fleet: Fleet) -> list[Hit]:
    left, right = fleet.slices
    place = {"byte_offset": right.byte_offset, "byte_length": right.byte_length}
    wrong = await fleet.world.change_entry(fleet.left, left, **place)
    return [hit(K.BYTE_RANGE, fleet.left, wrong), overlap_hit(fleet)]


@rows
async def slice_without_its_last_batch(fleet: Fleet) -> list[Hit]:
    entry = fleet.slices[0]
    last = (await fleet.batch_places(entry))[-1][1]
    wrong = await fleet.world.change_entry(fleet.left, entry, byte_length=entry.byte_length - last)
    return [hit(K.RECORD_COUNT, fleet.left, wrong)]


@rows
async def slice_that_ends_within_a_batch(fleet: Fleet) -> list[Hit]:
    entry = fleet.slices[0]
    at, _ = (await fleet.batch_places(entry))[-1]
    wrong = await fleet.world.change_entry(fleet.left, entry, byte_length=entry.byte_length - 1)
    return [hit(K.BATCH, fleet.left, wrong, at, wrong.byte_offset + wrong.byte_length - at, base=4)]


@rows
async def slice_past_the_end_of_its_object(fleet: Fleet) -> list[Hit]:
    entry = fleet.slices[1]
    wrong = await fleet.world.change_entry(fleet.right, entry, byte_length=entry.byte_length + 1)
    return [hit(K.BYTE_RANGE, fleet.right, wrong)]


@rows
async def runs_of_one_body_that_overlap(fleet: Fleet) -> list[Hit]:
    first, second = fleet.runs
    wrong = await fleet.world.change_entry(
        fleet.clicks, second, byte_offset=first.byte_offset, byte_length=first.byte_length
    )
    return [hit(K.RECORD_COUNT, fleet.clicks, wrong), hit(K.SLICE_OVERLAP, fleet.clicks, wrong)]


@rows
async def byte_range_of_a_segment(fleet: Fleet) -> list[Hit]:
    wrong = await fleet.world.change_entry(fleet.left, fleet.segments[0], byte_offset=8)
    return [hit(K.BYTE_RANGE, fleet.left, wrong)]


@rows
async def size_of_a_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    wrong = await fleet.world.change_entry(fleet.left, entry, byte_length=entry.byte_length + 1)
    return [hit(K.OBJECT_SIZE, fleet.left, wrong)]


@rows
async def missing_first_entry(fleet: Fleet) -> list[Hit]:
    await fleet.world.drop_entry(fleet.left, fleet.slices[0])
    return [in_index(K.GAP, fleet.left, 0, 5)]


@rows
async def missing_entry(fleet: Fleet) -> list[Hit]:
    await fleet.world.drop_entry(fleet.left, fleet.segments[0])
    return [in_index(K.GAP, fleet.left, 6, 17)]


@rows
async def missing_last_entry(fleet: Fleet) -> list[Hit]:
    await fleet.world.drop_entry(fleet.left, fleet.tails[0])
    return [in_index(K.WATERMARK, fleet.left, 20, 23)]


@rows
async def no_entries_at_all(fleet: Fleet) -> list[Hit]:
    for entry in (fleet.slices[0], fleet.segments[0], fleet.twins[0], fleet.tails[0]):
        await fleet.world.drop_entry(fleet.left, entry)
    return [in_index(K.GAP, fleet.left, 0, 23)]


@rows
async def overlapping_entries(fleet: Fleet) -> list[Hit]:
    wrong = await fleet.world.change_entry(fleet.right, fleet.tails[1], base_offset=13)
    return [
        in_index(K.OVERLAP, fleet.right, 13, 13),
        hit(K.RECORD_COUNT, fleet.right, wrong),
    ]


@rows
async def watermark_one_too_high(fleet: Fleet) -> list[Hit]:
    await fleet.world.change_partition(fleet.left, "high_watermark", 25)
    return [in_index(K.WATERMARK, fleet.left, 24, 24)]


@rows
async def watermark_one_too_low(fleet: Fleet) -> list[Hit]:
    await fleet.world.change_partition(fleet.left, "high_watermark", 23)
    return [in_index(K.WATERMARK, fleet.left, 23, 23)]


@rows
async def log_start_above_the_watermark(fleet: Fleet) -> list[Hit]:
    await fleet.world.change_partition(fleet.left, "log_start_offset", 30)
    return [in_index(K.LOG_START, fleet.left, 30, 29)]


@rows
async def record_count_of_a_slice(fleet: Fleet) -> list[Hit]:
    """Told of by the entry itself, by the batches and by nothing else."""
    wrong = await fleet.world.change_entry(fleet.left, fleet.slices[0], record_count=7)
    return [hit(K.RECORD_COUNT, fleet.left, wrong), hit(K.RECORD_COUNT, fleet.left, wrong)]


@rows
async def record_count_of_a_segment(fleet: Fleet) -> list[Hit]:
    wrong = await fleet.world.change_entry(fleet.left, fleet.segments[0], record_count=11)
    return [hit(K.RECORD_COUNT, fleet.left, wrong), hit(K.RECORD_COUNT, fleet.left, wrong)]


@rows
async def record_count_of_a_compacted_entry(fleet: Fleet) -> list[Hit]:
    """Fewer records than offsets are allowed there (R18), so only the segment tells."""
    wrong = await fleet.world.change_entry(fleet.right, fleet.packed, record_count=3)
    return [hit(K.RECORD_COUNT, fleet.right, wrong)]


@rows
async def epoch_of_a_slice(fleet: Fleet) -> list[Hit]:
    wrong = await fleet.world.change_entry(fleet.left, fleet.slices[0], epoch=2)
    return [hit(K.EPOCH, fleet.left, wrong)]


@rows
async def epoch_of_a_segment(fleet: Fleet) -> list[Hit]:
    """Told of by the history, by the object's name, and by the first batch."""
    wrong = await fleet.world.change_entry(fleet.left, fleet.twins[0], epoch=1)
    (block,) = (await fleet.read_segment(wrong)).index.blocks
    whole = hit(K.EPOCH, fleet.left, wrong)
    return [whole, whole, hit(K.EPOCH, fleet.left, wrong, block.file_offset, block.stored_length)]


@rows
async def epoch_that_no_partition_had(fleet: Fleet) -> list[Hit]:
    wrong = await fleet.world.change_entry(fleet.left, fleet.tails[0], epoch=9)
    return [hit(K.EPOCH, fleet.left, wrong)]


@rows
async def epoch_of_the_partition_set_back(fleet: Fleet) -> list[Hit]:
    await fleet.world.change_partition(fleet.left, "leader_epoch", 1)
    return [hit(K.EPOCH, fleet.left, entry) for entry in (fleet.twins[0], fleet.tails[0])]


@rows
async def largest_time_of_a_slice(fleet: Fleet) -> list[Hit]:
    entry = fleet.slices[0]
    wrong = await fleet.world.change_entry(fleet.left, entry, max_timestamp=entry.max_timestamp_ms - 1)
    at, length = (await fleet.batch_places(entry))[-1]
    return [hit(K.TIMESTAMPS, fleet.left, wrong, at, length, base=4, end=5)]


@rows
async def largest_time_of_a_segment(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    wrong = await fleet.world.change_entry(fleet.left, entry, max_timestamp=entry.max_timestamp_ms - 1)
    return [hit(K.TIMESTAMPS, fleet.left, wrong)]


@rows
async def smallest_time_above_the_largest(fleet: Fleet) -> list[Hit]:
    entry = fleet.segments[0]
    wrong = await fleet.world.change_entry(fleet.left, entry, min_timestamp=entry.max_timestamp_ms + 1)
    return [hit(K.TIMESTAMPS, fleet.left, wrong)]


@rows
async def encoding_of_an_entry(fleet: Fleet) -> list[Hit]:
    wrong = await fleet.world.change_entry(fleet.left, fleet.slices[0], encoding="strm-v1")
    return [hit(K.ENTRY, fleet.left, wrong), hit(K.BYTE_RANGE, fleet.left, wrong)]


@rows
async def missing_partition(fleet: Fleet) -> list[Hit]:
    assert fleet.world.rows is not None
    await fleet.world.rows.run(
        "DELETE FROM partitions WHERE topic_id = ? AND partition_id = ?", fleet.right.key.topic_id, 1
    )
    return [in_index(K.MISSING_PARTITION, fleet.right, 0, -1)]
