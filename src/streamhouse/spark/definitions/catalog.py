"""Definitions in the metadata store: the document, its wanted state, and a runner's last report.

A definition has a generation. A reset (``start --reset``) begins the next one. Checkpoints and a target's progress
belong to one generation, so a reset does not have to delete anything before the query can begin anew.

The store knows definitions by kind and name. ``DefinitionKind`` says how a kind's documents are written and read,
everything else here is the same for all kinds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

from streamhouse.core.errors import ConfigError, CorruptDocument, DefinitionChanged, DefinitionNotFound, InvalidRequest
from streamhouse.core.randomness import Randomness
from streamhouse.core.suggest import did_you_mean
from streamhouse.metadata.contract import Definition, MetadataStore, WantedState

LOG: Final = logging.getLogger("streamhouse.definitions")


class Spec(Protocol):
    """What a user has defined, without what the store adds."""

    @property
    def name(self) -> str: ...
    @property
    def ends(self) -> bool:
        """True if the query reads what there is and then ends."""
        ...

    def to_document(self) -> dict[str, Any]: ...


S = TypeVar("S", bound=Spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionKind(Generic[S]):
    name: str
    """``pipeline`` or ``table``: in the store, in claims and in messages."""
    checkpoints: str
    """The directory of this kind below the checkpoints' root; empty or ending with a slash."""
    write: Callable[[S, int], Mapping[str, Any]]
    """The stored document, of a spec and its generation."""
    read: Callable[[str, Mapping[str, Any]], tuple[S, int]]
    """Called with the name and the document. May raise anything that a malformed document causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Generic[S]):
    """A definition as the store has it."""

    spec: S
    generation: int
    definition_id: UUID
    """Another one when a definition is deleted and defined again under the same name."""
    version: int
    wanted: WantedState
    created_at_ms: int = 0
    updated_at_ms: int = 0
    report: str = ""
    report_at_ms: int = 0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def ends(self) -> bool:
        return self.spec.ends

    @property
    def run_key(self) -> Hashable:
        """A value that is equal for two definitions that run alike, without the wanted state and the version."""
        return self.definition_id, self.generation, json.dumps(self.spec.to_document(), sort_keys=True)


class Catalog(Generic[S]):
    def __init__(self, metadata: MetadataStore, kind: DefinitionKind[S], randomness: Randomness) -> None:
        self._metadata = metadata
        self._kind = kind
        self._randomness = randomness

    async def create(self, spec: S, wanted: WantedState, *, generation: int = 0) -> Stored[S]:
        """Raises DefinitionExists."""
        created = await self._metadata.create_definition(
            self._kind.name,
            spec.name,
            definition_id=self._randomness.uuid(),
            document=self._written(spec, generation),
            wanted=wanted,
        )
        return self._stored(created)

    async def find(self, name: str) -> Stored[S] | None:
        found = await self._metadata.get_definition(self._kind.name, name)
        return None if found is None else self._stored(found)

    async def get(self, name: str) -> Stored[S]:
        """Raises DefinitionNotFound."""
        found = await self.find(name)
        if found is None:
            kind = self._kind.name
            known = [each.name for each in await self._metadata.list_definitions(kind)]
            hint = did_you_mean(name, known, otherwise=f"`streamhouse {kind} list` shows all of them")
            raise DefinitionNotFound(f"there is no {kind} {name[:80]!r}", hint=hint)
        return found

    async def list(self) -> list[Stored[S]]:
        """Return all definitions that can be read. One that a newer version has written is logged and left out."""
        found: list[Stored[S]] = []
        for definition in await self._metadata.list_definitions(self._kind.name):
            try:
                found.append(self._stored(definition))
            except CorruptDocument as error:
                LOG.warning("%s", error)
        return found

    async def replace(
        self, stored: Stored[S], spec: S, *, wanted: WantedState | None = None, reset: bool = False
    ) -> Stored[S]:
        """Raises DefinitionChanged if the definition is not the one in ``stored`` any more."""
        updated = await self._metadata.update_definition(
            self._kind.name,
            stored.name,
            expected_version=stored.version,
            document=self._written(spec, stored.generation + reset),
            wanted=wanted,
        )
        return self._stored(updated)

    async def want(self, name: str, wanted: WantedState, *, reset: bool = False) -> Stored[S]:
        """Start or stop it; with ``reset``, from the beginning. Tries again when another process edits it meanwhile."""
        while True:
            stored = await self.get(name)
            try:
                return await self.replace(stored, stored.spec, wanted=wanted, reset=reset)
            except DefinitionChanged:
                continue

    async def report(self, stored: Stored[S], report: str) -> bool:
        return await self._metadata.report_definition(
            self._kind.name, stored.name, definition_id=stored.definition_id, status=report
        )

    async def delete(self, stored: Stored[S]) -> None:
        await self._metadata.delete_definition(self._kind.name, stored.name, definition_id=stored.definition_id)

    def _written(self, spec: S, generation: int) -> str:
        return json.dumps(self._kind.write(spec, generation), ensure_ascii=False)

    def _stored(self, definition: Definition) -> Stored[S]:
        try:
            spec, generation = self._kind.read(definition.name, json.loads(definition.document))
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError, InvalidRequest) as error:
            raise CorruptDocument(
                f"the definition of the {self._kind.name} {definition.name} cannot be read: {error}",
                hint="another version of StreamHouse has written it",
            ) from error
        return Stored(
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
