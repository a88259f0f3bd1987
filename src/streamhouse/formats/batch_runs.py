"""Takes many batches at once where they lie end to end, as compaction finds them in its sources.

``take_run`` makes the same checks as ``validate`` (wire/batch.py), batch by batch, and sums up what a segment's writer
wants to know of them. Its loop is compiled. It takes plain batches only: dense, undamaged, at their place in the log.
Whatever else comes is left to the caller, who takes that batch by itself with ``validate``, which says what is wrong.
So the rules of a batch are written in batch.py, and a run that ends early costs time and changes nothing. Where the
loop was not compiled there are no runs.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.wire.batch import CODEC_MASK, BatchHeader

_Walk = Callable[[memoryview, int, int, int, int, bool, int], tuple[int, int, int, int, int, int, bool] | None]
_MODULE: Final = "streamhouse.formats._batch_runs"


class PlacedBatches(NamedTuple):
    """What a writer needs to know of batches that lie end to end."""

    size: int
    base_offset: int
    end_offset: int
    """The last offset, included."""
    record_count: int
    min_timestamp_ms: int
    """The smallest declared time; a hint, as in ``declared_times_ms``."""
    max_timestamp_ms: int
    has_plain_batches: bool
    """True when one of the batches is not compressed, or more."""


def run_of(header: BatchHeader) -> PlacedBatches:
    """One batch as a run."""
    smallest_ms, largest_ms = declared_times_ms(header)
    return PlacedBatches(
        header.size,
        header.base_offset,
        header.base_offset + header.last_offset_delta,
        header.record_count,
        smallest_ms,
        largest_ms,
        not header.attributes & CODEC_MASK,
    )


def take_run(
    view: memoryview,
    start: int,
    *,
    room_bytes: int,
    next_offset: int,
    last_offset: int,
    leader_epoch: int | None = None,
) -> PlacedBatches | None:
    """The plain batches from byte ``start`` on: ``room_bytes`` of them at most, none beyond ``last_offset``. The first
    has to be at ``next_offset``. None if the first batch is not plain or does not fit.

    With ``leader_epoch``, they are batches of a shared blob, which have no place yet, and are given theirs.
    """
    if _walk is None:
        return None
    place = leader_epoch is not None
    found = _walk(view, start, room_bytes, next_offset, last_offset, place, leader_epoch if place else 0)  # type: ignore[arg-type]
    return None if found is None else PlacedBatches._make(found)


def _compiled() -> _Walk | None:
    if os.environ.get("STREAMHOUSE_PURE") == "1":
        return None
    try:
        walk: _Walk = importlib.import_module(_MODULE).walk
    except ModuleNotFoundError as error:
        if error.name != _MODULE:
            raise
        return None
    return walk


_walk: Final = _compiled()
IS_COMPILED: Final = _walk is not None
