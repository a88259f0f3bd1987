"""Codecs: what goes in comes out, lies about sizes are not believed, and bombs stop at the cap."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import CODECS

from streamhouse.core.errors import CorruptBatch, InflatedTooLarge, UnsupportedVersion
from streamhouse.core.limits import MAX_CODEC_BLOCKS, MAX_CODEC_FRAMES, MIB
from streamhouse.wire.codecs import Codec, compress, inflate

COMPRESSED = [codec for codec in CODECS if codec != Codec.NONE]
MIXED = random.Random(5).randbytes(40_000) + b"a text that compresses " * 60_000

payloads = st.binary(max_size=300) | st.builds(
    lambda data, n: data * n, st.binary(min_size=1, max_size=9), st.integers(0, 50_000)
)


@settings(max_examples=150, deadline=None)
@given(data=payloads, codec=st.sampled_from(CODECS))
def test_round_trip(data: bytes, codec: Codec) -> None:
    assert bytes(inflate(codec, memoryview(compress(codec, data)))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_of_many_steps_and_blocks_round_trips(codec: Codec) -> None:
    assert bytes(inflate(codec, compress(codec, MIXED * 3))) == MIXED * 3


@pytest.mark.parametrize("codec", CODECS)
def test_the_cap_is_exact(codec: Codec) -> None:
    body = compress(codec, MIXED)
    assert len(inflate(codec, body, max_bytes=len(MIXED))) == len(MIXED)
    with pytest.raises(InflatedTooLarge, match=f"more than {len(MIXED) - 1} bytes"):
        inflate(codec, body, max_bytes=len(MIXED) - 1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_level_is_the_codecs_own(codec: Codec) -> None:
    thorough = compress(codec, MIXED, level=9)
    assert len(thorough) < len(compress(codec, MIXED, level=1))
    assert inflate(codec, thorough) == MIXED


@pytest.mark.parametrize("codec_id", [5, 6, 7, -1, 99])
def test_unknown_codecs_are_unsupported(codec_id: int) -> None:
    with pytest.raises(UnsupportedVersion):
        inflate(codec_id, b"")
    with pytest.raises(UnsupportedVersion):
        compress(codec_id, b"")


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_truncation_is_corrupt(codec: Codec) -> None:
    body = bytes(compress(codec, MIXED[39_000:41_000]))
    # Xerial's framing has no end mark, so a cut between blocks shows only in the records: here there is one block.
    header_only = 16 if codec == Codec.SNAPPY else -1
    for length in range(len(body)):
        if length != header_only:
            with pytest.raises(CorruptBatch):
                inflate(codec, body[:length])


@pytest.mark.parametrize("codec", COMPRESSED)
def test_garbage_and_damage_give_no_other_error(codec: Codec) -> None:
    rng = random.Random(codec)
    body = bytes(compress(codec, MIXED[39_900:42_000]))
    for round_ in range(1000):
        if round_ % 4 == 0:
            damaged = bytearray(rng.randbytes(rng.randrange(200)))
        else:
            damaged = bytearray(body)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(CorruptBatch, InflatedTooLarge):
            inflate(codec, damaged, max_bytes=MIB)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_frames_laid_end_to_end_are_read_to_the_end(codec: Codec) -> None:
    parts = [MIXED[:100], MIXED[30_000:200_000], b"end"]
    assert bytes(inflate(codec, b"".join(bytes(compress(codec, part)) for part in parts))) == b"".join(parts)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("tail", [b"\0", b"garbage after the end of it"])
def test_bytes_after_the_last_frame_are_corrupt(codec: Codec, tail: bytes) -> None:
    with pytest.raises(CorruptBatch):
        inflate(codec, bytes(compress(codec, MIXED)) + tail)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_frames_without_end_are_stopped(codec: Codec) -> None:
    frame = bytes(compress(codec, b""))
    assert inflate(codec, frame * MAX_CODEC_FRAMES) == b""
    with pytest.raises(CorruptBatch, match=f"more than {MAX_CODEC_FRAMES} frames"):
        inflate(codec, frame * (MAX_CODEC_FRAMES + 1))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_nothing_at_all_is_corrupt(codec: Codec) -> None:
    with pytest.raises(CorruptBatch):
        inflate(codec, b"")


# Dialects other writers speak.


def test_gzip_with_a_file_name_in_its_header() -> None:
    named = b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name\0" + gzip.compress(MIXED, mtime=0)[10:]
    assert inflate(Codec.GZIP, named) == MIXED


def test_snappy_as_one_raw_block() -> None:
    assert inflate(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(MIXED))) == MIXED


def test_snappy_with_little_endian_versions_in_the_header() -> None:
    body = bytearray(compress(Codec.SNAPPY, MIXED))
    body[8:16] = struct.pack("<ii", 1, 1)
    assert inflate(Codec.SNAPPY, body) == MIXED


def test_snappy_is_written_in_the_framing_java_reads() -> None:
    body = bytes(compress(Codec.SNAPPY, MIXED[:50_000]))
    assert body[:16] == b"\x82SNAPPY\x00\0\0\0\x01\0\0\0\x01"
    (length,) = struct.unpack_from(">i", body, 16)
    assert len(cramjam.snappy.decompress_raw(body[20 : 20 + length])) == 32 * 1024


def test_lz4_with_linked_blocks_checksums_and_size() -> None:
    frame = lz4.frame.compress(
        MIXED, block_linked=True, content_checksum=True, block_checksum=True, store_size=True, block_size=7
    )
    assert inflate(Codec.LZ4, frame) == MIXED


def test_lz4_is_written_with_the_independent_blocks_java_insists_on() -> None:
    info = lz4.frame.get_frame_info(bytes(compress(Codec.LZ4, MIXED)))
    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024


def test_zstd_without_size_with_checksum_and_flushed_in_pieces() -> None:
    writer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    pieces = [
        writer.compress(MIXED[at : at + 9_000]) + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        for at in range(0, len(MIXED), 9_000)
    ]
    assert inflate(Codec.ZSTD, b"".join(pieces) + writer.flush()) == MIXED


def test_zstd_skippable_frames_are_skipped() -> None:
    skippable = struct.pack("<II", 0x184D2A5E, 5) + b"12345"
    frame = bytes(compress(Codec.ZSTD, MIXED))
    assert inflate(Codec.ZSTD, skippable + frame + skippable) == MIXED
    with pytest.raises(CorruptBatch, match="skippable"):
        inflate(Codec.ZSTD, frame + skippable[:-1])


# Lies.


def test_snappy_declaring_more_than_its_bytes_can_hold_is_refused_before_allocation() -> None:
    claims_4_gib = b"\xff\xff\xff\xff\x0f" + b"\0" * 20
    with pytest.raises(CorruptBatch, match="cannot hold"):
        inflate(Codec.SNAPPY, claims_4_gib)


def test_snappy_blocks_without_end_are_stopped() -> None:
    block = struct.pack(">i", 1) + b"\0"
    with pytest.raises(CorruptBatch, match="blocks"):
        inflate(Codec.SNAPPY, bytes(compress(Codec.SNAPPY, b"")) + block * (MAX_CODEC_BLOCKS + 1))


def test_zstd_blocks_without_end_are_stopped() -> None:
    header = bytes(zstandard.ZstdCompressor(write_content_size=False).compress(b""))[:-3]
    with pytest.raises(CorruptBatch, match="blocks"):
        inflate(Codec.ZSTD, header + b"\0\0\0" * (MAX_CODEC_BLOCKS + 1))


def test_zstd_declaring_a_terabyte_is_refused() -> None:
    claims_1_tib = struct.pack("<IB", 0xFD2FB528, 0xE0) + struct.pack("<Q", 1 << 40) + b"\x01\0\0"
    with pytest.raises(CorruptBatch):
        inflate(Codec.ZSTD, claims_1_tib)


def test_zstd_demanding_a_window_of_gigabytes_is_refused() -> None:
    window_2_gib = struct.pack("<IBB", 0xFD2FB528, 0x00, 21 << 3) + b"\x01\0\0"
    with pytest.raises(CorruptBatch, match="memory"):
        inflate(Codec.ZSTD, window_2_gib)


def test_lz4_declaring_an_exabyte_is_refused() -> None:
    frame = bytearray(lz4.frame.compress(MIXED, store_size=True, block_linked=False))
    size_at = 6
    struct.pack_into("<Q", frame, size_at, 1 << 60)
    with pytest.raises(CorruptBatch):  # its header checksum, and then its size, are wrong
        inflate(Codec.LZ4, frame)


def test_gzip_with_a_wrong_checksum_is_corrupt() -> None:
    body = bytearray(compress(Codec.GZIP, MIXED))
    assert zlib.crc32(MIXED) == struct.unpack_from("<I", body, len(body) - 8)[0]
    body[-8] ^= 1
    with pytest.raises(CorruptBatch, match="gzip"):
        inflate(Codec.GZIP, body)
