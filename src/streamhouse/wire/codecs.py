"""The five codecs of record batches: compress, and inflate under a hard cap.

    none    the bytes themselves
    gzip    one or more members
    snappy  written in xerial's framing; read in that or as one raw block
    lz4     one or more frames; written with independent blocks of 64 KiB, the only kind Kafka's own reader takes
    zstd    one or more frames, skippable ones skipped; written with the content size that some readers need

    xerial: ┌─────────────────┬─────────┬────────┬────────────┬───────────────┬────────────┬───
            │ 82 'SNAPPY' 00  │ version │ compat │ length i32 │ snappy block  │ length i32 │ …
            └─────────────────┴─────────┴────────┴────────────┴───────────────┴────────────┴───

A size that the bytes declare is never trusted: inflation goes in steps and stops at the cap, and a snappy block, which
cannot be inflated in steps, may declare no more than its bytes can hold. Bytes after the last whole frame are corrupt.

Owns inflation; must not know what a batch or a record is.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

import cramjam
import lz4.frame
import zstandard

from streamhouse.core.errors import CorruptBatch, InflatedTooLarge, UnsupportedVersion
from streamhouse.core.limits import (
    MAX_CODEC_BLOCKS,
    MAX_CODEC_FRAMES,
    MAX_INFLATED_BATCH_BYTES,
    MAX_ZSTD_WINDOW_BYTES,
)
from streamhouse.wire.buffers import BytesLike, byte_view


class Codec(enum.IntEnum):
    """Kafka's codec ids, as stored in the low three attribute bits of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_IN_STEP_BYTES: Final = 64 * 1024  # the libraries copy what a step leaves over: small steps in keep that linear
_OUT_STEP_BYTES: Final = 1024 * 1024  # the most that is inflated past the cap before it is noticed

_GZIP_WINDOW_BITS: Final = 31  # zlib's spelling of "32 KiB window, gzip header and trailer"

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024  # xerial's default
_XERIAL_LENGTH: Final = struct.Struct(">i")

_ZSTD_SKIPPABLE_MAGIC: Final = 0x184D2A50  # and the fifteen numbers after it
_ZSTD_SKIPPABLE_HEADER: Final = struct.Struct("<II")
_ZSTD_BLOCK_HEADER_BYTES: Final = 3
_ZSTD_CHECKSUM_BYTES: Final = 4
_ZSTD_RLE: Final = 1
_ZSTD_RESERVED: Final = 3


def codec_of(codec_id: int) -> Codec:
    """Raises UnsupportedVersion for an id that Kafka has not given out yet."""
    try:
        return Codec(codec_id)
    except ValueError:
        raise UnsupportedVersion(f"codec {codec_id} is unknown; {Codec.ZSTD.value} is the highest") from None


def compress(codec: int, data: BytesLike, *, level: int | None = None) -> BytesLike:
    """Compress ``data`` as Kafka's readers expect it; ``level`` is the codec's own scale (snappy has none)."""
    match codec_of(codec):
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return zlib.compress(data, zlib.Z_DEFAULT_COMPRESSION if level is None else level, _GZIP_WINDOW_BITS)
        case Codec.SNAPPY:
            return _compress_xerial(byte_view(data))
        case Codec.LZ4:
            frame: bytes = lz4.frame.compress(
                data,
                compression_level=0 if level is None else level,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            )
            return frame
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def inflate(codec: int, data: BytesLike, *, max_bytes: int = MAX_INFLATED_BATCH_BYTES) -> BytesLike:
    """Inflate ``data``, never holding more than ``max_bytes`` and one step of output.

    Raises CorruptBatch for bytes the codec cannot read to their end, InflatedTooLarge over the cap, UnsupportedVersion
    for an unknown codec.
    """
    match codec_of(codec):
        case Codec.NONE:
            if memoryview(data).nbytes > max_bytes:
                raise _too_large(Codec.NONE, max_bytes)
            return data
        case Codec.GZIP:
            return _collect(Codec.GZIP, _inflate_gzip(byte_view(data)), max_bytes)
        case Codec.SNAPPY:
            return _inflate_snappy(byte_view(data), max_bytes)
        case Codec.LZ4:
            return _collect(Codec.LZ4, _inflate_lz4(byte_view(data)), max_bytes)
        case Codec.ZSTD:
            return _collect(Codec.ZSTD, _inflate_zstd(byte_view(data)), max_bytes)


