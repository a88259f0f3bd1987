"""Opens the table that a storage's description describes. The only place that knows which formats there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from streamhouse.core.errors import ConfigError
from streamhouse.core.urls import local_path, scheme_of
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.connection import connect
from streamhouse.spark.tables.location import Location, parse_location
from streamhouse.spark.tables.parquet_store import ParquetStore
from streamhouse.spark.tables.spec import StorageSpec, TableFormat
from streamhouse.spark.tables.store import TableStore


def open_table(storage: StorageSpec, address: StoreAddress) -> TableStore:
    """Raises ConfigError."""
    location = parse_location(storage.location, address.store)
    try:
        return _open(storage, address, location)
    except ModuleNotFoundError as error:
        raise ConfigError(f"tables need the package {error.name}", hint="pip install 'streamhouse[tables]'") from error


def _open(storage: StorageSpec, address: StoreAddress, location: Location) -> TableStore:
    if storage.format is TableFormat.DELTA:
        from streamhouse.spark.tables.delta_store import DeltaStore

        return DeltaStore(location, by=storage.partition_by, time_column=storage.time_column)
    if storage.format is TableFormat.ICEBERG:
        from streamhouse.spark.tables.iceberg_store import IcebergStore

        return IcebergStore(
            location,
            by=storage.partition_by,
            time_column=storage.time_column,
            catalog_uri=storage.catalog or default_catalog(address, location),
            namespace=storage.namespace,
            table=storage.table or PurePosixPath(location.path).name,
        )
    log = connect(replace(address, store_url=location.url, store=replace(address.store, create=True)))
    return ParquetStore(location, by=storage.partition_by, time_column=storage.time_column, log=log)


def default_catalog(address: StoreAddress, location: Location) -> str:
    """The metadata's PostgreSQL database, or the file iceberg.db beside SQLite's file."""
    if scheme_of(address.metadata_url) == "sqlite":
        return f"sqlite:///{PurePosixPath(local_path(address.metadata_url)).parent / 'iceberg.db'}"
    return "postgresql+psycopg://" + address.metadata_url.split("://", 1)[1]
