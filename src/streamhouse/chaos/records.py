"""What a chaos client writes, so that every record found later can be judged alone.

    value = run SP producer SP number SP topic SP partition SP length SP crc32 LF padding

``number`` counts the records of one producer on one partition from 0. ``length`` is the length of the padding. The CRC
covers everything else: the fields before it and the padding after it. Imports nothing but the standard library.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

MAX_HEADER_BYTES: Final = 512  # six short words; a longer first line is damage
_BLOCK: Final = b"".join(zlib.crc32(number.to_bytes(4, "big")).to_bytes(4, "big") for number in range(1 << 16))
"""256 KiB that do not compress, cut into paddings."""
MAX_PADDING_BYTES: Final = len(_BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The fields of one record."""

    run: str
    producer: str
    number: int
    topic: str
    partition: int


class Damaged(ValueError):
    """The bytes are not those of any record of a chaos run."""


def encode(written: Written, padding_bytes: int) -> bytes:
    padding = _BLOCK[: min(padding_bytes, MAX_PADDING_BYTES)]
    fields = f"{written.run} {written.producer} {written.number} {written.topic} {written.partition} {len(padding)}"
    head = fields.encode()
    return b"%s %08x\n%s" % (head, zlib.crc32(padding, zlib.crc32(head)), padding)


def decode(value: bytes | None) -> Written:
    """Raises Damaged."""
    if value is None:
        raise Damaged("no value")
    end = value.find(b"\n", 0, MAX_HEADER_BYTES)
    fields = value[: max(end, 0)].split(b" ")
    if len(fields) != 7:
        raise Damaged("no header")
    padding = memoryview(value)[end + 1 :]
    head = value[: end - len(fields[6]) - 1]
    try:
        run, producer, number, topic, partition, length = (each.decode("ascii") for each in fields[:6])
        if int(length) != len(padding):
            raise Damaged("wrong length")
        if int(fields[6], 16) != zlib.crc32(padding, zlib.crc32(head)):
            raise Damaged("wrong checksum")
        return Written(run=run, producer=producer, number=int(number), topic=topic, partition=int(partition))
    except (UnicodeDecodeError, ValueError) as error:
        raise error if isinstance(error, Damaged) else Damaged("no header") from error