def _collect(codec: Codec, steps: Iterable[bytes], max_bytes: int) -> BytesLike:
    """Join the steps, checking the cap at each; most batches are one step, which is passed on as it is."""
    first: bytes | None = None
    joined: bytearray | None = None
    total_bytes = 0
    for step in steps:
        total_bytes += len(step)
        if total_bytes > max_bytes:
            raise _too_large(codec, max_bytes)
        if first is None:
            first = step
        elif joined is None:
            joined = bytearray(first)
            joined += step
        else:
            joined += step
    return joined if joined is not None else first or b""


def _inflate_gzip(view: memoryview) -> Iterator[bytes]:
    pos = 0
    for _ in _frames(Codec.GZIP):
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        pending: BytesLike = b""
        while not member.eof:
            if not pending:
                pending = view[pos : pos + _IN_STEP_BYTES]
                pos += len(pending)
                if not pending:
                    raise CorruptBatch(f"gzip: cut off after {pos} bytes")
            try:
                step = member.decompress(pending, _OUT_STEP_BYTES)
            except zlib.error as error:
                raise CorruptBatch(f"gzip: {error}") from None
            pending = member.unconsumed_tail
            if step:
                yield step
        pos -= len(member.unused_data)
        if pos >= len(view):
            return


def _inflate_lz4(view: memoryview) -> Iterator[bytes]:
    pos = 0
    for _ in _frames(Codec.LZ4):
        frame = lz4.frame.LZ4FrameDecompressor()
        while not frame.eof:
            pending: BytesLike = b""
            if frame.needs_input:
                pending = view[pos : pos + _IN_STEP_BYTES]
                pos += len(pending)
                if not pending:
                    raise CorruptBatch(f"lz4: cut off after {pos} bytes")
            try:
                step: bytes = frame.decompress(pending, _OUT_STEP_BYTES)
            except RuntimeError as error:
                raise CorruptBatch(f"lz4: {error}") from None
            if step:
                yield step
            elif not frame.needs_input and not frame.eof:
                raise CorruptBatch(f"lz4: no progress after {pos} bytes")
        pos -= len(frame.unused_data or b"")
        if pos >= len(view):
            return


def _inflate_zstd(view: memoryview) -> Iterator[bytes]:
    """The library ends a cut-off frame without a word, so its extent is found first, from its block headers."""
    blocks_left = MAX_CODEC_BLOCKS
    pos = 0
    for _ in _frames(Codec.ZSTD):
        if len(view) - pos >= _ZSTD_SKIPPABLE_HEADER.size:
            magic, skipped_bytes = _ZSTD_SKIPPABLE_HEADER.unpack_from(view, pos)
            if magic & ~0xF == _ZSTD_SKIPPABLE_MAGIC:
                pos += _ZSTD_SKIPPABLE_HEADER.size + skipped_bytes
                if pos > len(view):
                    raise CorruptBatch("zstd: a skippable frame is cut off")
                if pos == len(view):
                    return
                continue
        try:
            end, blocks_left = _zstd_frame_end(view, pos, blocks_left)
            decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
            with decompressor.stream_reader(view[pos:end], closefd=False) as reader:
                while step := reader.read(_OUT_STEP_BYTES):
                    yield step
        except zstandard.ZstdError as error:
            raise CorruptBatch(f"zstd: {error}") from None
        pos = end
        if pos >= len(view):
            return


