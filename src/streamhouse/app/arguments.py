"""Checks of what callers of the Python API pass in: the wrong type gets an error of ours that says what to pass.

Only types and shapes are checked here. Whether a record may be written is the broker's decision (broker/writers.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from streamhouse.core.errors import InvalidAcks, InvalidRecord, InvalidRequest, InvalidTopicConfig
from streamhouse.wire.records import Header, Record

_BYTES: Final = (bytes, bytearray, memoryview)
_ACKS: Final[Mapping[object, int]] = {"all": -1, 1: 1, 0: 0}


def acks_of(acks: object) -> int:
    """The number that the broker knows. Raises InvalidAcks."""
    if isinstance(acks, str | int) and not isinstance(acks, bool) and acks in _ACKS:
        return _ACKS[acks]
    raise InvalidAcks(f"acks is {acks!r}", hint='pass "all", 1 or 0')


def check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} is {_type(text)}, not a str", hint=f"pass the {what}'s name as a str")


def check_number(what: str, number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidRequest(f"{what} is {_type(number)}, not an int")


def check_configs(configs: object) -> None:
    if not isinstance(configs, Mapping):
        raise InvalidRequest(f"configs is {_type(configs)}, not a dict")
    for name, value in configs.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidTopicConfig(
                f"topic config {name!r:.100} is {_type(value)}, not a str", hint=f"pass {str(value)!r:.100}"
            )


def check_offsets(offsets: object) -> None:
    if not isinstance(offsets, Mapping):
        raise InvalidRequest(f"offsets is {_type(offsets)}, not a dict", hint="pass {(topic, partition): offset}")
    for place, offset in offsets.items():
        if not isinstance(place, tuple) or len(place) != 2:
            raise InvalidRequest(f"{place!r:.100} is no partition", hint="pass {(topic, partition): offset}")
        check_text("topic", place[0])
        check_number("partition", place[1])
        check_number("offset", offset)


def record_of(value: object, key: object, headers: object, timestamp_ms: int) -> Record:
    """Raises InvalidRecord."""
    _check_bytes("value", value)
    _check_bytes("key", key)
    check_number("timestamp_ms", timestamp_ms)
    return Record(
        key=_plain(key),
        value=_plain(value),
        timestamp_ms=timestamp_ms,
        headers=_headers(headers),
    )


def checked(records: object) -> list[Record]:
    """The records of one batch, each checked. Raises InvalidRecord."""
    if not isinstance(records, Iterable) or isinstance(records, str | bytes):
        raise InvalidRecord(f"records is {_type(records)}", hint="pass a list of Record(value=b'…')")
    found = list(records)
    for record in found:
        if not isinstance(record, Record):
            raise InvalidRecord(f"one of the records is {_type(record)}", hint="pass Record(value=b'…') objects")
        _check_bytes("value", record.value)
        _check_bytes("key", record.key)
        check_number("timestamp_ms", record.timestamp_ms)
        for header in record.headers:
            if not isinstance(header, Header):
                raise InvalidRecord(f"a header is {_type(header)}", hint='pass Header("name", b"content") objects')
            _check_header(header.key, header.value)
    if not found:
        raise InvalidRecord("there are no records to write", hint="pass at least one")
    return found


def _headers(headers: object) -> tuple[Header, ...]:
    if isinstance(headers, Mapping):
        raise InvalidRecord(
            "headers is a dict", hint="pass (name, content) pairs, list(headers.items()): a name may occur twice"
        )
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes):
        raise InvalidRecord(f"headers is {_type(headers)}", hint="pass a list of (name, content) pairs")
    made = []
    for pair in headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidRecord(f"a header is {pair!r:.100}", hint="pass (name, content) pairs")
        name, content = pair
        _check_header(name, content)
        made.append(Header(name, _plain(content)))
    return tuple(made)


def _check_header(name: object, content: object) -> None:
    if not isinstance(name, str):
        raise InvalidRecord(f"a header's name is {_type(name)}, not a str")
    _check_bytes(f"the content of header {name!r:.100}", content)


def _check_bytes(what: str, content: object) -> None:
    if content is None or isinstance(content, _BYTES):
        return
    hint = "encode it: text.encode()" if isinstance(content, str) else "records hold bytes or None"
    raise InvalidRecord(f"{what} is {_type(content)}, not bytes", hint=hint)


def _plain(content: object) -> bytes | None:
    return None if content is None else bytes(content)  # type: ignore[call-overload]


def _type(content: object) -> str:
    """The name of the type with its article: "an int", "a str"."""
    name = type(content).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
