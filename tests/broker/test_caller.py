"""Every operation that a front end calls on the broker takes the caller, so that access control finds it there.

Read from the source, not from a run: a new operation, or a new call of a front end, fails here if the caller is
missing. mypy sees to it that each call passes one, because the argument has no default.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamhouse.broker.broker import Broker
from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.configs import Configs
from streamhouse.broker.fetch import Fetch
from streamhouse.broker.groups.coordinator import GroupCoordinator
from streamhouse.broker.groups.inspection import Inspection
from streamhouse.broker.groups.membership import Membership
from streamhouse.broker.groups.offsets import Offsets
from streamhouse.broker.leading import Leading
from streamhouse.broker.log_offsets import LogOffsets
from streamhouse.broker.produce import Produce
from streamhouse.broker.producer_ids import ProducerIds
from streamhouse.broker.reads import Reads
from streamhouse.broker.simple_offsets import SimpleOffsets
from streamhouse.broker.topics import TopicAdmin
from streamhouse.broker.writes import Writes

SOURCE = Path(__file__).parents[2] / "src/streamhouse"
FRONT_ENDS = [*sorted((SOURCE / "gateway").rglob("*.py")), SOURCE / "app/platform.py", SOURCE / "app/story.py"]

PARTS: dict[str, type] = {
    "view": ClusterView,
    "topics": TopicAdmin,
    "configs": Configs,
    "produce": Produce,
    "fetch": Fetch,
    "offsets": LogOffsets,
    "leading": Leading,
    "writes": Writes,
    "reads": Reads,
    "groups": GroupCoordinator,
    "groups.members": Membership,
    "groups.offsets": Offsets,
    "groups.inspection": Inspection,
    "simple_offsets": SimpleOffsets,
    "producer_ids": ProducerIds,
}
NO_PARTS = {"settings", "clock"}

ONLY_OPERATIONS = {
    "topics", "configs", "produce", "fetch", "offsets", "leading",
    "groups.members", "groups.offsets", "groups.inspection", "simple_offsets", "producer_ids",
}  # fmt: skip
"""Parts whose public methods all are operations of front ends. Of the others, only what front ends call."""

WITHOUT_CALLER = {
    "groups.offsets.latest": "for the metrics of the process",
    "reads.known_log_start": "a number in memory, for the answer to a write that had its caller",
    "view.controller": "memory",
    "view.endpoint": "memory",
    "view.find_leaders": "makes the view know the leaders of topics that the caller has found; answers nothing",
    "view.generation": "memory",
    "view.leader": "memory",
    "view.leaders_of": "memory",
    "view.nodes": "memory",
    "view.topic": "memory",
    "view.topic_by_id": "memory",
    "view.topics": "memory",
}
"""What front ends may call without one, and why. The view is what this agent knows; no operation reads or changes."""


def dotted(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """What an expression names below the broker: ``call.broker.topics.fresh`` is ``topics.fresh``."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    if node.attr == "broker":
        return ""
    above = dotted(node.value, aliases)
    return None if above is None else f"{above}.{node.attr}".lstrip(".")


def bindings(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=True)
                else:
                    yield target, node.value


def used(tree: ast.AST) -> set[str]:
    """The methods of the broker's parts that a module names, also by way of a local variable."""
    found = set[str]()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        aliases: dict[str, str] = {}
        for target, value in bindings(function):
            below = dotted(value, aliases)
            if isinstance(target, ast.Name) and below is not None:
                aliases[target.id] = below
        for node in ast.walk(function):
            below = dotted(node, aliases) if isinstance(node, ast.Attribute) else None
            part, _, method = (below or "").rpartition(".")
            if part in PARTS and callable(getattr(PARTS[part], method, None)):
                found.add(f"{part}.{method}")
    return found


def used_by_front_ends() -> set[str]:
    return set[str]().union(*(used(ast.parse(path.read_text())) for path in FRONT_ENDS))


def takes_caller(method: Callable[..., Any]) -> bool:
    """As a keyword without a default: no call can forget it."""
    caller = inspect.signature(method).parameters.get("caller")
    return caller is not None and caller.kind is caller.KEYWORD_ONLY and caller.default is caller.empty


def without_caller(operations: set[str]) -> list[str]:
    return sorted(
        each
        for each in operations
        if each not in WITHOUT_CALLER
        and not takes_caller(getattr(PARTS[each.rpartition(".")[0]], each.rpartition(".")[2]))
    )


def test_the_parts_of_the_broker_are_known_here() -> None:
    assert {field.name for field in dataclasses.fields(Broker)} == {
        part for part in PARTS if "." not in part
    } | NO_PARTS


def test_the_calls_of_front_ends_are_found() -> None:
    found = used_by_front_ends()
    assert len(found) > 45
    assert {
        "produce.begin",
        "fetch.begin",
        "groups.members.join",
        "groups.offsets.commit",
        "groups.find_coordinators",
        "writes.delete_before",
        "reads.writers",
        "configs.describe_broker",
        "topics.check_reassignment",
        "simple_offsets.commit",
    } <= found


def test_every_operation_that_a_front_end_calls_takes_the_caller() -> None:
    assert without_caller(used_by_front_ends()) == []


@pytest.mark.parametrize("part", sorted(ONLY_OPERATIONS))
def test_an_operation_that_no_front_end_calls_yet_takes_the_caller_too(part: str) -> None:
    methods = {name for name, _ in inspect.getmembers(PARTS[part], inspect.isfunction) if not name.startswith("_")}
    assert without_caller({f"{part}.{name}" for name in methods}) == []


def test_every_exception_is_needed() -> None:
    assert set(WITHOUT_CALLER) - {"groups.offsets.latest"} <= used_by_front_ends()


def test_a_call_through_a_local_name_is_seen() -> None:
    source = """
async def handler(call):
    admin, name = call.broker.topics, call.name
    groups = call.broker.groups
    await admin.fresh(name)
    ask(groups.members.leave)
"""
    assert used(ast.parse(source)) == {"topics.fresh", "groups.members.leave"}
