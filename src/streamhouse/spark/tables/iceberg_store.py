"""Iceberg tables, through pyiceberg and a catalog in an SQL database.

The progress is a table property, written in the transaction that adds the files. pyiceberg's own requirements only
notice another snapshot, and a batch without rows makes none; so each commit also requires that the progress is still
the one it was decided on. The client that commits checks that, just before the catalog swaps the table's metadata
against the version that was checked: an SQL catalog leaves such checks to its clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.exceptions import TableAlreadyExistsError as TableThere
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import RemoveSnapshotsUpdate, ValidatableTableRequirement
from pyiceberg.transforms import DayTransform, HourTransform, Transform
from pyiceberg.types import NestedField

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import InvalidSetting, NotFound
from streamhouse.core.randomness import SystemRandomness
from streamhouse.spark.definitions.progress import Batch, BatchCheck, Progress, decide, read_progress
from streamhouse.spark.tables.columns import check_types, merged_schema, plain_schema
from streamhouse.spark.tables.files import WrittenFile, read_parquet, with_columns, write_parquet
from streamhouse.spark.tables.leftovers import DATA, check_not_vacuumed, files_gone, new_name
from streamhouse.spark.tables.location import Location
from streamhouse.spark.tables.spec import PartitionBy
from streamhouse.spark.tables.store import (
    Compacted,
    LostRace,
    Standing,
    TableState,
    TableStore,
    added_columns,
    bins,
)

_PROGRESS: Final = "streamhouse.progress"
_HORIZON: Final = "streamhouse.vacuum-horizon-ms"
_CATALOG: Final = "streamhouse"
_METADATA: Final = (".avro", ".metadata.json")
_PROPERTIES: Final = {
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",  # else every batch leaves a manifest that all later ones have to list
}
_TRANSFORMS: Final[dict[PartitionBy, tuple[Transform[Any, Any], str]]] = {
    PartitionBy.DAY: (DayTransform(), "day"),
    PartitionBy.HOUR: (HourTransform(), "hour"),
}


class _StandsAt(ValidatableTableRequirement):
    """The table's progress and horizon are those that the commit was decided on."""

    type: Literal["streamhouse-stands-at"] = "streamhouse-stands-at"
    progress: str | None
    horizon: str | None

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as pyiceberg's own
        known = {} if base_metadata is None else base_metadata.properties
        if base_metadata is None or (known.get(_PROGRESS), known.get(_HORIZON)) != (self.progress, self.horizon):
            raise CommitFailedException("the table's progress has changed")


