"""The primitive types of the Kafka protocol, read from bytes that may lie and appended to bytes we send.

    int8 … int64     big-endian                   uvarint   seven bits to a byte, lowest first, at most 5 bytes
    string, bytes    length, then bytes: int16 (string) or int32 (bytes) in the old encoding, uvarint of length + 1 in
                     the compact one (flexible versions); null is -1 there and 0 here
    array            the same with a count, int32 or uvarint of count + 1
    tagged fields    uvarint count, then for each uvarint tag, uvarint size, that many bytes

Every length is compared with the bytes that are left before anything is made of it. A count is compared with what so
many items take at least, and all counts of one request together, tagged fields included, stay under MAX_REQUEST_ITEMS:
an empty string is one byte on the wire and fifty in memory, and 100 MiB of tags hold up the event loop for ten seconds.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from uuid import UUID

from streamhouse.core.errors import MalformedRequest
from streamhouse.core.limits import MAX_REQUEST_ITEMS, MAX_REQUEST_STRING_BYTES
from streamhouse.wire.buffers import BytesLike

_INT8: Final = Struct(">b")
_INT16: Final = Struct(">h")
_UINT16: Final = Struct(">H")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_FLOAT64: Final = Struct(">d")

ZERO_UUID: Final = UUID(int=0)


class Reader:
    """Takes values off the front of ``data``. ``pos`` and ``end`` are for codecs that read fixed runs themselves."""

    __slots__ = ("data", "end", "items_left", "pos")

    def __init__(self, data: memoryview, pos: int = 0, *, max_items: int = MAX_REQUEST_ITEMS) -> None:
        self.data = data
        self.pos = pos
        self.end = len(data)
        self.items_left = max_items

    def take(self, count: int) -> int:
        """Step over ``count`` bytes; the position they start at."""
        pos = self.pos
        after = pos + count
        if count < 0 or after > self.end:
            raise self.cut_off(count)
        self.pos = after
        return pos

    def cut_off(self, wanted: int) -> MalformedRequest:
        return MalformedRequest(f"{wanted} bytes are announced at byte {self.pos}, {self.end - self.pos} are left")

    def int8(self) -> int:
        return int(_INT8.unpack_from(self.data, self.take(1))[0])

    def boolean(self) -> bool:
        return self.data[self.take(1)] != 0

    def int16(self) -> int:
        return int(_INT16.unpack_from(self.data, self.take(2))[0])

    def uint16(self) -> int:
        return int(_UINT16.unpack_from(self.data, self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack_from(self.data, self.take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack_from(self.data, self.take(8))[0])

    def float64(self) -> float:
        return float(_FLOAT64.unpack_from(self.data, self.take(8))[0])

    def uuid(self) -> UUID:
        pos = self.take(16)
        return UUID(bytes=bytes(self.data[pos : pos + 16]))

    def uvarint(self) -> int:
        pos = self.pos
        if pos < self.end and (byte := self.data[pos]) < 0x80:
            self.pos = pos + 1
            return byte
        return self._long_uvarint()

    def varint(self) -> int:
        folded = self.uvarint()
        return (folded >> 1) ^ -(folded & 1)

    def _long_uvarint(self) -> int:
        value = 0
        pos = self.pos
        for shift in (0, 7, 14, 21, 28):
            if pos >= self.end:
                raise MalformedRequest(f"the number at byte {self.pos} is cut off")
            byte = self.data[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFF_FFFF:
                    break
                self.pos = pos
                return value
        raise MalformedRequest(f"the number at byte {self.pos} has more than 32 bits")

    def string(self, flexible: bool) -> str:
        text = self.nullable_string(flexible)
        if text is None:
            raise MalformedRequest(f"a string that must not be null is null before byte {self.pos}")
        return text

    def nullable_string(self, flexible: bool) -> str | None:
        length = self.uvarint() - 1 if flexible else self.int16()
        if length == -1:
            return None
        if not 0 <= length <= MAX_REQUEST_STRING_BYTES:
            raise MalformedRequest(f"a string of {length} bytes is announced before byte {self.pos}")
        pos = self.take(length)
        try:
            return str(self.data[pos : pos + length], "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequest(f"the string at byte {pos} is not UTF-8") from None

    def bytes_view(self, flexible: bool) -> memoryview | None:
        """A view into ``data``, not a copy: it lives as long as the request's buffer does."""
        length = self.uvarint() - 1 if flexible else self.int32()
        if length == -1:
            return None
        pos = self.take(length)
        return self.data[pos : pos + length]

    def array_length(self, flexible: bool, min_item_bytes: int) -> int:
        """-1 for null. ``min_item_bytes``: the least that one item takes, at least 1."""
        count = self.uvarint() - 1 if flexible else self.int32()
        if count <= 0:
            if count < -1:
                raise MalformedRequest(f"an array of {count} items is announced before byte {self.pos}")
            return count
        if count * min_item_bytes > self.end - self.pos:
            raise MalformedRequest(
                f"an array of {count} items is announced at byte {self.pos}, {self.end - self.pos} bytes are left"
            )
        self._count_items(count)
        return count

    def tag_count(self) -> int:
        """How many tagged fields follow; each takes two bytes at least, and as long to step over as an item to read."""
        count = self.uvarint()
        if count * 2 > self.end - self.pos:
            raise MalformedRequest(f"{count} tagged fields are announced at byte {self.pos}")
        self._count_items(count)
        return count

    def _count_items(self, count: int) -> None:
        self.items_left -= count
        if self.items_left < 0:
            raise MalformedRequest("the request holds too many items", hint="ask for fewer things at a time")

    def skip_tags(self) -> None:
        """Step over a struct's tagged fields, known or not."""
        if (pos := self.pos) < self.end and not self.data[pos]:
            self.pos = pos + 1
            return
        for _ in range(self.tag_count()):
            self.uvarint()
            self.take(self.uvarint())

    def expect_end(self) -> None:
        if self.pos != self.end:
            raise MalformedRequest(f"{self.end - self.pos} bytes are left over at byte {self.pos}")


def put_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def uvarint_bytes(value: int) -> bytes:
    out = bytearray()
    put_uvarint(out, value)
    return bytes(out)


def put_string(out: bytearray, text: str | None, flexible: bool) -> None:
    data = None if text is None else text.encode()
    if flexible:
        put_compact_bytes(out, data)
        return
    if data is None:
        out += b"\xff\xff"
        return
    out += _INT16.pack(len(data))
    out += data


def put_bytes(out: bytearray, data: BytesLike | None, flexible: bool) -> None:
    if flexible:
        put_compact_bytes(out, data)
        return
    out += _INT32.pack(-1 if data is None else len(data))
    if data is not None:
        out += data


def put_compact_bytes(out: bytearray, data: BytesLike | None) -> None:
    if data is None:
        out.append(0)
        return
    put_uvarint(out, len(data) + 1)
    out += data


def compact_string(text: str | None) -> bytes:
    out = bytearray()
    put_string(out, text, True)
    return bytes(out)


def put_array_length(out: bytearray, count: int | None, flexible: bool) -> None:
    """Append the length of an array; None stands for a null array."""
    if flexible:
        put_uvarint(out, 0 if count is None else count + 1)
    else:
        out += _INT32.pack(-1 if count is None else count)
