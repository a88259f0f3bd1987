"""Records without a key are found by their position; a damaged record is an error wherever it is."""

from __future__ import annotations

import pytest

from streamhouse.core.errors import CorruptBatch
from streamhouse.wire.batch import HEADER_BYTES, read_header
from streamhouse.wire.null_keys import find_null_keys
from streamhouse.wire.records import Header, Record, build_batch


@pytest.mark.parametrize("missing", [(), (0,), (7, 8, 15, 16, 99), tuple(range(100))])
def test_positions_of_records_without_a_key(missing: tuple[int, ...]) -> None:
    records = [Record(key=None if n in missing else b"" if n % 2 else b"k", value=b"v") for n in range(100)]
    batch = build_batch(records, base_offset=1000)
    for at_most in (100, 3, 0):
        found = find_null_keys(batch[HEADER_BYTES:], read_header(batch), at_most=at_most)
        assert found == (len(missing), list(missing)[:at_most])


def test_damage_behind_the_key_is_found() -> None:
    batch = build_batch([Record(key=b"k", value=b"v", headers=(Header("h", b"x"),))])
    body = bytearray(batch[HEADER_BYTES:])
    body[-2] = 0x50  # the length of the header's value
    with pytest.raises(CorruptBatch, match="header value"):
        find_null_keys(body, read_header(batch), at_most=1)
    with pytest.raises(CorruptBatch):
        find_null_keys(batch[HEADER_BYTES:-1], read_header(batch), at_most=1)