class IcebergStore(TableStore):
    format = "iceberg"
    data_prefix = "data/"

    def __init__(
        self,
        location: Location,
        *,
        by: PartitionBy,
        time_column: str,
        catalog_uri: str,
        namespace: str,
        table: str,
    ) -> None:
        super().__init__(location, by=by, time_column=time_column)
        self._catalog_uri = catalog_uri
        self._identifier = (namespace, table)
        # pyiceberg takes the path of a URL as it stands: nothing in it may be percent-encoded.
        self._url = f"file://{location.path}" if location.is_local else location.url

    def exists(self) -> bool:
        with _Catalog(self) as catalog:
            return catalog.table_exists(self._identifier)

    def create(self, schema: pa.Schema) -> None:
        with _Catalog(self) as catalog:
            if catalog.table_exists(self._identifier):
                return
            self.check_free("metadata")  # its first file comes before the catalog's row
            _make_namespace(catalog, self._identifier[0])
            numbered = _numbered(schema)
            try:
                catalog.create_table(
                    self._identifier,
                    numbered,
                    location=self._url,
                    partition_spec=self._spec(numbered),
                    properties=_PROPERTIES,
                )
            except TableThere:
                return

    def look(self) -> Standing:
        with _Catalog(self) as catalog:
            table = self._load(catalog)
            return Standing(schema=_arrow_schema(table), progress=_progress(table))

    def state(self) -> TableState:
        with _Catalog(self) as catalog:
            table = self._load(catalog)
            snapshot = table.current_snapshot()
            summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
            return TableState(
                files=int(summary.get("total-data-files", 0)),
                rows=int(summary.get("total-records", 0)),
                size_bytes=int(summary.get("total-files-size", 0)),
                version=table.metadata_location,
            )

    def add_columns(self, schema: pa.Schema) -> None:
        def attempt() -> None:
            with _Catalog(self) as catalog:
                table = self._load(catalog)
                known = _arrow_schema(table)
                check_types(known, schema, self.location.url)
                more = list(merged_schema(known, schema))[len(known) :]
                if more:
                    with _Commit(table) as transaction:
                        _add_columns(transaction, pa.schema(more))

        self.until_alone(attempt)

    def commit(self, batch: Batch, files: Sequence[WrittenFile]) -> bool:
        def attempt() -> bool:
            with _Catalog(self) as catalog:
                table = self._load(catalog)
                if decide(_progress(table), batch) is BatchCheck.SKIP:
                    return False
                check_not_vacuumed((file.path for file in files), _horizon_ms(table), self.location.url)
                known = _arrow_schema(table)
                added = added_columns(known, files)
                ready = self.reconciled(files, merged_schema(known, added))
                with _Commit(table) as transaction:
                    if len(added):
                        _add_columns(transaction, added)
                    if ready:
                        self._add(transaction, [f"{self._url}/{file.path}" for file in ready])
                    transaction.set_properties({_PROGRESS: batch.done.to_json()})
                return True

        return self.until_alone(attempt)

    def compact(self, *, small_bytes: int, target_bytes: int) -> Compacted:
        def attempt() -> Compacted:
            with _Catalog(self) as catalog:
                return self._compact(self._load(catalog), small_bytes=small_bytes, target_bytes=target_bytes)

        return self.until_alone(attempt)

    def clear_leftovers(self) -> None:
        """Files that no snapshot names are invisible; a vacuum removes them."""

    def raise_horizon(self, before_ms: int) -> int:
        def attempt() -> int:
            with _Catalog(self) as catalog:
                table = self._load(catalog)
                old = forgettable_snapshots(table.metadata, before_ms)
                with _Commit(table) as transaction:
                    horizon_ms = max(before_ms, _horizon_ms(table))
                    transaction.set_properties({**_PROPERTIES, _HORIZON: str(horizon_ms)})
                    if old:
                        forget = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(old)})
                        transaction._stage((forget,), ())
                return len(old)

        return self.until_alone(attempt)

    def forgettable(self, before_ms: int) -> int:
        with _Catalog(self) as catalog:
            return len(forgettable_snapshots(self._load(catalog).metadata, before_ms))

    def current_files(self) -> set[str]:
        with _Catalog(self) as catalog:
            table = self._load(catalog)
            others = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
            return self._below(referred_urls(table, without=others - {table.metadata.current_snapshot_id or 0}))

    def referred_files(self, before_ms: int, *, as_if_forgotten: bool) -> set[str]:
        with _Catalog(self) as catalog:
            table = self._load(catalog)
            without = forgettable_snapshots(table.metadata, before_ms) if as_if_forgotten else set()
            return self._below(referred_urls(table, without=without))

    def is_vacuums(self, path: str) -> bool:
        return is_leftover_kind(path, self.data_prefix)

    def drop(self) -> None:
        with _Catalog(self) as catalog:
            if catalog.table_exists(self._identifier):
                self._load(catalog)  # whatever else has its name is not for us to drop
                self.delete_files(lambda path: path.startswith(self.data_prefix) and self.is_vacuums(path))
                catalog.drop_table(self._identifier)
        self.delete_files(self.is_vacuums)
        self.remove_empty_directories()

    def _load(self, catalog: SqlCatalog) -> Table:
        try:
            table = catalog.load_table(self._identifier)
        except NoSuchTableError:
            raise NotFound(f"there is no Iceberg table {'.'.join(self._identifier)}") from None
        if table.location().rstrip("/") != self._url:
            raise InvalidSetting(
                f"the table {'.'.join(self._identifier)} is in {table.location()}, not in {self.location.url}",
                hint="name another table or namespace",
            )
        return table

    def _spec(self, schema: Schema) -> PartitionSpec:
        if self.by is PartitionBy.NONE:
            return PartitionSpec()
        transform, suffix = _TRANSFORMS[self.by]
        source = schema.find_field(self.time_column)
        return PartitionSpec(
            PartitionField(
                source_id=source.field_id, field_id=1000, transform=transform, name=f"{self.time_column}_{suffix}"
            )
        )

    def _add(self, transaction: Any, urls: list[str]) -> None:
        try:
            transaction.add_files(urls, check_duplicate_files=False)
        except FileNotFoundError as error:
            raise files_gone(self.location.url) from error

    def _compact(self, table: Table, *, small_bytes: int, target_bytes: int) -> Compacted:
        found = {task.file.file_path: task.file for task in table.scan().plan_files()}
        buckets: dict[str, list[tuple[str, int]]] = {}
        for path, file in sorted(found.items()):
            buckets.setdefault(str(file.partition), []).append((path, file.file_size_in_bytes))
        groups = [
            group
            for files in buckets.values()
            for group in bins(files, small_bytes=small_bytes, target_bytes=target_bytes)
        ]
        if not groups:
            return Compacted(files_before=len(found), files_after=len(found))
        schema, filesystem = _arrow_schema(table), self.location.filesystem()
        merged: list[str] = []
        for group in groups:
            rows = pa.concat_tables(
                [with_columns(read_parquet(filesystem, self._path_of(path)), schema) for path in group]
            )
            name = new_name("compacted", now_ms=SystemClock().wall_ms(), unique=SystemRandomness().uuid())
            target = f"{group[0].rsplit('/', 1)[0]}/{name}"
            write_parquet(filesystem, self._path_of(target), rows)
            merged.append(target)
        with _Commit(table) as transaction:
            made = [parquet_file_to_data_file(table.io, transaction.table_metadata, path) for path in merged]
            with transaction.update_snapshot().overwrite() as snapshot:
                for group in groups:
                    for path in group:
                        snapshot.delete_data_file(found[path])
                for file in made:
                    snapshot.append_data_file(file)
        gone = sum(len(group) for group in groups)
        return Compacted(files_before=len(found), files_after=len(found) - gone + len(groups))

    def _below(self, urls: set[str]) -> set[str]:
        return {url.removeprefix(f"{self._url}/") for url in urls}

    def _path_of(self, url: str) -> str:
        return f"{self.location.path}{url.removeprefix(self._url)}"


