"""The windows of the idempotent producers of one partition, in the order of their last use, in little memory.

Most producers write for a while and are then silent until they are forgotten; their windows are kept for a retry that
never comes. A window of five batches takes about 1 KB as objects. Only the MAX_UNPACKED_PRODUCERS that wrote last are
kept as objects. The others are packed into bytes, 20 for each batch, and unpacked when they are looked up.

    packed window   epoch i64 │ batches × (sequence i32 │ record count i64 │ base offset i64)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, MutableMapping
from functools import cache

from streamhouse.core.limits import MAX_UNPACKED_PRODUCERS
from streamhouse.metadata.contract import ProducerBatch, ProducerState
from streamhouse.metadata.dedup import ProducerWindow


class ProducerWindows(MutableMapping[int, ProducerWindow]):
    """By producer id; the one that was set last comes last. To change a window, look it up and set it again."""

    __slots__ = ("_packed", "_unpacked")

    def __init__(self) -> None:
        self._packed: dict[int, bytes] = {}
        self._unpacked: dict[int, ProducerWindow] = {}

    def load(self, older: Iterable[ProducerState]) -> None:
        """Add windows, newest first, that were used before all the windows that are here already."""
        packed = {state.producer_id: _pack(state.producer_epoch, state.batches) for state in older}
        self._packed = dict(reversed(packed.items())) | self._packed

    def get(self, producer_id: int, default: object = None) -> ProducerWindow | None:  # type: ignore[override]
        """None for an unknown producer."""
        window = self._unpacked.get(producer_id)
        if window is None and (packed := self._packed.get(producer_id)) is not None:
            window = _unpack(packed)
        return window

    def pop(self, producer_id: int, default: object = None) -> ProducerWindow | None:  # type: ignore[override]
        """None for an unknown producer."""
        window = self._unpacked.pop(producer_id, None)
        if window is None and (packed := self._packed.pop(producer_id, None)) is not None:
            window = _unpack(packed)
        return window

    def __getitem__(self, producer_id: int) -> ProducerWindow:
        window = self.get(producer_id)
        if window is None:
            raise KeyError(producer_id)
        return window

    def __setitem__(self, producer_id: int, window: ProducerWindow) -> None:
        self._packed.pop(producer_id, None)
        self._unpacked.pop(producer_id, None)
        self._unpacked[producer_id] = window
        if len(self._unpacked) > MAX_UNPACKED_PRODUCERS:
            oldest = next(iter(self._unpacked))
            idle = self._unpacked.pop(oldest)
            self._packed[oldest] = _pack(idle.producer_epoch, idle.batches)

    def __delitem__(self, producer_id: int) -> None:
        if self.pop(producer_id) is None:
            raise KeyError(producer_id)

    def __iter__(self) -> Iterator[int]:
        yield from self._packed
        yield from self._unpacked

    def __len__(self) -> int:
        return len(self._packed) + len(self._unpacked)


@cache
def _layout(batches: int) -> struct.Struct:
    return struct.Struct("<q" + "iqq" * batches)


def _pack(epoch: int, batches: Iterable[ProducerBatch]) -> bytes:
    fields = [field for one in batches for field in (one.base_sequence, one.record_count, one.base_offset)]
    return _layout(len(fields) // 3).pack(epoch, *fields)


def _unpack(packed: bytes) -> ProducerWindow:
    epoch, *fields = _layout((len(packed) - 8) // 20).unpack(packed)
    return ProducerWindow(
        epoch,
        [
            ProducerBatch(base_sequence=sequence, record_count=count, base_offset=offset)
            for sequence, count, offset in zip(fields[0::3], fields[1::3], fields[2::3], strict=True)
        ],
    )
