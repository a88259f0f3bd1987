"""Which checkpoints belong to a definition, what Spark wrote into them, and whether a query may go on from one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from positions import ORDERS, at, batch
from pyspark.sql import SparkSession

from streamhouse.core.errors import CheckpointLost, CorruptDocument
from streamhouse.spark.definitions.checkpoints import (
    batch_of,
    checkpoint_directory,
    checkpoints_of,
    file_reader,
    is_of,
    local_path_of,
    parse_offset_log,
    query_id,
    remove,
    remove_former,
    remove_one,
)
from streamhouse.spark.definitions.progress import (
    Progress,
    SourcePosition,
)
from streamhouse.spark.offsets import INITIAL, StreamOffset, TopicPartition
from streamhouse.spark.pipelines.parsing import PIPELINES
from streamhouse.spark.tables.spec import TABLES

ID, OTHER = UUID(int=0xABCDEF << 104), UUID(int=0x123456 << 104)
TOPIC_ID = ORDERS


def log(*offsets: dict[str, Any] | None) -> str:
    lines = ["-" if each is None else json.dumps(each) for each in offsets]
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *lines])


def offset(*numbers: int, began: tuple[int, ...] | None = None) -> dict[str, Any]:
    (position,) = at(*numbers)
    began_at = None if began is None else at(*began)[0].offsets
    return StreamOffset(offsets=position.offsets, topic_ids=position.topic_ids, query="x", began_at=began_at).to_json()


def test_what_a_batch_reads_is_in_sparks_checkpoint() -> None:
    files = {
        "c/metadata": '{"id":"q"}',
        "c/offsets/0": log(offset(5, began=(2,))),
        "c/offsets/1": log(offset(9)),
    }
    assert batch_of("p", 3, "c", 0, files.get) == batch(0, at(2), at(5), generation=3)
    assert batch_of("p", 3, "c", 1, files.get) == batch(1, at(5), at(9), generation=3)
    with pytest.raises(CorruptDocument, match="batch 2 is not in the checkpoint"):
        batch_of("p", 3, "c", 2, files.get)
    del files["c/offsets/0"]
    with pytest.raises(CorruptDocument, match="batch 0 is not in the checkpoint"):
        batch_of("p", 3, "c", 1, files.get)


def test_a_source_that_has_not_been_read_yet() -> None:
    assert parse_offset_log(log(None, dict(INITIAL))) == [None, None]
    files = {
        "c/metadata": '{"id":"q"}',
        "c/offsets/0": log(offset(5, began=(2,)), None),
        "c/offsets/1": log(offset(5), offset(7, began=(1,))),
    }
    found = batch_of("p", 0, "c", 1, files.get)
    assert (found.start, found.end) == ((*at(5), *at(1)), (*at(5), *at(7)))
    for broken in ("", "v2\n{}\n-", "v1\n{}\n{", "v1\n{}"):
        with pytest.raises(CorruptDocument):
            parse_offset_log(broken)


def nothing(path: str) -> str | None:
    """Reads a checkpoint that is not there."""
    return None


def filled(path: Path | str) -> Path:
    (Path(path) / "offsets").mkdir(parents=True)
    (Path(path) / "metadata").write_text("{}")
    return Path(path)


def test_only_directories_that_are_named_after_the_definition_are_its_checkpoints(tmp_path: Path) -> None:
    own = [filled(tmp_path / f"{ID.hex[:8]}-{name}") for name in ("0-0123456789abcdef", "1-0123456789abcdef", "12")]
    others = [filled(tmp_path / name) for name in (f"{OTHER.hex[:8]}-0-0123456789abcdef", f"{ID.hex[:8]}-x", "orders")]
    (tmp_path / f"{ID.hex[:8]}-7").symlink_to(others[0])
    found = checkpoints_of(f"file:{tmp_path}", ID)
    assert sorted(each.path for each in found) == sorted(own)
    assert remove_former(str(tmp_path), ID, 12) == 2
    assert [path.exists() for path in own] == [False, False, True]
    remove(checkpoints_of(str(tmp_path), ID))
    assert not own[2].exists()
    assert all(path.exists() for path in others)
    assert checkpoints_of("hdfs://x/checkpoints/orders", ID) == checkpoints_of(str(tmp_path / "nowhere"), ID) == []


def offsets(count: int, *, began: int | None = None) -> str:
    began_at = None if began is None else {TopicPartition("t", 0): began}
    offset = StreamOffset(
        offsets={TopicPartition("t", 0): count}, topic_ids={"t": TOPIC_ID}, query="x", began_at=began_at
    )
    return f"v1\n{{}}\n{json.dumps(offset.to_json())}\n"


def progress(query: str, offset: int) -> Progress:
    position = SourcePosition(offsets={TopicPartition("t", 0): offset}, topic_ids={"t": TOPIC_ID})
    return Progress(generation=0, query_id=query, batch_id=0, position=(position,))


def test_a_checkpoint_counts_if_it_wrote_the_target_s_rows_or_was_begun_where_they_end() -> None:
    files = {"c/metadata": json.dumps({"id": "q2"})}
    assert not is_of(None, "c", nothing)
    assert not is_of(progress("q2", 5), "c", nothing)
    assert is_of(None, "c", files.get)
    assert is_of(progress("q2", 5), "c", files.get)
    assert not is_of(progress("q1", 5), "c", files.get)  # begun, and killed before it planned a batch
    files["c/offsets/0"] = offsets(9, began=5)
    assert is_of(progress("q1", 5), "c", files.get)
    assert not is_of(progress("q1", 7), "c", files.get)  # its SQL was changed and changed back


def test_a_kind_has_a_directory_of_its_own_below_the_root() -> None:
    assert checkpoint_directory("/c/", PIPELINES, "orders") == "/c/orders"
    assert checkpoint_directory("s3a://b/c", TABLES, "orders") == "s3a://b/c/tables/orders"


@pytest.mark.parametrize(
    ("path", "here"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("hdfs://x/a", None),
        ("s3a://x/a", None),
        ("a/with:colon", "a/with:colon"),
    ],
)
def test_only_a_file_of_this_machine_has_a_path_here(path: str, here: str | None) -> None:
    assert local_path_of(path) == here


def test_a_checkpoint_whose_metadata_is_damaged_is_refused() -> None:
    assert query_id("c", nothing) is None
    for damaged in ("", "{}", "[]", "null"):
        with pytest.raises(CorruptDocument, match="c/metadata cannot be read"):
            query_id("c", {"c/metadata": damaged}.get)


def test_a_local_file_is_read_without_spark(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id": "q"}')
    read = file_reader(cast(SparkSession, None))
    assert query_id(str(tmp_path), read) == "q"
    assert query_id(f"file:{tmp_path}", read) == "q"


def test_a_checkpoint_elsewhere_cannot_be_removed_without_a_jvm(tmp_path: Path) -> None:
    filled(tmp_path / "c")
    remove_one(cast(SparkSession, None), f"file:{tmp_path}/c")
    assert not (tmp_path / "c").exists()
    with pytest.raises(CheckpointLost, match="hdfs://x/c does not belong to the target's rows"):
        remove_one(cast(SparkSession, object()), "hdfs://x/c")
