"""A topic as a pipeline's target: for each batch one exactly-once batch write, and progress in the metadata store.

The sink writes each (application, version) once. Which rows belong to a version is stored first:

    planned      one document, by compare-and-set: "8 is batch 7, up to offset 150; before it we stood at 120"
    written      the sink's intent of version 8, which is the commit point
    finished     "8 is done"

A runner that finds an unfinished plan looks for the intent. So it knows the target's progress, with or without a
checkpoint. A batch without rows has no intent; writing it again does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql.types import StructType

from streamhouse.core.errors import BatchRegressed, CorruptDocument, DefinitionChanged
from streamhouse.metadata.contract import MetadataStore, WantedState
from streamhouse.spark.address import StoreAddress, resolve_address
from streamhouse.spark.connection import connect
from streamhouse.spark.definitions.progress import Batch, BatchCheck, Progress, decide, read_progress
from streamhouse.spark.definitions.targets import BatchPlan, LastFailure, batch_by_batch, compute_only
from streamhouse.spark.pipelines.parsing import PROGRESS_KIND
from streamhouse.spark.pipelines.spec import TopicTarget
from streamhouse.spark.shim import FORMAT
from streamhouse.spark.sink_options import check_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWritePlan:
    """The document. ``before`` is the progress before version ``number`` is written, ``planned`` the progress after."""

    number: int
    before: Progress | None
    planned: Progress
    finished: bool

    def to_json(self) -> str:
        before = None if self.before is None else self.before.to_json()
        return json.dumps(
            {"number": self.number, "before": before, "planned": self.planned.to_json(), "finished": self.finished}
        )


def read_plan(text: str) -> TopicWritePlan:
    try:
        document: dict[str, Any] = json.loads(text)
        return TopicWritePlan(
            number=int(document["number"]),
            before=None if document["before"] is None else read_progress(document["before"]),
            planned=read_progress(document["planned"]),
            finished=bool(document["finished"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDocument(f"a pipeline's progress cannot be read: {text[:200]!r}") from error


def next_plan(found: TopicWritePlan | None, stored: Progress | None, batch: Batch) -> TopicWritePlan:
    """A repeated batch keeps the number of its first try. No two batches share a number."""
    number = 0
    if found is not None and found.planned.generation == batch.generation:
        same = (found.planned.query_id, found.planned.batch_id) == (batch.query_id, batch.batch_id)
        number = found.number if same else found.number + 1
    return TopicWritePlan(number=number, before=stored, planned=batch.done, finished=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWriter:
    address: StoreAddress
    address_options: Mapping[str, str] = field(repr=False)
    target: TopicTarget
    definition_id: UUID

    def write(self, rows: DataFrame, batch: Batch) -> None:
        connection = connect(self.address)
        ledger = connection.run(self._ledger())
        if decide(connection.run(ledger.stored()), batch) is BatchCheck.SKIP:
            compute_only(rows)
            connection.run(ledger.finish())
            return
        number = connection.run(ledger.plan(batch))
        writer = rows.write.format(FORMAT).options(**self.address_options).options(**self.target.options)
        writer = writer.option("topic", self.target.topic).option("txnVersion", number)
        writer.option("txnAppId", app_id(self.definition_id, batch.generation)).mode("append").save()
        connection.run(ledger.finish())

    async def _ledger(self) -> Ledger:
        return await open_ledger(self.address, self.definition_id, self.target.topic)


def app_id(definition_id: UUID, generation: int) -> str:
    return f"pipeline-{definition_id.hex}-{generation}"


class Ledger:
    """The document of one pipeline. It is changed by compare-and-set against the version that was read."""

    def __init__(self, metadata: MetadataStore, definition_id: UUID, topic: str) -> None:
        self._metadata = metadata
        self._definition_id = definition_id
        self._topic = topic
        self._found: TopicWritePlan | None = None
        self._version = 0

    async def load(self) -> None:
        found = await self._metadata.get_definition(PROGRESS_KIND, self._definition_id.hex)
        if found is not None:
            self._found, self._version = read_plan(found.document), found.version

    async def stored(self) -> Progress | None:
        """The target's progress, whatever the outcome of the last write."""
        if self._found is None:
            return None
        return self._found.planned if await self._is_written(self._found) else self._found.before

    async def plan(self, batch: Batch) -> int:
        """Raises BatchRegressed when another runner was faster."""
        plan = next_plan(self._found, await self.stored(), batch)
        await self._save(plan)
        return plan.number

    async def finish(self) -> None:
        assert self._found is not None
        if not self._found.finished:
            await self._save(replace(self._found, finished=True))

    async def _is_written(self, plan: TopicWritePlan) -> bool:
        if plan.finished:
            return True
        topic = await self._metadata.get_topic(self._topic)
        app = app_id(self._definition_id, plan.planned.generation)
        last = await self._metadata.last_batch(app, topic.topic_id)
        return last is not None and last >= plan.number

    async def _save(self, plan: TopicWritePlan) -> None:
        name = self._definition_id.hex
        try:
            if self._found is None:
                saved = await self._metadata.create_definition(
                    PROGRESS_KIND,
                    name,
                    definition_id=self._definition_id,
                    document=plan.to_json(),
                    wanted=WantedState.STOPPED,
                )
            else:
                saved = await self._metadata.update_definition(
                    PROGRESS_KIND, name, expected_version=self._version, document=plan.to_json()
                )
        except DefinitionChanged as error:
            raise BatchRegressed("another runner writes for this pipeline", hint="run it in one place") from error
        if saved.document != plan.to_json():
            raise BatchRegressed("another runner writes for this pipeline", hint="run it in one place")
        self._found, self._version = plan, saved.version


