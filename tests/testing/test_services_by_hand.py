"""``make services-up`` and ``-down``: servers that a person keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamhouse.testing.services.process import process_exists


class ByHand:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "streamhouse.testing.services", *arguments]
        return subprocess.run(
            [*command, "--directory", str(self.directory)], capture_output=True, text=True, timeout=120
        )

    def pids(self) -> dict[str, int]:
        state = json.loads((self.directory / "state.json").read_text())
        return {kind: record["pid"] for kind, record in state.items()}

    def psql(self, environment: dict[str, str], sql: str) -> str:
        code = (
            "import asyncio, asyncpg, sys\n"
            "async def go():\n"
            "    connection = await asyncpg.connect(sys.argv[1])\n"
            "    print(await connection.fetchval(sys.argv[2]))\n"
            "    await connection.close()\n"
            "asyncio.run(go())"
        )
        command = [sys.executable, "-c", code, environment["STREAMHOUSE_METADATA_URL"], sql]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[ByHand]:
    by_hand = ByHand(tmp_path / ".services")
    yield by_hand
    by_hand("down", "--purge")


def exports(output: str) -> dict[str, str]:
    lines = [line.removeprefix("export ").partition("=") for line in output.splitlines()]
    return {name: value for name, _, value in lines}


def test_up_again_down_and_up_keep_the_data_and_the_addresses(services: ByHand) -> None:
    assert services("status").returncode == 1
    assert services("env").returncode == 1

    first = services("up")
    assert first.returncode == 0, first.stderr
    environment = exports(first.stdout)
    assert environment["STREAMHOUSE_METADATA_URL"].startswith("postgresql://streamhouse@127.0.0.1:")
    assert environment["STREAMHOUSE_STORE_URL"] == "s3://streamhouse/"
    assert environment["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:")
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"} <= environment.keys()
    assert "PostgreSQL" in first.stderr
    assert services.psql(environment, "SHOW fsync") == "on"
    services.psql(environment, "CREATE TABLE kept (n int)")

    pids = services.pids()
    second = services("up")
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert services.pids() == pids
    assert services("status").returncode == 0
    assert services("env").stdout == first.stdout

    assert services("down").returncode == 0
    assert not any(process_exists(pid) for pid in pids.values())
    assert services("status").returncode == 1

    third = services("up")
    assert third.stdout == first.stdout, third.stderr
    assert services.psql(environment, "SELECT count(*) FROM kept") == "0"

    pids = services.pids()
    assert services("down", "--purge").returncode == 0
    assert not any(process_exists(pid) for pid in pids.values())
    assert not services.directory.exists()
