"""What passes between columns.py and its two kernels: the buffers of Arrow columns, before and without Arrow.

Layouts are Arrow's: validity is one bit a row, lowest first (None when no row is null); offsets are int32, one more
than there are rows; everything is in the machine's byte order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Anything with the buffer protocol: Arrow buffers, memoryviews, the kernels' own chunks. Python names it from 3.12 on.
RawBuffer = Any


class BinaryBuffers(NamedTuple):
    validity: RawBuffer | None
    offsets: RawBuffer
    data: RawBuffer
    null_count: int


class HeaderBuffers(NamedTuple):
    """A list of (key, value) for each row; a row without headers is null."""

    validity: RawBuffer | None
    offsets: RawBuffer
    null_count: int
    entry_count: int
    keys: BinaryBuffers
    values: BinaryBuffers


class DecodedBuffers(NamedTuple):
    """The columns that were asked for; the others are None."""

    row_count: int
    partition: RawBuffer | None
    offset: RawBuffer | None
    timestamp: RawBuffer | None
    timestamp_type: RawBuffer | None
    key: BinaryBuffers | None
    value: BinaryBuffers | None
    headers: HeaderBuffers | None


class BinaryColumn(NamedTuple):
    """A binary or string array to encode: rows ``start`` to ``start + length`` of its buffers."""

    validity: RawBuffer | None
    offsets: RawBuffer
    data: RawBuffer
    start: int
    length: int


class HeaderColumn(NamedTuple):
    """An array of lists of (key, value) to encode; list offsets count entries of ``keys`` and ``values``."""

    validity: RawBuffer | None
    offsets: RawBuffer
    start: int
    length: int
    keys: BinaryColumn
    values: BinaryColumn


class EncodedBody(NamedTuple):
    """The records of one batch, encoded and not yet compressed."""

    data: RawBuffer
    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int
