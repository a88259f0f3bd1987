"""The service: when topics are discovered, when the log is searched, and when retention and vacuum run.

    discovery   topics and partitions that were created since, on an interval
    search      partitions that have something to compact, on an interval; they go to the pool
    pool        some tasks at a time, each of one partition
    retention   all partitions looked after, on an interval
    vacuum      the whole bucket, on an interval, by the one process of the cluster that holds the claim; never when
                topics were chosen, for an object may hold records of many topics

``close`` ends all of it: claims and pins are given back, and a compaction that was begun in the metadata is finished.
A process that is killed loses nothing either. Its claims and pins run out, and any process goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import ConfigError, PassIncomplete, StreamHouseError
from streamhouse.core.limits import MIB
from streamhouse.core.randomness import Randomness
from streamhouse.core.units import format_size
from streamhouse.log.offload import Offload
from streamhouse.maintenance.background import Background, Report
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.compaction.rewrite import READ_AHEAD_BYTES
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor, KeyCompactorOptions
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.service.candidates import CandidateSearch
from streamhouse.maintenance.service.counters import ServiceCounters, ServiceStage
from streamhouse.maintenance.service.pool import CompactionPool
from streamhouse.maintenance.service.rounds import Rounds
from streamhouse.maintenance.service.targets import Targets
from streamhouse.maintenance.service.usage import PrefixUsage, usage_by_prefix
from streamhouse.maintenance.upkeep.pace import Pace
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore

MAX_PARALLEL: Final = 16
"""Tasks at a time: one of key compaction has a map of 64 MiB, and each has 8 MiB of reads and an upload in flight."""
VACUUM_CLAIM: Final = "vacuum"
"""The claim that agents take too, so that one process of the cluster vacuums."""
_SHORTEST_CLAIM_MS: Final = 60_000
_LONGEST_CLAIM_MS: Final = 86_400_000

_log = logging.getLogger(__name__)

OnUsage = Callable[[dict[str, PrefixUsage]], None]


def unused(usage: dict[str, PrefixUsage]) -> None:
    """Ignores what is stored, for a service whose usage is not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    names: frozenset[str] | None = None
    """The topics to look after. None: all, those that are created later too."""
    parallel: int = 2
    bytes_per_second: int = 32 * MIB
    """What all tasks together read at most."""
    discovery_interval_ms: int = 30_000
    compaction_interval_ms: int = 60_000
    retention_interval_ms: int = 300_000
    vacuum_interval_ms: int = 3_600_000
    rules: CompactionRules = field(default_factory=CompactionRules)
    vacuum: VacuumOptions = field(default_factory=VacuumOptions)
    stop_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if not 1 <= self.parallel <= MAX_PARALLEL:
            raise ConfigError(
                f"{self.parallel} tasks of compaction at a time", hint=f"let it be 1 to {MAX_PARALLEL}: --parallel"
            )
        if self.bytes_per_second < 64 * 1024:
            raise ConfigError(
                f"compaction that reads {self.bytes_per_second} bytes a second", hint="let it be 64KiB at least: --rate"
            )
        if self.discovery_interval_ms < 1_000:
            raise ConfigError(
                f"discovery every {self.discovery_interval_ms} ms",
                hint="let it be a second at least: --discovery-interval",
            )

    @property
    def vacuums(self) -> bool:
        return self.names is None


