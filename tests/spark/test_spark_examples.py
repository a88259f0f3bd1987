"""The programs in examples/ run, and use only what users may import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = {"streamhouse", "streamhouse.spark"}


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_imports_nothing_internal(program: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert {name for name in imported if name.partition(".")[0] == "streamhouse"} <= PUBLIC


def test_the_shop_runs_its_pipelines_and_draws_the_revenue(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "shop.py"), "--minutes", "12", "--plot", str(tmp_path / "shop.svg")],
        capture_output=True,
        text=True,
        timeout=560,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    counts = [int(count) for count in re.findall(r"^(\d+) ", ran.stdout, re.MULTILINE)]
    records, conversions, alerts = counts
    assert records > 12 * 60  # one metric a second, and orders and clicks beside them
    assert conversions > 0
    assert alerts > 0
    drawn = (tmp_path / "shop.svg").read_text()
    assert all(product in drawn for product in ("espresso", "filter", "beans"))
