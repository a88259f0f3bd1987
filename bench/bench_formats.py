"""Formats: WAL frames, shared blobs, segments. CPU per byte, in memory, one core."""

from __future__ import annotations

import random
import struct
from uuid import UUID

from crc32c import crc32c

from report import heading, measure, row
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.formats.segment_v1_reader import RangedReader, decode_block, read_segment, verify_segment
from streamhouse.formats.segment_v1_writer import write_segment
from streamhouse.formats.shared_blob_v1 import check_slice, place_slice, read_header, verify_blob
from streamhouse.formats.shared_blob_v1_writer import BlobWriter, FinishedBlob
from streamhouse.formats.wal_frame_v1 import FileHeader, encode_file_header, encode_frame_header
from streamhouse.formats.wal_scan_v1 import frames, scan
from streamhouse.wire.batch import BatchHeader, validate

MIB = 1024 * 1024
TOTAL_BYTES = 64 * MIB
TOPIC = TopicId(UUID(int=1))
WAL = UUID(int=2)
Batches = list[tuple[bytes, BatchHeader]]


def main() -> None:
    for payload_bytes in (1024, 16 * 1024, 256 * 1024):
        batches = make_batches(payload_bytes)
        bench_segment(batches, payload_bytes)
    bench_ranged(make_batches(16 * 1024))
    bench_wal()
    bench_blob()


