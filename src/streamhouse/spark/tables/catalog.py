"""Tables as people have defined them, in the metadata store (``definitions``, kind ``table``)."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from streamhouse.core.errors import (
    DefinitionChanged,
    DefinitionNotFound,
    InvalidSetting,
    TopicNotFound,
)
from streamhouse.core.ids import TopicId, check_topic_name
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import Definition, MetadataStore, NewTopic, Topic, WantedState
from streamhouse.spark.pipelines.catalog import readable
from streamhouse.spark.tables.spec import TableSpec, read_spec

KIND: Final = "table"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable:
    spec: TableSpec
    definition_id: UUID
    version: int
    wanted: WantedState
    report: str
    report_at_ms: int

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def run_key(self) -> Hashable:
        return self.definition_id, json.dumps(self.spec.to_document(), sort_keys=True)

    @property
    def ends(self) -> bool:
        """A table goes on and on."""
        return False


class Tables:
    def __init__(self, metadata: MetadataStore, randomness: Randomness) -> None:
        self._metadata = metadata
        self._randomness = randomness

    async def create(self, spec: TableSpec, wanted: WantedState) -> StoredTable:
        """With its dead-letter topic. Raises TopicNotFound, DefinitionExists, InvalidSetting."""
        if not _NAME.fullmatch(spec.name):
            raise InvalidSetting(f"{spec.name[:80]!r} cannot be a table's name", hint="use letters, digits, . _ and -")
        topic = await self._metadata.get_topic(spec.topic)
        if spec.dead_letters:
            await self._dead_letter_topic(spec.dead_letters, topic)
        made = await self._metadata.create_definition(
            KIND,
            spec.name,
            definition_id=self._randomness.uuid(),
            document=json.dumps(spec.to_document()),
            wanted=wanted,
        )
        return _stored(made)

    async def get(self, name: str) -> StoredTable:
        """Raises DefinitionNotFound."""
        found = await self._metadata.get_definition(KIND, name)
        if found is None:
            raise DefinitionNotFound(f"there is no table {name!r}", hint="see `streamhouse table list`")
        return _stored(found)

    async def list(self) -> list[StoredTable]:
        return await readable(self._metadata, KIND, _stored)

    async def want(self, name: str, wanted: WantedState, *, reset: bool = False) -> StoredTable:
        """``reset``: what is in the table is to go, and to come again from the topic's beginning. Tried again when
        somebody else changes it meanwhile.
        """
        while True:
            found = await self.get(name)
            spec = replace(found.spec, generation=found.spec.generation + 1) if reset else found.spec
            document = json.dumps(spec.to_document())
            try:
                changed = await self._metadata.update_definition(
                    KIND, name, expected_version=found.version, document=document, wanted=wanted
                )
            except DefinitionChanged:
                continue
            return _stored(changed)

    async def report(self, stored: StoredTable, report: str) -> None:
        await self._metadata.report_definition(KIND, stored.name, definition_id=stored.definition_id, status=report)

    async def delete(self, stored: StoredTable) -> None:
        await self._metadata.delete_definition(KIND, stored.name, definition_id=stored.definition_id)

    async def _dead_letter_topic(self, name: str, of: Topic) -> None:
        """One partition is enough for what should not happen; written the way its topic is."""
        check_topic_name(name)
        try:
            await self._metadata.get_topic(name)
        except TopicNotFound:
            configs = {key: value for key, value in of.configs.items() if key == "diskless.enable"}
            await self._metadata.create_topic(
                NewTopic(
                    topic_id=TopicId(self._randomness.uuid()),
                    name=name,
                    partition_count=1,
                    configs=configs,
                    write_mode=of.write_mode,
                )
            )


def checkpoint_directory(root: str, stored: StoredTable) -> str:
    """Of all its generations."""
    return f"{root.rstrip('/')}/tables/{stored.name}"


def _stored(definition: Definition) -> StoredTable:
    return StoredTable(
        spec=read_spec(definition.name, definition.document),
        definition_id=definition.definition_id,
        version=definition.version,
        wanted=definition.wanted,
        report=definition.status,
        report_at_ms=definition.status_at_ms,
    )