class CompactionService:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        offload: Offload,
        clock: Clock,
        randomness: Randomness,
        owner: str,
        options: ServiceOptions,
        report: Report,
        on_usage: OnUsage = unused,
    ) -> None:
        """``owner`` names this process in claims. No other process may have it."""
        self.counters = ServiceCounters()
        self.targets = Targets(options.names)
        self._metadata = metadata
        self._objects = objects
        self._clock = clock
        self._randomness = randomness
        self._owner = owner
        self._options = options
        self._on_usage = on_usage
        self._retention = Retention(metadata=metadata)
        # One pace for both kinds: the rate is that of the process, whatever the number of its tasks.
        pace = Pace(bytes_per_second=options.bytes_per_second, must_wait=lambda: False)
        ttl_ms = claim_ttl_ms(options.bytes_per_second, options.parallel)
        self.compactor = Compactor(
            metadata=metadata,
            store=objects,
            offload=offload,
            clock=clock,
            randomness=randomness,
            owner=owner,
            options=CompactorOptions(rules=options.rules, max_parallel_items=1, claim_ttl_ms=ttl_ms),
            pace=pace.spend,
        )
        self.key_compactor = KeyCompactor(
            metadata=metadata,
            store=objects,
            offload=offload,
            clock=clock,
            randomness=randomness,
            owner=owner,
            options=KeyCompactorOptions(claim_ttl_ms=ttl_ms),
            pace=pace.spend,
        )
        self._search = CandidateSearch(metadata=metadata, compactor=self.compactor, key_compactor=self.key_compactor)
        self.pool = CompactionPool(
            metadata=metadata,
            objects=objects,
            compactor=self.compactor,
            key_compactor=self.key_compactor,
            clock=clock,
            randomness=randomness,
            counters=self.counters,
            parallel=options.parallel,
            report=report,
        )
        self._loops = Background(report)

    async def start(self) -> None:
        """Returns when the first discovery is done. Raises MetadataError."""
        with self.counters.timed(ServiceStage.DISCOVERY):
            self.targets.discover(await self._metadata.list_topics())
        self.pool.start()
        options = self._options
        self._begin(ServiceStage.DISCOVERY, options.discovery_interval_ms, self.discover)
        self._begin(ServiceStage.SEARCH, options.compaction_interval_ms, self.search)
        self._begin(ServiceStage.RETENTION, options.retention_interval_ms, self.retain)
        if options.vacuums:
            self._begin(ServiceStage.VACUUM, options.vacuum_interval_ms, self.vacuum)

    async def close(self) -> bool:
        """Returns False when a store did not answer in time: then claims and pins run out by themselves, and another
        process finishes what was begun."""
        try:
            async with asyncio.timeout(self._options.stop_timeout_ms / 1000):
                await self._loops.close()
                await self.pool.close()
                await self._metadata.release_claim(VACUUM_CLAIM, owner=self._owner)
        except (StreamHouseError, TimeoutError) as error:
            _log.warning("stopped before everything was given back: %s", str(error) or "a store did not answer")
            return False
        return True

    def _begin(self, stage: ServiceStage, interval_ms: int, run: Callable[[], Awaitable[None]]) -> None:
        rounds = Rounds(
            stage,
            run,
            interval_ms=interval_ms,
            counters=self.counters,
            clock=self._clock,
            randomness=self._randomness,
        )
        self._loops.start(stage, rounds.step)

    # One pass of each kind.

    async def discover(self) -> None:
        found = self.targets.discover(await self._metadata.list_topics())
        self.counters.discovered += found.new
        self._search.forget(found.changed)
        if found.new:
            _log.info("discovered %d new partitions; looking after %d", found.new, len(self.targets))

    async def search(self) -> None:
        found = await self._search.run(self.targets.shuffled(self._randomness))
        self.counters.lag = found.lag
        self.counters.pending_compactions = found.pending_compactions
        self.pool.offer(found.candidates)

    async def retain(self) -> None:
        summary = await self._retention.run(wanted=self.targets.wants)
        self.counters.retention_records += summary.freed.records
        self.counters.retention_bytes += summary.freed.size_bytes
        if summary.failures:
            raise PassIncomplete(f"retention of {summary.failed} partitions failed: {summary.failures[0]}")

    async def vacuum(self) -> None:
        """A vacuum, if this process has the claim, and then a look at what is stored."""
        ttl_ms = 2 * self._options.vacuum_interval_ms
        claim = await self._metadata.acquire_claim(VACUUM_CLAIM, owner=self._owner, ttl_ms=ttl_ms)
        if claim.owner != self._owner:
            return
        summary = await Vacuum(metadata=self._metadata, objects=self._objects, options=self._options.vacuum).run()
        deleted = summary.total
        self.counters.vacuum_objects += deleted.objects
        self.counters.vacuum_bytes += deleted.size_bytes
        if deleted.objects or summary.entries_purged:
            _log.info(
                "vacuum deleted %d objects (%s) and %d entries of deleted topics",
                deleted.objects,
                format_size(deleted.size_bytes),
                summary.entries_purged,
            )
        with self.counters.timed(ServiceStage.USAGE):
            self._on_usage(await usage_by_prefix(self._objects))
        if summary.problems:
            raise PassIncomplete(f"vacuum left objects that it could not delete: {summary.problems[0]}")


def claim_ttl_ms(bytes_per_second: int, parallel: int) -> int:
    """How long a claim lasts. A task renews it after each read of some MiB, and waits for these at the rate that it
    shares with the other tasks; a claim that ran out meanwhile would let another process do the same work. Pure."""
    slowest_read_ms = 1_000 * READ_AHEAD_BYTES * parallel // bytes_per_second
    return min(max(_SHORTEST_CLAIM_MS, 4 * slowest_read_ms), _LONGEST_CLAIM_MS)