def make_batches(payload_bytes: int, total_bytes: int = TOTAL_BYTES) -> Batches:
    """Half noise, half repetition: what LZ4 halves, as it does typical records."""
    rng = random.Random(1)
    payloads = [rng.randbytes(payload_bytes // 2) + b"0123456789abcdef" * (payload_bytes // 32) for _ in range(64)]
    batches = []
    for number in range(total_bytes // payload_bytes):
        payload = payloads[number % len(payloads)]
        checked = struct.pack(">hiqqqhii", 0, 9, 1_700_000_000_000, 1_700_000_000_009, -1, -1, -1, 10) + payload
        batch = struct.pack(">qiibI", 10 * number, 9 + len(checked), 3, 2, crc32c(checked)) + checked
        batches.append((batch, validate(batch)))
    return batches


def rate(total_bytes: int, seconds: float) -> str:
    return f"{total_bytes / seconds / 1e6:,.0f} MB/s"


def bench_segment(batches: Batches, payload_bytes: int) -> None:
    heading(f"STRM segment of 64 MiB, batches of {payload_bytes // 1024} KiB")
    key = PartitionKey(TOPIC, 0)
    total = sum(len(batch) for batch, _ in batches)
    target = ">= 500 MB/s"

    def drain(data: bytes) -> int:
        return sum(len(run) for run in read_segment(data).runs())

    views = [(memoryview(batch), header) for batch, header in batches]
    took = measure(lambda: write_segment(views, key=key), rounds=5)
    row("write, none, from views into a receive buffer", rate(total, took.cpu_s), target=target)
    for compression in ("none", "lz4"):
        took = measure(lambda how=compression: write_segment(batches, key=key, compression=how), rounds=5)
        data = b"".join(write_segment(batches, key=key, compression=compression).buffers)
        row(f"write, {compression}", rate(total, took.cpu_s), target=target if compression == "none" else "")
        took = measure(lambda stored=data: drain(stored), rounds=5)
        row(
            f"read, {compression} (CRC of every block)",
            rate(total, took.cpu_s),
            target=target if compression == "none" else "",
            ratio=f"{len(data) / total:.2f} of the size",
        )
        took = measure(lambda stored=data: verify_segment(stored), rounds=5)
        row(f"verify, {compression} (and of every batch)", rate(total, took.cpu_s))


def bench_ranged(batches: Batches) -> None:
    heading("STRM ranged read of one block out of 64 MiB")
    data = memoryview(b"".join(write_segment(batches, key=PartitionKey(TOPIC, 0)).buffers))

    def open_segment() -> RangedReader:
        reader = RangedReader(len(data))
        while (need := reader.need()) is not None:
            reader.feed(data[need.offset : need.end])
        return reader

    reader = open_segment()
    took = measure(open_segment)
    row(f"footer and index of {len(reader.index.blocks)} blocks", f"{took.cpu_s * 1e6:,.0f} µs")

    def one_block() -> None:
        block = reader.index.blocks_from(20_000)[0]
        decode_block(data[block.file_offset : block.file_offset + block.stored_length], block)

    took = measure(lambda: [one_block() for _ in range(100)])
    row("find an offset and check its block", f"{took.cpu_s * 1e4:,.0f} µs")


def bench_wal() -> None:
    heading("WAL frames")
    for payload_bytes in (1024, 16 * 1024, 256 * 1024):
        payload = random.Random(2).randbytes(payload_bytes)
        count = min(20_000, TOTAL_BYTES // payload_bytes)

        def encode(payload: bytes = payload, count: int = count) -> list[bytes]:
            return [
                encode_frame_header(
                    payload,
                    wal_id=WAL,
                    generation=1,
                    lsn=lsn,
                    last_synced_lsn=max(0, lsn - 8),
                    topic_id=TOPIC,
                    partition=3,
                    epoch=4,
                    base_offset=10 * lsn,
                    timestamp_ms=1_700_000_000_000,
                    acks=-1,
                )
                for lsn in range(1, count + 1)
            ]

        took = measure(encode, rounds=5)
        row(
            f"encode, {payload_bytes // 1024} KiB",
            rate(count * payload_bytes, took.cpu_s),
            ratio=f"{took.cpu_s / count * 1e6:.1f} µs a frame",
        )
        parts = [encode_file_header(FileHeader(wal_id=WAL, generation=1, first_lsn=1, created_at_ms=0))]
        for header in encode():
            parts += [header, payload]
        data = b"".join(parts) + bytes(MIB)
        took = measure(lambda data=data: scan(data, wal_id=WAL), rounds=5)
        row(
            f"scan, {payload_bytes // 1024} KiB",
            rate(count * payload_bytes, took.cpu_s),
            ratio=f"{took.cpu_s / count * 1e6:.1f} µs a frame",
        )
        result = scan(data, wal_id=WAL)
        took = measure(lambda data=data, result=result: sum(1 for _ in frames(data, result)), rounds=5)
        row(f"replay, {payload_bytes // 1024} KiB", f"{count / took.cpu_s / 1e3:,.0f} k frames/s")
    broken = bytearray(data)
    broken[5000] ^= 1
    took = measure(lambda: scan(broken, wal_id=WAL), rounds=5)
    row("look beyond a break at the start", rate(len(broken), took.cpu_s))


def bench_blob() -> None:
    heading("LLS1 shared blob, 16 KiB batches")
    batches = make_batches(16 * 1024, 16 * MIB)
    for partitions in (10, 100, 1000):

        def pack(partitions: int = partitions) -> FinishedBlob:
            writer = BlobWriter(created_at_ms=0)
            for number, (batch, header) in enumerate(batches):
                writer.add("orders", PartitionKey(TOPIC, number % partitions)).append(batch, header)
            return writer.finish()

        blob = pack()
        data = b"".join(blob.buffers)
        took = measure(pack)
        row(
            f"pack, {partitions} partitions",
            rate(len(data), took.cpu_s),
            ratio=f"{took.cpu_s / partitions * 1e6:.1f} µs a partition",
        )
        took = measure(lambda data=data: read_header(data, object_size=len(data)))
        row(f"read the header, {partitions} partitions", f"{took.cpu_s * 1e6:,.0f} µs")
        took = measure(lambda data=data: verify_blob(data))
        row(f"verify, {partitions} partitions", rate(len(data), took.cpu_s))
    cut = pack(10).slices[0]
    stored = bytearray(b"".join(pack(10).buffers)[cut.byte_offset : cut.byte_offset + cut.byte_length])
    took = measure(lambda: check_slice(stored, byte_length=cut.byte_length, record_count=cut.record_count))
    row(f"check a slice of {cut.byte_length // 1024} KiB", rate(cut.byte_length, took.cpu_s))

    def place() -> None:
        fresh = bytearray(stored)
        place_slice(fresh, byte_length=cut.byte_length, record_count=cut.record_count, base_offset=1000, leader_epoch=2)

    took = measure(place)
    row("copy, check and place it", rate(cut.byte_length, took.cpu_s))


if __name__ == "__main__":
    main()
