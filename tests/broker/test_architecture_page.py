"""docs/architecture.md walks through the code by name; every function that it names exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
NAMED = re.compile(r"`([a-z_0-9/]+)\.py:([A-Za-z_.]+)`")


def test_the_functions_that_the_page_names_exist() -> None:
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) >= 20, "a produce, a fetch and a take-over"
    for path, name in named:
        found: object = importlib.import_module("streamhouse." + path.replace("/", "."))
        for part in name.split("."):
            assert hasattr(found, part), f"{path}.py has no {name}"
            found = getattr(found, part)
