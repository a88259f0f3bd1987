"""What a vacuum takes away and what it leaves: in every format, beside writers, for readers of older versions."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from table_ground import FORMATS, TableGround, batch, rows, three_small_files

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import CorruptDocument, TableBusy
from streamhouse.spark.tables.files import WrittenFile
from streamhouse.spark.tables.iceberg_store import forgettable_snapshots
from streamhouse.spark.tables.leftovers import FoundFile, made_ms, unreferred
from streamhouse.spark.tables.spec import TableFormat

HOUR_MS = 3_600_000
TAG = "q1-000000000003"


@pytest.fixture(params=FORMATS)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> TableGround:
    return three_small_files(tmp_path, request.param)


def now_ms() -> int:
    return SystemClock().wall_ms()


def aged(ground: TableGround, path: str, age_ms: int) -> Path:
    file = ground.directory / "table" / path
    os.utime(file, ns=((now_ms() - age_ms) * 1_000_000,) * 2)
    return file


def on_disk(ground: TableGround) -> set[str]:
    return {str(file.relative_to(ground.directory / "table")) for file in (ground.directory / "table").rglob("*.*")}


def test_r6_a_vacuum_takes_what_failed_attempts_left_and_nothing_that_a_writer_is_about_to_commit(
    ground: TableGround,
) -> None:
    day_ago = now_ms() - 24 * HOUR_MS
    (failed,) = ground.files(rows(3, 9), tag=TAG, made_ms=day_ago)
    left = aged(ground, failed.path, 24 * HOUR_MS)
    torn = left.with_name(f"{left.name}.unfinished")
    left.with_name("mine.txt").write_text("a person's own")
    torn.write_bytes(b"PAR1")
    os.utime(torn, ns=(day_ago * 1_000_000,) * 2)
    writing = ground.files(rows(3, 5), tag=TAG, made_ms=now_ms() - HOUR_MS // 2)
    aged(ground, writing[0].path, HOUR_MS // 2)

    before = on_disk(ground)
    told = ground.store.vacuum(before_ms=now_ms() - HOUR_MS, dry_run=True)
    assert on_disk(ground) == before
    done = ground.store.vacuum(before_ms=now_ms() - HOUR_MS, dry_run=False)
    assert (
        {file.path for file in done.files}
        == {file.path for file in told.files}
        == {failed.path, f"{failed.path}.unfinished"}
    )
    assert done.size_bytes == failed.size_bytes + 4
    assert before - on_disk(ground) == {failed.path, f"{failed.path}.unfinished"}
    assert ground.store.commit(batch(3, 3, 5), writing)
    assert ground.offsets() == list(range(5))
    assert not ground.store.vacuum(before_ms=now_ms() - HOUR_MS, dry_run=False).files


def test_r6_a_writer_that_stalled_past_the_horizon_writes_its_batch_again(ground: TableGround) -> None:
    """The vacuum comes between its look at the table and its commit."""
    stalled = ground.files(rows(3, 5), tag=TAG)
    horizon_ms = now_ms() + 50
    store, other = ground.store, ground.store
    reconciled = store.reconciled

    def interrupted(files: list[WrittenFile], schema: pa.Schema) -> list[WrittenFile]:
        store.reconciled = reconciled  # type: ignore[method-assign]
        other.vacuum(before_ms=horizon_ms, dry_run=False)
        return reconciled(files, schema)

    store.reconciled = interrupted  # type: ignore[assignment,method-assign]
    with pytest.raises(TableBusy, match=r"older than|are gone from"):
        store.commit(batch(3, 3, 5), stalled)
    assert ground.offsets() == [0, 1, 2]
    with pytest.raises(TableBusy, match="is older than the last vacuum"):
        ground.store.commit(batch(3, 3, 5), ground.files(rows(3, 5), tag=TAG, made_ms=horizon_ms - 1))
    assert ground.store.commit(batch(3, 3, 5), ground.files(rows(3, 5), tag=TAG, made_ms=horizon_ms))
    ground.store.vacuum(before_ms=horizon_ms - HOUR_MS, dry_run=False)
    with pytest.raises(TableBusy):  # a horizon never goes back
        ground.store.commit(batch(4, 5, 6), ground.files(rows(5, 6), tag=TAG, made_ms=horizon_ms - 1))
    assert ground.offsets() == list(range(5))


@pytest.mark.parametrize("kind", [TableFormat.ICEBERG, TableFormat.DELTA])
def test_r7_what_a_compaction_has_replaced_stays_until_its_readers_are_gone(tmp_path: Path, kind: TableFormat) -> None:
    """Its files are old; that they were replaced is not."""
    ground = three_small_files(tmp_path, kind)
    for path in ground.store.current_files():
        aged(ground, path, 24 * HOUR_MS)
    old_files = {path for path in ground.store.current_files() if path.endswith(".parquet")}
    replaced_ms = now_ms()
    ground.store.compact(small_bytes=1 << 20, target_bytes=1 << 24)
    assert not old_files & ground.store.current_files()
    ground.store.vacuum(before_ms=replaced_ms, dry_run=False)
    assert old_files <= on_disk(ground)
    later_ms = now_ms() + 1_000
    told = ground.store.vacuum(before_ms=later_ms, dry_run=True)
    assert old_files <= {file.path for file in told.files}
    done = ground.store.vacuum(before_ms=later_ms, dry_run=False)
    assert {file.path for file in done.files} >= {file.path for file in told.files}
    assert not old_files & on_disk(ground)
    assert ground.offsets() == [0, 1, 2]
    assert ground.store.look().progress == batch(2, 2, 3).done
    assert ground.store.commit(batch(3, 3, 5), ground.files(rows(3, 5), tag=TAG, made_ms=later_ms))
    assert ground.offsets() == list(range(5))
    if kind is TableFormat.ICEBERG:
        assert done.snapshots == told.snapshots > 0


@pytest.mark.parametrize("kind", [TableFormat.ICEBERG, TableFormat.DELTA])
def test_r6_a_compaction_that_a_vacuum_came_between_begins_again(
    tmp_path: Path, kind: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = three_small_files(tmp_path, kind)
    store, other = ground.store, ground.store
    loads: list[int] = []
    load = store._load  # type: ignore[attr-defined]

    def late(*given: object) -> object:
        handle = load(*given)
        if not loads:
            other.vacuum(before_ms=now_ms() + 1, dry_run=False)
        loads.append(1)
        return handle

    monkeypatch.setattr(store, "_load", late)
    assert store.compact(small_bytes=1 << 20, target_bytes=1 << 24).files_after == 1
    assert len(loads) == 2
    assert ground.offsets() == [0, 1, 2]


def test_a_vacuum_that_does_not_see_the_table_s_own_files_removes_nothing(ground: TableGround) -> None:
    if ground.storage.format is TableFormat.PARQUET:
        return  # what is in its directory is the table
    (gone,) = [path for path in ground.store.current_files() if "q1-000000000001" in path]
    (ground.directory / "table" / gone).unlink()
    (failed,) = ground.files(rows(3, 9), tag=TAG)
    with pytest.raises(CorruptDocument, match="refers to 1 files that are not there"):
        ground.store.vacuum(before_ms=now_ms() + 1_000, dry_run=False)
    assert failed.path in on_disk(ground)


def test_a_file_is_old_when_its_name_and_its_store_say_so() -> None:
    name = "data/q1-000000000001-00000-t1700000000000-00000000-0000-0000-0000-000000000001.parquet"
    assert made_ms(name) == made_ms(f"{name}.unfinished") == 1_700_000_000_000
    assert made_ms("part-00000-22bf9210-aab1-4efc-9941-e4963e89bd57-c000.snappy.parquet") is None
    found = [
        FoundFile(path=name, size_bytes=1, modified_ms=1),
        FoundFile(path="x.parquet", size_bytes=1, modified_ms=1_600_000_000_000),
        FoundFile(path="y.parquet", size_bytes=1, modified_ms=1_600_000_000_000),
    ]
    assert [file.path for file in unreferred(found, {"y.parquet"}, before_ms=1_700_000_000_000)] == ["x.parquet"]
    assert len(unreferred(found, {"y.parquet"}, before_ms=1_700_000_000_001)) == 2


def test_r7_a_version_s_age_counts_from_when_it_was_replaced() -> None:
    snapshots = [
        {"snapshot-id": number, "sequence-number": number, "timestamp-ms": at, "manifest-list": "x", "schema-id": 0}
        for number, at in ((1, 100), (2, 200), (3, 300), (4, 400))
    ]
    metadata = _metadata(snapshots)
    assert forgettable_snapshots(metadata, 100) == set()
    assert forgettable_snapshots(metadata, 201) == {1}
    assert forgettable_snapshots(metadata, 300) == {1}
    assert forgettable_snapshots(metadata, 10_000) == {1, 3}


def _metadata(snapshots: list[dict[str, object]]) -> TableMetadata:
    """Return metadata with a tag on the second snapshot."""
    return TableMetadataV2.model_validate(
        {
            "format-version": 2,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "file:///x",
            "last-sequence-number": 4,
            "last-updated-ms": 400,
            "last-column-id": 1,
            "current-schema-id": 0,
            "schemas": [
                {
                    "type": "struct",
                    "schema-id": 0,
                    "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}],
                }
            ],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "current-snapshot-id": 4,
            "snapshots": snapshots,
            "refs": {"main": {"snapshot-id": 4, "type": "branch"}, "kept": {"snapshot-id": 2, "type": "tag"}},
        }
    )