def _zstd_frame_end(view: memoryview, pos: int, blocks_left: int) -> tuple[int, int]:
    parameters = zstandard.get_frame_parameters(view[pos:])
    end = len(view)
    pos += zstandard.frame_header_size(view[pos:])
    last = False
    while not last:
        blocks_left -= 1
        if blocks_left < 0:
            raise CorruptBatch(f"zstd: more than {MAX_CODEC_BLOCKS} blocks")
        if pos + _ZSTD_BLOCK_HEADER_BYTES > end:
            raise CorruptBatch("zstd: cut off before its last block")
        header = view[pos] | view[pos + 1] << 8 | view[pos + 2] << 16
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == _ZSTD_RESERVED:
            raise CorruptBatch(f"zstd: block of an unknown kind at byte {pos}")
        pos += _ZSTD_BLOCK_HEADER_BYTES + (1 if kind == _ZSTD_RLE else size)
    if parameters.has_checksum:
        pos += _ZSTD_CHECKSUM_BYTES
    if pos > end:
        raise CorruptBatch("zstd: cut off within its last block")
    return pos, blocks_left


def _compress_xerial(view: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_XERIAL_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _inflate_snappy(view: memoryview, max_bytes: int) -> bytearray:
    # Walked twice rather than kept: a million views of tiny blocks would weigh more than the cap allows.
    total_bytes = sum(map(_snappy_size, _snappy_blocks(view)))
    if total_bytes > max_bytes:
        raise _too_large(Codec.SNAPPY, max_bytes)
    out = bytearray(total_bytes)
    out_view = memoryview(out)
    pos = 0
    for block in _snappy_blocks(view):
        size = _snappy_size(block)
        try:
            written = cramjam.snappy.decompress_raw_into(block, out_view[pos : pos + size])
        except cramjam.DecompressionError as error:
            raise CorruptBatch(f"snappy: {error}") from None
        if written != size:
            raise CorruptBatch(f"snappy: a block holds {written} bytes and declares {size}")
        pos += size
    return out


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    return _xerial_blocks(view) if _at_xerial_header(view, 0) else iter((view,))


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    """Java's reader takes streams laid end to end, so a header may come again where a length is expected."""
    pos = 0
    for _ in range(MAX_CODEC_BLOCKS):
        if _at_xerial_header(view, pos):
            pos += len(_XERIAL_HEADER)
        if pos == len(view):
            return
        if pos + _XERIAL_LENGTH.size > len(view):
            raise CorruptBatch(f"snappy: cut off at byte {pos}, before a block's length")
        (length,) = _XERIAL_LENGTH.unpack_from(view, pos)
        pos += _XERIAL_LENGTH.size
        if not 0 < length <= len(view) - pos:
            raise CorruptBatch(f"snappy: a block of {length} bytes at byte {pos}, {len(view) - pos} bytes left")
        yield view[pos : pos + length]
        pos += length
        if pos == len(view):
            return
    raise CorruptBatch(f"snappy: more than {MAX_CODEC_BLOCKS} blocks")


def _at_xerial_header(view: memoryview, pos: int) -> bool:
    """Version and compat are left unread: some writers store them little endian."""
    return len(view) - pos >= len(_XERIAL_HEADER) and bytes(view[pos : pos + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC


def _snappy_size(block: memoryview) -> int:
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None
    if not block or size * 3 > len(block) * 64:  # the densest element makes 64 bytes of 3
        raise CorruptBatch(f"snappy: a block of {len(block)} bytes cannot hold the {size} it declares")
    return size


def _frames(codec: Codec) -> Iterator[int]:
    yield from range(MAX_CODEC_FRAMES)
    raise CorruptBatch(f"{codec.name.lower()}: more than {MAX_CODEC_FRAMES} frames")


def _too_large(codec: Codec, max_bytes: int) -> InflatedTooLarge:
    return InflatedTooLarge(f"{codec.name.lower()}: the records take more than {max_bytes} bytes uncompressed")
