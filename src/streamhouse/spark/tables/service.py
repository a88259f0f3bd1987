"""Tables for the commands: what ``DefinitionService`` does, and facts, compaction and vacuum of the tables themselves.

The table formats are imported when a table is opened: a listing must work where they are not installed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from streamhouse.broker.new_topics import new_topic
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import InvalidSetting, TopicExists
from streamhouse.core.units import format_duration
from streamhouse.metadata.contract import MetadataStore, Topic, WantedState
from streamhouse.spark.definitions.service import DefinitionService, Place
from streamhouse.spark.definitions.supervised import Running
from streamhouse.spark.offsets import offsets_document
from streamhouse.spark.pipelines.service import Pipelines
from streamhouse.spark.tables.spec import TABLES, PartitionBy, StorageSpec, StoredTable, TableFormat, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamhouse.spark.tables.leftovers import Vacuumed
    from streamhouse.spark.tables.store import Compacted, TableStore

MIN_VACUUM_AGE_MS: Final = 3_600_000
"""Writers are safe at any age. A reader needs the files that it has looked up until it has read them."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def storage_of(format: str, location: str, partition_by: str, catalog: str) -> StorageSpec:
    """Raises InvalidSetting."""
    kinds, parts = [each.value for each in TableFormat], [each.value for each in PartitionBy]
    if format not in kinds:
        raise InvalidSetting(f"there is no table format {format[:40]!r}", hint=f"write {', '.join(kinds)}")
    if partition_by not in parts:
        raise InvalidSetting(f"no table is partitioned by {partition_by[:40]!r}", hint=f"write {', '.join(parts)}")
    if "://" not in location:
        location = os.path.abspath(location)  # a runner may have another working directory
    return StorageSpec(
        format=TableFormat(format), location=location, partition_by=PartitionBy(partition_by), catalog=catalog
    )


class Tables(DefinitionService[TableSpec]):
    def __init__(self, place: Place) -> None:
        super().__init__(TABLES, place)

    def start_query(self, spark: SparkSession, stored: StoredTable, *, once: bool) -> Running:
        from streamhouse.spark.tables.start import start_table

        return start_table(spark, stored, self.place, once=once)

    def create(self, spec: TableSpec, wanted: WantedState) -> StoredTable:
        """Also creates the dead-letter topic. If a table of ours is at the location, the new one goes on where that one
        stands. Raises TopicNotFound, DefinitionExists, InvalidSetting.
        """
        if not _NAME.fullmatch(spec.name):
            raise InvalidSetting(f"{spec.name[:80]!r} cannot be a table's name", hint="use letters, digits, . _ and -")
        generation = max(1, self._generation_there(spec))
        self._connection.run(self._check_topics(spec))
        return self.ask(lambda catalog: catalog.create(spec, wanted, generation=generation))

    def _generation_there(self, spec: TableSpec) -> int:
        from streamhouse.spark.tables.location import check_apart, parse_location
        from streamhouse.spark.tables.values import row_schema

        row_schema(spec)
        store = self._open(spec)
        taken = [("the object store", self.place.address.store_url), ("the metadata", self.place.address.metadata_url)]
        for each in self.list():
            other = parse_location(each.spec.storage.location, self.place.address.store).url
            taken.append((f"the table {each.name}", other))
        check_apart(store.location, [(what, url.replace("sqlite://", "file://", 1)) for what, url in taken])
        if not store.exists():
            return 0
        progress = store.look().progress
        if progress is None and store.state().rows:
            raise InvalidSetting(
                f"in {store.location.url} is a table that another program has filled",
                hint="give this one another place",
            )
        return 0 if progress is None else progress.generation

    async def _check_topics(self, spec: TableSpec) -> None:
        metadata = await self._connection.metadata()
        topic = await metadata.get_topic(spec.topic)
        if spec.dead_letters:
            await self._make_dead_letter_topic(metadata, spec.dead_letters, topic)

    async def _make_dead_letter_topic(self, metadata: MetadataStore, name: str, of: Topic) -> None:
        """Create it, unless it exists, with one partition and the write mode of the table's topic."""
        configs = {key: value for key, value in of.configs.items() if key == "diskless.enable"}
        with suppress(TopicExists):
            await metadata.create_topic(new_topic(name, 1, configs, randomness=self._randomness))

    def delete(self, name: str, *, data: bool) -> None:
        """Delete a stopped table and its checkpoints; with ``data``, its rows too. Raises Conflict."""

        def clean_up(stored: StoredTable) -> None:
            if data:
                self._store(stored).drop()

        self._delete(name, clean_up)

    def facts(self, name: str) -> dict[str, Any]:
        """Size, offsets and columns, as the table itself has them."""
        from streamhouse.spark.tables.columns import ddl_of

        store = self._store(self.get(name))
        if not store.exists():
            return {"rows": 0, "files": 0}
        standing, state = store.look(), store.state()
        progress = standing.progress
        offsets = {} if progress is None else offsets_document(progress.position[0].offsets)
        return {
            "rows": state.rows,
            "files": state.files,
            "size_bytes": state.size_bytes,
            "version": state.version,
            "offsets": offsets,
            "columns": ddl_of(standing.schema),
        }

    def compact(self, name: str, *, target_bytes: int, of_pipeline: bool = False) -> Compacted:
        store = self._store_of(name, of_pipeline=of_pipeline)
        return store.compact(small_bytes=target_bytes // 2, target_bytes=target_bytes)

    def vacuum(self, name: str, *, older_than_ms: int, dry_run: bool, of_pipeline: bool = False) -> Vacuumed:
        """Raises InvalidSetting for an age at which a reader could still need the files."""
        if older_than_ms < MIN_VACUUM_AGE_MS:
            raise InvalidSetting(
                f"{format_duration(older_than_ms)} is too short: readers that have just begun may need such files",
                hint=f"keep {format_duration(MIN_VACUUM_AGE_MS)} at least",
            )
        store = self._store_of(name, of_pipeline=of_pipeline)
        return store.vacuum(before_ms=SystemClock().wall_ms() - older_than_ms, dry_run=dry_run)

    def _store(self, stored: StoredTable) -> TableStore:
        return self._open(stored.spec)

    def _open(self, spec: TableSpec) -> TableStore:
        from streamhouse.spark.tables.opening import open_table

        return open_table(spec.storage, self.place.address)

    def _store_of(self, name: str, *, of_pipeline: bool) -> TableStore:
        """The table of a definition, or the one that a pipeline writes to."""
        if not of_pipeline:
            return self._store(self.get(name))
        from streamhouse.spark.pipelines.start import open_target
        from streamhouse.spark.tables.target import StoreTarget

        pipeline = Pipelines(self.place).get(name)
        target = open_target(pipeline, self.place.address_options, run_id="")
        if not isinstance(target, StoreTarget):
            raise InvalidSetting(f"the pipeline {name} writes to {target.name}", hint="name one that writes to a table")
        return target.store
