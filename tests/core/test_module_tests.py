"""Every module that decides something has a test file of its name.

A module decides if it branches: three or more ``if``, ``while``, ``match`` or ``except``. Its file is
``test_<module>.py`` or ``test_<package>_<module>.py``. In the packages listed below, modules pass on what others
decide, or need a whole system around them; the list says which tests cover them.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/streamhouse"
BRANCHES = (ast.If, ast.IfExp, ast.While, ast.Match, ast.ExceptHandler)
LEAST_BRANCHES = 3

COVERED_TOGETHER = {
    "app": "wiring; tests/app and tests/e2e start whole processes",
    "chaos/fleet": "processes of a fleet; tests/chaos/test_chaos_run.py runs one",
    "chaos/load": "client programs; tests/chaos/test_chaos_run.py runs them",
    "cli": "tests/cli runs the commands",
    "cli/commands": "tests/cli runs the commands",
    "core/settings": "declarations; tests/core/settings/test_settings_rules.py and the generated reference",
    "gateway/kafka/handlers": "translate requests; tests/gateway/kafka/{admin,data,groups} have them by kind",
    "metadata/postgres": "one implementation of the store; tests/metadata/contract runs on all of them",
    "metadata/rows": "one implementation of the store; tests/metadata/contract runs on all of them",
    "metadata/sqlite": "one implementation of the store; tests/metadata/contract runs on all of them",
    "objectstore": "tests/objectstore/test_objectstore_contract.py runs on all stores",
    "spark": "code inside of Spark; tests/spark/test_source_* and test_sink_* run it there",
    "spark/definitions": "code inside of Spark; tests/spark/definitions and pipelines run it there",
    "spark/pipelines": "code inside of Spark; tests/spark/pipelines runs it there",
    "spark/tables": "code inside of Spark; tests/spark/tables runs it there",
    "testing/services": "for tests; tests/testing",
}
"""Packages in which a module without a file of its name is covered by tests of the whole."""


def deciding_modules() -> list[Path]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name.startswith("__"):
            continue
        tree = ast.parse(path.read_text())
        if sum(isinstance(node, BRANCHES) for node in ast.walk(tree)) >= LEAST_BRANCHES:
            found.append(path.relative_to(SOURCE))
    return found


def names_of_its_test(module: Path) -> set[str]:
    name, packages = module.stem.strip("_"), module.parts[:-1]
    return {f"test_{name}.py"} | {f"test_{'_'.join(packages[-i:])}_{name}.py" for i in range(1, len(packages) + 1)}


def test_every_module_that_decides_has_a_test_file_of_its_name() -> None:
    existing = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    modules = deciding_modules()
    assert len(modules) > 250
    without = [
        str(module)
        for module in modules
        if not names_of_its_test(module) & existing and str(module.parent) not in COVERED_TOGETHER
    ]
    assert not without


def test_the_list_of_exceptions_has_no_package_that_needs_none() -> None:
    existing = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    needed = {str(module.parent) for module in deciding_modules() if not names_of_its_test(module) & existing}
    assert set(COVERED_TOGETHER) - needed == set()
