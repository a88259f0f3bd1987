"""Every format's commit, without Spark: each batch once, columns that come and stay, files put together."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from table_ground import FORMATS, TableGround, batch, make_ground, rows, three_small_files

from streamhouse.core.errors import BatchRegressed, InvalidSetting, NotFound, TableBusy
from streamhouse.spark.tables.columns import OWN_COLUMNS
from streamhouse.spark.tables.files import WrittenFile
from streamhouse.spark.tables.spec import PartitionBy, TableFormat


@pytest.fixture(params=FORMATS)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> TableGround:
    made = make_ground(tmp_path, request.param)
    made.store.create(OWN_COLUMNS)
    return made


def test_a_batch_counts_once_however_often_it_comes(ground: TableGround) -> None:
    assert ground.store.look().progress is None
    assert ground.store.commit(batch(0, 0, 10), ground.files(rows(0, 10)))
    assert not ground.store.commit(batch(0, 0, 10), ground.files(rows(0, 10)))
    assert ground.store.commit(batch(1, 10, 15), ground.files(rows(10, 15), tag="q1-000000000001"))
    assert not ground.store.commit(batch(1, 10, 15), ground.files(rows(10, 15), tag="q1-000000000001"))
    assert ground.offsets() == list(range(15))
    assert ground.store.look().progress == batch(1, 10, 15).done
    assert ground.store.state().rows == 15


def test_a_batch_that_does_not_begin_where_the_table_stands_is_refused(ground: TableGround) -> None:
    ground.store.commit(batch(0, 0, 10), ground.files(rows(0, 10)))
    ground.store.commit(batch(1, 10, 20), ground.files(rows(10, 20), tag="q1-000000000001"))
    for wrong in (batch(0, 0, 10), batch(2, 25, 30), batch(0, 0, 5, query="q2"), batch(0, 10, 20, query="q2")):
        with pytest.raises(BatchRegressed):
            ground.store.commit(wrong, ground.files(rows(20, 25), tag="q2-000000000000"))
    assert ground.store.commit(batch(0, 20, 25, query="q2"), ground.files(rows(20, 25), tag="q2-000000000000"))
    assert ground.offsets() == list(range(25))


def test_a_batch_without_rows_moves_the_progress_and_nothing_else(ground: TableGround) -> None:
    ground.store.commit(batch(0, 0, 10), ground.files(rows(0, 10)))
    assert ground.store.commit(batch(1, 10, 20), [])
    assert ground.store.look().progress == batch(1, 10, 20).done
    assert ground.store.commit(batch(2, 20, 21), ground.files(rows(20, 21), tag="q1-000000000002"))
    assert ground.offsets() == [*range(10), 20]


def race(ground: TableGround, mine: list[WrittenFile], theirs: list[WrittenFile]) -> None:
    """Another runner commits between our look at the table and our commit."""
    store, other = ground.store, ground.store
    reconciled = store.reconciled

    def interrupted(files: list[WrittenFile], schema: pa.Schema) -> list[WrittenFile]:
        store.reconciled = reconciled  # type: ignore[method-assign]
        assert other.commit(batch(0, 10, 22, query="q2"), theirs)
        return reconciled(files, schema)

    store.reconciled = interrupted  # type: ignore[assignment,method-assign]
    store.commit(batch(1, 10, 20), mine)


@pytest.mark.parametrize("their_rows", [12, 0])
def test_of_two_runners_only_one_commits(ground: TableGround, their_rows: int) -> None:
    """Also when the other's batch brings no rows, and so no snapshot that could be seen to differ."""
    ground.store.commit(batch(0, 0, 10), ground.files(rows(0, 10)))
    mine = ground.files(rows(10, 20), tag="q1-000000000001")
    theirs = ground.files(rows(10, 10 + their_rows), tag="q2-000000000000")
    with pytest.raises(BatchRegressed):
        race(ground, mine, theirs)
    assert ground.store.look().progress == batch(0, 10, 22, query="q2").done
    if ground.storage.format is TableFormat.PARQUET:
        ground.store.clear_leftovers()  # a directory has no commit: what the loser moved in is there until then
    assert ground.offsets() == list(range(10 + their_rows))


def test_columns_are_added_with_a_type_that_holds_what_all_tasks_found(ground: TableGround) -> None:
    ground.store.commit(batch(0, 0, 2), ground.files(rows(0, 2)))
    files = [
        *ground.files(rows(2, 4, n=pa.array([1, None]), word=pa.array(["a", "b"])), tag="q1-000000000001"),
        *ground.files(rows(4, 6, n=pa.array([1.5, 2.5]), mixed=pa.array([True, False])), tag="q1-000000000001"),
        *ground.files(rows(6, 7, mixed=pa.array([7])), tag="q1-000000000001"),
    ]
    assert ground.store.commit(batch(1, 2, 7), files)
    schema = ground.store.look().schema
    assert schema.field("n").type == pa.float64()
    assert schema.field("mixed").type == pa.string()
    found = ground.query("SELECT _offset, n, word, mixed FROM rows ORDER BY _offset")
    assert found == [
        (0, None, None, None),
        (1, None, None, None),
        (2, 1.0, "a", None),
        (3, None, "b", None),
        (4, 1.5, None, "true"),
        (5, 2.5, None, "false"),
        (6, None, None, "7"),
    ]


