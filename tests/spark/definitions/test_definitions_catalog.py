"""Definitions in the metadata store: made, found, changed one at a time, started anew, left out if unreadable."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import CorruptDocument, DefinitionChanged, DefinitionExists, DefinitionNotFound
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import WantedState
from streamhouse.metadata.sqlite.connections import MEMORY
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.spark.definitions.catalog import Catalog
from streamhouse.spark.pipelines.parsing import PIPELINES, load_pipeline
from streamhouse.spark.pipelines.spec import PipelineSpec

RUNNING, STOPPED = WantedState.RUNNING, WantedState.STOPPED


def spec(name: str = "orders", sql: str = "SELECT value FROM a", **more: object) -> PipelineSpec:
    return load_pipeline({"name": name, "sources": "a", "sql": sql, "target": {"topic": "out"}, **more})


@pytest.fixture
async def metadata() -> AsyncIterator[SqliteMetadata]:
    store = SqliteMetadata(MEMORY, clock=ManualClock(), randomness=SeededRandomness(1), threads=False)
    async with store:
        yield store


@pytest.fixture
def catalog(metadata: SqliteMetadata) -> Catalog[PipelineSpec]:
    return Catalog(metadata, PIPELINES, SeededRandomness(2))


async def test_what_is_defined_is_found_as_it_was_and_only_once_under_its_name(catalog: Catalog[PipelineSpec]) -> None:
    made = await catalog.create(spec(), RUNNING)
    assert await catalog.get("orders") == made
    assert (made.spec, made.generation, made.wanted, made.ends) == (spec(), 0, RUNNING, False)
    with pytest.raises(DefinitionExists):
        await catalog.create(spec(sql="SELECT 1"), RUNNING)
    assert await catalog.find("other") is None


async def test_a_name_that_is_not_there_is_refused_with_one_that_is(catalog: Catalog[PipelineSpec]) -> None:
    await catalog.create(spec(), RUNNING)
    with pytest.raises(DefinitionNotFound, match="there is no pipeline 'order'") as refused:
        await catalog.get("order")
    assert "orders" in str(refused.value.hint)
    with pytest.raises(DefinitionNotFound) as refused:
        await catalog.get("zzz")
    assert "streamhouse pipeline list" in str(refused.value.hint)


async def test_of_two_changes_of_one_version_the_second_is_refused(catalog: Catalog[PipelineSpec]) -> None:
    seen = await catalog.create(spec(), RUNNING)
    changed = await catalog.replace(seen, spec(sql="SELECT key FROM a"))
    assert (changed.spec.sql, changed.wanted, changed.generation) == ("SELECT key FROM a", RUNNING, 0)
    with pytest.raises(DefinitionChanged):
        await catalog.replace(seen, spec(sql="SELECT 2"))
    assert await catalog.get("orders") == changed


async def test_a_reset_begins_the_next_generation_and_a_stop_does_not(catalog: Catalog[PipelineSpec]) -> None:
    first = await catalog.create(spec(), RUNNING)
    stopped = await catalog.want("orders", STOPPED)
    assert (stopped.wanted, stopped.generation, stopped.run_key) == (STOPPED, 0, first.run_key)
    anew = await catalog.want("orders", RUNNING, reset=True)
    assert (anew.wanted, anew.generation) == (RUNNING, 1)
    assert anew.run_key != first.run_key


async def test_wanting_tries_again_when_another_process_edits_it_meanwhile(
    catalog: Catalog[PipelineSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    await catalog.create(spec(), RUNNING)
    real, others = catalog.get, [spec(sql="SELECT key FROM a")]

    async def get(name: str) -> object:
        found = await real(name)
        if others:
            await catalog.replace(found, others.pop())
        return found

    monkeypatch.setattr(catalog, "get", get)
    stopped = await catalog.want("orders", STOPPED)
    assert (stopped.wanted, stopped.spec.sql) == (STOPPED, "SELECT key FROM a"), "the other's edit is kept"


async def test_one_that_is_deleted_and_defined_again_is_another(catalog: Catalog[PipelineSpec]) -> None:
    first = await catalog.create(spec(), RUNNING)
    assert await catalog.report(first, "running")
    assert (await catalog.get("orders")).report == "running"
    await catalog.delete(first)
    second = await catalog.create(spec(), RUNNING)
    assert second.definition_id != first.definition_id
    assert second.run_key != first.run_key
    assert not await catalog.report(first, "of the old one")
    assert (await catalog.get("orders")).report == ""


async def test_one_that_cannot_be_read_is_left_out_of_the_list_and_told(
    catalog: Catalog[PipelineSpec], metadata: SqliteMetadata, caplog: pytest.LogCaptureFixture
) -> None:
    await catalog.create(spec("good"), RUNNING)
    for name, document in (("newer", '{"spec": {"name": "newer", "colour": 1}, "generation": 0}'), ("odd", "[]")):
        await metadata.create_definition(
            "pipeline", name, definition_id=SeededRandomness(len(name)).uuid(), document=document, wanted=RUNNING
        )
    with caplog.at_level(logging.WARNING):
        assert [each.name for each in await catalog.list()] == ["good"]
    assert len(caplog.records) == 2
    with pytest.raises(CorruptDocument, match="the definition of the pipeline newer cannot be read") as refused:
        await catalog.get("newer")
    assert "another version" in str(refused.value.hint)
