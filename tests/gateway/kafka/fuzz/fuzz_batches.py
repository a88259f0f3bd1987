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
_PRODUCERS = 50


class Batches:
    """Produce requests with batches. Knows which epoch each of its producers has reached."""

    def __init__(self, rng: Random, topic_ids: Mapping[str, UUID]) -> None:
        """``topic_ids``: of TOPICS, for the versions that name a topic by its id."""
        self._rng = rng
        self._topic_ids = topic_ids
        self._starts = 0

    def request(self, version: int) -> dict[str, Any]:
        """The fields of a Produce request."""
        rng = self._rng
        return {
            "transactional_id": None if rng.random() < 0.95 else rng.choice(("", "tx")),
            "acks": rng.choice((-1, -1, -1, 1, 1, 0, 2)),
            "timeout": rng.choice((0, 1000, 1000, 1000, -1)),
            "topic_data": [self._topic(version) for _ in range(rng.choice((1, 1, 1, 2)))],
        }

    def _topic(self, version: int) -> dict[str, Any]:
        name = self._rng.choice(list(TOPICS))
        named = {"topic_id": self._topic_ids.get(name, UUID(int=1))} if version >= _BY_ID_FROM else {"name": name}
        indexes = range(self._rng.choice((1, 1, PARTITIONS, PARTITIONS + 1)))
        return {**named, "partition_data": [{"index": index, "records": self.records()} for index in indexes]}

    def records(self) -> bytes | None:
        """A batch as it is, or what is left of one."""
        rng, batch = self._rng, self._valid()
        match rng.choices(("valid", "resealed", "damaged", "two", "cut", "null"), (60, 20, 8, 4, 4, 1))[0]:
            case "resealed":
                return resealed(_damaged(batch, rng, since=_CHECKED_FROM))
            case "damaged":
                return _damaged(batch, rng, since=0)
            case "two":
                return batch + self._valid()
            case "cut":
                return batch[: rng.randrange(len(batch))]
            case "null":
                return None
        return batch

    def _valid(self) -> bytes:
        rng = self._rng
        records = [self._record() for _ in range(rng.choice((1, 1, 2, 5, 40)))]
        if rng.random() < 0.005:
            records.append(Record(key=b"k", value=bytes(300_000)))  # large, and tiny when it is compressed
        return build_batch(records, codec=rng.choice(list(Codec)), **self._producer())

    def _record(self) -> Record:
        rng = self._rng
        return Record(
            key=rng.choice((None, b"", b"k", b"key-%d" % rng.randrange(5))),
            value=rng.choice((None, b"", rng.randbytes(rng.choice((1, 20, 200))), b"x" * rng.choice((100, 3000)))),
            timestamp_ms=rng.choice((-1, 0, 1_700_000_000_000 + rng.randrange(1000))),
            headers=tuple(Header("h" * rng.randrange(4), rng.choice((None, b"v"))) for _ in range(rng.choice((0, 2)))),
        )

    def _producer(self) -> dict[str, Any]:
        """None; one that begins a new epoch, which is right; or one that most often is out of order."""
        rng, chance = self._rng, self._rng.random()
        if chance < 0.6:
            return {}
        if chance < 0.85:
            # A few producers that begin again and again: each id that is new would take memory, and rightly so.
            self._starts += 1
            epoch, number = divmod(self._starts, _PRODUCERS)
            return {"producer_id": 1000 + number, "producer_epoch": epoch % 2**15, "base_sequence": 0}
        return {
            "producer_id": rng.choice((1, 2, 3)),
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
