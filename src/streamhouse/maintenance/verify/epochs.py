"""Which leader epoch led a partition at which offset, from its epoch history. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from streamhouse.metadata.contract import EpochStart

LEADERLESS_EPOCH: Final = 0


class EpochLine:
    """A take-over records the watermark it starts from, and earlier epochs commit nothing from there on.

    So the offsets from one leadership's start to the next one's belong to its epoch. Leaderships that wrote nothing
    share their start with the next one. A leaderless partition has no history, and epoch 0 throughout.
    """

    def __init__(self, history: Iterable[EpochStart]) -> None:
        ordered = sorted(history, key=lambda start: start.epoch)
        self._epochs = [start.epoch for start in ordered]
        self._starts = [start.start_offset for start in ordered]

    def at(self, offset: int) -> int:
        """The epoch that led when this offset was committed; 0 before the first leadership."""
        found = bisect_right(self._starts, offset)
        return self._epochs[found - 1] if found else LEADERLESS_EPOCH

    def between(self, base_offset: int, end_offset: int) -> tuple[int, int]:
        """The lowest and the highest epoch at these offsets, both ends included."""
        return self.at(base_offset), self.at(end_offset)
