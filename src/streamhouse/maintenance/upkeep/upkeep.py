"""The loops of upkeep: retention, compaction, key compaction, vacuum. What a pass does is in their packages.

    retention    every partition led here, on an interval, and sooner where much is written under a size limit
    compaction   every partition led here, on an interval; at once again while there is more to do. One loop for small
                 objects, and one for the partitions whose policy is to keep the newest record of each key
    vacuum       the whole bucket, on an interval, by the one agent that holds the claim

Each loop runs one pass at a time. A pass that fails is reported in the agent's health, and tried again after a pause
that grows. A pass that is cut off at the end of the agent loses nothing: each step commits by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from streamhouse.core.backoff import Backoff
from streamhouse.core.clock import Clock
from streamhouse.core.errors import PassIncomplete, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.core.units import format_size
from streamhouse.log.offload import Offload
from streamhouse.maintenance.background import Background, Report
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.policy import compacted_logs, small_object_logs
from streamhouse.maintenance.compaction.stats import PassResult
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor, KeyCompactorOptions
from streamhouse.maintenance.retention.passes import Retention, RetentionSummary
from streamhouse.maintenance.upkeep.brake import Brake
from streamhouse.maintenance.upkeep.disk_space import DiskSpace
from streamhouse.maintenance.upkeep.pace import Pace
from streamhouse.maintenance.upkeep.schedule import RetentionDue, RetentionSchedule
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.02
"""How often the committed bytes are compared with the smallest size limit."""
_LOOK_AT_LIMITS_MS: Final = 200
"""How often the smallest size limit is looked for. It takes a microsecond for each partition, so with very many of them
it is looked for more rarely: it takes half a percent of one core at most."""
_LIMITS_SHARE: Final = 200
_RETRY: Final = Backoff(first_ms=1_000, longest_ms=300_000)
_VACUUM_CLAIM: Final = "vacuum"
_KINDS: Final = ("retention", "compaction", "key_compaction", "vacuum")


class TendedLog(Protocol):
    """What upkeep asks the log of its agent."""

    def led_keys(self) -> set[PartitionKey]: ...

    def size_limits(self) -> dict[PartitionKey, int]:
        """``retention.bytes`` of each partition led here that has such a limit."""
        ...

    @property
    def limited_bytes(self) -> int:
        """The bytes that were committed here since the start, of partitions with a size limit."""
        ...

    @property
    def writes_wait(self) -> bool: ...

    def hold_writes(self, why: str) -> None:
        """Writes wait for room until this is called with an empty reason."""
        ...

    @property
    def oldest_stamp_ms(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepOptions:
    retention_interval_ms: int = 300_000
    compaction_interval_ms: int = 60_000
    compaction_bytes_per_second: int = 32 * 1024 * 1024
    vacuum_interval_ms: int = 3_600_000
    compactor: CompactorOptions = field(default_factory=lambda: CompactorOptions(max_parallel_items=1))
    key_compactor: KeyCompactorOptions = field(default_factory=KeyCompactorOptions)
    vacuum: VacuumOptions = field(default_factory=VacuumOptions)
    dereferenced_keep_bytes: int | None = None
    """On a single node: dereferenced objects beyond this are deleted without grace. None: all have their grace."""


@dataclass(slots=True)
class UpkeepStats:
    """Counters since the start, and when the last pass of each kind ended, by the machine's clock in seconds."""

    retention_passes: int = 0
    retention_records: int = 0
    retention_entries: int = 0
    retention_bytes: int = 0
    vacuum_passes: int = 0
    vacuum_objects: int = 0
    vacuum_bytes: int = 0
    compaction_passes: int = 0
    key_compaction_passes: int = 0
    failed_passes: int = 0
    write_holds: int = 0
    """How often writes had to wait for retention."""
    ended_at_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0.0))
    """0: no pass has ended yet."""


