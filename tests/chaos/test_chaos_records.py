"""A record of a chaos run reads back, and any other bytes are damaged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.chaos.records import MAX_HEADER_BYTES, MAX_PADDING_BYTES, Damaged, Written, decode, encode

WRITTEN = Written(run="r", producer="p-1", number=7, topic="t", partition=3)


@settings(deadline=None)  # the machine may be busy
@given(number=st.integers(0, 2**39), size=st.integers(0, 300_000))
def test_a_record_reads_back(number: int, size: int) -> None:
    written = Written(run="r", producer="p-1", number=number, topic="t", partition=3)
    assert decode(encode(written, size)) == written


@settings(deadline=None)
@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_flipped_byte_is_seen(at: int, flip: int) -> None:
    value = bytearray(encode(WRITTEN, 400))
    value[at % len(value)] ^= flip
    with pytest.raises(Damaged):
        decode(bytes(value))


@pytest.mark.parametrize("value", [None, b"", b"\n", b"a b c d e f g\n", encode(WRITTEN, 9)[:-1], b"\xff" * 1000])
def test_other_bytes_are_damaged(value: bytes | None) -> None:
    with pytest.raises(Damaged):
        decode(value)


def test_a_padding_is_never_longer_than_its_block() -> None:
    assert len(encode(WRITTEN, 10 * MAX_PADDING_BYTES)) < MAX_PADDING_BYTES + MAX_HEADER_BYTES


def test_a_header_is_looked_for_in_the_first_bytes_only() -> None:
    long = Written(run="r" * MAX_HEADER_BYTES, producer="p", number=0, topic="t", partition=0)
    with pytest.raises(Damaged, match="no header"):
        decode(encode(long, 0))


def test_the_kind_of_damage_is_told() -> None:
    good = encode(WRITTEN, 100)
    with pytest.raises(Damaged, match="wrong length"):
        decode(good + b"x")
    with pytest.raises(Damaged, match="wrong checksum"):
        decode(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(Damaged, match="no value"):
        decode(None)
