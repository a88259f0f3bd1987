"""What a batch's header tells about the times of its records, without decoding them."""

from __future__ import annotations

from typing import Final

from streamhouse.wire.batch import BatchHeader, TimestampType

_DELETE_HORIZON_BIT: Final = 0x40


def declared_times_ms(header: BatchHeader) -> tuple[int, int]:
    """The smallest and largest time the header speaks of.

    The largest bounds every record. The smallest is the *first* record's time: later ones may be older, so it is a hint
    and never a reason to skip a batch. A log-append batch and one with a delete horizon have no first time.
    """
    largest = header.max_timestamp
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME or header.attributes & _DELETE_HORIZON_BIT:
        return largest, largest
    return min(header.base_timestamp, largest), largest
