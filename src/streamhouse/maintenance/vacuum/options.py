"""How long a vacuum waits for writers and for readers, and the shortest times that are safe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import ConfigError
from streamhouse.core.limits import MAX_ROWS_PER_SWEEP
from streamhouse.core.units import format_duration

SHORTEST_WRITER_GRACE_MS: Final = 1_800_000
"""A largest body takes nine minutes at the slowest rate that the object store's retries accept. A writer whose object
was refused needs one such upload before the next vacuum: three times that leaves room for a store that is down."""
SHORTEST_READER_GRACE_MS: Final = 300_000
"""A reader without a pin looks an entry up and reads its object at once. With all retries of the object store that
takes a minute, and with a body at the slowest rate some minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions:
    writer_grace_ms: int = 3_600_000
    """The horizon is this far behind the store's clock, or at the oldest live pin if that is older.

    Agents commit within seconds, and an agent that is refused uploads again, however often. Compaction and Spark's
    sinks hold a pin from before their first upload until their commit, so they may take as long as they need. Garbage,
    and append ids of commits, stay for this much longer.
    """
    reader_grace_ms: int = 3_600_000
    """Dereferenced objects stay for longer than this after their last reference went, for readers that have looked
    their entries up. A backup of the metadata can be restored with its objects for so long, too."""
    purge_rows: int = 1_000
    """Entries of deleted topics that one step drops. It takes some 10 ms in the store; commits wait for no longer."""
    pause_ms: int = 100
    """The pause between two such steps, so that commits come in between."""

    def __post_init__(self) -> None:
        _at_least(self.writer_grace_ms, SHORTEST_WRITER_GRACE_MS, "the time that vacuum waits for writers")
        _at_least(self.reader_grace_ms, SHORTEST_READER_GRACE_MS, "the time that vacuum waits for readers")
        if not 1 <= self.purge_rows <= MAX_ROWS_PER_SWEEP:
            raise ConfigError(
                f"{self.purge_rows} entries in one step of a purge; 1 to {MAX_ROWS_PER_SWEEP} are possible"
            )
        if self.pause_ms < 0:
            raise ConfigError(f"a pause of {self.pause_ms} ms")


def _at_least(given_ms: int, shortest_ms: int, what: str) -> None:
    if given_ms < shortest_ms:
        raise ConfigError(
            f"{what} is {given_ms} ms: too short, objects could be deleted while they are still needed",
            hint=f"wait for {format_duration(shortest_ms)} or longer",
        )
