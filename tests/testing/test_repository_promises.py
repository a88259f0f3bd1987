"""What the tree as a whole promises: pinned packages without addresses, one import direction, no skipped tests."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)", re.MULTILINE)

# Written apart, for this file is searched too.
REGISTRY_HOSTS = ["pypi" + ".org", "python" + "hosted.org", "npm" + "js.org", "proxy.go" + "lang.org", "maven" + ".org"]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def pins(lock: Path) -> dict[str, str]:
    return {canonicalize_name(found["name"]): found["version"] for found in PIN.finditer(lock.read_text())}


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_the_import_contract_holds() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_line_of_a_lock_is_an_exact_pin_with_hashes(lock: Path) -> None:
    entries = lock.read_text().replace("\\\n", " ").splitlines()
    assert entries
    for entry in entries:
        assert PIN.match(entry), f"not a pin: {entry[:80]}"
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), f"no hash: {entry[:80]}"
        assert "://" not in entry, f"an address: {entry[:80]}"


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("dev.txt", ["dev"]), ("runtime.txt", ["postgres", "arrow", "s3"])],
)
def test_the_locks_are_in_step_with_pyproject(lock: str, extras: list[str]) -> None:
    pinned = pins(ROOT / "requirements" / lock)
    wanted = PROJECT["dependencies"] + [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    for requirement in map(Requirement, wanted):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in {lock}: run make lock"
        assert requirement.specifier.contains(version), f"{requirement} is pinned at {version}: run make lock"


def test_the_locks_agree_with_each_other() -> None:
    versions = {(name, version) for lock in LOCKS for name, version in pins(lock).items()}
    twice = [name for name, count in Counter(name for name, _ in versions).items() if count > 1]
    assert twice == []


def test_no_file_names_a_package_registry_or_this_machine() -> None:
    forbidden = [*REGISTRY_HOSTS, "--index" + "-url", "--find" + "-links", "--trusted" + "-host", f"{ROOT}/"]
    offences = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        for word in forbidden
        if word.encode() in path.read_bytes()
    ]
    assert offences == []


def test_ci_runs_make_test_and_fails_when_it_does(tmp_path: Path) -> None:
    """Run for real, with a ``make`` that only writes down what it was asked for."""
    log = tmp_path / "asked"
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ "$1" != "$FAILING" ]\n')
    make.chmod(0o755)
    for failing, expected in (("", 0), ("test", 1), ("check", 1)):
        log.write_text("")
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FAILING": failing}
        ran = subprocess.run([ROOT / ".ci" / "run"], env=environment, capture_output=True, cwd=tmp_path)
        assert ran.returncode == expected, f"make {failing} fails"
        assert log.read_text().split() == ["check", "test"]


def test_the_makefile_offers_what_the_readme_promises() -> None:
    listed = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True).stdout
    offered = set(re.findall(r"make ([a-z-]+)", listed))
    wanted = {"run", "test", "check", "bench", "services-up", "services-down", "lock", "format", "clean", "help"}
    assert wanted <= offered


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    decisions = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert decisions, "there are decisions"
    assert [name for name in decisions if f"({name})" not in index] == []
    assert [name for name in re.findall(r"\((\d{4}-[^)]+\.md)\)", index) if name not in decisions] == []


def test_the_decision_about_compiled_modules_lists_each_with_its_twin() -> None:
    page = next((ROOT / "docs" / "adr").glob("0006-*.md")).read_text()
    listed = re.findall(r"^\| `(\S+\.pyx)` \| `(\S+\.py)` \|", page, re.MULTILINE)
    package = ROOT / "src" / "streamhouse"
    assert {module for module, _ in listed} == {str(each.relative_to(package)) for each in package.rglob("*.pyx")}
    assert all((package / twin).is_file() for _, twin in listed)


def test_the_licence_is_the_whole_apache_licence() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_no_test_is_skipped() -> None:
    skips = re.compile(r"pytest\.(skip|xfail|importorskip)|mark\.(skip|skipif|xfail)\b|unittest\.skip")
    this = Path(__file__)
    found = [
        str(path.relative_to(ROOT)) for path in sources("tests") if path != this and skips.search(path.read_text())
    ]
    assert found == []


def uses_of(name: str, source: str, function: str) -> list[str]:
    """The statements of a function's body that use a name; ``function`` is the line that defines it."""
    (found,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and function.startswith(f"def {node.name}(")
    )
    return [
        ast.unparse(statement)
        for statement in found.body
        if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))
    ]


def test_tests_that_are_not_collected_by_default_have_a_target_that_runs_them() -> None:
    """The only other way to leave a test out: minutes-long stories, which `make test-spark` runs."""
    leaving_out = re.compile(
        r"^collect_ignore.*|^.*def pytest_(?:ignore_collect|collection_modifyitems).*", re.MULTILINE
    )
    allowed = 'collect_ignore_glob = [] if os.environ.get("SPARK_KILLS") else ["test_*.py"]'
    found = {
        str(path.relative_to(ROOT)): line
        for path in sources("tests")
        if path != Path(__file__)
        for line in leaving_out.findall(path.read_text())
    }
    folders = ("kill", "pipelines/long", "tables/long")
    sorting = found.pop("tests/conftest.py")
    assert sorting.startswith("def pytest_collection_modifyitems(")
    only_sorts = "items.sort(key=lambda item: turns.get(item.path, len(BUSY) + len(WAITING)))"
    assert uses_of("items", (ROOT / "tests/conftest.py").read_text(), sorting) == [only_sorts]
    assert found == {f"tests/spark/{folder}/conftest.py": allowed for folder in folders}
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^test-spark:.*\n\t@SPARK_KILLS=\S+ \S+ -m pytest tests/spark ", makefile, re.MULTILINE)


def test_no_two_test_files_share_a_name() -> None:
    names = Counter(path.name for path in sources("tests") if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []
