"""`session` and `read_topic`: columns, the check of Java, and what the JVM logs when a query fails."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamhouse import StreamHouse
from streamhouse.core.errors import InvalidSetting
from streamhouse.spark import java
from streamhouse.spark.sessions import read_topic, session

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


def fake_java(home: Path, says: str, *, release: str | None = None) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{release}"\n')
    return home


@pytest.mark.parametrize(
    ("release", "says"),
    [("11.0.22", ""), ("1.8.0_402", ""), (None, 'openjdk version "11.0.22" 2024-01-16')],
    ids=["release-file", "java-8-style", "asked"],
)
def test_an_old_java_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, says: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", says, release=release)))
    with pytest.raises(InvalidSetting, match=r"Spark needs Java 17 or newer, and .*/jdk/bin/java is Java (8|11)"):
        session()


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidSetting, match="Spark needs Java 17 or newer, and there is no java on PATH"):
        session()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidSetting, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        session()


def test_a_program_that_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has such a stub."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "No Java runtime is present")))
    with pytest.raises(InvalidSetting, match="does not say its version: No Java runtime is present"):
        session()


def test_the_java_of_this_machine_is_new_enough() -> None:
    assert java.check_java() >= java.OLDEST


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
        timeout=120,
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
        timeout=300,
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
