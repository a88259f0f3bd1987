"""A simulated machine's clocks on the loop's virtual time. Its boot clock runs on while its processes are paused."""

from __future__ import annotations

from streamhouse.testing.sim.loop import SimLoop

_EPOCH_MS = 1_700_000_000_000


class SimClock:
    def __init__(self, loop: SimLoop, *, wall_ahead_ms: int = 0, boot_base_ms: int = 0, speed: float = 1.0) -> None:
        """``speed``: how much faster than true time both clocks run."""
        self._loop = loop
        self._wall_ahead_ms = wall_ahead_ms
        self._boot_base_ms = boot_base_ms
        self._speed = speed

    def wall_ms(self) -> int:
        return _EPOCH_MS + self._wall_ahead_ms + int(self._loop.time() * 1000 * self._speed)

    def boot_ms(self) -> int:
        return self._boot_base_ms + int(self._loop.time() * 1000 * self._speed)

    def set_wall(self, by_ms: int) -> None:
        """What an operator or NTP does, in either direction."""
        self._wall_ahead_ms += by_ms
