"""Small named documents: what a person has defined (a table, a pipeline) and whether it shall run.

The store does not look into a document. Its **version** counts the changes of document and wanted state, so that two
people who edit the same definition at once cannot overwrite each other. The **status** beside it is what a runner says
of it, newest word wins: it is for people and decides nothing.

Atomicity asked of a backend: one definition's record per call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class WantedState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    kind: str
    """A namespace: ``table``, ``pipeline``, ``object-store`` (app/store_binding.py), ``metadata-progress``."""
    name: str
    definition_id: UUID
    """The id that its creator has made. A definition that is deleted and made again under its name has another one."""
    document: str
    version: int
    """1 when created; one more with each change of document or wanted state."""
    wanted: WantedState
    created_at_ms: int
    updated_at_ms: int
    status: str
    """Empty until a runner has reported."""
    status_at_ms: int


class Definitions(ABC):
    @abstractmethod
    async def create_definition(
        self, kind: str, name: str, *, definition_id: UUID, document: str, wanted: WantedState
    ) -> Definition:
        """Repeatable: the same id again returns the definition as it stands. Raises DefinitionExists (the name is
        taken by another id), LimitExceeded (size, or too many of this kind), InvalidRequest.
        """

    @abstractmethod
    async def update_definition(
        self,
        kind: str,
        name: str,
        *,
        expected_version: int,
        document: str | None = None,
        wanted: WantedState | None = None,
    ) -> Definition:
        """Change what is given (None: leave it), if the version is still the expected one. A definition that is already
        as asked is a repeat, whatever the expected version, and keeps its version. Raises DefinitionNotFound,
        DefinitionChanged, LimitExceeded, InvalidRequest.
        """

    @abstractmethod
    async def report_definition(self, kind: str, name: str, *, definition_id: UUID, status: str) -> bool:
        """What a runner says of it; the version stays. False when there is no such definition (any more). Raises
        LimitExceeded, InvalidRequest.
        """

    @abstractmethod
    async def delete_definition(self, kind: str, name: str, *, definition_id: UUID) -> bool:
        """Delete a definition. Returns False when there is none of this id (any more). Raises InvalidRequest."""

    @abstractmethod
    async def get_definition(self, kind: str, name: str) -> Definition | None: ...

    @abstractmethod
    async def list_definitions(self, kind: str | None = None) -> list[Definition]:
        """Return the definitions of a kind, or with None of every kind, sorted by kind and name."""