class _Catalog:
    """A catalog for one call. Its connections end with it, so that none is inherited by a fork."""

    def __init__(self, store: IcebergStore) -> None:
        self._catalog = SqlCatalog(_CATALOG, uri=store._catalog_uri, **store.location.iceberg_options())

    def __enter__(self) -> SqlCatalog:
        return self._catalog

    def __exit__(self, *_exc_info: object) -> None:
        self._catalog.engine.dispose()


class _Commit:
    """A transaction that commits only if the table's progress and horizon have not changed."""

    def __init__(self, table: Table) -> None:
        self._transaction = table.transaction()
        stands = _StandsAt(progress=table.properties.get(_PROGRESS), horizon=table.properties.get(_HORIZON))
        self._transaction._stage((), (stands,))  # type: ignore[arg-type]

    def __enter__(self) -> Any:
        return self._transaction

    def __exit__(self, kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            try:
                self._transaction.commit_transaction()
            except CommitFailedException as lost:
                raise LostRace from lost


def _make_namespace(catalog: SqlCatalog, namespace: str) -> None:
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except NamespaceAlreadyExistsError:
        return


def _progress(table: Table) -> Progress | None:
    text = table.properties.get(_PROGRESS)
    return None if text is None else read_progress(text)


def _horizon_ms(table: Table) -> int:
    return int(table.properties.get(_HORIZON, 0))


def _arrow_schema(table: Table) -> pa.Schema:
    return plain_schema(schema_to_pyarrow(table.schema(), include_field_ids=False))


def _numbered(schema: pa.Schema) -> Schema:
    """Adds the ids that Arrow's columns do not have, numbered as in a new table."""
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))


def _add_columns(transaction: Any, more: pa.Schema) -> None:
    fields: list[NestedField] = list(_numbered(more).fields)
    with transaction.update_schema() as update:
        for field in fields:
            update.add_column(field.name, field.field_type)


def forgettable_snapshots(metadata: TableMetadata, before_ms: int) -> set[int]:
    """Snapshots that another one had replaced by then: age counts from when a snapshot was no longer the newest (R7).
    Snapshots with a branch or a tag stay.
    """
    ordered = sorted(metadata.snapshots, key=lambda snapshot: (snapshot.timestamp_ms, snapshot.sequence_number or 0))
    old = [snapshot.snapshot_id for snapshot in ordered if snapshot.timestamp_ms < before_ms][:-1]
    named = {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    return {snapshot for snapshot in old if snapshot not in named}


def referred_urls(table: Table, *, without: set[int]) -> set[str]:
    """Data, delete files, manifests and manifest lists of all snapshots but ``without``, and the metadata files."""
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    found |= {statistics.statistics_path for statistics in table.metadata.statistics}
    read: set[str] = set()
    for snapshot in table.metadata.snapshots:
        if snapshot.snapshot_id in without:
            continue
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in read:
                continue
            read.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return found | read


def is_leftover_kind(path: str, data_prefix: str) -> bool:
    """True for the kinds of file that a vacuum may remove. Files of other programs are never touched."""
    if path.startswith(data_prefix):
        return path.endswith(DATA)
    return path.startswith("metadata/") and path.endswith(_METADATA)
