"""What the commands do: definitions on the metadata store, facts about tables, and a runner with its application."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import Conflict, InvalidSetting
from streamhouse.core.randomness import SystemRandomness
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.connection import connect
from streamhouse.spark.offsets import offsets_document
from streamhouse.spark.pipelines.place import Place
from streamhouse.spark.tables.catalog import StoredTable, Tables
from streamhouse.spark.tables.columns import ddl_of
from streamhouse.spark.tables.files import PartitionBy
from streamhouse.spark.tables.opening import open_table
from streamhouse.spark.tables.spec import StorageSpec, TableFormat, TableSpec
from streamhouse.spark.tables.store import Compacted, TableStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def storage_of(format: str, location: str, partition_by: str, catalog: str) -> StorageSpec:
    """Raises InvalidSetting."""
    kinds, parts = [each.value for each in TableFormat], [each.value for each in PartitionBy]
    if format not in kinds:
        raise InvalidSetting(f"there is no table format {format[:40]!r}", hint=f"write {', '.join(kinds)}")
    if partition_by not in parts:
        raise InvalidSetting(f"no table is partitioned by {partition_by[:40]!r}", hint=f"write {', '.join(parts)}")
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
        spec.schema()
        open_table(spec.storage, self._address)

        async def create() -> StoredTable:
            return await (await self._tables()).create(spec, wanted)

        return self._connection.run(create())

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

    def delete(self, name: str, *, data: bool) -> None:
        stored = self.get(name)
        if stored.wanted is WantedState.RUNNING:
            raise Conflict(f"the table {name} is to run", hint=f"stop it first: `streamhouse table stop {name}`")
        if data:
            self._store(stored).drop()

        async def delete() -> None:
            await (await self._tables()).delete(stored)

        self._connection.run(delete())

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

    def compact(self, name: str, *, target_bytes: int) -> Compacted:
        return self._store(self.get(name)).compact(small_bytes=target_bytes // 2, target_bytes=target_bytes)

    def run(
        self,
        spark: SparkSession,
        stopping: threading.Event,
        *,
        only: Collection[str],
        once: bool,
        tell: Callable[[str], None],
    ) -> None:
        from streamhouse.spark.tables.queries import start_table
        from streamhouse.spark.tables.runner import TableRunner

        TableRunner(
            self._connection,
            start=lambda stored: start_table(spark, stored, self.place, available_now=once),
            runner_id=f"{socket.gethostname()}:{os.getpid()}:{self._randomness.uuid().hex[:8]}",
            clock=SystemClock(),
            randomness=self._randomness,
            only=only,
            once=once,
            tell=tell,
        ).run(stopping)

    def _store(self, stored: StoredTable) -> TableStore:
        return open_table(stored.spec.storage, self._address)

    async def _tables(self) -> Tables:
        return Tables(await self._connection.metadata(), self._randomness)
