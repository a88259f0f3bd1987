"""No two classes of streamhouse and the simulator share a name.

A name that stands for two things has to be read together with its import. Classes of the simulator that stand for a
part of the real system begin with ``Sim``. Modules are read as syntax trees; none of them is imported.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("src/streamhouse", "simulator")


def classes_by_name() -> dict[str, list[str]]:
    """Each name with the places of its classes, those within functions and classes too."""
    found = defaultdict(list)
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_no_two_classes_share_a_name() -> None:
    classes = classes_by_name()
    assert len(classes) > 900
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}
