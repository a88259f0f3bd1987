"""What the commands do: definitions on the metadata store, and a runner with its Spark application.

Only what runs pipelines imports pyspark: a listing should not have to wait for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import Conflict, DefinitionExists, InvalidSetting, StreamHouseError
from streamhouse.core.randomness import SystemRandomness
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.connection import Connection, connect
from streamhouse.spark.pipelines.catalog import KIND, Catalog, StoredPipeline
from streamhouse.spark.pipelines.checkpoints import checkpoint_directory
from streamhouse.spark.pipelines.claims import check_unclaimed
from streamhouse.spark.pipelines.identity import runner_id
from streamhouse.spark.pipelines.old_checkpoints import OldCheckpoint, checkpoints_of, remove
from streamhouse.spark.pipelines.place import Place
from streamhouse.spark.pipelines.runner import Runner, Show, runners_claim
from streamhouse.spark.pipelines.spec import PipelineSpec, TargetKind

if TYPE_CHECKING:
    from streamhouse.spark.pipelines.applications import Application
    from streamhouse.spark.pipelines.yaml_file import WantedPipeline

_NOISE: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")
"""PySpark logs every error that it raises, as a screen of JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    name: str
    action: str
    """created, updated or unchanged."""
    wanted: WantedState
    changes: tuple[str, ...] = ()


class Pipelines:
    """The definitions, for plain functions."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._connection = connect(place.address)
        self._randomness = SystemRandomness()

    @property
    def connection(self) -> Connection:
        return self._connection

    def create(self, spec: PipelineSpec, wanted: WantedState) -> StoredPipeline:
        async def create() -> StoredPipeline:
            return await (await self._catalog()).create(spec, wanted)

        return self._connection.run(create())

    def get(self, name: str) -> StoredPipeline:
        async def get() -> StoredPipeline:
            return await (await self._catalog()).get(name)

        return self._connection.run(get())

    def list(self) -> Sequence[StoredPipeline]:
        async def everything() -> Sequence[StoredPipeline]:
            return await (await self._catalog()).list()

        return self._connection.run(everything())

    def want(self, name: str, wanted: WantedState, *, reset: bool = False) -> StoredPipeline:
        async def want() -> StoredPipeline:
            return await (await self._catalog()).want(name, wanted, reset=reset)

        return self._connection.run(want())

    def checkpoints(self, name: str) -> Sequence[OldCheckpoint]:
        """Those that lie on this machine, of all generations."""
        stored = self.get(name)
        return checkpoints_of(checkpoint_directory(self.place.checkpoints, stored), stored.definition_id)

    def delete(self, name: str, *, keep_progress: bool = False) -> None:
        """With its checkpoints, and its progress where that is not part of the target's own rows. The definition goes
        last, so that what fails in between can be repeated. Raises Conflict.
        """
        stored = self.get(name)
        checkpoints = self.checkpoints(name)
        if stored.wanted is WantedState.RUNNING:
            raise InvalidSetting(
                f"the pipeline {name} is to run", hint=f"stop it first: `streamhouse pipeline stop {name}`"
            )
        check_unclaimed(self._connection, KIND, stored)
        if not keep_progress:
            self._forget_progress(stored)
        remove(list(checkpoints))

        async def delete() -> None:
            await (await self._catalog()).delete(name)

        self._connection.run(delete())

    def _forget_progress(self, stored: StoredPipeline) -> None:
        if stored.spec.target.kind is TargetKind.TABLE:
            return  # it is in the table's own commits
        from streamhouse.spark.pipelines.target_opening import open_target

        try:
            open_target(stored, self.place.address_options, run_id="").reset()
        except StreamHouseError as error:
            raise Conflict(
                f"the progress of {stored.name} cannot be removed: {error}",
                hint="make its target reachable, or leave it there: --keep-progress",
            ) from error

    def apply(self, wanted: Sequence[WantedPipeline], *, dry_run: bool) -> Sequence[Applied]:
        """One after the other; the same file again changes nothing. Raises DefinitionChanged when somebody else edits
        one of them meanwhile: then apply it again.
        """

        async def apply() -> Sequence[Applied]:
            catalog = await self._catalog()
            return [await _apply(catalog, each, dry_run=dry_run) for each in wanted]

        return self._connection.run(apply())

    def has_runner(self) -> bool:
        async def look() -> bool:
            return bool(await (await self._connection.metadata()).list_claims(runners_claim(KIND)))

        return self._connection.run(look())

    def now_ms(self) -> int:
        async def now_ms() -> int:
            return await (await self._connection.metadata()).now_ms()

        return self._connection.run(now_ms())

    async def _catalog(self) -> Catalog:
        return Catalog(await self._connection.metadata(), self._randomness)


def run(
    pipelines: Pipelines,
    application: Application,
    stopping: threading.Event,
    *,
    only: Collection[str] = (),
    until_idle: bool = False,
    show: Show = lambda shown: None,
    beside: Callable[[Sequence[StoredPipeline]], None] = lambda pipelines: None,
) -> bool:
    """Run wanted pipelines in this process. False when Spark has died."""
    from streamhouse.spark.pipelines.attempt import Attempt, explain, start

    clock, randomness = SystemClock(), SystemRandomness()

    def begin(stored: StoredPipeline) -> Attempt:
        spark = application.session_for(stored.name)
        return start(spark, stored, pipelines.place, run_id=randomness.uuid().hex)

    runner = Runner(
        pipelines.connection,
        kind=KIND,
        definitions=lambda metadata: Catalog(metadata, randomness),
        start=begin,
        explain=explain,
        runner_id=runner_id(randomness),
        clock=clock,
        only=only,
        takes=lambda stored: not stored.spec.isolated,
        show=show,
        healthy=application.is_alive,
        beside=beside,
    )
    return runner.run(stopping, until_idle=until_idle)


def quieten() -> None:
    for name in _NOISE:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """Names of what differs, as paths: ``sources.orders.watermark``."""
    found: list[str] = []
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += [f"{name}.{inner}" for inner in differences(one, other)]
        elif one != other:
            found.append(name)
    return tuple(found)


async def _apply(catalog: Catalog, each: WantedPipeline, *, dry_run: bool) -> Applied:
    """What a file does not say stays as it is; a new pipeline runs unless the file says otherwise."""
    found = await catalog.find(each.spec.name)
    if found is None:
        wanted = each.wanted or WantedState.RUNNING
        if not dry_run:
            try:
                await catalog.create(each.spec, wanted)
            except DefinitionExists:
                return await _apply(catalog, each, dry_run=dry_run)
        return Applied(name=each.spec.name, action="created", wanted=wanted)
    wanted = each.wanted or found.wanted
    changes = differences(found.spec.to_document(), each.spec.to_document())
    if wanted is not found.wanted:
        changes = (*changes, "state")
    if not changes:
        return Applied(name=found.name, action="unchanged", wanted=wanted)
    if not dry_run:
        await catalog.replace(found, each.spec, wanted=wanted)
    return Applied(name=found.name, action="updated", wanted=wanted, changes=changes)
