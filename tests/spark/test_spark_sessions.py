"""`session` and `read_topic`: columns, the check of Java, and what the JVM logs when a query fails."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from java_ground import fake_java

from streamhouse import StreamHouse
from streamhouse.spark.sessions import read_topic

PROGRAMS = Path(__file__).parent / "programs"


class FakeReader:
    """Takes the place of a session, its reader and the DataFrame, and notes the options."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}

    @property
    def read(self) -> FakeReader:
        return self

    def format(self, name: str) -> FakeReader:
        return self

    def option(self, name: str, value: str) -> FakeReader:
        self.options[name] = value
        return self

    def load(self) -> FakeReader:
        return self


@pytest.mark.parametrize("columns", ["key,value", ["key", "value"], ("key", "value")])
def test_columns_are_a_string_or_a_sequence(columns: Any) -> None:
    reader = FakeReader()
    read_topic(reader, "orders", columns=columns)  # type: ignore[arg-type]
    assert reader.options["columns"] == "key,value"


def make_platform(data_dir: Path, *values: bytes) -> None:
    """A platform with the topic `orders`, closed again, so that its records are in objects."""

    async def make() -> None:
        async with StreamHouse.open(data_dir=str(data_dir)) as platform:
            await platform.create_topic("orders", 1)
            for value in values:
                await platform.produce("orders", value)

    asyncio.run(make())


@pytest.mark.parametrize("command", [["pipeline", "run"], ["table", "run"]])
def test_the_command_line_names_the_java_that_is_too_old(tmp_path: Path, command: list[str]) -> None:
    """Exit code 2 and one line, not "this is a bug"."""
    make_platform(tmp_path / "data")
    ran = subprocess.run(
        [sys.executable, "-m", "streamhouse", *command, "--data-dir", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "JAVA_HOME": str(fake_java(tmp_path / "jdk", "", release="11.0.22"))},
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Java 11" in ran.stderr
    assert "bug" not in ran.stderr


def test_a_failed_query_logs_the_line_of_our_error_and_no_java(tmp_path: Path) -> None:
    """Errors that are not ours keep their Java frames: there is nothing better to show."""
    make_platform(tmp_path, b"x")
    for path in (tmp_path / "objects").rglob("*.lls1"):
        os.truncate(path, 10)
    ran = subprocess.run(
        [sys.executable, str(PROGRAMS / "stream_errors.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    parts = dict(part.split("\n", 1) for part in ran.stderr.split("## ")[1:])
    expected = {"planning": "there is no topic 'oders' (did you mean orders?)", "task": "orders/0, offsets 0 to 0"}
    for what, said in expected.items():
        (line,) = parts[what].splitlines()
        assert f" ERROR {said}" in line
    assert "not ours" in parts["other"]
    assert "\tat org.apache.spark" in parts["other"]
