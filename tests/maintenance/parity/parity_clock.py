"""The clock of a broker under test, which a story moves forward by hours.

A broker that runs as a program of its own is told by libfaketime. What this process does for it goes by the same clock.
"""

from __future__ import annotations

from pathlib import Path

from streamhouse.chaos.fleet.clocks import OwnClock, find_libfaketime
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import ServiceMissing


class MovedClock:
    """The machine's clock, plus what the stories have skipped. It is a ``Clock``."""

    def __init__(self) -> None:
        self.skipped_ms = 0
        self._machine = SystemClock()

    def skip(self, ms: int) -> None:
        self.skipped_ms += ms

    def wall_ms(self) -> int:
        return self._machine.wall_ms() + self.skipped_ms

    def boot_ms(self) -> int:
        return self._machine.boot_ms()


class ProgramClock(MovedClock):
    """The same for a program: ``environment`` makes it read the file that ``skip`` writes, within a second."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        library = find_libfaketime()
        if library is None:
            raise ServiceMissing("libfaketime is not installed", hint="run scripts/setup --services")
        self._file = OwnClock(library, path)
        # Without the second, libfaketime ends the timed waits of a JVM at once, and its threads only spin.
        self.environment = {**self._file.environment(), "FAKETIME_FORCE_MONOTONIC_FIX": "0"}

    def skip(self, ms: int) -> None:
        super().skip(ms)
        self._file.set(self.skipped_ms // 1_000)
