"""Preparation: opening a batch on its way into the log. Pure.

A batch is stored as its producer made it, and its records are not looked at. Two topic configs ask for more:

    cleanup.policy has compact          every record needs a key. A record without one is refused, and its batch with it
    compression.type is not producer    a batch with another codec is uncompressed and compressed again

Both are the slow path of a write: the records are uncompressed and walked, which costs much more than all else that
happens to a batch. So small batches are prepared on the event loop (``prepare_now``), and a batch that is larger, or
becomes larger when it is uncompressed, is prepared in a thread (``prepare``), while the writes of its connection wait
behind it (produce.py).

Only the codec, the length and the checksum of a batch change. Offsets, times, producer id, epoch and sequence, and the
bytes of every record stay as they are, so that an idempotent producer's retry is found as a duplicate whatever codec it
came with. As in Apache Kafka, a batch that already has the topic's codec is not compressed again, whatever its level,
and ``max.message.bytes`` holds for the batch as it came and for the batch as it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamhouse.core.errors import CorruptBatch, InflatedTooLarge, InvalidRecord, LimitExceeded, RecordError
from streamhouse.core.limits import MAX_INFLATED_BATCH_BYTES, MAX_PREPARED_INLINE_BYTES, MAX_RECORD_ERRORS
from streamhouse.core.topic_config import TopicConfig
from streamhouse.wire.batch import CODEC_MASK, HEADER_BYTES, BatchHeader, check_batch, join_batch, read_header
from streamhouse.wire.buffers import BytesLike
from streamhouse.wire.codecs import Codec, codec_of, compress
from streamhouse.wire.null_keys import find_null_keys
from streamhouse.wire.records import inflate_body

__all__ = ["PrepareElsewhere", "prepare", "prepare_now"]

_AS_PRODUCED: Final = "producer"
_CODECS: Final[Mapping[str, Codec]] = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_KAFKAS_FAST_LZ4: Final = 9
"""The default of compression.lz4.level. Kafka takes the fast compressor for it, and the slow one for all others."""


class PrepareElsewhere(Exception):
    """The batch is too large to be prepared on the event loop."""


def prepare_now(name: object, config: TopicConfig, batch: BytesLike) -> BytesLike:
    """``prepare`` for a small batch. Raises PrepareElsewhere for any other."""
    try:
        return prepare(name, config, batch, max_inflated_bytes=MAX_PREPARED_INLINE_BYTES)
    except InflatedTooLarge:
        raise PrepareElsewhere from None


def prepare(
    name: object, config: TopicConfig, batch: BytesLike, *, max_inflated_bytes: int = MAX_INFLATED_BATCH_BYTES
) -> BytesLike:
    """The batch as it is to be stored: itself, or a new one with the topic's codec. ``name`` is for the message.

    Expects one whole batch that has passed the checks of writers.py. Raises InvalidRecord, LimitExceeded, CorruptBatch,
    InflatedTooLarge, UnsupportedVersion.
    """
    header = read_header(batch)
    check_batch(batch, 0, header)
    as_produced = config.compression_type == _AS_PRODUCED
    codec = codec_of(header.codec) if as_produced else _CODECS[config.compression_type]
    if codec == header.codec and not config.compacts:
        return batch
    if header.size > max_inflated_bytes:
        raise InflatedTooLarge(f"{name}: the records take more than {max_inflated_bytes} bytes")
    try:
        body = inflate_body(batch, 0, header, max_bytes=max_inflated_bytes)
        without_key = find_null_keys(body, header, at_most=MAX_RECORD_ERRORS if config.compacts else 0)
    except CorruptBatch as error:
        # The checksum was right: the producer made these bytes, and would send the same ones again.
        raise InvalidRecord(f"{name}: the records of a batch cannot be read: {error.message}") from None
    if without_key.total and config.compacts:
        raise InvalidRecord(
            f"{name}: {without_key.total} of {header.record_count} records have no key, and a compacted topic keeps"
            " records by their key",
            hint="give every record a key, or set cleanup.policy to delete",
            record_errors=[RecordError(at, "a record for a compacted topic needs a key") for at in without_key.first],
        )
    return batch if codec == header.codec else _compressed(name, config, header, body, codec)


def _compressed(name: object, config: TopicConfig, header: BatchHeader, body: memoryview, codec: Codec) -> bytes:
    payload = compress(codec, body, level=_level(config, codec))
    size = HEADER_BYTES + memoryview(payload).nbytes
    if size > config.max_message_bytes:
        raise LimitExceeded(
            f"{name}: a batch of {header.size} bytes has {size} bytes with compression.type={config.compression_type},"
            f" max.message.bytes allows {config.max_message_bytes}"
        )
    return join_batch(
        payload,
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        attributes=header.attributes & ~CODEC_MASK | codec,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=header.record_count,
    )


def _level(config: TopicConfig, codec: Codec) -> int | None:
    """The level of the topic's configs, on the codec's own scale; None for the codec's default."""
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            level = config.compression_lz4_level
            return None if level == _KAFKAS_FAST_LZ4 else level
        case Codec.ZSTD:
            return config.compression_zstd_level
        case _:
            return None
