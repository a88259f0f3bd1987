"""Record batches for fuzzed Produce requests: valid ones, and ones that are damaged in places. Seeded.

Most batches are valid and reach the log. Some are damaged and get a new checksum, so that the damage passes the first
check and meets the code behind it: counts, codecs, lengths inside of records. Some are damaged and keep their checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from random import Random
from typing import Any
from uuid import UUID

from crc32c import crc32c

from streamhouse.wire.batch import HEADER_BYTES
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Header, Record, build_batch

TOPICS: Mapping[str, Mapping[str, str]] = {
    "fuzz-plain": {},
    "fuzz-stamped": {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "2000"},
    "fuzz-compacted": {"cleanup.policy": "compact"},
    "fuzz-gzip": {"compression.type": "gzip"},
    "fuzz-uncompressed": {"compression.type": "uncompressed"},
}
"""The topics that are written to, with their configs. No other request of the fuzzer names them."""
PARTITIONS = 2
PRODUCE = 0
_BY_ID_FROM = 13
_CRC_AT, _CHECKED_FROM = 17, 21
_NEW_PRODUCER, _KNOWN_PRODUCERS = 1 << 40, (1, 2, 3)


def produce_fields(rng: Random, version: int, topic_ids: Mapping[str, UUID]) -> dict[str, Any]:
    """The fields of a Produce request whose records are batches."""
    return {
        "transactional_id": None if rng.random() < 0.95 else rng.choice(("", "tx")),
        "acks": rng.choice((-1, -1, -1, 1, 1, 0, 2)),
        "timeout": rng.choice((0, 1000, 1000, 1000, -1)),
        "topic_data": [_topic(rng, version, topic_ids) for _ in range(rng.choice((1, 1, 1, 2)))],
    }


def _topic(rng: Random, version: int, topic_ids: Mapping[str, UUID]) -> dict[str, Any]:
    name = rng.choice(list(TOPICS))
    named = {"topic_id": topic_ids.get(name, UUID(int=1))} if version >= _BY_ID_FROM else {"name": name}
    indexes = range(rng.choice((1, 1, PARTITIONS, PARTITIONS + 1)))
    return {**named, "partition_data": [{"index": index, "records": random_records(rng)} for index in indexes]}


def random_records(rng: Random) -> bytes | None:
    batch = valid_batch(rng)
    match rng.choices(("valid", "resealed", "damaged", "two", "cut", "null"), (60, 20, 8, 4, 4, 1))[0]:
        case "resealed":
            return resealed(_damaged(batch, rng, since=_CHECKED_FROM))
        case "damaged":
            return _damaged(batch, rng, since=0)
        case "two":
            return batch + valid_batch(rng)
        case "cut":
            return batch[: rng.randrange(len(batch))]
        case "null":
            return None
    return batch


def valid_batch(rng: Random) -> bytes:
    records = [
        Record(
            key=rng.choice((None, b"", b"k", b"key-%d" % rng.randrange(5))),
            value=rng.choice((None, b"", rng.randbytes(rng.choice((1, 20, 200))), b"x" * rng.choice((100, 3000)))),
            timestamp_ms=rng.choice((-1, 0, 1_700_000_000_000 + rng.randrange(1000))),
            headers=tuple(
                Header("h" * rng.randrange(4), rng.choice((None, b"v"))) for _ in range(rng.choice((0, 0, 2)))
            ),
        )
        for _ in range(rng.choice((1, 1, 2, 5, 40)))
    ]
    if rng.random() < 0.005:
        records.append(Record(key=b"k", value=bytes(300_000)))  # large, and tiny when it is compressed
    return build_batch(records, codec=rng.choice(list(Codec)), **_producer(rng))


def _producer(rng: Random) -> dict[str, Any]:
    """None; a new one, whose first batch is right; or a known one, which most often says what is out of order."""
    chance = rng.random()
    if chance < 0.6:
        return {}
    if chance < 0.85:
        return {"producer_id": _NEW_PRODUCER + rng.getrandbits(30), "producer_epoch": 0, "base_sequence": 0}
    return {
        "producer_id": rng.choice(_KNOWN_PRODUCERS),
        "producer_epoch": rng.randrange(4),
        "base_sequence": rng.choice((0, 0, 1, 2, -1, 0x7FFFFFFF)),
        "is_transactional": rng.random() < 0.1,
    }


def resealed(batch: bytes) -> bytes:
    """The batch with the length and the checksum of its bytes."""
    if len(batch) < HEADER_BYTES:
        return batch
    out = bytearray(batch)
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, _CRC_AT, crc32c(out[_CHECKED_FROM:]))
    return bytes(out)


def _damaged(batch: bytes, rng: Random, *, since: int) -> bytes:
    out = bytearray(batch)
    for _ in range(rng.choice((1, 1, 2, 8))):
        # As often in the header, where few bytes say much, as in the records.
        end = min(HEADER_BYTES, len(out)) if rng.random() < 0.5 else len(out)
        out[rng.randrange(since, end)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.getrandbits(8)))
    if rng.random() < 0.2:
        del out[rng.randrange(HEADER_BYTES, len(out)) :]
    return bytes(out)
