"""The compiled kernel against its pure twin: the same columns and batches, the same refusals in the same words."""

from __future__ import annotations

import inspect
import random
from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import CODECS, kernel_module, mutated, record_lists, sample_batch, sample_records, with_body, with_crc

from streamhouse.core.errors import StreamHouseError
from streamhouse.wire import columns, columns_encode
from streamhouse.wire.batch import HEADER_BYTES
from streamhouse.wire.codecs import Codec, compress
from streamhouse.wire.columns import COLUMNS, HEADERS_TYPE, StoredBatches, decode_columns
from streamhouse.wire.columns_encode import encode_columns
from streamhouse.wire.records import Record, build_batch

COMPILED, PURE = kernel_module("_columns"), kernel_module("_columns_py")
MUTATIONS_PER_CODEC = 2_000


def outcome(kernel: ModuleType, run: StoredBatches, **options: object) -> object:
    """The columns, or the class and words of the refusal. Anything but an error of the tree fails the test."""
    before = columns.kernel
    columns.kernel = kernel  # type: ignore[misc]
    try:
        batch = decode_columns([run], max_inflated_bytes=1 << 22, **options)  # type: ignore[arg-type]
        batch.validate(full=True)
        return batch
    except StreamHouseError as error:
        return type(error), str(error)
    finally:
        columns.kernel = before  # type: ignore[misc]


def assert_twins_agree(run: StoredBatches, **options: object) -> bool:
    compiled = outcome(COMPILED, run, **options)
    assert compiled == outcome(PURE, run, **options)
    return isinstance(compiled, pa.RecordBatch)


@pytest.mark.parametrize("codec", CODECS)
def test_ten_thousand_mutations_are_judged_alike(codec: Codec) -> None:
    rng = random.Random(codec)
    seeds = [build_batch(sample_records(count, seed=count), codec=Codec.NONE) for count in (1, 3, 12)]
    accepted = 0
    for round_ in range(MUTATIONS_PER_CODEC):
        batch = rng.choice(seeds)
        # Records are mutated before they are compressed: otherwise most damage would stop at the codec.
        body = mutated(batch[HEADER_BYTES:], rng)
        head = mutated(batch[:HEADER_BYTES], rng, 21)[:HEADER_BYTES] if rng.random() < 0.2 else batch[:HEADER_BYTES]
        head = head.ljust(HEADER_BYTES, b"\0")
        head = head[:22] + bytes([head[22] & 0xF8 | codec]) + head[23:]
        damaged = with_crc(head + bytes(compress(codec, body)))
        wanted = rng.choice((COLUMNS, ("headers",), ("key", "offset"), ("value", "timestamp")))
        run = StoredBatches(
            partition=round_ % 3, data=sample_batch(2) + damaged, base_offset=rng.choice((None, 0, 2**40))
        )
        accepted += assert_twins_agree(run, columns=wanted, timestamp_unit=rng.choice(("ms", "us")))
    assert 0 < accepted < MUTATIONS_PER_CODEC


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=60), count=st.integers(0, 6), wanted=st.sampled_from([COLUMNS, ("headers",), ("key",)]))
def test_arbitrary_bodies_are_judged_alike(body: bytes, count: int, wanted: tuple[str, ...]) -> None:
    template = build_batch([Record()] * count, last_offset=count) if count == 0 else build_batch([Record()] * count)
    padded = body + bytes(max(0, 7 * count - len(body)))
    assert_twins_agree(StoredBatches(partition=0, data=with_body(template, padded)), columns=wanted)


# Bytes that look like records more often than chance: small numbers, and the edges of varints.
likely_bytes = st.lists(
    st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 14, 16, 20, 0x7F, 0x80, 0x81, 0xFE, 0xFF]), max_size=40
).map(bytes)


@settings(max_examples=500, deadline=None)
@given(inner=likely_bytes, log_append=st.booleans())
def test_likely_records_are_judged_alike(inner: bytes, log_append: bool) -> None:
    template = build_batch([Record()], timestamp_type=int(log_append))  # type: ignore[arg-type]
    body = bytes([2 * len(inner)]) + inner if len(inner) < 64 else inner
    padded = body + bytes(max(0, 7 - len(body)))
    assert_twins_agree(
        StoredBatches(partition=0, data=with_body(template, padded)), columns=COLUMNS, timestamp_unit="us"
    )


@settings(max_examples=100, deadline=None)
@given(record_lists, st.sampled_from(CODECS), st.integers(0, 40), st.integers(0, 40))
def test_honest_batches_decode_alike(records: list[Record], codec: Codec, low: int, high: int) -> None:
    run = StoredBatches(partition=1, data=build_batch(records, codec=codec), from_offset=low, to_offset=high)
    assert assert_twins_agree(run, columns=COLUMNS)


@settings(max_examples=150, deadline=None)
@given(records=record_lists, target=st.integers(62, 600), most=st.integers(1, 20), data=st.data())
def test_columns_encode_alike(records: list[Record], target: int, most: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(records) - 1))
    source = [
        column.slice(start)
        for column in (
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array([record.timestamp_ms for record in records], pa.int64()),
            pa.array([[header._asdict() for header in record.headers] for record in records], HEADERS_TYPE),
        )
    ]
    last = len(records) - start - 1
    rows = data.draw(st.none() | st.lists(st.integers(0, last)).map(lambda chosen: pa.array(chosen, pa.int32())))
    results = []
    for kernel in (COMPILED, PURE):
        before = columns_encode.kernel
        columns_encode.kernel = kernel  # type: ignore[misc]
        try:
            results.append(encode_columns(*source, rows=rows, batch_bytes=target, records_per_batch=most))
        finally:
            columns_encode.kernel = before  # type: ignore[misc]
    assert results[0] == results[1]


def test_the_twins_have_the_same_public_names() -> None:
    public = {
        name
        for name, thing in vars(PURE).items()
        if getattr(thing, "__module__", None) == PURE.__name__ and not name.startswith("_")
    }
    assert public == {"Decoder", "Encoder", "group_rows", "murmur2_partitions"}
    for name in public:
        assert hasattr(COMPILED, name)
    for name in ("Decoder", "Encoder"):
        methods = {m for m, _ in inspect.getmembers(getattr(PURE, name)) if not m.startswith("_")}
        assert methods <= set(dir(getattr(COMPILED, name)))
