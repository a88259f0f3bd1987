"""Ten thousand damaged batches: each one noticed, none of them crashes a decoder or grows its memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from wire_samples import CODECS, mutated, sample_batch, with_crc

from streamhouse.core.errors import CorruptBatch, CorruptData, UnsupportedVersion
from streamhouse.wire.batch import HEADER_BYTES, iter_batches, read_header, validate
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import decode_records

DAMAGES_PER_CODEC = 2_000
# Base offset and leader epoch belong to the log, which writes them anew on every append: the CRC leaves them out.
NOT_UNDER_CRC = frozenset([*range(8), *range(12, 16)])


def flipped(batch: bytes, rng: random.Random) -> bytes:
    out = bytearray(batch)
    places = [place for place in range(len(batch)) if place not in NOT_UNDER_CRC]
    for place in rng.sample(places, rng.choice((1, 1, 1, 2, 3, 8))):
        out[place] ^= 1 << rng.randrange(8)
    return bytes(out)


@pytest.mark.parametrize("codec", CODECS)
def test_every_bit_flip_and_truncation_is_detected(codec: Codec) -> None:
    rng = random.Random(codec)
    batch = sample_batch(30, codec=codec)
    follower = sample_batch(5)
    for _ in range(DAMAGES_PER_CODEC):
        damaged = flipped(batch, rng) if rng.random() < 0.75 else batch[: rng.randrange(1, len(batch))]
        with pytest.raises(CorruptBatch):
            validate(damaged)
        # Within a run, a length that grew finds bytes to cover and a cut one borrows the next batch's.
        with pytest.raises(CorruptBatch):
            list(iter_batches(damaged + follower))


def test_every_single_bit_of_the_length_is_detected() -> None:
    batch = sample_batch(3)
    run = batch + sample_batch(200) * 50
    for bit in range(32):
        damaged = bytearray(run)
        damaged[8 + bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch):
            validate(damaged)


def test_flips_of_base_offset_and_epoch_change_those_fields_and_no_other() -> None:
    batch = sample_batch(3, base_offset=5, leader_epoch=2)
    honest = read_header(batch)
    for bit in range(12 * 8):
        place = sorted(NOT_UNDER_CRC)[bit // 8]
        damaged = bytearray(batch)
        damaged[place] ^= 1 << bit % 8
        if place == 0 and bit % 8 == 7:
            with pytest.raises(CorruptBatch, match="make no range of offsets"):
                validate(damaged)
            continue
        header = validate(damaged)
        changed = {name for name in BATCH_FIELDS if getattr(header, name) != getattr(honest, name)}
        assert changed == ({"base_offset"} if place < 8 else {"partition_leader_epoch"})


BATCH_FIELDS = read_header(sample_batch(1))._fields


@pytest.mark.parametrize("codec", CODECS)
def test_damage_under_a_right_crc_is_refused_or_harmless_and_memory_stays_bounded(codec: Codec) -> None:
    """A hostile producer computes the CRC last; only the errors of the tree may come out."""
    rng = random.Random(100 + codec)
    batch = sample_batch(30, codec=codec)
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(DAMAGES_PER_CODEC):
            start = rng.choice((HEADER_BYTES, 21))
            damaged = with_crc(mutated(batch, rng, start))
            try:
                decode_records(damaged, max_inflated_bytes=1 << 20)
            except (CorruptData, UnsupportedVersion):
                refused += 1
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused > DAMAGES_PER_CODEC // 4
    assert peak_bytes < 8 << 20
