"""Time is injected. Nothing else in the code base may read a clock.

Two clocks with two jobs: ``wall_ms`` stamps records and objects; ``boot_ms`` measures local deadlines. The second is
CLOCK_BOOTTIME, which runs on while a laptop sleeps: a lease deadline on CLOCK_MONOTONIC would outlive its lease (R20).
Expiry in the metadata store uses the store's own clock and neither of these.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the epoch; may jump either way."""
        ...

    def boot_ms(self) -> int:
        """Milliseconds since some fixed past; never goes back and never stops."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


class ManualClock:
    """A clock that moves only when told; for tests and the simulator."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, boot_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError("time passes forward; use jump_wall for a wall clock set back")
        self._wall_ms += ms
        self._boot_ms += ms

    def jump_wall(self, ms: int) -> None:
        """What an operator or NTP does to the wall clock: either direction, the boot clock untouched."""
        self._wall_ms += ms


# CLOCK_BOOTTIME exists on Linux only; elsewhere (a laptop for development) monotonic is the closest there is.
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