def test_a_column_keeps_its_type(ground: TableGround) -> None:
    ground.store.add_columns(pa.schema([("n", pa.int64())]))
    ground.store.add_columns(pa.schema([("n", pa.int64()), ("m", pa.string())]))
    assert ground.store.look().schema.names == [*OWN_COLUMNS.names, "n", "m"]
    with pytest.raises(InvalidSetting, match="the column n of"):
        ground.store.add_columns(pa.schema([("n", pa.string())]))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("by", "buckets"), [(PartitionBy.DAY, 3), (PartitionBy.HOUR, 51)])
def test_rows_lie_by_time_and_small_files_are_put_together(
    tmp_path: Path, kind: TableFormat, by: PartitionBy, buckets: int
) -> None:
    ground = make_ground(tmp_path, kind, by)
    ground.store.create(OWN_COLUMNS)
    per_batch = 1_020
    for number in range(3):
        begin = number * per_batch
        files = ground.files(rows(begin, begin + per_batch), tag=f"q1-{number:012d}")
        assert len({file.bucket for file in files}) == len(files)
        assert ground.store.commit(batch(number, begin, begin + per_batch), files)
    everything = list(range(3 * per_batch))
    assert ground.offsets() == everything
    before = ground.store.state()
    done = ground.store.compact(small_bytes=1 << 20, target_bytes=1 << 24)
    assert (done.files_before, done.files_after) == (before.files, buckets)
    after = ground.store.state()
    assert (after.files, after.rows) == (buckets, before.rows)
    assert ground.store.look().progress == batch(2, 2 * per_batch, 3 * per_batch).done
    assert ground.offsets() == everything
    again = ground.store.compact(small_bytes=1 << 20, target_bytes=1 << 24)
    assert again.files_before == again.files_after == buckets
    assert ground.store.commit(batch(3, 3_060, 3_061), ground.files(rows(3_060, 3_061), tag="q1-000000000003"))
    assert ground.offsets() == list(range(3_061))


def test_a_table_that_is_dropped_is_gone(ground: TableGround) -> None:
    ground.store.commit(batch(0, 0, 10), ground.files(rows(0, 10)))
    ground.store.drop()
    assert not ground.store.exists()
    with pytest.raises(NotFound):
        ground.store.look()
    ground.store.drop()
    ground.store.create(OWN_COLUMNS)
    assert ground.store.look().progress is None
    assert ground.store.commit(batch(0, 5, 10, generation=2), ground.files(rows(5, 10)))
    assert ground.offsets() == list(range(5, 10))


