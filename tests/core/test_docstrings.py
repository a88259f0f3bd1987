"""A docstring of streamhouse, the benchmarks and the simulator is understood without the line above it (style, 15).

One that begins with "Of" or "From" goes on from the name above it: it has no subject and no verb. Modules are read as
syntax trees; none of them is imported. A text below an attribute counts as a docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("src", "bench", "simulator")


def texts(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


@pytest.fixture(scope="module")
def docstrings() -> dict[str, str]:
    """Each docstring by its place."""
    return {
        f"{path.relative_to(ROOT)}:{text.lineno}": text.value.strip()
        for place in PLACES
        for path in sorted((ROOT / place).rglob("*.py"))
        for text in texts(ast.parse(path.read_text()))
    }


def test_no_docstring_goes_on_from_the_line_above_it(docstrings: dict[str, str]) -> None:
    assert len(docstrings) > 3000
    fragment = re.compile(r"(Of|From|As above|As below|Ditto|Likewise)\b")
    assert [place for place, text in docstrings.items() if fragment.match(text)] == []


def test_docstrings_name_who_acts(docstrings: dict[str, str]) -> None:
    riddle = re.compile(r"\b(whoever|nobody|somebody)\b", re.IGNORECASE)
    assert [place for place, text in docstrings.items() if riddle.search(text)] == []
