"""A module that decides something has a test file of its name, or is in a package that is excused here.

A module decides if it branches: three or more ``if``, ``while``, ``match`` or ``except``. Its file is
``test_<module>.py`` or ``test_<package>_<module>.py`` in the folder of its top package: a test of ``metadata`` does
not count for a module of ``spark``. The modules of an excused package pass on what others decide, or need a whole
system around them. Such a package may have any number of modules without a test file of their name; its excuse says
which tests cover them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/streamhouse"
BRANCHES = (ast.If, ast.IfExp, ast.While, ast.Match, ast.ExceptHandler)
LEAST_BRANCHES = 3

EXCUSED = {
    "app": "wiring: tests/app and tests/e2e start whole processes",
    "chaos/fleet": "processes of a fleet: tests/chaos/test_chaos_run.py runs one",
    "chaos/load": "client programs: tests/chaos/test_chaos_run.py runs them",
    "cli": "what commands share: tests/cli runs the commands as a user does",
    "cli/commands": "commands: tests/cli, tests/chaos, tests/spark and tests/app/test_demo.py run them as a user does",
    "core/settings": "declarations: tests/core/settings/test_settings_rules.py checks them",
    "gateway/kafka/handlers": "translation of requests: tests/gateway/kafka/admin, tests/gateway/kafka/data and "
    "tests/gateway/kafka/groups send requests of every kind",
    "maintenance/key_compaction": "one rewrite: tests/maintenance/key_compaction/test_key_compaction_model.py compares "
    "whole passes with a plain model of Kafka's cleaner",
    "maintenance/verify": "one walk: tests/maintenance/verify/test_verify_damages.py injects every damage and looks "
    "for its finding",
    "metadata/postgres": "one implementation of the store: tests/metadata/contract runs on all of them",
    "metadata/rows": "what both SQL stores share: tests/metadata/contract runs on both of them",
    "metadata/sqlite": "one implementation of the store: tests/metadata/contract runs on all of them",
    "objectstore": "one store of several: tests/objectstore/test_objectstore_contract.py runs on all of them",
    "spark": "code inside of Spark: tests/spark/test_source_*.py and tests/spark/test_sink_*.py run it there",
    "spark/definitions": "code inside of Spark: tests/spark/definitions and tests/spark/pipelines run it there",
    "spark/maintenance": "code inside of Spark: tests/spark/maintenance runs it there",
    "spark/pipelines": "code inside of Spark: tests/spark/pipelines runs it there",
    "spark/tables": "code inside of Spark: tests/spark/tables/test_table_*.py run it there",
    "testing/services": "services for tests: tests/testing starts them",
}
"""Packages in which a module needs no test file of its name, each with the tests that cover its modules together."""


def deciding_modules() -> list[Path]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name.startswith("__"):
            continue
        tree = ast.parse(path.read_text())
        if sum(isinstance(node, BRANCHES) for node in ast.walk(tree)) >= LEAST_BRANCHES:
            found.append(path.relative_to(SOURCE))
    return found


def has_test_file_of_its_name(module: Path) -> bool:
    name, packages = module.stem.strip("_"), module.parts[:-1]
    names = [name, *(f"{'_'.join(packages[-count:])}_{name}" for count in range(1, len(packages) + 1))]
    folder = ROOT / "tests" / module.parts[0]
    return any(next(folder.rglob(f"test_{each}.py"), None) for each in names)


def modules_without() -> list[Path]:
    return [module for module in deciding_modules() if not has_test_file_of_its_name(module)]


def test_every_module_that_decides_has_a_test_file_of_its_name_or_is_in_an_excused_package() -> None:
    assert len(deciding_modules()) > 250
    assert [str(module) for module in modules_without() if str(module.parent) not in EXCUSED] == []


def test_most_modules_that_decide_need_no_excuse() -> None:
    assert len(modules_without()) < len(deciding_modules()) / 2


def test_every_excused_package_needs_its_excuse() -> None:
    assert EXCUSED.keys() - {str(module.parent) for module in modules_without()} == set()


def test_the_tests_that_an_excuse_names_exist() -> None:
    for package, excuse in EXCUSED.items():
        named = re.findall(r"tests/[\w/*.]*\w", excuse)
        assert named, package
        assert [each for each in named if not list(ROOT.glob(each))] == [], package
