"""What an Iceberg table refers to, and which of its versions nobody should need any more. Reads manifests."""

from __future__ import annotations

from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from streamhouse.spark.tables.leftovers import DATA

_METADATA: Final = (".avro", ".metadata.json")


def forgettable_snapshots(metadata: TableMetadata, before_ms: int) -> set[int]:
    """Those that another one had replaced by then: a version's age counts from when it was no longer the newest (R7).
    What a branch or a tag names stays.
    """
    ordered = sorted(metadata.snapshots, key=lambda snapshot: (snapshot.timestamp_ms, snapshot.sequence_number or 0))
    old = [snapshot.snapshot_id for snapshot in ordered if snapshot.timestamp_ms < before_ms][:-1]
    named = {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    return {snapshot for snapshot in old if snapshot not in named}


def referred_urls(table: Table, *, without: set[int]) -> set[str]:
    """Of all versions but ``without``: data, delete files, manifests, their lists; and the metadata files."""
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
    """Other files, of whatever program, are never touched."""
    if path.startswith(data_prefix):
        return path.endswith(DATA)
    return path.startswith("metadata/") and path.endswith(_METADATA)
