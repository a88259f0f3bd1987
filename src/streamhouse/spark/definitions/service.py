"""What the commands call, for pipelines and tables alike: plain functions around the catalog, and the runner.

Nothing here imports pyspark at the top: a listing must work, and be quick, where there is no Spark.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import Conflict
from streamhouse.core.randomness import SystemRandomness
from streamhouse.core.settings import Settings
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.address import StoreAddress, resolve_address
from streamhouse.spark.connection import Connection, connect
from streamhouse.spark.definitions.attempt import explain
from streamhouse.spark.definitions.catalog import Catalog, DefinitionKind, S, Stored
from streamhouse.spark.definitions.checkpoints import OldCheckpoint, checkpoint_directory, checkpoints_of, remove
from streamhouse.spark.definitions.claims import check_unclaimed, runner_id
from streamhouse.spark.definitions.runner import Runner, Show, runners_claim
from streamhouse.spark.definitions.supervised import Running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamhouse.spark.definitions.application import Application

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where queries run: the options by which Spark finds the stores, and the root of the checkpoints."""

    address_options: Mapping[str, str] = field(repr=False)
    checkpoints: str

    @property
    def address(self) -> StoreAddress:
        return resolve_address(self.address_options)


def place_of(settings: Settings, checkpoints: str | None = None) -> Place:
    """Checkpoints are below the data directory by default; a cluster needs a mount that all its machines share."""
    store = settings.store
    options = {
        "metadataUrl": settings.metadata.url,
        "storeUrl": store.url,
        "storeEndpointUrl": store.endpoint_url,
        "storeRegion": store.region,
        "storePathStyle": None if store.path_style is None else str(store.path_style).lower(),
        "storeAccessKeyId": store.access_key_id,
        "storeSecretAccessKey": store.secret_access_key,
        "storeRequestTimeout": f"{store.request_timeout_ms}ms",
        "storeRetryDeadline": f"{store.retry_deadline_ms}ms",
    }
    root = checkpoints or str(Path(settings.data_dir).absolute() / "checkpoints")
    if "://" not in root and not root.startswith("file:"):
        root = str(Path(root).absolute())
    return Place(address_options={name: value for name, value in options.items() if value}, checkpoints=root)


class DefinitionService(ABC, Generic[S]):
    """The definitions of one kind. A subclass starts their queries."""

    def __init__(self, kind: DefinitionKind[S], place: Place) -> None:
        self.kind = kind
        self.place = place
        self._connection = connect(place.address)
        self._randomness = SystemRandomness()

    @abstractmethod
    def start_query(self, spark: SparkSession, stored: Stored[S], *, once: bool) -> Running:
        """Start the query of a definition. ``once``: it reads what there is and ends, whatever the definition says."""

    def is_shared(self, stored: Stored[S]) -> bool:
        """Return False for a definition that has to run in a Spark application of its own."""
        return True

    @property
    def connection(self) -> Connection:
        return self._connection

    def create(self, spec: S, wanted: WantedState) -> Stored[S]:
        """Raises DefinitionExists, and InvalidSetting for what can be found wrong now."""
        return self.ask(lambda catalog: catalog.create(spec, wanted))

    def get(self, name: str) -> Stored[S]:
        """Raises DefinitionNotFound."""
        return self.ask(lambda catalog: catalog.get(name))

    def list(self) -> Sequence[Stored[S]]:
        return self.ask(lambda catalog: catalog.list())

    def want(self, name: str, wanted: WantedState, *, reset: bool = False) -> Stored[S]:
        return self.ask(lambda catalog: catalog.want(name, wanted, reset=reset))

    def checkpoints(self, name: str) -> Sequence[OldCheckpoint]:
        """Return the checkpoints on this machine, of all generations."""
        stored = self.get(name)
        directory = checkpoint_directory(self.place.checkpoints, self.kind, stored.name)
        return checkpoints_of(directory, stored.definition_id)

    def _delete(self, name: str, clean_up: Callable[[Stored[S]], None]) -> None:
        """Delete a stopped definition and its checkpoints. The definition goes last, so that the call can be repeated
        when ``clean_up`` fails. Raises Conflict.
        """
        stored, checkpoints = self.get(name), self.checkpoints(name)
        if stored.wanted is WantedState.RUNNING:
            kind = self.kind.name
            raise Conflict(f"the {kind} {name} is running", hint=f"stop it first: `streamhouse {kind} stop {name}`")
        check_unclaimed(self._connection, self.kind.name, stored)
        clean_up(stored)
        remove(checkpoints)
        self.ask(lambda catalog: catalog.delete(stored))

    def has_runner(self) -> bool:
        async def look() -> bool:
            return bool(await (await self._connection.metadata()).list_claims(runners_claim(self.kind.name)))

        return self._connection.run(look())

    def now_ms(self) -> int:
        """The metadata store's clock, which also dates the reports."""

        async def now_ms() -> int:
            return await (await self._connection.metadata()).now_ms()

        return self._connection.run(now_ms())

    def run(
        self,
        application: Application,
        stopping: threading.Event,
        *,
        only: Collection[str] = (),
        until_idle: bool = False,
        once: bool = False,
        show: Show = lambda shown: None,
        beside: Callable[[Sequence[Stored[S]]], None] = lambda everything: None,
    ) -> bool:
        """Run wanted definitions in this process until ``stopping`` is set. False when Spark has died.

        ``only`` are names; without them every definition is taken that may share an application. ``until_idle`` ends
        when nothing is wanted any more. ``once`` reads what there is, of all definitions, leaves them wanted, ends, and
        raises the first failure. ``beside`` is called with all definitions at every look.
        """

        def start(stored: Stored[S]) -> Running:
            return self.start_query(application.session_for(stored.name), stored, once=once)

        runner = Runner(
            self._connection,
            kind=self.kind,
            start=start,
            explain=explain,
            runner_id=runner_id(self._randomness),
            clock=SystemClock(),
            randomness=self._randomness,
            only=only,
            takes=lambda stored: once or self.is_shared(stored),
            once=once,
            show=show,
            healthy=application.is_alive,
            beside=beside,
        )
        return runner.run(stopping, until_idle=until_idle or once)

    def ask(self, call: Callable[[Catalog[S]], Coroutine[Any, Any, T]]) -> T:
        async def asked() -> T:
            return await call(Catalog(await self._connection.metadata(), self.kind, self._randomness))

        return self._connection.run(asked())
