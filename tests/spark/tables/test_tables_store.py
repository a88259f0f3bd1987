"""What all table formats share: grouping small files, files rewritten to the table's types, races, and free places."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from table_ground import make_ground

from streamhouse.core.errors import InvalidSetting, TableBusy
from streamhouse.spark.tables import store as store_module
from streamhouse.spark.tables.files import WrittenFile, read_parquet, write_parquet
from streamhouse.spark.tables.spec import TableFormat
from streamhouse.spark.tables.store import LostRace, TableStore, added_columns, bins


def test_small_files_are_grouped_in_their_order_and_single_ones_left_alone() -> None:
    files = [("a", 10), ("big", 100), ("b", 10), ("c", 25), ("d", 10), ("e", 30)]
    assert bins(files, small_bytes=50, target_bytes=40) == [["a", "b"], ["c", "d"]]
    assert bins([("a", 1)], small_bytes=50, target_bytes=40) == []


@pytest.fixture
def store(tmp_path: Path) -> TableStore:
    """The plainest format: only what all formats share is asked of it."""
    return make_ground(tmp_path, TableFormat.PARQUET).store


def written(store: TableStore, name: str, **columns: pa.Array) -> WrittenFile:
    rows = pa.table(columns)
    size_bytes = write_parquet(store.location.filesystem(), f"{store.location.path}/{name}", rows)
    return WrittenFile(path=name, bucket=None, rows=rows.num_rows, size_bytes=size_bytes, schema=rows.schema)


def test_a_file_of_other_types_is_rewritten_before_it_is_committed(store: TableStore) -> None:
    schema = pa.schema([("n", pa.float64()), ("more", pa.string())])
    right = written(store, "right.parquet", n=pa.array([1.5]))
    narrow = written(store, "narrow.parquet", n=pa.array([1, 2], pa.int64()))
    done = store.reconciled([right, narrow], schema)
    assert done[0] is right
    assert done[1].schema == pa.schema([("n", pa.float64())])
    path = Path(store.location.path) / "narrow.parquet"
    assert done[1].size_bytes == path.stat().st_size
    assert read_parquet(store.location.filesystem(), str(path)).column("n").to_pylist() == [1.0, 2.0]


def test_what_files_bring_beyond_the_table_is_added(store: TableStore) -> None:
    known = pa.schema([("n", pa.int64())])
    files = [
        written(store, "a.parquet", n=pa.array([1]), x=pa.array([1])),
        written(store, "b.parquet", x=pa.array([1.5])),
    ]
    assert added_columns(known, files) == pa.schema([("x", pa.float64())])


def test_a_race_that_is_lost_is_run_again_and_given_up_in_the_end(
    store: TableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_PAUSE_S", 0.0)
    tries = []

    def lose(times: int) -> str:
        tries.append(1)
        if len(tries) <= times:
            raise LostRace
        return "won"

    assert store.until_alone(lambda: lose(3)) == "won"
    assert len(tries) == 4
    tries.clear()
    with pytest.raises(TableBusy, match="was changed by others 30 times in a row"):
        store.until_alone(lambda: lose(1_000))
    assert len(tries) == 30


def test_a_place_with_other_files_is_not_free(store: TableStore) -> None:
    store.check_free()
    written(store, "data/x.parquet", n=pa.array([1]))
    store.check_free("data")
    with pytest.raises(InvalidSetting, match=r"is not empty, and no parquet table of ours: it has data/x\.parquet"):
        store.check_free()


def test_only_files_of_ours_are_deleted_and_only_empty_directories_removed(store: TableStore) -> None:
    for name in ("data/ours.parquet", "kept/theirs.txt"):
        written(store, name, n=pa.array([1]))
    store.delete_files(lambda path: path.endswith(".parquet"))
    store.remove_empty_directories()
    root = Path(store.location.path)
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["kept", "kept/theirs.txt"]
