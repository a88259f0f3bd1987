"""The keys of a batch as key compaction reads them, beside what the plain decoder says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import CorruptBatch
from streamhouse.wire.batch import HEADER_BYTES, validate
from streamhouse.wire.codecs import Codec
from streamhouse.wire.record_keys import RecordKeys
from streamhouse.wire.records import Record, build_batch

records = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=20),
        timestamp_ms=st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=30,
)


def read(written: list[Record], *, values: bool) -> RecordKeys:
    data = build_batch(written, base_offset=7, codec=Codec.NONE)
    return RecordKeys(memoryview(data)[HEADER_BYTES:], validate(data), values=values)


@given(written=records)
def test_every_record_has_its_offset_its_key_and_whether_it_has_a_value(written: list[Record]) -> None:
    found = read(written, values=True)
    assert list(found.offsets) == list(range(7, 7 + len(written)))
    keys = [
        None if found.without_key[at] else found.keys[found.bounds[at] : found.bounds[at + 1]]
        for at in range(len(written))
    ]
    assert keys == [record.key for record in written]
    assert [bool(each) for each in found.without_value] == [record.value is None for record in written]
    assert list(found.timestamps_ms) == [record.timestamp_ms for record in written]


@given(written=records)
def test_without_values_no_record_is_said_to_lack_one_and_no_time_is_read(written: list[Record]) -> None:
    found = read(written, values=False)
    assert not any(found.without_value)
    assert list(found.timestamps_ms) == []


def test_a_body_that_ends_in_the_middle_of_a_record_is_corrupt() -> None:
    data = build_batch([Record(key=b"k", value=b"v" * 50)], base_offset=0, codec=Codec.NONE)
    with pytest.raises(CorruptBatch):
        RecordKeys(memoryview(data)[HEADER_BYTES:-10], validate(data), values=True)
