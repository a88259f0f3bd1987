"""The benchmark of maintenance runs to its end with tiny sizes and shows figures. No test judges how good they are.

Each part of it checks what it measured: what was dropped, what was deleted, that a consumer sees the same log.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "bench_maintenance.py"
TINY = {
    "compaction": (["--log-mb", "2", "--rounds", "1"], ["memory, LZ4 batches of 16 KB: compaction", "plain copy"]),
    "keys": (["--records", "3000"], ["records a second of CPU", "memory: growth at most"]),
    "vacuum": (["--objects", "4000"], ["objects a second of CPU", "requests: list", "requests: delete"]),
    "produce": (
        ["--produce-rounds", "1", "--seconds", "1", "--backlog-mb", "18"],
        ["p99 with / without", "CPU of the agent", "objects that both compactions committed"],
    ),
    "reads": (["--s3-mb", "2"], ["one partition: GETs for a MB", "all partitions: bytes fetched"]),
}


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH), *options], capture_output=True, text=True, timeout=500, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", TINY)
def test_each_part_shows_figures_and_ratios_beside_the_load(part: str) -> None:
    options, expected = TINY[part]
    done = bench("--only", part, *options)
    assert done.returncode == 0, done.stderr
    assert re.search(r"load \d+\.\d on \d+ cores", done.stdout), done.stdout
    assert re.search(r"\d ×|\d objects each|\d MB for half", done.stdout), done.stdout
    for name in expected:
        assert re.search(rf"{re.escape(name)}.*\d", done.stdout), done.stdout


def test_a_part_that_does_not_exist_is_refused_with_those_that_do() -> None:
    done = bench("--only", "compaction,retention")
    assert done.returncode == 1
    assert (
        "there is no retention; choose from compaction, keys, vacuum, vacuum-postgres, loop, produce, reads"
        in done.stderr
    )
    assert done.stdout == ""


@pytest.mark.parametrize("options", [["--records", "0"], ["--log-mb", "129"], ["--objects", "many"]])
def test_a_size_that_cannot_be_measured_is_refused_by_name(options: list[str]) -> None:
    done = bench(*options)
    assert done.returncode == 2
    assert f"argument {options[0]}" in done.stderr
