"""The driver's side: sends one piece of work as a Spark job of one task, and waits for its answer.

A job for each work lets a pass go on in its own way: it plans, waits, and plans further as answers come, and each
answer is counted at once. Starting a job takes some 20 ms, and a work is worth a task only if it takes longer. Failed
tasks are tried again by Spark, on another machine if there is one (``spark.task.maxFailures``; on local[*] never).

RDDs and not DataFrames: they give exactly one task for one work. A Connect server does not offer them.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from streamhouse.core.errors import InvalidSetting, PassIncomplete
from streamhouse.core.randomness import Randomness
from streamhouse.core.urls import mask_url, scheme_of
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.metering import Meter
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.definitions.targets import by_value
from streamhouse.spark.maintenance.tasks import TaskAnswer, TaskCluster, Work, load, read_mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")

MAX_AT_A_TIME: Final = 64
"""Works under way, each with a thread of the driver. It is also the most that a Compactor takes."""
_CANCEL_AGAIN_S: Final = 0.2
_MAX_REASON: Final = 500  # characters of an error's text; Spark's own has pages


def check_master(master: str, address: StoreAddress) -> None:
    """Raises InvalidSetting where tasks could not do maintenance, before Spark is started. Whether it is a master at
    all is for the start of Spark to say."""
    if master.startswith("sc://"):
        raise InvalidSetting(
            f"maintenance cannot use the Connect server {master[:80]}",
            hint="give --master the cluster itself: spark://host:7077, or yarn or k8s://…",
        )
    if _is_here(master):
        return
    for url in (address.metadata_url, address.store_url):
        if scheme_of(url) in ("sqlite", "file"):
            raise InvalidSetting(
                f"{mask_url(url)} is on this machine alone, and {master[:80]} has others",
                hint="use --master local[*], or a cluster on PostgreSQL and S3",
            )


async def task_cluster(address: StoreAddress, metadata: MetadataStore, objects: ObjectStore) -> TaskCluster:
    """How tasks reach and recognise the cluster that the driver has opened."""
    return TaskCluster(
        address=address, cluster_id=(await metadata.cluster_info()).cluster_id, mark=await read_mark(objects)
    )


def works_at_a_time(master: str, cores: int) -> int:
    """How many works are sent side by side. Pure.

    A cluster's executors register by and by, so its cores are not known when the first works are sent. It gets the
    most, and what it has no core for waits in Spark's queue.
    """
    return min(MAX_AT_A_TIME, max(1, cores)) if _is_here(master) else MAX_AT_A_TIME


def _is_here(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


class Doing(Protocol):
    """A work, or what becomes one in its task. It is pickled."""

    @property
    def doing(self) -> str:
        """What Spark's pages call the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFunction:
    """A function of a module of ours that tasks call, with ``payload`` and what a shuffle has brought them."""

    module: str
    name: str
    payload: bytes = field(repr=False)

    def for_spark(self) -> Callable[..., Any]:
        return by_value(self.module, self.name, self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleStage:
    """Tasks whose function yields pairs: the number of a partition, and a value for it."""

    function: TaskFunction
    partitions: int
    """The partitions that the values go to."""


class SparkTasks:
    """Runs works, ``at_a_time`` of them side by side. It does not own the session."""

    def __init__(self, spark: SparkSession, cluster: TaskCluster, *, meter: Meter, randomness: Randomness) -> None:
        """``meter`` counts the requests of the tasks beside those of the driver."""
        self._context = spark.sparkContext
        self.at_a_time = works_at_a_time(str(self._context.master), int(self._context.defaultParallelism))
        self.cluster = cluster
        self._run_works = by_value("streamhouse.spark.maintenance.tasks", "run_works", pickle.dumps(cluster))
        self._meter = meter
        self._threads = ThreadPoolExecutor(self.at_a_time, thread_name_prefix="spark-job")
        self._gate = asyncio.Semaphore(self.at_a_time)
        self._name = f"maintenance-{randomness.uuid().hex[:12]}"
        self._numbers = count(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    def stop_spark(self) -> None:
        """End all tasks, and Spark with them. Afterwards works fail."""
        self._context.stop()

    async def run(self, work: Work[R]) -> R:
        """The result of ``work``. Raises the error that it ended with; PassIncomplete when Spark could not run it.

        Cancelling ends the task. What it had under way may still be done, or left for the next pass.
        """
        result: R = await self._run(self._submit, work)
        return result

    def shuffle(self, inputs: Sequence[bytes], stages: Sequence[ShuffleStage]) -> Any:
        """What ``run_shuffled`` takes. The first stage has a task for each of the inputs, the next one a task for each
        partition of the stage before. They run with the first ``run_shuffled``; later ones find what was shuffled on
        the executors' disks. It blocks for as long as it takes to send the inputs to Java.
        """
        shuffled: Any = self._context.parallelize(inputs, len(inputs))
        for stage in stages:
            shuffled = shuffled.mapPartitions(stage.function.for_spark()).partitionBy(stage.partitions, int)
        return shuffled

    async def run_shuffled(self, function: TaskFunction, order: Doing, shuffled: Any, partition: int) -> Any:
        """``run`` in a task that has one partition of what was shuffled: it calls ``function`` with the pickles of the
        cluster and ``order``, and the pairs. The function returns the pickle of its TaskAnswer, in a list."""

        def submit(group: str, order: Doing) -> TaskAnswer:
            called = replace(function, payload=pickle.dumps((self.cluster, order), pickle.HIGHEST_PROTOCOL))
            return self._answer_of(
                group, order, lambda: self._context.runJob(shuffled, called.for_spark(), [partition])
            )

        return await self._run(submit, order)

    async def _run(self, submit: Callable[[str, Any], TaskAnswer], work: Doing) -> Any:
        async with self._gate:
            group = f"{self._name}-{next(self._numbers)}"
            job = asyncio.get_running_loop().run_in_executor(self._threads, submit, group, work)
            try:
                answer = await asyncio.shield(job)
            except asyncio.CancelledError:
                await self._cancel(group, job)
                raise
        for operation, totals in answer.requests.items():
            self._meter.count(operation, totals)
        if answer.error is not None:
            raise answer.error
        return answer.result

    async def run_all(self, works: Sequence[Work[R]]) -> list[R]:
        """The results in the order of the works. The first error ends the others and is raised."""
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self.run(work)) for work in works]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in running]

    def _submit(self, group: str, work: Work[Any]) -> TaskAnswer:
        def job() -> list[bytes]:
            pickled = pickle.dumps(work, pickle.HIGHEST_PROTOCOL)
            return self._context.parallelize([pickled], 1).mapPartitions(self._run_works).collect()

        return self._answer_of(group, work, job)

    def _answer_of(self, group: str, work: Doing, job: Callable[[], list[bytes]]) -> TaskAnswer:
        try:
            self._context.setJobGroup(group, work.doing, interruptOnCancel=True)
            answers = job()
        except Exception as error:  # Py4J and PySpark have no common class for what a job may fail with
            raise PassIncomplete(f"{work.doing}: the Spark task failed: {reason_of(str(error))}") from error
        return load(answers[0])

    async def _cancel(self, group: str, job: asyncio.Future[TaskAnswer]) -> None:
        """Spark does not know a job that is about to begin, so it is told until the job has ended."""
        while not job.done():
            with suppress(Exception):  # Spark may be gone; then the job ends by itself
                await asyncio.to_thread(self._context.cancelJobGroup, group)
            await asyncio.wait([job], timeout=_CANCEL_AGAIN_S)
        job.exception()


def reason_of(text: str) -> str:
    """The line that says why, out of the text of an error of Spark. Pure.

    Spark shows a task's Python traceback in the middle of Java's frames. Its last line is the error's own.
    """
    lines = [line.strip() for line in text.splitlines()]
    if "Traceback (most recent call last):" in text:
        begins = max(number for number, line in enumerate(lines) if line.endswith("Traceback (most recent call last):"))
        after = [line for line in text.splitlines()[begins + 1 :] if line and not line.startswith((" ", "\t"))]
        if after:
            return after[0][:_MAX_REASON]
    told = [line for line in lines if line and not line.startswith(("at ", "An error occurred while calling"))]
    return (told[0] if told else "it did not say why")[:_MAX_REASON]