async def open_ledger(address: StoreAddress, definition_id: UUID, topic: str) -> Ledger:
    ledger = Ledger(await connect(address).metadata(), definition_id, topic)
    await ledger.load()
    return ledger


class TopicPipelineTarget:
    """A ``Target`` (definitions/targets.py)."""

    def __init__(
        self, target: TopicTarget, address_options: Mapping[str, str], *, pipeline: str, definition_id: UUID
    ) -> None:
        self.failure = LastFailure()
        self._target = target
        self._options = dict(address_options)
        self._address = resolve_address(address_options)
        self._pipeline = pipeline
        self._definition_id = definition_id

    @property
    def name(self) -> str:
        return str(self._target)

    def check(self, schema: StructType) -> None:
        """Raises StreamHouseError for rows that the topic could not take. Changes nothing."""
        fields = [(each.name, each.dataType.simpleString()) for each in schema.fields]
        check_schema(fields, topic=self._target.topic)

        async def look() -> None:
            await (await connect(self._address).metadata()).get_topic(self._target.topic)

        connect(self._address).run(look())

    def prepare(self, schema: StructType) -> None:
        self.check(schema)

    def writer(self, frame: DataFrame, *, checkpoint: str, generation: int) -> DataStreamWriter:
        writer = TopicWriter(
            address=self._address,
            address_options=self._options,
            target=self._target,
            definition_id=self._definition_id,
        )
        plan = BatchPlan(
            owner=f"pipeline {self._pipeline}", generation=generation, checkpoint=checkpoint, writer=writer
        )
        return batch_by_batch(frame, plan, self.failure)

    def progress(self) -> Progress | None:
        async def stored() -> Progress | None:
            return await (await open_ledger(self._address, self._definition_id, self._target.topic)).stored()

        return connect(self._address).run(stored())

    def reset(self) -> None:
        """Forgets the progress only: records cannot be removed from a topic."""

        async def forget() -> None:
            metadata = await connect(self._address).metadata()
            await metadata.delete_definition(PROGRESS_KIND, self._definition_id.hex, definition_id=self._definition_id)

        connect(self._address).run(forget())
