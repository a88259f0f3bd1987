"""Key compaction whose tasks share a partition, without Spark: its stages run here, one after the other, on pickles."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
from keyed_logs import KeyGround

from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.objectstore.opening import StoreOptions
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.maintenance import key_shuffle, tasks
from streamhouse.spark.maintenance.jobs import ShuffleStage, TaskFunction, task_cluster
from streamhouse.spark.maintenance.key_compaction import SparkKeyCompactor
from streamhouse.spark.maintenance.tasks import TaskCluster, load

T = TypeVar("T")
Pair = tuple[int, Any]
ADDRESS = StoreAddress(
    metadata_url="postgresql://host/db",
    store_url="memory://",
    store=StoreOptions(),
    request_timeout_ms=1,
    retry_deadline_ms=1,
)


class LoopConnection:
    """A task's connection to the stores of the ground, which belong to the test's loop."""

    def __init__(self, ground: KeyGround) -> None:
        self.clock = ground.clock
        self.randomness = SeededRandomness(7)
        self._ground = ground
        self._loop = asyncio.get_running_loop()

    def run(self, call: Coroutine[Any, Any, T], *, timeout_s: float = 60) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(timeout_s)

    async def metadata(self) -> Any:
        return self._ground.metadata

    async def objects(self) -> Any:
        return self._ground.memory


@contextmanager
def connected(ground: KeyGround) -> Iterator[None]:
    """What tasks connect to, wherever they say."""
    connection = LoopConnection(ground)
    with pytest.MonkeyPatch.context() as patch:
        for module in (tasks, key_shuffle):
            patch.setattr(module, "connect", lambda address: connection)
        yield


@dataclass(slots=True)
class Shuffled:
    inputs: Sequence[bytes]
    stages: Sequence[ShuffleStage]
    partitions: list[list[Pair]] | None = None


@dataclass
class TasksHere:
    """In the place of SparkTasks."""

    cluster: TaskCluster
    at_a_time: int = 3
    attempts: int = 1
    """How often each task runs. The answer of the last attempt counts."""
    lose: Callable[[str, Pair], bool] = lambda stage, pair: False
    """Which pairs of a stage get lost on the way."""
    messages: list[bytes] = field(default_factory=list)
    """Pickles of all that was shuffled."""
    _guard: Any = field(default_factory=threading.Lock)

    def shuffle(self, inputs: Sequence[bytes], stages: Sequence[ShuffleStage]) -> Shuffled:
        return Shuffled(inputs, stages)

    async def run_shuffled(self, function: TaskFunction, work: Any, shuffled: Shuffled, partition: int) -> Any:
        called = replace(function, payload=pickle.dumps((self.cluster, work)))
        answer = load((await asyncio.to_thread(self._run, called, shuffled, partition))[0])
        if answer.error is not None:
            raise answer.error
        return answer.result

    def _run(self, function: TaskFunction, shuffled: Shuffled, partition: int) -> list[Any]:
        with self._guard:
            if shuffled.partitions is None:
                shuffled.partitions = self._shuffle(shuffled)
        return self._task(function, shuffled.partitions[partition])

    def _shuffle(self, shuffled: Shuffled) -> list[list[Any]]:
        partitions: list[list[Any]] = [[each] for each in shuffled.inputs]
        for stage in shuffled.stages:
            sent: dict[int, list[Pair]] = defaultdict(list)
            for each in partitions:
                for pair in self._task(stage.function, each):
                    if not self.lose(stage.function.name, pair):
                        self.messages.append(pickle.dumps(pair))
                        sent[pair[0] % stage.partitions].append(pickle.loads(self.messages[-1]))
            partitions = [sent[number] for number in range(stage.partitions)]
        return partitions

    def _task(self, function: TaskFunction, given: list[Any]) -> list[Any]:
        run = getattr(importlib.import_module(function.module), function.name)
        for _ in range(self.attempts):
            done = list(run(function.payload, iter(given)))
        return done


class SharedGround(KeyGround):
    """Its compactors share every partition among tasks."""

    tasks: TasksHere

    async def prepare(self) -> None:
        self.tasks = TasksHere(await task_cluster(ADDRESS, self.metadata, self.memory))

    def key_compactor(self, *, rules: KeyRules | None = None, **given: Any) -> Any:
        self._owners += 1
        return SparkKeyCompactor(
            metadata=self.metadata,
            store=self.memory,
            offload=InlineOffload(),
            clock=self.clock,
            randomness=SeededRandomness(2_000 + self._owners),
            owner=f"spark-{self._owners}",
            rules=rules or KeyRules(),
            tasks=self.tasks,  # type: ignore[arg-type]
            shuffle_above_bytes=0,
        )