class Upkeep:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        leading: TendedLog,
        offload: Offload,
        clock: Clock,
        randomness: Randomness,
        owner: str,
        options: UpkeepOptions,
        report: Report,
    ) -> None:
        """``owner`` names this agent in claims."""
        self.stats = UpkeepStats()
        self._metadata = metadata
        self._objects = objects
        self._leading = leading
        self._clock = clock
        self._randomness = randomness
        self._owner = owner
        self._options = options
        self._retention = Retention(metadata=metadata)
        self.pace = Pace(
            bytes_per_second=options.compaction_bytes_per_second, must_wait=lambda: self._leading.writes_wait
        )
        self.compactor = Compactor(
            metadata=metadata,
            store=objects,
            offload=offload,
            clock=clock,
            randomness=randomness,
            owner=owner,
            options=options.compactor,
            pace=self.pace.spend,
        )
        self.key_compactor = KeyCompactor(
            metadata=metadata,
            store=objects,
            offload=offload,
            clock=clock,
            randomness=randomness,
            owner=owner,
            options=options.key_compactor,
            pace=self.pace.spend,
        )
        self.disk_space: DiskSpace | None = None
        if options.dereferenced_keep_bytes is not None:
            self.disk_space = DiskSpace(
                metadata=metadata,
                objects=objects,
                keep_bytes=options.dereferenced_keep_bytes,
                oldest_stamp_ms=lambda: self._leading.oldest_stamp_ms,
            )
        # Not at the start, which has better things to do: partitions are opened and clients come back.
        first_ms = clock.boot_ms() + int(1000 * self._jittered_s(options.retention_interval_ms))
        self._schedule = RetentionSchedule(interval_ms=options.retention_interval_ms, due_ms=first_ms)
        self._brake = Brake()
        self._limit_bytes: int | None = None
        """The smallest size limit of a partition led here; None when there is none."""
        self._limits_bytes = 0
        """All of them together."""
        self._limit_due_ms = 0
        self._failures = 0
        self._loops = Background(report)

    def start(self) -> None:
        self._loops.start("retention", self._retention_step)
        if self.disk_space is not None:
            self._loops.start("the brake on writes", self._brake_step)
        self._loops.start("compaction", self._on_interval(self._options.compaction_interval_ms, self._compact))
        self._loops.start("key compaction", self._on_interval(self._options.compaction_interval_ms, self._compact_keys))
        self._loops.start("vacuum", self._on_interval(self._options.vacuum_interval_ms, self.vacuum_once))

    async def close(self) -> None:
        await self._loops.close()
        self._leading.hold_writes("")
        with suppress(StreamHouseError):
            await self._metadata.release_claim(_VACUUM_CLAIM, owner=self._owner)

    # Retention.

    async def _retention_step(self) -> None:
        due = await self._until_retention_is_due()
        began_ms, committed_bytes = self._clock.boot_ms(), self._leading.limited_bytes
        self._schedule.begins(due, now_ms=began_ms, committed_bytes=committed_bytes)
        try:
            await self._retain(
                self._leading.led_keys() if due is RetentionDue.ALL else self._leading.size_limits().keys()
            )
        except Exception:
            self.stats.failed_passes += 1
            self._failures += 1
            pause_s = _RETRY.pause_s(self._failures, self._randomness)
            self._schedule.failed(now_ms=self._clock.boot_ms(), pause_ms=int(1000 * pause_s))
            raise
        self._failures = 0
        now_ms = self._clock.boot_ms()
        self._schedule.ended(now_ms=now_ms, took_ms=now_ms - began_ms)
        self._brake.caught_up(committed_bytes)
        self._look_at_the_brake()

    async def _retain(self, keys: Collection[PartitionKey]) -> None:
        summary = await self._retention.run(
            wanted=lambda topic, partition: PartitionKey(topic.topic_id, partition) in keys
        )
        self._count_retention(summary)
        if summary.moved and self.disk_space is not None:
            await self.disk_space.free()
        if summary.failures:
            raise PassIncomplete(f"retention of {summary.failed} partitions failed: {summary.failures[0]}")

    async def _until_retention_is_due(self) -> RetentionDue:
        while True:
            due = self._retention_due()
            if due is not None:
                return due
            await asyncio.sleep(_LOOK_S if self._limit_bytes is not None else 10 * _LOOK_S)

    def _retention_due(self) -> RetentionDue | None:
        now_ms = self._clock.boot_ms()
        if now_ms >= self._limit_due_ms:
            limits = self._leading.size_limits().values()
            self._limit_bytes, self._limits_bytes = min(limits, default=None), sum(limits)
            took_ms = self._clock.boot_ms() - now_ms
            self._limit_due_ms = now_ms + max(_LOOK_AT_LIMITS_MS, _LIMITS_SHARE * took_ms)
        return self._schedule.due(
            now_ms=now_ms,
            committed_bytes=self._leading.limited_bytes,
            limit_bytes=self._limit_bytes,
            writes_wait=self._brake.holds,
        )

    async def _brake_step(self) -> None:
        """Runs beside the passes, because a writer may be too fast while one is under way."""
        await asyncio.sleep(_LOOK_S if self._limit_bytes is not None else 10 * _LOOK_S)
        self._look_at_the_brake()

    def _look_at_the_brake(self) -> None:
        if self.disk_space is None:
            return
        held_before = self._brake.holds
        holds = self._brake.look(
            now_ms=self._clock.boot_ms(),
            committed_bytes=self._leading.limited_bytes,
            limits_bytes=None if self._limit_bytes is None else self._limits_bytes,
        )
        if holds != held_before:
            self.stats.write_holds += holds
            self._leading.hold_writes("retention, to keep what retention.bytes allows on this disk" if holds else "")

    def _count_retention(self, summary: RetentionSummary) -> None:
        self.stats.retention_passes += 1
        self.stats.retention_records += summary.freed.records
        self.stats.retention_entries += summary.freed.entries
        self.stats.retention_bytes += summary.freed.size_bytes
        self._ended("retention")

    # Compaction.

    async def _compact(self) -> bool:
        """Returns whether there is more to do at once."""
        led = self._leading.led_keys()
        topics = await self._metadata.list_topics()
        result = await self.compactor.compact_once(key for key in small_object_logs(topics) if key in led)
        self.stats.compaction_passes += 1
        return await self._end_of_compaction("compaction", result)

    async def _compact_keys(self) -> bool:
        """Returns whether there is more to do at once."""
        led = self._leading.led_keys()
        logs = compacted_logs(await self._metadata.list_topics())
        configs = {key: config for key, config in logs.items() if key in led}
        result = await self.key_compactor.compact_once(configs)
        self.stats.key_compaction_passes += 1
        return await self._end_of_compaction("key_compaction", result)

    async def _end_of_compaction(self, kind: str, result: PassResult) -> bool:
        self._ended(kind)
        if result.stats.runs and self.disk_space is not None:
            await self.disk_space.free()
        if result.failures:
            first = result.failures[0]
            raise PassIncomplete(
                f"compaction of {result.stats.failures} partitions failed, the first is {first.key}: {first.error}"
            )
        return result.more

    # Vacuum.

    async def vacuum_once(self) -> bool:
        """A vacuum, if this agent has the claim. Returns False: there is no more to do at once."""
        ttl_ms = 2 * self._options.vacuum_interval_ms
        claim = await self._metadata.acquire_claim(_VACUUM_CLAIM, owner=self._owner, ttl_ms=ttl_ms)
        if claim.owner != self._owner:
            return False
        vacuum = Vacuum(metadata=self._metadata, objects=self._objects, options=self._options.vacuum)
        summary = await vacuum.run()
        deleted = summary.total
        self.stats.vacuum_passes += 1
        self.stats.vacuum_objects += deleted.objects
        self.stats.vacuum_bytes += deleted.size_bytes
        self._ended("vacuum")
        if deleted.objects or summary.entries_purged:
            _log.info(
                "vacuum deleted %d objects (%s) and %d entries of deleted topics",
                deleted.objects,
                format_size(deleted.size_bytes),
                summary.entries_purged,
            )
        if summary.problems:
            raise PassIncomplete(f"vacuum left objects that it could not delete: {summary.problems[0]}")
        return False

    # All of them.

    def _on_interval(self, interval_ms: int, run: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[None]]:
        """Passes of one kind: a pause before each, none while there is more to do, a growing one after failures."""
        failures = 0
        pause_s = self._jittered_s(min(interval_ms, 60_000))

        async def step() -> None:
            nonlocal failures, pause_s
            await asyncio.sleep(pause_s)
            try:
                more = await run()
            except Exception:
                self.stats.failed_passes += 1
                failures += 1
                pause_s = _RETRY.pause_s(failures, self._randomness)
                raise
            failures = 0
            pause_s = 0.0 if more else self._jittered_s(interval_ms)

        return step

    def _jittered_s(self, longest_ms: int) -> float:
        """A random pause, so that the agents of a fleet take turns."""
        return self._randomness.uniform(longest_ms / 2, longest_ms) / 1000

    def _ended(self, kind: str) -> None:
        self.stats.ended_at_s[kind] = self._clock.wall_ms() / 1000
