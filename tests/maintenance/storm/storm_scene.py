"""The scene of a storm: its topics, the notes that its processes leave in plain files, and how a role lives.

What a role must never see goes into ``problems``; what it has done goes into a tally, by which the story knows that it
was about something. Errors that are allowed end a pass, not the process.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storm_history import History
from storm_leader import Leader
from storm_mutants import MUTANTS
from storm_place import HOUR_MS, MINUTE_MS, StormPlace

from streamhouse.core.errors import CorruptData, StreamHouseError
from streamhouse.maintenance.compaction.plan import CompactionRules

KEPT: Final = "kept"
"""A topic from which nothing is ever deleted. The bare log writes it, and ``TRIMMED``."""
TRIMMED: Final = "limited"
"""A topic with retention.bytes."""
STALLED: Final = "stalled"
"""The name of the stalled writer's topics begins with this."""
GOING: Final = "going"
"""A topic whose log start moves past what its reader has just listed."""
AGENT_KEPT: Final = "kept-by-the-agent"
AGENT_TRIMMED: Final = "limited-by-the-agent"
KEYED: Final = "keyed"
"""A compacted topic. The agent writes it, and the two above."""
RETENTION_BYTES: Final = 4_000
DELETE_RETENTION_MS: Final = HOUR_MS
COMPACTION: Final = CompactionRules(
    target_object_bytes=1 << 20,
    max_object_bytes=2 << 20,
    large_entry_bytes=1 << 20,
    min_entries=4,
    max_age_ms=MINUTE_MS,
)
PIN_MS: Final = 100 * MINUTE_MS
"""A pinned reader's. It is released after each read; that of a killed one ends when this much time was let pass. The
horizon stays behind it for so long."""
BY_HAND: Final = {"agent_group": "by-hand"}
"""Keeps the agent, which is of another group, from leading what a role leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a role is given."""

    place: StormPlace
    seed: int
    mutant: str | None = None

    @property
    def histories(self) -> Path:
        return self.place.directory / "histories"

    def history(self, stream: str) -> History:
        """The book of one life of a writer. Its times are not later than those of the metadata store."""
        return History(self.histories, stream, self.place.clock.wall_ms)

    def problem(self, text: str) -> None:
        self._append("problems", text)

    def did(self, what: str, count: int = 1) -> None:
        if count:
            self._append("tally", f"{what}\t{count}")

    def problems(self) -> list[str]:
        return self._lines("problems")

    def tally(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for line in self._lines("tally"):
            what, _, count = line.partition("\t")
            found[what] += int(count or 0)
        return found

    def _append(self, name: str, line: str) -> None:
        with (self.place.directory / name).open("a") as file:
            file.write(line.replace("\n", " | ") + "\n")

    def _lines(self, name: str) -> list[str]:
        path = self.place.directory / name
        return path.read_text().splitlines() if path.exists() else []


async def live(scene: Scene, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """One life of a role. The platform's own errors may end it, but not those of damage: it starts again, as a service
    does. No others may."""
    if scene.mutant is not None:
        MUTANTS[scene.mutant]()
    try:
        await work(scene, *arguments)
    except Exception as error:
        if isinstance(error, StreamHouseError) and not isinstance(error, CorruptData):
            scene.did(f"ended by {type(error).__name__}")
            raise
        scene.problem(f"{work.__name__}: {''.join(traceback.format_exception(error))}")
        raise


async def set_the_scene(scene: Scene) -> None:
    async with scene.place.opened() as stores:
        await scene.place.install_clock()
        leader = Leader(stores, "writer")
        limit = str(RETENTION_BYTES)
        await leader.topic(KEPT, 2, retention_ms="-1", **BY_HAND)
        await leader.topic(TRIMMED, 2, retention_ms="-1", retention_bytes=limit, **BY_HAND)
        await leader.new_topic(GOING, 6, retention_ms="-1", **BY_HAND)
        await leader.new_topic(AGENT_KEPT, retention_ms="-1")
        await leader.new_topic(AGENT_TRIMMED, retention_ms="-1", retention_bytes=limit)
        await leader.new_topic(
            KEYED,
            2,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.1",
            delete_retention_ms=str(DELETE_RETENTION_MS),
        )
