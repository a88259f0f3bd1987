"""What pipelines and tables leave behind when they are deleted or begin anew: what people want to keep, and no more."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from pipeline_ground import into_postgres
from pyspark.sql.types import StructType

from streamhouse.core.errors import Conflict, DefinitionNotFound
from streamhouse.metadata.contract import Definition, WantedState
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.pipelines.parsing import PROGRESS_KIND, StoredPipeline, load_pipeline
from streamhouse.spark.pipelines.service import Pipelines
from streamhouse.spark.pipelines.start import checkpoint_path, open_target
from streamhouse.spark.tables.service import Tables, storage_of
from streamhouse.spark.tables.spec import TableSpec, ValueFormat, ValueSpec
from streamhouse.spark.tables.start import checkpoint_of
from streamhouse.spark.tables.values import row_schema
from streamhouse.testing.plugin import RunningStreamHouse

ID, OTHER = UUID(int=0xABCDEF << 104), UUID(int=0x123456 << 104)


def filled(path: Path | str) -> Path:
    (Path(path) / "offsets").mkdir(parents=True)
    (Path(path) / "metadata").write_text("{}")
    return Path(path)


@pytest.fixture
def place(streamhouse: RunningStreamHouse, tmp_path: Path) -> Place:
    streamhouse.run(streamhouse.api.create_topic("orders", 1))
    options = {"dataDir": str(streamhouse.api.settings.data_dir)}
    return Place(address_options=options, checkpoints=str(tmp_path / "checkpoints"))


def define(pipelines: Pipelines, **document: object) -> StoredPipeline:
    whole = {"name": "tables", "sources": ["orders"], "sql": "SELECT key, value FROM orders", **document}
    return pipelines.create(load_pipeline(whole), WantedState.STOPPED)


def test_a_deleted_pipeline_leaves_the_rows_and_nothing_of_its_own(place: Place, postgres_database: str) -> None:
    """Its name is that of the directory in which the tables' checkpoints lie."""
    pipelines = Pipelines(place)
    stored = define(pipelines, target=into_postgres(postgres_database, "t"))
    target = open_target(stored, place.address_options, run_id="r" * 12)
    target.prepare(StructType().add("key", "string").add("value", "string"))
    mine = filled(checkpoint_path(place.checkpoints, stored))
    table = filled(Path(place.checkpoints) / "tables" / "orders" / f"{OTHER.hex[:8]}-1")
    with psycopg.connect(postgres_database) as connection:
        connection.execute("INSERT INTO public.t VALUES ('a', 'b')")
        assert connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 't'").fetchall() == [("public",)]
        connection.execute("INSERT INTO streamhouse.pipeline_progress (pipeline, name) VALUES ('another', 'x')")
    pipelines.delete("tables")
    assert not mine.exists()
    assert table.exists()
    with psycopg.connect(postgres_database) as connection:
        assert connection.execute("SELECT count(*) FROM public.t").fetchone() == (1,)
        assert connection.execute("SELECT pipeline FROM streamhouse.pipeline_progress").fetchall() == [("another",)]
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'stage%'").fetchone() == (0,)
    with pytest.raises(DefinitionNotFound):
        pipelines.get("tables")


def test_a_pipeline_whose_target_is_away_is_deleted_only_when_its_progress_may_stay(place: Place) -> None:
    pipelines = Pipelines(place)
    stored = define(pipelines, target=into_postgres("postgresql://nobody@127.0.0.1:1/x", "t"))
    mine = filled(checkpoint_path(place.checkpoints, stored))
    with pytest.raises(Conflict, match="the progress of tables cannot be removed") as refused:
        pipelines.delete("tables")
    assert "--keep-progress" in str(refused.value)
    assert mine.exists()
    assert pipelines.get("tables") == stored
    pipelines.delete("tables", keep_progress=True)
    assert not mine.exists()


def test_a_deleted_pipeline_into_a_topic_leaves_no_progress_document(place: Place) -> None:
    pipelines = Pipelines(place)
    stored = define(pipelines, target={"topic": "out"})

    async def progress(make: bool) -> Definition | None:
        metadata = await pipelines.connection.metadata()
        own = stored.definition_id
        if make:
            await metadata.create_definition(
                PROGRESS_KIND, own.hex, definition_id=own, document="{}", wanted=WantedState.STOPPED
            )
        return await metadata.get_definition(PROGRESS_KIND, own.hex)

    assert pipelines.connection.run(progress(True)) is not None
    pipelines.delete("tables")
    assert pipelines.connection.run(progress(False)) is None


def test_a_deleted_table_leaves_its_rows_unless_they_are_to_go(place: Place, tmp_path: Path) -> None:
    service = Tables(place)
    for name in ("kept", "gone"):
        storage = storage_of("delta", str(tmp_path / "lake" / name), "none", "")
        values = ValueSpec(format=ValueFormat.JSON)
        spec = TableSpec(name=name, topic="orders", storage=storage, values=values)
        stored = service.create(spec, WantedState.STOPPED)
        service._store(stored).create(row_schema(spec))
        mine = filled(checkpoint_of(place.checkpoints, stored))
        assert [each.path for each in service.checkpoints(name)] == [mine]
        service.delete(name, data=name == "gone")
        assert not mine.exists()
        assert (tmp_path / "lake" / name).exists() is (name == "kept")
