"""Definitions: what people want to exist and run, edited by version, and what runners say of it."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from harness import Backend

from streamhouse.core import limits
from streamhouse.core.errors import (
    DefinitionChanged,
    DefinitionExists,
    DefinitionNotFound,
    InvalidRequest,
    LimitExceeded,
)
from streamhouse.metadata.contract import Change, ChangeKind, Definition, WantedState

RUNNING, STOPPED = WantedState.RUNNING, WantedState.STOPPED


async def define(backend: Backend, name: str = "orders", *, kind: str = "table", document: str = "{}") -> Definition:
    return await backend.store.create_definition(
        kind, name, definition_id=backend.uuid(), document=document, wanted=RUNNING
    )


async def test_a_definition_is_found_again_as_it_was_written(backend: Backend) -> None:
    made = await define(backend, document='{"é": "ß"}')
    assert (made.kind, made.name, made.document) == ("table", "orders", '{"é": "ß"}')
    assert (made.version, made.wanted) == (1, RUNNING)
    assert (made.created_at_ms, made.updated_at_ms) == (backend.now_ms, backend.now_ms)
    assert (made.status, made.status_at_ms) == ("", 0)
    other = await backend.open_another()
    assert await other.get_definition("table", "orders") == made
    assert await other.get_definition("pipeline", "orders") is None
    assert await other.get_definition("table", "Orders") is None


async def test_defining_again_is_a_repeat_for_the_same_id_and_refused_for_another(backend: Backend) -> None:
    made = await define(backend)
    changed = await backend.store.update_definition("table", "orders", expected_version=1, document="new")
    again = await backend.store.create_definition(
        "table", "orders", definition_id=made.definition_id, document="{}", wanted=RUNNING
    )
    assert again == changed
    with pytest.raises(DefinitionExists, match="table 'orders'"):
        await define(backend)
    assert (await define(backend, kind="pipeline")).version == 1


async def test_each_change_counts_and_leaves_the_rest(backend: Backend) -> None:
    made = await define(backend, document="one")
    await backend.advance(10)
    stopped = await backend.store.update_definition("table", "orders", expected_version=1, wanted=STOPPED)
    assert stopped == dataclasses.replace(made, version=2, wanted=STOPPED, updated_at_ms=backend.now_ms)
    both = await backend.store.update_definition("table", "orders", expected_version=2, document="two", wanted=RUNNING)
    assert (both.document, both.wanted, both.version) == ("two", RUNNING, 3)


async def test_a_change_made_from_an_older_version_is_refused(backend: Backend) -> None:
    await define(backend, document="one")
    await backend.store.update_definition("table", "orders", expected_version=1, document="two")
    with pytest.raises(DefinitionChanged, match="at version 2, not 1"):
        await backend.store.update_definition("table", "orders", expected_version=1, document="three")
    repeat = await backend.store.update_definition("table", "orders", expected_version=1, document="two")
    assert (repeat.document, repeat.version) == ("two", 2)
    with pytest.raises(DefinitionNotFound, match="no table 'clicks'"):
        await backend.store.update_definition("table", "clicks", expected_version=1, document="two")


async def test_of_concurrent_changes_one_wins(backend: Backend) -> None:
    await define(backend, document="one")
    other = await backend.open_another()
    outcomes = await asyncio.gather(
        *(
            (backend.store, other)[index % 2].update_definition(
                "table", "orders", expected_version=1, document=f"by {index}"
            )
            for index in range(6)
        ),
        return_exceptions=True,
    )
    (won,) = [each for each in outcomes if isinstance(each, Definition)]
    assert sum(isinstance(each, DefinitionChanged) for each in outcomes) == 5
    assert await backend.store.get_definition("table", "orders") == won


async def test_of_concurrent_creators_one_wins(backend: Backend) -> None:
    other = await backend.open_another()
    for turn in range(5):
        outcomes = await asyncio.gather(
            *(
                (backend.store, other)[index % 2].create_definition(
                    "table", f"t-{turn}", definition_id=backend.uuid(), document=str(index), wanted=RUNNING
                )
                for index in range(4)
            ),
            return_exceptions=True,
        )
        (won,) = [each for each in outcomes if isinstance(each, Definition)]
        assert sum(isinstance(each, DefinitionExists) for each in outcomes) == 3
        assert await backend.store.get_definition("table", f"t-{turn}") == won


async def test_what_a_runner_says_changes_no_version(backend: Backend) -> None:
    made = await define(backend)
    await backend.advance(10)
    assert await backend.store.report_definition("table", "orders", definition_id=made.definition_id, status="batch 7")
    found = await backend.store.get_definition("table", "orders")
    assert found == dataclasses.replace(made, status="batch 7", status_at_ms=backend.now_ms)
    assert not await backend.store.report_definition("table", "orders", definition_id=backend.uuid(), status="x")
    assert not await backend.store.report_definition("table", "no", definition_id=made.definition_id, status="x")
    assert await backend.store.get_definition("table", "orders") == found


async def test_a_deletion_is_of_one_id_and_not_of_its_successor(backend: Backend) -> None:
    first = await define(backend)
    assert not await backend.store.delete_definition("table", "orders", definition_id=backend.uuid())
    assert await backend.store.delete_definition("table", "orders", definition_id=first.definition_id)
    assert not await backend.store.delete_definition("table", "orders", definition_id=first.definition_id)
    second = await define(backend)
    assert not await backend.store.delete_definition("table", "orders", definition_id=first.definition_id)
    assert await backend.store.get_definition("table", "orders") == second


async def test_definitions_are_listed_by_kind_and_name(backend: Backend) -> None:
    for kind, name in (("table", "b"), ("pipeline", "z"), ("table", "B"), ("table", "a_1"), ("table", "a")):
        await define(backend, name, kind=kind)
    assert [each.name for each in await backend.store.list_definitions("table")] == ["B", "a", "a_1", "b"]
    assert [each.kind for each in await backend.store.list_definitions()] == ["pipeline", *["table"] * 4]
    assert await backend.store.list_definitions("view") == []


async def test_every_change_of_a_definition_is_told_to_other_processes(backend: Backend) -> None:
    other = await backend.open_another()

    async def told(changes: object) -> Change:
        async with asyncio.timeout(30):
            return await anext(changes)  # type: ignore[call-overload,no-any-return]

    async with other.subscribe() as changes:
        made = await define(backend)
        expected = (Change(kind=ChangeKind.DEFINITIONS, name="table"), Change(kind=ChangeKind.ANY))
        assert await told(changes) in expected
        await backend.store.update_definition("table", "orders", expected_version=1, wanted=STOPPED)
        assert await told(changes) in expected
        await backend.store.delete_definition("table", "orders", definition_id=made.definition_id)
        assert await told(changes) in expected


async def test_a_malformed_definition_is_refused(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, name, document in (("", "a", "x"), ("table", "", "x"), ("table", "a\0", "x"), ("table", "a", "")):
        with pytest.raises(InvalidRequest):
            await define(backend, name, kind=kind, document=document)
    with pytest.raises(LimitExceeded):
        await define(backend, document="x" * (limits.MAX_DEFINITION_BYTES + 1))
    with pytest.raises(LimitExceeded):
        await define(backend, "n" * (limits.MAX_NAME_BYTES + 1))
    made = await define(backend)
    with pytest.raises(LimitExceeded):
        await backend.store.report_definition(
            "table", "orders", definition_id=made.definition_id, status="x" * (limits.MAX_JSON_METADATA_BYTES + 1)
        )
    monkeypatch.setattr(limits, "MAX_DEFINITIONS", 2)
    await define(backend, "two")
    with pytest.raises(LimitExceeded, match="kind table"):
        await define(backend, "three")
    assert [each.name for each in await backend.store.list_definitions()] == ["orders", "two"]
