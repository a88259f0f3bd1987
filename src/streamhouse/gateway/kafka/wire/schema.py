"""Read and write any message of the table. A plan of closures is made at the first use of a message's version.

Reading is bounded by Reader; nesting is as deep as the schema, never as the bytes. What a version has in tagged fields
that we do not know is stepped over.
Writing refuses names that no version of the message has: that is a bug in a handler. Fields that this version lacks are
left out, and missing ones are written as their default. It stops at MAX_ANSWER_BYTES: a short request may have a long
answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeAlias

from streamhouse.core.errors import LimitExceeded, MalformedRequest
from streamhouse.core.limits import MAX_ANSWER_BYTES
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.primitives import (
    ZERO_UUID,
    Reader,
    put_array_length,
    put_bytes,
    put_string,
    put_uvarint,
)
from streamhouse.gateway.kafka.wire.table import FieldSpec, MessageSpec, message_spec

_Read: TypeAlias = Callable[[Reader], Any]
_Write: TypeAlias = Callable[[bytearray, Any], None]
_Values: TypeAlias = Mapping[str, Any] | Message

_NUMBERS: Final = {"i8": "b", "i16": "h", "u16": "H", "i32": "i", "i64": "q", "f64": "d"}
_NUMBER_BYTES: Final = {kind: struct.calcsize(">" + code) for kind, code in _NUMBERS.items()}
_ZEROS: Final[dict[str, Any]] = {
    "bool": False,
    "str": "",
    "bytes": b"",
    "uuid": ZERO_UUID,
    **dict.fromkeys(_NUMBERS, 0),
}


def read_request(key: int, version: int, body: memoryview) -> Message:
    """Bytes behind the last field are left alone, as Kafka does: librdkafka sends some after a Metadata for all."""
    made: Message = _struct_reader_of(f"{key}.request", version)(Reader(body))
    return made


def write_response(key: int, version: int, fields: _Values) -> bytes:
    return _write_whole(f"{key}.response", version, fields)


def read_response(key: int, version: int, body: memoryview) -> Message:
    return _read_whole(f"{key}.response", version, body)


def write_request(key: int, version: int, fields: _Values) -> bytes:
    return _write_whole(f"{key}.request", version, fields)


def read_data(name: str, version: int, body: memoryview) -> Message:
    """A message inside of another, such as ``consumer_protocol_subscription``, without its leading version number.
    Newer versions only add to the end, so bytes left over are fine."""
    made: Message = _struct_reader_of(name, version)(Reader(body))
    return made


def write_data(name: str, version: int, fields: _Values) -> bytes:
    return _write_whole(name, version, fields)


def _read_whole(name: str, version: int, body: memoryview) -> Message:
    reader = Reader(body)
    made: Message = _struct_reader_of(name, version)(reader)
    reader.expect_end()
    return made


def _write_whole(name: str, version: int, fields: _Values) -> bytes:
    out = bytearray()
    _struct_writer_of(name, version)(out, fields)
    return bytes(out)


@cache
def _struct_reader_of(name: str, version: int) -> _Read:
    spec = _checked_spec(name, version)
    return _struct_reader(spec.fields, version, spec.flexible(version))


@cache
def _struct_writer_of(name: str, version: int) -> _Write:
    spec = _checked_spec(name, version)
    return _struct_writer(spec.fields, version, spec.flexible(version))


def _checked_spec(name: str, version: int) -> MessageSpec:
    spec = message_spec(name)
    if version not in spec.versions:
        raise ValueError(f"{name} ({spec.name}) has no version {version}")
    return spec


# Defaults.


def default_at(field: FieldSpec, version: int) -> Any:
    """The value of a field that was not set. A list is a new one each time."""
    absent = version not in field.versions
    may_be_null = bool(field.nullable) if absent else version in field.nullable
    if field.default == "null" or field.default is None:
        return None if may_be_null else _zero(field, version)
    return field.default["text"] if isinstance(field.default, dict) else field.default


def _zero(field: FieldSpec, version: int) -> Any:
    if field.is_array:
        return []
    if field.kind == "struct":
        return Message.of({inner.name: default_at(inner, version) for inner in field.fields})
    return _ZEROS[field.kind]


# Reading.


def _struct_reader(fields: tuple[FieldSpec, ...], version: int, flexible: bool) -> _Read:
    present = [field for field in fields if version in field.versions]
    steps = [(field.name, _field_reader(field, version, flexible)) for field in present if field.tag is None]
    tagged = {
        field.tag: (field.name, _field_reader(field, version, flexible)) for field in present if field.tag is not None
    }
    read_now = {name for name, _ in steps}
    unread = [field for field in fields if field.name not in read_now]
    fixed = {field.name: default_at(field, version) for field in unread if not _is_mutable(field)}
    fresh = [field for field in unread if _is_mutable(field)]

    def read(reader: Reader) -> Message:
        values = dict(fixed)
        for field in fresh:
            values[field.name] = default_at(field, version)
        for name, step in steps:
            values[name] = step(reader)
        if flexible:
            if tagged:
                _read_tags(reader, tagged, values)
            else:
                reader.skip_tags()
        return Message.of(values)

    return read


def _is_mutable(field: FieldSpec) -> bool:
    return field.is_array or field.kind == "struct"


def _read_tags(reader: Reader, tagged: Mapping[int, tuple[str, _Read]], values: dict[str, Any]) -> None:
    for _ in range(reader.tag_count()):
        known = tagged.get(reader.uvarint())
        start = reader.take(reader.uvarint())
        if known is None:
            continue
        name, step = known
        end, after = reader.end, reader.pos
        reader.pos, reader.end = start, after
        values[name] = step(reader)
        reader.expect_end()
        reader.end = end


def _field_reader(field: FieldSpec, version: int, flexible: bool) -> _Read:
    nullable = version in field.nullable
    if field.is_array:
        return _array_reader(field, version, flexible, nullable)
    if field.kind == "struct" and nullable:
        return _nullable(_item_reader(field, version, flexible))
    if field.kind == "str" and nullable:
        return lambda reader: reader.nullable_string(flexible)
    if field.kind == "bytes" and nullable:
        return lambda reader: None if (view := reader.bytes_view(flexible)) is None else bytes(view)
    return _item_reader(field, version, flexible)


def _item_reader(field: FieldSpec, version: int, flexible: bool) -> _Read:
    match field.kind:
        case "struct":
            return _struct_reader(field.fields, version, flexible)
        case "str":
            return lambda reader: reader.string(flexible)
        case "bytes":
            return lambda reader: _required_bytes(reader, flexible)
    return _PLAIN_READERS[field.kind]


_PLAIN_READERS: Final[dict[str, _Read]] = {
    "bool": Reader.boolean,
    "i8": Reader.int8,
    "i16": Reader.int16,
    "u16": Reader.uint16,
    "i32": Reader.int32,
    "i64": Reader.int64,
    "f64": Reader.float64,
    "uuid": Reader.uuid,
}


def _required_bytes(reader: Reader, flexible: bool) -> bytes:
    view = reader.bytes_view(flexible)
    if view is None:
        raise MalformedRequest(f"bytes that must not be null are null before byte {reader.pos}")
    return bytes(view)


def _nullable(read: _Read) -> _Read:
    """A struct that may be null: one byte before it, negative for null."""
    return lambda reader: None if reader.int8() < 0 else read(reader)


def _array_reader(field: FieldSpec, version: int, flexible: bool, nullable: bool) -> _Read:
    min_bytes = _min_item_bytes(field, version, flexible)
    number = _NUMBERS.get(field.kind)
    item = _item_reader(field, version, flexible)

    def read(reader: Reader) -> list[Any] | None:
        count = reader.array_length(flexible, min_bytes)
        if count < 0:
            if nullable:
                return None
            raise MalformedRequest(f"an array that must not be null is null before byte {reader.pos}")
        if number is not None:
            return list(struct.unpack_from(f">{count}{number}", reader.data, reader.take(count * min_bytes)))
        return [item(reader) for _ in range(count)]

    return read


def _min_item_bytes(field: FieldSpec, version: int, flexible: bool) -> int:
    """The fewest bytes that one item of this array takes, or the field itself if it is not an array."""
    match field.kind:
        case "struct":
            inner = [one for one in field.fields if version in one.versions and one.tag is None]
            sizes = [_min_field_bytes(one, version, flexible) for one in inner]
            return max(1, sum(sizes) + flexible)
        case "str":
            return 1 if flexible else 2
        case "bytes":
            return 1 if flexible else 4
        case "uuid":
            return 16
        case "bool":
            return 1
    return _NUMBER_BYTES[field.kind]


def _min_field_bytes(field: FieldSpec, version: int, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.kind == "struct" and version in field.nullable:
        return 1
    return _min_item_bytes(field, version, flexible)


# Writing.


def _struct_writer(fields: tuple[FieldSpec, ...], version: int, flexible: bool) -> _Write:
    known = frozenset(field.name for field in fields)
    present = [field for field in fields if version in field.versions]
    steps = [(field.name, field, _field_writer(field, version, flexible)) for field in present if field.tag is None]
    tags = sorted((field for field in present if field.tag is not None), key=lambda field: field.tag or 0)
    tagged = [_tagged_writer(field, version) for field in tags]

    def write(out: bytearray, values: _Values) -> None:
        given = values.__dict__ if isinstance(values, Message) else values
        if not known >= given.keys():
            raise ValueError(f"unknown fields {sorted(given.keys() - known)}; there are {sorted(known)}")
        for name, field, step in steps:
            value = given[name] if name in given else default_at(field, version)
            try:
                step(out, value)
            except (struct.error, TypeError, AttributeError) as error:
                raise ValueError(f"the field {name} cannot be {value!r:.100}: {error}") from error
        if flexible:
            chunks = [chunk for encode in tagged if (chunk := encode(given))]
            put_uvarint(out, len(chunks))
            for chunk in chunks:
                out += chunk

    return write


def _tagged_writer(field: FieldSpec, version: int) -> Callable[[Mapping[str, Any]], bytes]:
    """Make the encoder of a tagged field: tag, size and value, or nothing for the default, which is not sent."""
    write = _field_writer(field, version, True)
    default = default_at(field, version)
    unsent = bytearray()
    write(unsent, default)

    def encode(given: Mapping[str, Any]) -> bytes:
        if field.name not in given:
            return b""
        value = bytearray()
        write(value, given[field.name])
        if value == unsent:
            return b""
        out = bytearray()
        put_uvarint(out, field.tag or 0)
        put_uvarint(out, len(value))
        return bytes(out + value)

    return encode


def _field_writer(field: FieldSpec, version: int, flexible: bool) -> _Write:
    nullable = version in field.nullable
    item = _item_writer(field, version, flexible)
    if field.is_array:
        return _array_writer(item, flexible, nullable)
    if nullable and field.kind == "struct":
        return _nullable_struct_writer(item)
    if nullable or field.kind not in ("str", "bytes"):
        return item

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            raise TypeError("it must not be null")
        item(out, value)

    return write


def _array_writer(item: _Write, flexible: bool, nullable: bool) -> _Write:
    def write(out: bytearray, values: Any) -> None:
        if values is None:
            if not nullable:
                raise TypeError("it must not be null")
            put_array_length(out, None, flexible)
            return
        put_array_length(out, len(values), flexible)
        for value in values:
            item(out, value)
            if len(out) > MAX_ANSWER_BYTES:
                raise LimitExceeded(f"more than {MAX_ANSWER_BYTES} bytes to say", hint="ask for fewer things at a time")

    return write


def _nullable_struct_writer(item: _Write) -> _Write:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
            return
        out.append(1)
        item(out, value)

    return write


def _item_writer(field: FieldSpec, version: int, flexible: bool) -> _Write:
    match field.kind:
        case "struct":
            return _struct_writer(field.fields, version, flexible)
        case "str":
            return lambda out, value: put_string(out, value, flexible)
        case "bytes":
            return lambda out, value: put_bytes(out, value, flexible)
        case "uuid":
            return lambda out, value: out.extend((ZERO_UUID if value is None else value).bytes)
        case "bool":
            return lambda out, value: out.append(1 if value else 0)
    pack = struct.Struct(">" + _NUMBERS[field.kind]).pack
    return lambda out, value: out.extend(pack(value))
