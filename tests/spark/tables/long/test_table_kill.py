"""Tables equal their topic after kills, replays, a lost checkpoint and compaction, in every format."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from table_ground import FORMATS
from table_spark_ground import SparkGround

from streamhouse.spark.tables import target as target_module
from streamhouse.spark.tables.spec import TableFormat
from streamhouse.spark.tables.start import target_of
from streamhouse.testing.plugin import RunningStreamHouse


@pytest.fixture
def ground(spark: SparkSession, streamhouse: RunningStreamHouse, tmp_path: Path) -> SparkGround:
    return SparkGround(spark, streamhouse, tmp_path)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the next batch die before or after its commit to the table."""

    def arrange(when: str) -> None:
        opened = target_module.open_table

        def opening(*given: object) -> object:
            store = opened(*given)  # type: ignore[arg-type]
            commit = store.commit

            def dying(*batch: object) -> bool:
                monkeypatch.setattr(target_module, "open_table", opened)
                if when == "after":
                    commit(*batch)  # type: ignore[arg-type]
                raise ConnectionError("killed")

            store.commit = dying  # type: ignore[assignment,method-assign]
            return store

        monkeypatch.setattr(target_module, "open_table", opening)

    return arrange


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_equals_its_topic_after_kills_replays_and_a_lost_checkpoint(
    ground: SparkGround, kind: TableFormat, interrupt: Callable[[str], None]
) -> None:
    stored = ground.table(kind)
    ground.check_replay(stored)
    for when in ("before", "after"):
        ground.produce_json(0, 100)
        interrupt(when)
        with pytest.raises(Exception, match="killed"):
            ground.fill(stored)
        ground.produce_json(0, 1)
        ground.fill(stored)
        ground.check_equal(stored)
    shutil.rmtree(ground.place.checkpoints)
    ground.produce_json(1, 7)
    ground.fill(stored)
    ground.check_equal(stored)
    done = target_of(stored.spec, ground.place.address_options).store.compact(small_bytes=1 << 20, target_bytes=1 << 24)
    assert done.files_after < done.files_before
    ground.produce_json(1, 7)
    ground.fill(stored)
    ground.check_equal(stored)
