"""Record batches: check and patch, batches → Arrow columns, Arrow columns → batches. One core."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch

from report import heading, measure, row
from streamhouse.wire import _columns_py, columns
from streamhouse.wire._column_kernel import IS_COMPILED
from streamhouse.wire.batch import iter_batches, patch, validate
from streamhouse.wire.codecs import Codec
from streamhouse.wire.columns import COLUMNS, StoredBatches, decode_columns, iter_columns
from streamhouse.wire.columns_encode import encode_by_partition, encode_columns, murmur2_partitions

ROWS = 500_000
FOUR_COLUMNS = ("offset", "timestamp", "key", "value")


def sample_columns(value_bytes: int, rows: int = ROWS) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Keys of ten bytes, values half random and half text, so that codecs meet neither noise nor a single letter."""
    rng = random.Random(value_bytes)
    noise = rng.randbytes(1 << 16)
    text = (b"the quick brown fox jumps over the lazy dog and runs away " * 20)[: value_bytes - value_bytes // 2]
    keys = [b"user-%05d" % rng.randrange(100_000) for _ in range(rows)]
    starts = [rng.randrange(len(noise) - value_bytes) for _ in range(rows)]
    values = [noise[at : at + value_bytes // 2] + text for at in starts]
    times = [1_700_000_000_000 + index // 3 for index in range(rows)]
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(times, pa.int64())


def rate(call: Callable[[], object], records: int) -> float:
    """Million records a second of CPU time."""
    return records / measure(call).cpu_s / 1e6


def main() -> None:
    heading(f"wire: record batches ({'compiled' if IS_COMPILED else 'pure Python'} columns)")
    bench_validate_and_patch()
    for value_bytes in (20, 60, 100):
        bench_columns(value_bytes)
    bench_small_batches()
    bench_partitions()


def bench_validate_and_patch() -> None:
    small = bytearray(encode_columns(*sample_columns(60, rows=10))[0])
    repeats = 10_000

    def check(batch: bytearray, times: int) -> None:
        for _ in range(times):
            validate(batch)
            patch(batch, 0, base_offset=12, leader_epoch=3)

    small_us = measure(lambda: check(small, repeats)).cpu_s / repeats * 1e6
    row("validate + patch, batch of 10 records", f"{small_us:.1f} µs", target="≤ 10 µs")
    (large,) = map(bytearray, encode_columns(*sample_columns(100, rows=70_000), batch_bytes=16 << 20))
    megabytes = len(large) / 1e6
    large_ms = measure(lambda: check(large, 20)).cpu_s / 20 * 1e3
    row(f"validate + patch, batch of {megabytes:.0f} MB", f"{large_ms / megabytes:.3f} ms/MB", target="≤ 0.1 ms/MB")


def bench_columns(value_bytes: int) -> None:
    source = sample_columns(value_bytes)
    for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY, Codec.GZIP):
        kind = f"{value_bytes:>3} B values, {codec.name.lower()}"
        batches = encode_columns(*source, codec=codec)
        run = [StoredBatches(partition=0, data=b"".join(batches), base_offset=0)]
        encoded = rate(lambda codec=codec: encode_columns(*source, codec=codec), ROWS)  # type: ignore[misc]
        decoded = rate(lambda run=run: decode_columns(run, columns=FOUR_COLUMNS), ROWS)  # type: ignore[misc]
        target = {Codec.NONE: "≥ 20 M/s", Codec.LZ4: "≥ 10 M/s"}.get(codec, "")
        row(f"batches → columns, {kind}", f"{decoded:.1f} M records/s", target=target)
        row(f"columns → batches, {kind}", f"{encoded:.1f} M records/s", target="≥ 4 M/s" if codec == Codec.NONE else "")
    if value_bytes == 60:
        bench_peers(source)


def bench_peers(source: tuple[pa.Array, pa.Array, pa.Array]) -> None:
    batches = encode_columns(*source)
    run = [StoredBatches(partition=0, data=b"".join(batches), base_offset=0)]
    ours = rate(lambda: decode_columns(run, columns=FOUR_COLUMNS), ROWS)
    streamed = rate(
        lambda: sum(part.num_rows for part in iter_columns(run, columns=COLUMNS, timestamp_unit="us")), ROWS
    )
    row("the same in pieces of 8 MiB, all columns, microseconds", f"{streamed:.1f} M records/s")
    few = batches[:4]
    few_rows = sum(header.record_count for _, header in iter_batches(b"".join(few)))
    aiokafka = rate(lambda: [(r.key, r.value) for batch in few for r in DefaultRecordBatch(batch)], few_rows)
    row(
        "aiokafka's C iterator, as Python objects",
        f"{aiokafka:.2f} M records/s",
        ratio=f"ours is {ours / aiokafka:.0f} ×",
    )
    kernel = columns.kernel
    columns.kernel = _columns_py  # type: ignore[misc]
    pure = rate(lambda: decode_columns([StoredBatches(partition=0, data=few[0])], columns=FOUR_COLUMNS), few_rows // 4)
    columns.kernel = kernel  # type: ignore[misc]
    row("the pure twin", f"{pure:.2f} M records/s", ratio=f"ours is {ours / pure:.0f} ×")


def bench_small_batches() -> None:
    source = sample_columns(60)
    for count in (10, 100, 1000):
        run = [
            StoredBatches(partition=0, data=b"".join(encode_columns(*source, records_per_batch=count)), base_offset=0)
        ]
        decoded = rate(lambda run=run: decode_columns(run, columns=FOUR_COLUMNS), ROWS)  # type: ignore[misc]
        row(f"batches of {count} records → columns", f"{decoded:.1f} M records/s")


def bench_partitions() -> None:
    key, value, timestamp = sample_columns(60)
    row("murmur2 of a column of keys", f"{rate(lambda: murmur2_partitions(key, 64), ROWS):.0f} M keys/s")
    partitions = murmur2_partitions(key, 64)
    spread = rate(lambda: encode_by_partition(key, value, timestamp, partitions=partitions, partition_count=64), ROWS)
    row("columns → batches of 64 partitions", f"{spread:.1f} M records/s", target="≥ 4 M/s")
