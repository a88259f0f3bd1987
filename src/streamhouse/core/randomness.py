"""Randomness is injected, so that a simulated run replays bit for bit. Only this module imports ``random``."""

from __future__ import annotations

import os
import random
import uuid
from typing import Protocol


class Randomness(Protocol):
    def uuid(self) -> uuid.UUID:
        """A fresh version-4 UUID."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """Return a random number for jitter. Never use it for what an adversary must not guess."""
        ...


class SystemRandomness:
    """The operating system's entropy."""

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=os.urandom(16), version=4)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)


class SeededRandomness:
    """The same seed gives the same sequence, in every process."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
