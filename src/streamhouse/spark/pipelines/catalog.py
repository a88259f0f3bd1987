"""Pipelines in the metadata store: the definition, what is wanted of it, and what a runner says of it.

A stored document is the spec and its generation. Generations count the resets: a checkpoint and a target's progress
belong to one, so that a reset needs to delete nothing for the next run to begin anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from streamhouse.core.errors import CorruptDocument, DefinitionChanged, DefinitionNotFound, InvalidSetting
from streamhouse.core.randomness import Randomness
from streamhouse.core.suggest import did_you_mean
from streamhouse.metadata.contract import Definition, MetadataStore, WantedState
from streamhouse.spark.pipelines.parsing import load_pipeline
from streamhouse.spark.pipelines.spec import PipelineSpec

LOG: Final = logging.getLogger("streamhouse.pipelines")

T = TypeVar("T")

KIND: Final = "pipeline"
PROGRESS_KIND: Final = "pipeline-progress"
"""Documents that target_topic.py keeps, one for each pipeline that writes to a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPipeline:
    spec: PipelineSpec
    generation: int
    definition_id: UUID
    version: int
    wanted: WantedState
    created_at_ms: int
    updated_at_ms: int
    report: str
    report_at_ms: int

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def run_key(self) -> Hashable:
        return self.definition_id, self.generation, json.dumps(self.spec.to_document(), sort_keys=True)

    @property
    def ends(self) -> bool:
        return self.spec.available_now


class Catalog:
    def __init__(self, metadata: MetadataStore, randomness: Randomness) -> None:
        self._metadata = metadata
        self._randomness = randomness

    async def create(self, spec: PipelineSpec, wanted: WantedState) -> StoredPipeline:
        """Raises DefinitionExists."""
        created = await self._metadata.create_definition(
            KIND, spec.name, definition_id=self._randomness.uuid(), document=_document(spec, 0), wanted=wanted
        )
        return _stored(created)

    async def get(self, name: str) -> StoredPipeline:
        """Raises DefinitionNotFound."""
        found = await self._metadata.get_definition(KIND, name)
        if found is None:
            known = [each.name for each in await self._metadata.list_definitions(KIND)]
            hint = did_you_mean(name, known, otherwise="`streamhouse pipeline list` shows those that there are")
            raise DefinitionNotFound(f"there is no pipeline {name[:80]!r}", hint=hint)
        return _stored(found)

    async def find(self, name: str) -> StoredPipeline | None:
        found = await self._metadata.get_definition(KIND, name)
        return None if found is None else _stored(found)

    async def list(self) -> list[StoredPipeline]:
        return await readable(self._metadata, KIND, _stored)

    async def replace(
        self, stored: StoredPipeline, spec: PipelineSpec, *, wanted: WantedState | None = None, reset: bool = False
    ) -> StoredPipeline:
        """Raises DefinitionChanged when somebody was faster."""
        updated = await self._metadata.update_definition(
            KIND,
            stored.name,
            expected_version=stored.version,
            document=_document(spec, stored.generation + reset),
            wanted=wanted,
        )
        return _stored(updated)

    async def want(self, name: str, wanted: WantedState, *, reset: bool = False) -> StoredPipeline:
        """Start or stop it; with ``reset`` from the beginning. Tried again when somebody else edits it meanwhile."""
        while True:
            stored = await self.get(name)
            try:
                return await self.replace(stored, stored.spec, wanted=wanted, reset=reset)
            except DefinitionChanged:
                continue

    async def report(self, stored: StoredPipeline, report: str) -> bool:
        return await self._metadata.report_definition(
            KIND, stored.name, definition_id=stored.definition_id, status=report
        )

    async def delete(self, name: str) -> None:
        """Raises DefinitionNotFound, and InvalidSetting for one that is to run."""
        stored = await self.get(name)
        if stored.wanted is WantedState.RUNNING:
            raise InvalidSetting(
                f"the pipeline {name} is to run", hint=f"stop it first: `streamhouse pipeline stop {name}`"
            )
        own = stored.definition_id
        await self._metadata.delete_definition(PROGRESS_KIND, own.hex, definition_id=own)
        await self._metadata.delete_definition(KIND, name, definition_id=own)


async def readable(metadata: MetadataStore, kind: str, read: Callable[[Definition], T]) -> list[T]:
    """All definitions that can be read: one that a newer version has written must not hold up the others."""
    found: list[T] = []
    for definition in await metadata.list_definitions(kind):
        try:
            found.append(read(definition))
        except CorruptDocument as error:
            LOG.warning("%s", error)
    return found


def _document(spec: PipelineSpec, generation: int) -> str:
    return json.dumps({"spec": spec.to_document(), "generation": generation}, ensure_ascii=False)


def _stored(definition: Definition) -> StoredPipeline:
    try:
        document: Mapping[str, Any] = json.loads(definition.document)
        spec, generation = load_pipeline(document["spec"]), int(document["generation"])
    except (ValueError, KeyError, TypeError, InvalidSetting) as error:
        raise CorruptDocument(
            f"the definition of the pipeline {definition.name} cannot be read: {error}",
            hint="it was written by another version of StreamHouse",
        ) from error
    return StoredPipeline(
        spec=spec,
        generation=generation,
        definition_id=definition.definition_id,
        version=definition.version,
        wanted=definition.wanted,
        created_at_ms=definition.created_at_ms,
        updated_at_ms=definition.updated_at_ms,
        report=definition.status,
        report_at_ms=definition.status_at_ms,
    )
