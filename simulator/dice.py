"""Random numbers for the simulator: all come from one seed, by name.

``child`` gives each part of a simulated world dice of its own, so that one more draw in one part does not change what
every other part does; that keeps a failing seed recognisable while the code under test is being changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

from streamhouse.core.randomness import SeededRandomness

T = TypeVar("T")


class Dice:
    """Is a ``Randomness`` too, for the code under test."""

    __slots__ = ("_randomness", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._randomness = SeededRandomness(seed)

    def child(self, name: str) -> Dice:
        """The same name under the same seed gives the same dice, whatever was drawn before."""
        return Dice(zlib.crc32(name.encode(), self._seed & 0xFFFF_FFFF) | (self._seed & 0xFFFF_FFFF) << 32)

    def uuid(self) -> UUID:
        return self._randomness.uuid()

    def uniform(self, low: float, high: float) -> float:
        return self._randomness.uniform(low, high)

    def chance(self, probability: float) -> bool:
        return self._randomness.uniform(0, 1) < probability

    def below(self, end: int) -> int:
        return min(int(self._randomness.uniform(0, end)), end - 1)

    def between(self, low: int, high: int) -> int:
        """Both included."""
        return low + self.below(high - low + 1)

    def pick(self, things: Sequence[T]) -> T:
        return things[self.below(len(things))]

    def weighted(self, choices: Sequence[tuple[float, T]]) -> T:
        draw = self._randomness.uniform(0, sum(weight for weight, _ in choices))
        for weight, thing in choices:
            if draw < weight:
                return thing
            draw -= weight
        return choices[-1][1]
