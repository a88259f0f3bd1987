"""The primitive types come back as they were written, and the reader refuses a length that lies before it allocates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import MalformedRequest
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.primitives import Reader, put_array_length, put_bytes, put_string, put_uvarint


def reader(data: bytes) -> Reader:
    return Reader(memoryview(data))


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_uvarints_come_back(value: int) -> None:
    out = bytearray()
    put_uvarint(out, value)
    assert reader(bytes(out)).uvarint() == value


@given(st.one_of(st.none(), st.text(max_size=300)), st.booleans())
def test_strings_come_back(text: str | None, flexible: bool) -> None:
    out = bytearray()
    put_string(out, text, flexible)
    assert reader(bytes(out)).nullable_string(flexible) == text


@given(st.one_of(st.none(), st.binary(max_size=300)), st.booleans())
def test_bytes_come_back(data: bytes | None, flexible: bool) -> None:
    out = bytearray()
    put_bytes(out, data, flexible)
    view = reader(bytes(out)).bytes_view(flexible)
    assert (None if view is None else bytes(view)) == data


@pytest.mark.parametrize(
    ("data", "call"),
    [
        (b"\0\0\0", Reader.int32),
        (b"", Reader.int8),
        (b"\xff\xff\xff\xff\x10", Reader.uvarint),
        (b"\xff\xff\xff\xff\xff\x01", Reader.uvarint),
        (b"\xff", Reader.uvarint),
        (b"\x7f\xffabc", lambda r: r.string(False)),
        (b"\xff\xff", lambda r: r.string(False)),
        (b"\xff\xfe", lambda r: r.nullable_string(False)),
        (b"\x00", lambda r: r.string(True)),
        (b"\x02\xff", lambda r: r.string(True)),
        (b"\xff\xff\xff\xff\x0fabc", lambda r: r.nullable_string(True)),
        (b"\x80\x80\x04" + b"a" * 65536, lambda r: r.string(True)),
        (b"\x7f\xff\xff\xff", lambda r: r.bytes_view(False)),
        (b"\xff\xff\xff\xfe", lambda r: r.bytes_view(False)),
        (b"\xff\xff\xff\xff\x0f", lambda r: r.bytes_view(True)),
        (b"\x7f\xff\xff\xff" + b"\0" * 100, lambda r: r.array_length(False, 1)),
        (b"\xff\xff\xff\xfe", lambda r: r.array_length(False, 1)),
        (b"\xff\xff\xff\xff\x0f" + b"\0" * 100, lambda r: r.array_length(True, 1)),
        (b"\x0b" + b"\0" * 39, lambda r: r.array_length(True, 4)),
        (b"\0" * 15, Reader.uuid),
        (b"\xff\xff\xff\xff\x0f\0\0", Reader.skip_tags),
        (b"\x01\x05\x7fabc", Reader.skip_tags),
        (b"", Reader.skip_tags),
    ],
)
def test_a_length_that_lies_is_refused(data: bytes, call: Callable[[Reader], Any]) -> None:
    with pytest.raises(MalformedRequest) as refused:
        call(reader(data))
    assert refused.value.kafka_code == ErrorCode.INVALID_REQUEST


@given(st.integers(min_value=-(2**31), max_value=2**31 - 1))
def test_a_signed_number_is_folded_so_that_small_ones_are_short(value: int) -> None:
    out = bytearray()
    put_uvarint(out, (value << 1) ^ (value >> 31) if value >= 0 else (-value << 1) - 1)
    assert reader(bytes(out)).varint() == value
    assert len(out) == 1 or not -64 <= value < 64


def test_all_counts_of_one_request_share_one_bound() -> None:
    bounded = Reader(memoryview(b"\x03" * 40), max_items=5)
    assert [bounded.array_length(True, 1) for _ in range(2)] == [2, 2]
    with pytest.raises(MalformedRequest, match="too many items"):
        bounded.array_length(True, 1)


def test_a_null_array_and_an_empty_one_differ() -> None:
    for flexible in (False, True):
        for count in (None, 0):
            out = bytearray()
            put_array_length(out, count, flexible)
            assert reader(bytes(out)).array_length(flexible, 1) == (-1 if count is None else 0)


def test_what_is_left_over_is_named() -> None:
    left = reader(b"\0\1\2")
    left.int8()
    with pytest.raises(MalformedRequest, match="2 bytes are left over at byte 1"):
        left.expect_end()
