"""What a batch's header tells about the times of its records, without decoding them."""

from __future__ import annotations

from typing import Final

from streamhouse.wire.batch import DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, BatchHeader

NO_FIRST_TIME: Final = LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT


def declared_times_ms(header: BatchHeader) -> tuple[int, int]:
    """The smallest and largest time the header speaks of.

    The largest bounds every record. The smallest is the *first* record's time: later ones may be older, so it is a hint
    and never a reason to skip a batch. A log-append batch and one with a delete horizon have no first time.
    """
    largest = header.max_timestamp
    first = header.base_timestamp
    if first > largest or header.attributes & NO_FIRST_TIME:
        return largest, largest
    return first, largest