def test_what_else_lies_there_is_never_dropped_and_no_table_is_made_beside_it(ground: TableGround) -> None:
    ground.store.commit(batch(0, 0, 10), ground.files(rows(0, 10)))
    mine = ground.directory / "table" / "mine"
    mine.mkdir()
    (mine / "diary.txt").write_text("not yours")
    ground.store.drop()
    assert not ground.store.exists()
    assert [path.name for path in (ground.directory / "table").rglob("*") if path.is_file()] == ["diary.txt"]
    with pytest.raises(InvalidSetting, match=r"is not empty, and no .* table of ours: it has mine/diary"):
        ground.store.create(OWN_COLUMNS)
    (mine / "diary.txt").unlink()
    mine.rmdir()
    ground.store.create(OWN_COLUMNS)
    ground.store.drop()
    assert not [path for path in (ground.directory / "table").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_path_may_have_spaces_and_letters_of_any_kind(tmp_path: Path, kind: TableFormat) -> None:
    (tmp_path / "der große See").mkdir()
    ground = make_ground(tmp_path / "der große See", kind, PartitionBy.DAY)
    ground.store.create(OWN_COLUMNS)
    for number in range(2):
        tag = f"q1-{number:012d}"
        ground.store.commit(batch(number, number, number + 1), ground.files(rows(number, number + 1), tag=tag))
    assert ground.store.compact(small_bytes=1 << 20, target_bytes=1 << 24).files_after == 1
    assert ground.offsets() == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["der große See"]


def test_parquet_of_a_batch_that_was_never_decided_on_is_cleared_away(tmp_path: Path) -> None:
    """Killed after the files were moved in and before the log said so; the checkpoint is lost with it."""
    ground = make_ground(tmp_path, TableFormat.PARQUET, PartitionBy.DAY)
    ground.store.create(OWN_COLUMNS)
    ground.store.commit(batch(0, 0, 10), ground.files(rows(0, 10)))
    store = ground.store
    store._move_in(ground.files(rows(10, 20), tag="q1-000000000001"), "q1-000000000001")  # type: ignore[attr-defined]
    assert ground.offsets() == list(range(20))
    assert store.commit(batch(1, 10, 15), ground.files(rows(10, 15), tag="q1-000000000001"))
    assert ground.offsets() == list(range(15))
    store._move_in(ground.files(rows(15, 20), tag="q1-000000000002"), "q1-000000000002")  # type: ignore[attr-defined]
    staged = ground.files(rows(15, 20), tag="q1-000000000002")
    ground.store.clear_leftovers()
    assert ground.offsets() == list(range(15))
    assert ground.store.commit(batch(2, 15, 20), staged)
    assert ground.offsets() == list(range(20))


def test_parquet_compaction_is_finished_by_whoever_comes_next(tmp_path: Path) -> None:
    ground = three_small_files(tmp_path, TableFormat.PARQUET)
    store = ground.store
    finish = store._finish_merging  # type: ignore[attr-defined]
    calls: list[int] = []

    def killed() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        finish()

    store._finish_merging = killed  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        store.compact(small_bytes=1 << 20, target_bytes=1 << 24)
    assert ground.offsets() == [0, 1, 2]
    ground.store.clear_leftovers()
    assert ground.offsets() == [0, 1, 2]
    assert ground.store.state().files == 1


def test_parquet_compaction_never_removes_rows_whose_new_file_is_gone(tmp_path: Path) -> None:
    ground = three_small_files(tmp_path, TableFormat.PARQUET)
    store = ground.store
    finish = store._finish_merging  # type: ignore[attr-defined]
    calls: list[int] = []

    def after_a_loss() -> None:
        calls.append(1)
        if len(calls) == 3:
            (staged,) = (ground.directory / "table" / "_streamhouse" / "staging").glob("compacted-*")
            staged.unlink()
        finish()

    store._finish_merging = after_a_loss  # type: ignore[attr-defined]
    assert store.compact(small_bytes=1 << 20, target_bytes=1 << 24).files_after == 3
    assert len(calls) == 3
    assert ground.offsets() == [0, 1, 2]


def test_two_compactions_at_a_time_double_no_row(tmp_path: Path) -> None:
    ground = three_small_files(tmp_path, TableFormat.PARQUET)
    store, other = ground.store, ground.store
    finish = store._finish_merging  # type: ignore[attr-defined]
    calls: list[int] = []

    def second() -> None:
        calls.append(1)
        if len(calls) == 2:
            other.compact(small_bytes=1 << 20, target_bytes=1 << 24)
        finish()

    store._finish_merging = second  # type: ignore[attr-defined]
    store.compact(small_bytes=1 << 20, target_bytes=1 << 24)
    assert ground.offsets() == [0, 1, 2]
    assert ground.store.state().files == 1


@pytest.mark.parametrize("beside", ["compact", "add_columns"])
def test_parquet_takes_a_batch_beside_a_compaction_and_a_new_column(tmp_path: Path, beside: str) -> None:
    ground = three_small_files(tmp_path, TableFormat.PARQUET)
    store, other = ground.store, ground.store
    put = store._put  # type: ignore[attr-defined]

    def late(entry: object) -> None:
        store._put = put  # type: ignore[attr-defined]
        if beside == "compact":
            other.compact(small_bytes=1 << 20, target_bytes=1 << 24)
        else:
            other.add_columns(pa.schema([("n", pa.int64())]))
        put(entry)

    store._put = late  # type: ignore[attr-defined]
    assert store.commit(batch(3, 3, 5), ground.files(rows(3, 5), tag="q1-000000000003"))
    assert ground.offsets() == list(range(5))
    assert ground.store.look().progress == batch(3, 3, 5).done


def test_parquet_of_a_writer_whose_files_another_start_has_cleared_away_is_refused(tmp_path: Path) -> None:
    ground = three_small_files(tmp_path, TableFormat.PARQUET)
    store, other = ground.store, ground.store
    put = store._put  # type: ignore[attr-defined]

    def late(entry: object) -> None:
        store._put = put  # type: ignore[attr-defined]
        other.clear_leftovers()
        put(entry)

    store._put = late  # type: ignore[attr-defined]
    with pytest.raises(TableBusy, match="another runner has begun"):
        store.commit(batch(3, 3, 5), ground.files(rows(3, 5), tag="q1-000000000003"))
    assert ground.store.commit(batch(3, 3, 5), ground.files(rows(3, 5), tag="q1-000000000003"))
    assert ground.offsets() == list(range(5))


def test_a_batch_beside_delta_s_compaction_is_remembered(tmp_path: Path) -> None:
    """The compaction began before the batch and is committed after it, with the progress it knew."""
    ground = three_small_files(tmp_path, TableFormat.DELTA)
    store = ground.store
    handle = store._load()  # type: ignore[attr-defined]
    assert ground.store.commit(batch(3, 3, 5), ground.files(rows(3, 5), tag="q1-000000000003"))
    done = handle.table.optimize.compact(commit_properties=store._carrying(handle))  # type: ignore[attr-defined]
    assert done["numFilesRemoved"] == 3
    assert ground.store.look().progress == batch(3, 3, 5).done
    assert ground.store.commit(batch(4, 5, 6), ground.files(rows(5, 6), tag="q1-000000000004"))
    assert ground.offsets() == list(range(6))
