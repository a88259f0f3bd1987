"""What the commands do: definitions on the metadata store, facts about tables, and a runner with its application."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import Conflict, InvalidSetting
from streamhouse.core.randomness import SystemRandomness
from streamhouse.core.units import format_duration
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.connection import connect
from streamhouse.spark.offsets import offsets_document
from streamhouse.spark.pipelines.claims import check_unclaimed
from streamhouse.spark.pipelines.identity import runner_id
from streamhouse.spark.pipelines.old_checkpoints import OldCheckpoint, checkpoints_of, remove
from streamhouse.spark.pipelines.place import Place
from streamhouse.spark.pipelines.runner import Runner, Show
from streamhouse.spark.tables.catalog import KIND, StoredTable, Tables, checkpoint_directory
from streamhouse.spark.tables.columns import ddl_of
from streamhouse.spark.tables.files import PartitionBy
from streamhouse.spark.tables.leftovers import Vacuumed
from streamhouse.spark.tables.location import check_apart, parse_location
from streamhouse.spark.tables.opening import open_table
from streamhouse.spark.tables.spec import StorageSpec, TableFormat, TableSpec
from streamhouse.spark.tables.store import Compacted, TableStore

if TYPE_CHECKING:
    from streamhouse.spark.pipelines.applications import Application

MIN_VACUUM_AGE_MS: Final = 3_600_000
"""Writers are safe at any age; readers are not: what they have looked up must be there until they have read it."""


def storage_of(format: str, location: str, partition_by: str, catalog: str) -> StorageSpec:
    """Raises InvalidSetting."""
    kinds, parts = [each.value for each in TableFormat], [each.value for each in PartitionBy]
    if format not in kinds:
        raise InvalidSetting(f"there is no table format {format[:40]!r}", hint=f"write {', '.join(kinds)}")
    if partition_by not in parts:
        raise InvalidSetting(f"no table is partitioned by {partition_by[:40]!r}", hint=f"write {', '.join(parts)}")
    if "://" not in location:
        location = os.path.abspath(location)  # whoever runs it may be elsewhere
    return StorageSpec(
        format=TableFormat(format), location=location, partition_by=PartitionBy(partition_by), catalog=catalog
    )


class TableService:
    def __init__(self, place: Place) -> None:
        self.place = place
        self._address = place.address
        self._connection = connect(self._address)
        self._randomness = SystemRandomness()

    def create(self, spec: TableSpec, wanted: WantedState) -> StoredTable:
        """Over a table of ours that is there already it goes on where that stands."""
        spec.schema()
        checked = replace(spec, generation=max(spec.generation, self._generation_there(spec)))

        async def create() -> StoredTable:
            return await (await self._tables()).create(checked, wanted)

        return self._connection.run(create())

    def _generation_there(self, spec: TableSpec) -> int:
        store = open_table(spec.storage, self._address)
        taken = [("the object store", self._address.store_url), ("the metadata", self._address.metadata_url)]
        for each in self.list():
            other = parse_location(each.spec.storage.location, self._address.store).url
            taken.append((f"the table {each.name}", other))
        check_apart(store.location, [(what, url.replace("sqlite://", "file://", 1)) for what, url in taken])
        if not store.exists():
            return 0
        progress = store.look().progress
        if progress is None and store.state().rows:
            raise InvalidSetting(
                f"in {store.location.url} is a table that somebody else has filled", hint="give this one another place"
            )
        return 0 if progress is None else progress.generation

    def get(self, name: str) -> StoredTable:
        async def get() -> StoredTable:
            return await (await self._tables()).get(name)

        return self._connection.run(get())

    def list(self) -> Sequence[StoredTable]:
        async def everything() -> Sequence[StoredTable]:
            return await (await self._tables()).list()

        return self._connection.run(everything())

    def want(self, name: str, wanted: WantedState, *, reset: bool = False) -> StoredTable:
        async def want() -> StoredTable:
            return await (await self._tables()).want(name, wanted, reset=reset)

        return self._connection.run(want())

    def checkpoints(self, name: str) -> Sequence[OldCheckpoint]:
        """Those that lie on this machine, of all generations."""
        stored = self.get(name)
        return checkpoints_of(checkpoint_directory(self.place.checkpoints, stored), stored.definition_id)

    def delete(self, name: str, *, data: bool) -> None:
        """With its checkpoints. The definition goes last, so that what fails in between can be repeated."""
        stored, checkpoints = self.get(name), self.checkpoints(name)
        if stored.wanted is WantedState.RUNNING:
            raise Conflict(f"the table {name} is to run", hint=f"stop it first: `streamhouse table stop {name}`")
        check_unclaimed(self._connection, KIND, stored)
        if data:
            self._store(stored).drop()
        remove(list(checkpoints))

        async def delete() -> None:
            await (await self._tables()).delete(stored)

        self._connection.run(delete())

    def now_ms(self) -> int:
        async def now_ms() -> int:
            return await (await self._connection.metadata()).now_ms()

        return self._connection.run(now_ms())

    def facts(self, name: str) -> dict[str, Any]:
        """What the table itself says; nothing while it is not there yet."""
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
        """Raises InvalidSetting for an age at which readers would be disturbed."""
        if older_than_ms < MIN_VACUUM_AGE_MS:
            raise InvalidSetting(
                f"{format_duration(older_than_ms)} is too young: whoever has just begun to read may need such files",
                hint=f"keep {format_duration(MIN_VACUUM_AGE_MS)} at least",
            )
        store = self._store_of(name, of_pipeline=of_pipeline)
        return store.vacuum(before_ms=SystemClock().wall_ms() - older_than_ms, dry_run=dry_run)

    def run(
        self,
        application: Application,
        stopping: threading.Event,
        *,
        only: Collection[str],
        once: bool,
        show: Show = lambda shown: None,
    ) -> bool:
        """Fill wanted tables in this process. False when Spark has died. ``once``: raises what a table fails with."""
        from streamhouse.spark.pipelines.attempt import Attempt, explain
        from streamhouse.spark.tables.queries import start_table

        def begin(stored: StoredTable) -> Attempt:
            return start_table(application.session_for(stored.name), stored, self.place, available_now=once)

        runner = Runner(
            self._connection,
            kind=KIND,
            definitions=lambda metadata: Tables(metadata, self._randomness),
            start=begin,
            explain=explain,
            runner_id=runner_id(self._randomness),
            clock=SystemClock(),
            only=only,
            once=once,
            show=show,
            healthy=application.is_alive,
        )
        return runner.run(stopping, until_idle=once)

    def _store(self, stored: StoredTable) -> TableStore:
        return open_table(stored.spec.storage, self._address)

    def _store_of(self, name: str, *, of_pipeline: bool) -> TableStore:
        """A table by its name, or the one that a pipeline writes to."""
        if not of_pipeline:
            return self._store(self.get(name))
        from streamhouse.spark.pipelines.service import Pipelines
        from streamhouse.spark.pipelines.target_opening import open_target
        from streamhouse.spark.tables.target import TableTarget

        pipeline = Pipelines(self.place).get(name)
        target = open_target(pipeline, self.place.address_options, run_id="")
        if not isinstance(target, TableTarget):
            raise InvalidSetting(f"the pipeline {name} writes to {target.name}", hint="name one that writes to a table")
        return target.store

    async def _tables(self) -> Tables:
        return Tables(await self._connection.metadata(), self._randomness)
