"""A bounded number of tasks at a time. Each task compacts one partition (S2.12, S2.13).

A task asks for the topic once more before it begins, so it goes by the configs of now. It takes the partition's claim,
recovers what is pending, and compacts what the plan says; another process that has the claim is left to it.

An error of one partition does not stop the others. It is a problem of this process until a task of the partition
succeeds, or a search finds nothing to do there. While a store is away, the workers pause, longer each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    MetadataUnavailable,
    PassIncomplete,
    StoreUnavailable,
    StreamHouseError,
    TopicNotFound,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_KNOWN_DAMAGE
from streamhouse.core.randomness import Randomness
from streamhouse.maintenance.background import Background, Report
from streamhouse.maintenance.compaction.compactor import Compactor
from streamhouse.maintenance.compaction.recovery import recover_compaction
from streamhouse.maintenance.compaction.stats import PassResult
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor
from streamhouse.maintenance.service.counters import ServiceCounters, ServiceStage, TaskOutcome
from streamhouse.maintenance.service.rounds import RETRY
from streamhouse.maintenance.service.targets import CompactionTarget, TaskKind, targets_of
from streamhouse.maintenance.service.task_queue import QueuedTask, TaskQueue
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore

_PARTITIONS: Final = "compaction of partitions"
_STAGES: Final = {TaskKind.SMALL_OBJECTS: ServiceStage.SMALL_OBJECTS, TaskKind.KEYS: ServiceStage.KEYS}

_log = logging.getLogger(__name__)


class CompactionPool:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        compactor: Compactor,
        key_compactor: KeyCompactor,
        clock: Clock,
        randomness: Randomness,
        counters: ServiceCounters,
        parallel: int,
        report: Report,
    ) -> None:
        """``parallel``: tasks at a time."""
        self.queue = TaskQueue()
        self._metadata = metadata
        self._objects = objects
        self._compactor = compactor
        self._key_compactor = key_compactor
        self._clock = clock
        self._randomness = randomness
        self._counters = counters
        self._parallel = parallel
        self._report = report
        self._loops = Background(report)
        self._offered = asyncio.Event()
        self._failing: dict[PartitionKey, str] = {}
        """The problem of each partition whose last task failed. MAX_KNOWN_DAMAGE at most; the others are not shown."""
        self._failures = 0
        """Tasks in a row that ended because a store was away."""
        self._cut_off: set[PartitionKey] = set()
        """Partitions whose task was cancelled."""

    def start(self) -> None:
        for number in range(1, self._parallel + 1):
            self._loops.start(f"compaction worker {number}", self._step)

    def offer(self, candidates: Collection[PartitionKey]) -> None:
        """The result of a search: these partitions are worth a task, and no others."""
        for key in candidates:
            self.queue.offer(key, now_ms=self._clock.boot_ms())
        self._offered.set()
        busy = self.queue.running
        for key in self._failing.keys() - set(candidates) - busy:
            del self._failing[key]
        self._report_failing()

    async def close(self) -> None:
        """End the tasks. Their claims and pins are given back, and what they have begun in the metadata is finished.
        Raises StreamHouseError when a store does not answer; then any other process finishes it."""
        await self._loops.close()
        for key in self._cut_off:
            compaction = await self._metadata.get_compaction(key)
            if compaction is not None:
                await recover_compaction(compaction, metadata=self._metadata, store=self._objects)

    # One task.

    async def _step(self) -> None:
        task = await self._next()
        self._counters.stages[ServiceStage.WAIT].observe(task.waited_ms / 1000)
        more = False
        try:
            target = await self._fresh(task.key)
            if target is not None:
                with self._counters.timed(_STAGES[target.kind]):
                    result = await self._compact(target)
                more = self._take(target, result)
            else:
                self._failing.pop(task.key, None)
            self._failures = 0
        except asyncio.CancelledError:
            self._cut_off.add(task.key)
            raise
        except (MetadataUnavailable, StoreUnavailable):
            self._failures += 1
            await asyncio.sleep(RETRY.pause_s(self._failures, self._randomness))
            raise
        finally:
            self.queue.done(task.key)
            if more:
                self.offer_again(task.key)

    def offer_again(self, key: PartitionKey) -> None:
        """There is more to do in this partition than one task does. It goes behind those that wait."""
        self.queue.offer(key, now_ms=self._clock.boot_ms())
        self._offered.set()

    async def _next(self) -> QueuedTask:
        while (task := self.queue.take(now_ms=self._clock.boot_ms())) is None:
            self._offered.clear()
            await self._offered.wait()
        return task

    async def _fresh(self, key: PartitionKey) -> CompactionTarget | None:
        """The partition with its topic's configs as they are now. None when the topic is gone."""
        try:
            topic = await self._metadata.get_topic_by_id(key.topic_id)
        except TopicNotFound:
            return None
        return next((target for target in targets_of(topic) if target.key == key), None)

    async def _compact(self, target: CompactionTarget) -> PassResult:
        if target.kind is TaskKind.SMALL_OBJECTS:
            return await self._compactor.compact_once([target.key])
        return await self._key_compactor.compact_once({target.key: target.config})

    def _take(self, target: CompactionTarget, result: PassResult) -> bool:
        """Count the task. Returns whether the partition has more to do at once. Raises when a store was away."""
        outcome = outcome_of(result)
        self._counters.tasks[target.kind, outcome] += 1
        _log.debug("%s/%d: %s task: %s", target.topic, target.key.partition, target.kind, outcome)
        if not result.failures:
            self._failing.pop(target.key, None)
            self._report_failing()
            return result.more and outcome is TaskOutcome.DONE
        error = result.failures[0].error
        if isinstance(error, MetadataUnavailable | StoreUnavailable):
            raise error
        self._fail(target, error)
        return False

    def _fail(self, target: CompactionTarget, error: StreamHouseError) -> None:
        if target.key in self._failing or len(self._failing) < MAX_KNOWN_DAMAGE:
            self._failing[target.key] = f"{target.topic}/{target.key.partition}: {error}"
        self._report_failing()

    def _report_failing(self) -> None:
        if not self._failing:
            self._report(_PARTITIONS, None)
            return
        first = next(iter(self._failing.values()))
        self._report(_PARTITIONS, PassIncomplete(f"{len(self._failing)} partitions failed, the first is {first}"))


def outcome_of(result: PassResult) -> TaskOutcome:
    """What a task that ended has done. Pure."""
    stats = result.stats
    if result.failures:
        return TaskOutcome.FAILED
    if stats.runs or stats.recovered or stats.aborted:
        return TaskOutcome.DONE
    if stats.busy:
        return TaskOutcome.BUSY
    return TaskOutcome.CONFLICT if stats.conflicts else TaskOutcome.NOTHING
