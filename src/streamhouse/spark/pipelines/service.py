"""Pipelines for the commands: ``DefinitionService`` with ``apply``, and a clean-up of progress after a deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamhouse.core.errors import Conflict, DefinitionExists, StreamHouseError
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.definitions.catalog import Catalog
from streamhouse.spark.definitions.service import DefinitionService, Place
from streamhouse.spark.definitions.supervised import Running
from streamhouse.spark.pipelines.parsing import PIPELINES, PROGRESS_KIND, StoredPipeline
from streamhouse.spark.pipelines.spec import PipelineSpec, TargetKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamhouse.spark.pipelines.yaml_file import WantedPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    name: str
    action: str
    """What was done: created, updated or unchanged."""
    wanted: WantedState
    changes: tuple[str, ...] = ()


class Pipelines(DefinitionService[PipelineSpec]):
    def __init__(self, place: Place) -> None:
        super().__init__(PIPELINES, place)

    def start_query(self, spark: SparkSession, stored: StoredPipeline, *, once: bool) -> Running:
        from streamhouse.spark.pipelines.start import start

        return start(spark, stored, self.place, run_id=self._randomness.uuid().hex, once=once)

    def is_shared(self, stored: StoredPipeline) -> bool:
        return not stored.spec.isolated

    def delete(self, name: str, *, keep_progress: bool = False) -> None:
        """Delete a stopped pipeline, its checkpoints and, unless told otherwise, its progress. Raises Conflict."""

        def clean_up(stored: StoredPipeline) -> None:
            if not keep_progress:
                self._forget_progress(stored)
            self._connection.run(self._forget_document(stored))

        self._delete(name, clean_up)

    def _forget_progress(self, stored: StoredPipeline) -> None:
        if stored.spec.target.kind is TargetKind.TABLE:
            return  # it is part of the table's commits
        from streamhouse.spark.pipelines.start import open_target

        try:
            open_target(stored, self.place.address_options, run_id="").reset()
        except StreamHouseError as error:
            raise Conflict(
                f"the progress of {stored.name} cannot be removed: {error}",
                hint="make its target reachable, or leave the progress there: --keep-progress",
            ) from error

    async def _forget_document(self, stored: StoredPipeline) -> None:
        own = stored.definition_id
        await (await self._connection.metadata()).delete_definition(PROGRESS_KIND, own.hex, definition_id=own)

    def apply(self, wanted: Sequence[WantedPipeline], *, dry_run: bool) -> Sequence[Applied]:
        """Create and update pipelines, one after the other. The same file again changes nothing. Raises
        DefinitionChanged when another process edits one of them meanwhile: then apply the file again.
        """

        async def apply(catalog: Catalog[PipelineSpec]) -> Sequence[Applied]:
            return [await _apply(catalog, each, dry_run=dry_run) for each in wanted]

        return self.ask(apply)


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """The paths of what differs: ``sources.orders.watermark``."""
    found: list[str] = []
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += [f"{name}.{inner}" for inner in differences(one, other)]
        elif one != other:
            found.append(name)
    return tuple(found)


async def _apply(catalog: Catalog[PipelineSpec], each: WantedPipeline, *, dry_run: bool) -> Applied:
    """A state that the file does not name stays as it is. A new pipeline runs unless the file says otherwise."""
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
