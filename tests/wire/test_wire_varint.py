"""Zigzag varints: as short as Kafka's, read with the same bounds, and refused when they are cut off or too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.wire.varint import (
    MAX_INT32,
    MAX_INT64,
    MIN_INT32,
    MIN_INT64,
    MalformedRecord,
    RecordFault,
    append_varint,
    read_varint,
    read_varlong,
)


def _varint(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs_round_trip(value: int) -> None:
    data = _varint(value)
    assert read_varlong(memoryview(data + b"x"), 0, len(data)) == (value, len(data))
    with pytest.raises(MalformedRecord):
        read_varlong(memoryview(data + b"\0"), 0, len(data) - 1)


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints_round_trip(value: int) -> None:
    data = _varint(value)
    assert len(data) <= 5
    assert read_varint(memoryview(data), 0, len(data)) == (value, len(data))


def test_padded_varints_are_read_as_java_reads_them() -> None:
    assert read_varint(memoryview(b"\x82\x80\x00"), 0, 3) == (1, 3)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, b"\0"), (-1, b"\x01"), (1, b"\x02"), (63, b"\x7e"), (-64, b"\x7f"), (64, b"\x80\x01"), (-65, b"\x81\x01")],
)
def test_small_numbers_of_either_sign_take_few_bytes(value: int, encoded: bytes) -> None:
    assert _varint(value) == encoded
    assert read_varint(memoryview(encoded), 0, len(encoded)) == (value, len(encoded))


def test_the_widest_numbers_take_five_and_ten_bytes() -> None:
    for value, read, size in (
        (MIN_INT32, read_varint, 5),
        (MAX_INT32, read_varint, 5),
        (MIN_INT64, read_varlong, 10),
        (MAX_INT64, read_varlong, 10),
    ):
        data = _varint(value)
        assert len(data) == size
        assert read(memoryview(data), 0, size) == (value, size)


def test_one_bit_more_than_fits_is_refused_and_not_cut_off() -> None:
    for value, read in ((MAX_INT32 + 1, read_varint), (MIN_INT32 - 1, read_varint), (2**63, read_varlong)):
        data = _varint(value)
        with pytest.raises(MalformedRecord) as refusal:
            read(memoryview(data), 0, len(data))
        assert refusal.value.fault is RecordFault.VARINT
    for read, size in ((read_varint, 5), (read_varlong, 10)):
        endless = memoryview(b"\x80" * (size + 5))
        with pytest.raises(MalformedRecord):
            read(endless, 0, len(endless))


def test_a_number_is_read_from_the_middle_and_not_beyond_its_end() -> None:
    data = memoryview(b"\xff" + _varint(300) + b"\x07")
    assert read_varint(data, 1, 4) == (300, 3)
    for end in (1, 2):
        with pytest.raises(MalformedRecord):
            read_varint(data, 1, end)


def test_every_fault_has_a_number_of_its_own_and_words() -> None:
    """The compiled reader names a fault by its number."""
    assert [fault.value for fault in RecordFault] == list(range(1, len(RecordFault) + 1))
    assert len({fault.text for fault in RecordFault}) == len(RecordFault)
