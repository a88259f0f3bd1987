"""docs/spark.md and docs/spark-sink.md: every option with its default, and snippets that work when they are pasted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamhouse.spark.address import ADDRESS_OPTIONS
from streamhouse.spark.options import OPTIONS as READ_OPTIONS
from streamhouse.spark.options import parse_read_options
from streamhouse.spark.sink_options import OPTIONS as WRITE_OPTIONS
from streamhouse.spark.sink_options import parse_write_options

DOCS = Path(__file__).parents[2] / "docs"
BIN = Path(sys.executable).parent
WAIT_S = 500

ONE_DEFAULT = re.compile(r"`([^`]+)`")
TWO_DEFAULTS = re.compile(r"batch `([^`]+)`, stream `([^`]+)`")


def section(page: str, heading: str) -> str:
    text = (DOCS / page).read_text()
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("| ").split(" | ")]


def documented(page: str, heading: str) -> dict[str, str]:
    """The default's cell of each option."""
    return {
        name: (cells[1] if len(cells) > 2 else "")
        for cells in rows(section(page, heading))
        for name in re.findall(r"`([^`]+)`", cells[0])
    }


def by_kind(cell: str) -> Mapping[bool, str]:
    """What a default's cell says for streams (True) and batches."""
    if two := TWO_DEFAULTS.fullmatch(cell):
        return {False: two[1], True: two[2]}
    one = ONE_DEFAULT.fullmatch(cell)
    return {} if one is None else {False: one[1], True: one[1]}


def test_every_option_of_a_read_is_documented() -> None:
    assert set(documented("spark.md", "Options")) == {*READ_OPTIONS, "kafka.group.id", "kafka.isolation.level"}


def test_every_option_of_a_write_is_documented() -> None:
    assert set(documented("spark-sink.md", "Options")) - {"checkpointLocation"} == set(WRITE_OPTIONS)


def test_every_way_to_name_the_stores_is_documented() -> None:
    assert set(documented("spark.md", "Where the platform is")) == set(ADDRESS_OPTIONS)


@pytest.mark.parametrize(
    ("page", "parse", "least", "at_least"),
    [
        ("spark.md", parse_read_options, {"subscribe": "orders"}, 10),
        ("spark-sink.md", parse_write_options, {"topic": "orders"}, 3),
    ],
)
def test_the_defaults_are_the_codes(page: str, parse: Callable[..., Any], least: dict[str, str], at_least: int) -> None:
    """A default that is written out gives the same as one that is left out."""
    compared = 0
    for name, cell in documented(page, "Options").items():
        for streaming, default in by_kind(cell).items():
            if streaming and name.startswith("ending"):
                continue
            options = {**least, name: default}
            assert parse(options, streaming=streaming) == parse(least, streaming=streaming), f"{name} is not {default}"
            compared += 1
    assert compared >= at_least


def python_snippets(page: str, heading: str | None = None) -> list[str]:
    text = section(page, heading) if heading else (DOCS / page).read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_every_snippet_compiles() -> None:
    for page in ("spark.md", "spark-sink.md"):
        for snippet in python_snippets(page):
            compile(snippet, page, "exec")


@contextmanager
def dev(directory: Path) -> Iterator[str]:
    """`streamhouse dev --demo` in a directory; gives the broker's address."""
    command = [str(BIN / "streamhouse"), "dev", "--demo", "--kafka-listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=directory) as dev:
        assert dev.stderr is not None
        try:
            for line in dev.stderr:
                if line == "PY\n":
                    break
                if found := re.search(r"-b (127\.0\.0\.1:\d+)", line):
                    address = found[1]
            yield address
        finally:
            dev.send_signal(signal.SIGTERM)
            dev.communicate(timeout=WAIT_S)


def test_the_guides_first_steps_work_when_pasted(tmp_path: Path) -> None:
    steps = [*python_snippets("spark.md", "From zero"), *python_snippets("spark-sink.md", "From zero")]
    assert len(steps) == 4
    with dev(tmp_path) as address:
        ran = subprocess.run(
            [sys.executable, "-c", "\n".join(steps).replace("127.0.0.1:9092", address)],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            cwd=tmp_path,
            env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},  # quicker where nothing is long
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "300 orders in files" in ran.stdout
