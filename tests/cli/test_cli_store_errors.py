"""What a command says, and with which exit code it ends, when one of its stores cannot be used."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from streamhouse.cli.exit_codes import ExitCode
from streamhouse.testing.services import PostgresService


def run_agent(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    settings = {"store_url": f"file://{tmp_path}/objects", **settings}
    command = [sys.executable, "-m", "streamhouse", "agent", "--data-dir", str(tmp_path / "data")]
    command += ["--admin-listen", "127.0.0.1:0"]
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}", value]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMHOUSE_", "AWS_"))}
    environ |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}
    return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)


def last_line(ended: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in ended.stderr
    return ended.stderr.splitlines()[-1]


def test_an_object_store_without_credentials_is_denied(tmp_path: Path) -> None:
    ended = run_agent(tmp_path, metadata_url=f"sqlite://{tmp_path}/metadata.db", store_url="s3://bucket/prefix")
    assert ended.returncode == ExitCode.DENIED, ended.stderr
    assert "no credentials were found" in last_line(ended)
    assert "AWS_ACCESS_KEY_ID" in last_line(ended)


def postgres_url(service: PostgresService, *, user: str | None = None, database: str | None = None) -> str:
    parts = urlsplit(service.create_database())
    return f"postgresql://{user or parts.username}@{parts.hostname}:{parts.port}/{database or parts.path[1:]}"


def test_a_postgresql_role_that_does_not_exist_is_denied(tmp_path: Path, postgres_service: PostgresService) -> None:
    ended = run_agent(tmp_path, metadata_url=postgres_url(postgres_service, user="nemo"))
    assert ended.returncode == ExitCode.DENIED, ended.stderr
    assert 'role "nemo" does not exist' in last_line(ended)
    assert "check the user" in last_line(ended)


def test_a_database_that_does_not_exist_is_a_wrong_setting(tmp_path: Path, postgres_service: PostgresService) -> None:
    ended = run_agent(tmp_path, metadata_url=postgres_url(postgres_service, database="atlantis"))
    assert ended.returncode == ExitCode.USAGE, ended.stderr
    assert 'database "atlantis" does not exist' in last_line(ended)
    assert "create the database" in last_line(ended)


@pytest.mark.parametrize("damage", ["a page", "the header"])
def test_a_damaged_sqlite_file_is_corrupt_data(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "metadata.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE schema_migrations (version INTEGER, name TEXT, applied_at INTEGER)")
        connection.executemany("INSERT INTO schema_migrations VALUES (?, 'x', 0)", [(n,) for n in range(5000)])
    connection.close()
    with path.open("r+b") as file:
        file.seek(0 if damage == "the header" else 4096)
        file.write(b"\xff" * (16 if damage == "the header" else 4096 * 4))
    ended = run_agent(tmp_path, metadata_url=f"sqlite://{path}")
    assert ended.returncode == ExitCode.CORRUPT, ended.stderr
    assert "damaged" in last_line(ended)
    assert "restore it from a backup" in last_line(ended)
