"""`streamhouse table …` without Spark: what is asked, what is said, what is on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from table_ground import OWN_COLUMNS, TableGround, batch, rows

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import TopicNotFound
from streamhouse.metadata.contract import Topic, WantedState
from streamhouse.spark.address import resolve_address
from streamhouse.spark.connection import connect
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.pipelines.parsing import load_pipeline
from streamhouse.spark.pipelines.service import Pipelines
from streamhouse.spark.tables.service import Tables
from streamhouse.testing.plugin import RunningStreamHouse

DAY_MS = 24 * 3_600_000


class Commands:
    def __init__(self, running: RunningStreamHouse, directory: Path) -> None:
        running.run(running.api.create_topic("orders", 1))
        self.data_dir = str(running.api.settings.data_dir)
        self.directory = directory
        self.place = Place(address_options={"dataDir": self.data_dir}, checkpoints=f"{self.data_dir}/checkpoints")
        self.run("create", "orders", "--from", "orders", "--format", "delta", "--no-start")
        self.service = Tables(self.place)
        self.ground = TableGround(
            directory=Path(self.data_dir) / "tables",
            storage=self.service.get("orders").spec.storage,
            address=resolve_address(self.place.address_options),
        )
        self.ground.store.create(OWN_COLUMNS)
        self.ground.store.commit(batch(0, 0, 10), self.ground.files(rows(0, 10)))

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            [sys.executable, "-m", "streamhouse", "table", *words, "--data-dir", self.data_dir],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert ran.returncode == code, ran.stderr
        return ran

    def leave_file(self) -> Path:
        made_ms = SystemClock().wall_ms() - DAY_MS
        (left,) = self.ground.files(rows(10, 20), made_ms=made_ms)
        path = Path(self.ground.store.location.path) / left.path
        os.utime(path, ns=(made_ms * 1_000_000,) * 2)
        return path


@pytest.fixture
def commands(streamhouse: RunningStreamHouse, tmp_path: Path) -> Commands:
    return Commands(streamhouse, tmp_path)


def test_a_vacuum_says_what_goes_and_wants_a_yes(commands: Commands) -> None:
    left = commands.leave_file()
    assert "keep 1h at least" in commands.run("vacuum", "orders", "--older-than", "59m", "--yes", code=2).stderr
    told = json.loads(commands.run("vacuum", "orders", "--older-than", "1h", "--dry-run", "-o", "json").stdout)
    size = left.stat().st_size
    assert told == [{"name": "orders", "removed": False, "files": 1, "size_bytes": size, "versions": 0}]
    unasked = commands.run("vacuum", "orders", "--older-than", "1h", code=2)
    assert (unasked.stdout, "orders: removes: 1 files" in unasked.stderr, left.exists()) == ("", True, True)
    assert json.loads(commands.run("vacuum", "orders", "-o", "json").stdout)[0]["files"] == 0  # younger than 7 days
    done = commands.run("vacuum", "orders", "--older-than", "1h", "--yes")
    assert done.stdout.split()[5:] == ["orders", "True", "1", str(size), "0"]
    assert not left.exists()
    assert commands.ground.store.state().rows == 10


def test_a_pipeline_s_table_is_vacuumed_by_the_pipeline_s_name(commands: Commands) -> None:
    left = commands.leave_file()
    path = commands.ground.storage.location
    document = {"name": "p", "sources": ["orders"], "sql": "SELECT value FROM orders"}
    pipelines = Pipelines(commands.place)
    pipelines.create(
        load_pipeline({**document, "target": {"table": {"format": "delta", "path": path}}}), WantedState.STOPPED
    )
    pipelines.create(load_pipeline({**document, "name": "q", "target": {"topic": "out"}}), WantedState.STOPPED)
    assert commands.service.compact("p", target_bytes=1 << 20, of_pipeline=True).files_after == 1
    commands.run("vacuum", "p", "--of-pipelines", "--older-than", "1h", "--yes")
    assert not left.exists()
    assert "writes to topic out" in commands.run("vacuum", "q", "--of-pipelines", code=2).stderr


def test_deleting_says_what_goes_and_wants_a_yes(commands: Commands) -> None:
    checkpoint = Path(commands.place.checkpoints) / "tables" / "orders" / "0"
    unasked = commands.run("delete", "orders", code=2)
    assert unasked.stdout == ""
    assert f"orders: keeps: every row in {commands.ground.storage.location}" in unasked.stderr
    assert "orders: keeps: the dead letters in orders.dead-letters" in unasked.stderr
    assert (
        "orders: removes, when its runner starts it again" in commands.run("start", "orders", "--reset", code=2).stderr
    )
    checkpoint.mkdir(parents=True)
    commands.run("delete", "orders", "--yes")
    assert checkpoint.exists()  # no name that its runner would have given
    assert commands.ground.store.state().rows == 10
    again = commands.run("create", "orders", "--from", "orders", "--format", "delta", "--no-start")
    assert again.stdout == ""
    assert commands.service.facts("orders")["rows"] == 10


def test_a_table_is_not_made_where_something_else_is(commands: Commands, tmp_path: Path) -> None:
    create = ("create", "other", "--from", "orders", "--format", "parquet", "--path")
    for path in (commands.data_dir, f"{commands.data_dir}/objects/x", f"{commands.ground.storage.location}/below"):
        assert "would overlap with" in commands.run(*create, path, code=2).stderr
    commands.run(*create, os.path.relpath(tmp_path / "lake"))
    assert commands.service.get("other").spec.storage.location == str(tmp_path / "lake")


def test_a_dead_letter_topic_that_appears_meanwhile_is_used(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(commands.place.address)
    metadata = connection.run(connection.metadata())
    get_topic = metadata.get_topic

    async def as_it_was(name: str) -> Topic:
        if name == "orders.dead-letters":
            raise TopicNotFound("not yet")
        return await get_topic(name)

    monkeypatch.setattr(metadata, "get_topic", as_it_was)
    spec = commands.service.get("orders").spec
    storage = replace(spec.storage, location=str(tmp_path / "other"))
    commands.service.create(replace(spec, name="other", storage=storage), WantedState.STOPPED)
    assert commands.service.get("other").spec.dead_letters == "orders.dead-letters"


WITHOUT_EXTRAS = """
import sys

for name in ("pyspark", "pyarrow", "pandas", "psycopg", "yaml", "deltalake", "pyiceberg", "sqlalchemy", "fastavro"):
    sys.modules[name] = None
from streamhouse.cli.main import main

sys.argv[0] = "streamhouse"
main()
"""


@pytest.mark.parametrize("kind", ["table", "pipeline"])
def test_definitions_are_started_and_listed_without_spark_and_java(
    commands: Commands, tmp_path: Path, kind: str
) -> None:
    document = {"name": "orders", "sources": ["orders"], "sql": "SELECT value FROM orders", "target": {"topic": "out"}}
    Pipelines(commands.place).create(load_pipeline(document), WantedState.STOPPED)

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            [sys.executable, "-c", WITHOUT_EXTRAS, kind, *words, "--data-dir", commands.data_dir],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PATH": str(tmp_path), "JAVA_HOME": ""},
            check=False,
        )
        assert ran.returncode == code, ran.stderr
        return ran

    run("start", "orders")
    (row,) = json.loads(run("list", "-o", "json").stdout)
    assert (row["name"], row["wanted"], row["state"]) == ("orders", "running", "waiting")
    refused = run("run", code=2)
    assert "this needs the package pyspark" in refused.stderr
    assert "pip install 'streamhouse[spark" in refused.stderr
