"""What a service has counted since its start. The compactors count their own work in ``CompactionStats``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from streamhouse.core.metrics import Latency
from streamhouse.maintenance.service.targets import TaskKind


class ServiceStage(StrEnum):
    """The parts of the work whose time is measured."""

    DISCOVERY = "discovery"
    SEARCH = "search"
    WAIT = "wait"
    """A candidate waits for a place in the pool."""
    SMALL_OBJECTS = "small_objects"
    """One task: a partition is compacted as far as its plan says."""
    KEYS = "keys"
    RETENTION = "retention"
    VACUUM = "vacuum"
    USAGE = "usage"


class TaskOutcome(StrEnum):
    DONE = "done"
    BUSY = "busy"
    """Another process has the claim."""
    CONFLICT = "conflict"
    """The entries had changed; the next search looks again."""
    NOTHING = "nothing"
    """Another process was faster, or the entries are gone."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far compaction is behind, as the last search saw it."""

    candidates: int = 0
    """Partitions that are worth a task."""
    entries: int = 0
    """Entries that the tasks of these partitions would replace."""
    bytes: int = 0
    """Bytes of these entries."""
    waiting_entries: int = 0
    """Entries that are not worth a task yet."""


@dataclass(slots=True)
class ServiceCounters:
    passes: Counter[str] = field(default_factory=Counter)
    """Passes that ended, by kind."""
    failed_passes: int = 0
    ended_at_s: dict[str, float] = field(default_factory=dict)
    """When the last pass of each kind ended, as Unix time."""
    tasks: Counter[tuple[TaskKind, TaskOutcome]] = field(default_factory=Counter)
    discovered: int = 0
    """Partitions that were found after the start."""
    lag: dict[TaskKind, Lag] = field(default_factory=lambda: {kind: Lag() for kind in TaskKind})
    pending_compactions: int = 0
    """Compactions that were begun and not finished, by this process or any other, as the last search saw them."""
    retention_records: int = 0
    retention_bytes: int = 0
    vacuum_objects: int = 0
    vacuum_bytes: int = 0
    stages: dict[ServiceStage, Latency] = field(default_factory=lambda: {stage: Latency() for stage in ServiceStage})

    @contextmanager
    def timed(self, stage: ServiceStage) -> Iterator[None]:
        """Measures the time of the block, also of one that fails or is cut off."""
        time = asyncio.get_running_loop().time
        began_s = time()
        try:
            yield
        finally:
            self.stages[stage].observe(time() - began_s)
