"""Clock and randomness are injected: no other module may use the real ones.

Every module is read as a syntax tree, so that an alias or a from-import does not slip through.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from streamhouse.core.settings import NON_SETTING_VARIABLES, SCHEMA

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "streamhouse"
SIMULATOR = ROOT / "simulator"
OWNERS = {SRC / "core" / "clock.py", SRC / "core" / "randomness.py"}
# The test kit and chaos runs wait for real processes, and the command line measures what a person sees; none of them is
# ever simulated.
OUTSIDE_THE_SIMULATION = (SRC / "testing", SRC / "cli", SRC / "chaos")

AMBIENT = {
    "time": {"time", "time_ns"},
    "uuid": {"uuid1", "uuid4"},
    "datetime": {"now", "utcnow", "today"},
    "random": {"*"},
    "secrets": {"*"},
}
AMBIENT_IN_A_SIMULATION = {
    "time": {
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "clock_gettime",
        "clock_gettime_ns",
        "sleep",
    },
    "os": {"urandom"},
}


def uses(tree: ast.AST, banned: dict[str, set[str]]) -> list[str]:
    aliases: dict[str, str] = {}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name] = name.name
                if "*" in banned.get(name.name, ()):
                    found.append(f"line {node.lineno}: import {name.name}")
        elif isinstance(node, ast.ImportFrom) and node.module in banned:
            for name in node.names:
                aliases[name.asname or name.name] = node.module
                if name.name in banned[node.module] or "*" in banned[node.module]:
                    found.append(f"line {node.lineno}: from {node.module} import {name.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            module = aliases.get(root.id) if isinstance(root, ast.Name) else None
            if module in banned and node.attr in banned[module]:
                found.append(f"line {node.lineno}: {module}.{node.attr}")
    return found


def banned_for(path: Path) -> dict[str, set[str]]:
    if any(path.is_relative_to(place) for place in OUTSIDE_THE_SIMULATION):
        return AMBIENT
    return {
        module: AMBIENT.get(module, set()) | AMBIENT_IN_A_SIMULATION.get(module, set()) for module in {*AMBIENT, "os"}
    }


def test_no_module_reads_a_clock_or_draws_a_random_number_on_its_own() -> None:
    offenders = {}
    for path in sorted((*SRC.rglob("*.py"), *SIMULATOR.rglob("*.py"))):
        if path not in OWNERS:
            found = uses(ast.parse(path.read_text()), banned_for(path))
            if found:
                offenders[str(path.relative_to(ROOT))] = found
    assert offenders == {}


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nt.time_ns()",
        "from time import time",
        "from time import monotonic as clock",
        "import random",
        "from random import choice",
        "import uuid\nuuid.uuid4()",
        "from uuid import uuid4",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.utcnow()",
        "import os\nos.urandom(1)",
        "import secrets",
    ],
)
def test_the_check_sees_every_way_to_cheat(source: str) -> None:
    assert uses(ast.parse(source), banned_for(SRC / "core" / "x.py"))


@pytest.mark.parametrize(
    "source", ["import time\ntime.strftime('%Y')", "import uuid\nuuid.UUID(int=1)", "import os\nos.path"]
)
def test_the_check_leaves_innocent_code_alone(source: str) -> None:
    assert uses(ast.parse(source), banned_for(SRC / "core" / "x.py")) == []


def test_every_streamhouse_variable_in_the_code_is_a_setting_or_listed() -> None:
    known = {setting.variable for setting in SCHEMA} | set(NON_SETTING_VARIABLES)
    mentioned: dict[str, str] = {}
    for path in SRC.rglob("*.py"):
        for name in re.findall(r"\bSTREAMHOUSE_[A-Z0-9_]*[A-Z0-9]\b", path.read_text()):
            mentioned[name] = str(path.relative_to(SRC))
    assert {name: place for name, place in mentioned.items() if name not in known} == {}
