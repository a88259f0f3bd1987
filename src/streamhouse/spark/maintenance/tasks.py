"""What runs in a task: opens the stores in the Python worker, does one piece of work, and answers with a small pickle.

An error of ours is an answer: the driver raises it where the step of one process would have raised it, and the stores
have already retried what can be retried. Anything else (a bug, a killed worker) fails the attempt, and Spark tries
again.

Before its first work for a cluster, a worker checks that its stores are those of the driver. An executor may see others
under the same URLs, for example through another endpoint in its environment. Maintenance deletes, so it must not guess.
"""

from __future__ import annotations

import io
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar
from uuid import UUID

from streamhouse.core.clock import Clock
from streamhouse.core.errors import ObjectNotFound, StoreMisconfigured, StreamHouseError, as_result
from streamhouse.core.randomness import Randomness
from streamhouse.log.offload import Offload, ThreadOffload
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import CLUSTER_ID_KEY
from streamhouse.objectstore.metering import Meter, MeteredStore, Totals
from streamhouse.objectstore.objects import Operation
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.connection import Connection, connect

R = TypeVar("R")

_WORK_TIMEOUT_S: Final = 86_400.0
"""A backstop: each request of a work ends by itself long before. A partition may take hours to verify."""
_OFFLOAD_THREADS: Final = 1
"""A task has one core. The thread lets requests go on while bytes are checked and compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCluster:
    """Which StreamHouse the tasks work on, and how a worker recognises it."""

    address: StoreAddress
    cluster_id: UUID
    """As the metadata store has it."""
    mark: bytes
    """The object in which the object store says whose it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStores:
    """What a piece of work may use."""

    metadata: MetadataStore
    objects: ObjectStore
    offload: Offload
    clock: Clock
    randomness: Randomness


class Work(ABC, Generic[R]):
    """One piece of work. It is pickled, so a subclass holds plain data only."""

    __slots__ = ()

    doing: ClassVar[str]
    """What Spark's pages call the job."""

    @abstractmethod
    async def run(self, stores: TaskStores) -> R:
        """Called in a task, maybe more than once, maybe twice at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswer:
    result: Any = None
    error: StreamHouseError | None = None
    requests: Mapping[Operation, Totals] = field(default_factory=dict)
    """The requests to the object store. A retry inside the store's client counts once with its request."""


def run_works(payload: bytes, works: Iterable[bytes]) -> list[bytes]:
    """Spark calls this in a task, with the pickles of its works; ``payload`` is the pickle of a TaskCluster."""
    cluster = pickle.loads(payload)
    assert isinstance(cluster, TaskCluster)
    return [dump(run_work(cluster, pickle.loads(work))) for work in works]


def run_work(cluster: TaskCluster, work: Work[Any]) -> TaskAnswer:
    connection = connect(cluster.address)
    return connection.run(_answer(cluster, connection, work), timeout_s=_WORK_TIMEOUT_S)


async def _answer(cluster: TaskCluster, connection: Connection, work: Work[Any]) -> TaskAnswer:
    meter = Meter()
    offload = ThreadOffload(_OFFLOAD_THREADS)
    try:
        stores = await open_stores(cluster, connection, meter=meter, offload=offload)
        return TaskAnswer(result=await work.run(stores), requests=meter.read().totals)
    except StreamHouseError as error:
        return TaskAnswer(error=as_result(error), requests=meter.read().totals)
    finally:
        await offload.close()


async def open_stores(cluster: TaskCluster, connection: Connection, *, meter: Meter, offload: Offload) -> TaskStores:
    """Raises StoreMisconfigured where this worker sees other stores than the driver."""
    stores = TaskStores(
        metadata=await connection.metadata(),
        objects=MeteredStore(await connection.objects(), meter=meter, clock=connection.clock),
        offload=offload,
        clock=connection.clock,
        randomness=connection.randomness,
    )
    await _check_stores(cluster, stores)
    return stores


_checked: set[TaskCluster] = set()
"""The clusters whose stores this worker has found to be the driver's."""


async def _check_stores(cluster: TaskCluster, stores: TaskStores) -> None:
    if cluster in _checked:
        return
    hint = "give all machines of the Spark cluster the same stores, credentials and endpoints"
    found = (await stores.metadata.cluster_info()).cluster_id
    if found != cluster.cluster_id:
        raise StoreMisconfigured(
            f"a Spark task sees the metadata of cluster {found}, and the driver that of {cluster.cluster_id}", hint=hint
        )
    if await read_mark(stores.objects) != cluster.mark:
        raise StoreMisconfigured(
            f"a Spark task finds another object store under {stores.objects.url} than the driver", hint=hint
        )
    _checked.add(cluster)


async def read_mark(objects: ObjectStore) -> bytes:
    """The mark that the object store bears since its cluster began; empty if it has none."""
    try:
        return bytes(await objects.get(CLUSTER_ID_KEY))
    except ObjectNotFound:
        return b""


# Pickles of answers.


class _AnswerPickler(pickle.Pickler):
    """Pickles errors by their fields. Their constructors take keywords, which the usual way does not know."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, StreamHouseError):
            return _restore_error, (type(value), value.args, vars(value))
        return NotImplemented


def _restore_error(kind: type[StreamHouseError], args: tuple[Any, ...], fields: dict[str, Any]) -> StreamHouseError:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(fields)
    return error


def dump(answer: TaskAnswer) -> bytes:
    buffer = io.BytesIO()
    _AnswerPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(answer)
    return buffer.getvalue()


def load(pickled: bytes) -> TaskAnswer:
    answer = pickle.loads(pickled)
    assert isinstance(answer, TaskAnswer)
    return answer
