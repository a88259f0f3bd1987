"""docs/architecture.md walks through the code by name: the functions that it names exist; its lists are complete."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "streamhouse"
NAMED = re.compile(r"`([a-z_0-9/]+)\.py:([A-Za-z_.]+)`")
ROW = re.compile(r"^\| (`[a-z_/]+\.py`(?:, `[a-z_/]+\.py`)*) \|", re.MULTILINE)
DISPATCH = {"broker/writes.py"}
"""Knows the modes only to find the writer of one."""


def test_the_functions_that_the_page_names_exist() -> None:
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) >= 20, "a produce, a fetch and a take-over"
    for path, name in named:
        found: object = importlib.import_module("streamhouse." + path.replace("/", "."))
        for part in name.split("."):
            assert hasattr(found, part), f"{path}.py has no {name}"
            found = getattr(found, part)
        assert inspect.isroutine(found), f"{path}.py:{name} names no function: a reader looks for what runs"


def knows_modes(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and (node.attr == "leaderless" or (isinstance(node.value, ast.Name) and node.value.id == "WriteMode"))
        for node in ast.walk(tree)
    )


def test_the_page_lists_the_modules_that_know_the_write_modes() -> None:
    found = {
        path.relative_to(SOURCE).as_posix()
        for package in ("gateway", "spark", "broker", "maintenance", "cluster", "log")
        for path in (SOURCE / package).rglob("*.py")
        if knows_modes(ast.parse(path.read_text(encoding="utf-8")))
    }
    listed = {each.strip("`") for row in ROW.findall(PAGE.read_text(encoding="utf-8")) for each in row.split(", ")}
    assert found - DISPATCH == listed
