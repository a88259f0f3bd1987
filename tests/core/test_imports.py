"""Imports stand at the top of a module, and no module of ours needs itself (style, habit 2).

A local import hides what a module needs and is the usual way round an import cycle. The one good reason for it is a
package that is not installed everywhere: the optional extras of pyproject.toml, and those modules of ours that import
such a package at their top. A module that needs the package anyway imports it at its top. Modules are read as syntax
trees; none of them is imported.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Container, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = {"streamhouse": ROOT / "src" / "streamhouse", "simulator": ROOT / "simulator"}

LOCAL_IMPORTS = {
    "streamhouse.__getattr__": "the API is loaded when it is first asked for; the command line starts without it",
    "streamhouse.spark.shim.make_source": "Spark sends it by value to executors that do not have StreamHouse",
    "streamhouse.spark.shim.make_writers": "the same",
    "streamhouse.spark.definitions.targets.by_value": "the same",
}
"""Functions that may import anything, and why."""

IMPORT_NAMES = {"pyyaml": "yaml", "grpcio": "grpc"}
"""What a distribution is imported as, where that is not its own name."""

Import = ast.Import | ast.ImportFrom
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    """The syntax tree of every module of ours."""
    return {
        ".".join((place, *(part for part in path.relative_to(folder).with_suffix("").parts if part != "__init__"))): (
            ast.parse(path.read_text())
        )
        for place, folder in PLACES.items()
        for path in sorted(folder.rglob("*.py"))
    }


def optional_packages() -> set[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {
        re.split(r"[^\w.-]", requirement)[0].lower()
        for extra, requirements in extras.items()
        if extra != "dev"
        for requirement in requirements
    }
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


def top_imports(node: ast.AST) -> Iterator[Import]:
    """Imports that run when the module is imported, those behind `if` and `try` too; not those for types only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Import):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from top_imports(ast.Module(child.orelse, []))
        elif not isinstance(child, Function):
            yield from top_imports(child)


def local_imports(node: ast.AST, within: str) -> Iterator[tuple[str, Import]]:
    """Imports inside functions, each with the full name of the outermost function around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            name = f"{within}.{getattr(child, 'name', '<lambda>')}"
            yield from ((name, each) for each in ast.walk(child) if isinstance(each, Import))
        else:
            yield from local_imports(child, f"{within}.{child.name}" if isinstance(child, ast.ClassDef) else within)


def imported(node: Import, ours: Container[str]) -> set[str]:
    """The modules that an import names: `from a import b` names a.b if that is a module of ours, else a."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    assert node.level == 0, f"line {node.lineno}: a relative import"
    named = {f"{node.module}.{alias.name}" for alias in node.names}
    return {name if name in ours else str(node.module) for name in named}


def graph(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """What each module imports at its top."""
    return {
        name: {each for node in top_imports(tree) for each in imported(node, modules)} for name, tree in modules.items()
    }


def with_packages(name: str) -> Iterator[str]:
    """A module and the packages around it, which Python imports before it."""
    parts = name.split(".")
    return (".".join(parts[: end + 1]) for end in range(len(parts)))


def needs(optional: set[str], edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The optional packages without which a module of ours cannot be imported; and each package needs itself."""
    found = {**{name: set[str]() for name in edges}, **{package: {package} for package in optional}}
    changed = True
    while changed:
        changed = False
        for name, targets in edges.items():
            more = set[str]().union(
                *(found.get(each, ()) for target in (*targets, name) for each in with_packages(target))
            )
            changed |= not more <= found[name]
            found[name] |= more
    return found


def misplaced(modules: Mapping[str, ast.Module]) -> list[str]:
    """Local imports without a reason: what they import needs no optional package that their module can do without."""
    needed = needs(optional_packages(), graph(modules))

    def is_optional(each: str, name: str) -> bool:
        return any(needed.get(part, set()) - needed[name] for part in with_packages(each))

    return [
        f"{place}, line {node.lineno}: {ast.unparse(node)}"
        for name, tree in modules.items()
        for place, node in local_imports(tree, name)
        if place not in LOCAL_IMPORTS and not all(is_optional(each, name) for each in imported(node, modules))
    ]


def cycle(modules: Mapping[str, ast.Module]) -> list[str]:
    edges = graph(modules)
    try:
        TopologicalSorter({name: {each for each in edges[name] if each in edges} for name in edges}).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_functions_import_nothing_but_optional_extras(modules: dict[str, ast.Module]) -> None:
    assert misplaced(modules) == []


def test_every_exception_is_needed(modules: dict[str, ast.Module]) -> None:
    found = {place for name, tree in modules.items() for place, _ in local_imports(tree, name)}
    assert set(LOCAL_IMPORTS) <= found


def test_no_module_needs_itself(modules: dict[str, ast.Module]) -> None:
    assert cycle(modules) == []


def trees(**sources: str) -> dict[str, ast.Module]:
    return {name.replace("__", "."): ast.parse(source) for name, source in sources.items()}


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import json",
        "async def f():\n    if x:\n        from json import loads",
        "class A:\n    def f(self):\n        def g():\n            import json",
        "def f():\n    from a import b",
        "import pyarrow\ndef f():\n    import pyarrow.parquet",
        "from a.d import x\ndef f():\n    import yaml",
        "if TYPE_CHECKING:\n    import pyspark\nelse:\n    def f():\n        import json",
    ],
)
def test_a_local_import_is_seen(source: str) -> None:
    assert len(misplaced(trees(a="", a__b="import json", a__d="import yaml", c=source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import json",
        "try:\n    import json\nexcept ImportError:\n    json = None",
        "def f():\n    from pyspark.sql import functions",
        "def f():\n    from a import b",
        "def f():\n    from a.c import g",
        "def f():\n    from d.e import g",
    ],
)
def test_an_extra_and_what_needs_it_may_be_imported_anywhere(source: str) -> None:
    ours = trees(a="", a__b="import yaml", a__c="from a.b import x", d="import a.c", d__e="", f=source)
    assert misplaced(ours) == []


def test_a_cycle_is_seen() -> None:
    assert set(cycle(trees(a="from b import x", b="import c", c="from a import y"))) == {"a", "b", "c"}
    assert cycle(trees(a="from a.b import x", a__b="if TYPE_CHECKING:\n    from a import y")) == []
