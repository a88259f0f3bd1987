"""A command that waits for one of its stores says so soon, on stderr."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

AWAY = {
    "PostgreSQL": (
        {
            "metadata-url": "postgresql://streamhouse:hunter2@127.0.0.1:1/streamhouse",
            "store-url": "file://{tmp_path}/objects",
        },
        "waiting for PostgreSQL at 127.0.0.1:1/streamhouse: connection refused",
    ),
    "S3": (
        {
            "metadata-url": "sqlite://{tmp_path}/metadata.db",
            "store-url": "s3://bucket/prefix",
            "store-endpoint-url": "http://127.0.0.1:1",
            "store-access-key-id": "key",
            "store-secret-access-key": "hunter2",
            "store-region": "us-east-1",
        },
        "waiting for the object store s3://bucket/prefix: put of ",
    ),
}


@pytest.mark.parametrize("store", AWAY)
def test_a_store_that_does_not_answer_is_told_while_the_command_still_waits_and_may_be_stopped(
    tmp_path: Path, store: str
) -> None:
    settings, words = AWAY[store]
    command = [sys.executable, "-m", "streamhouse", "agent", "--data-dir", str(tmp_path / "data")]
    command += ["--admin-listen", "127.0.0.1:0"]
    for name, value in settings.items():
        command += [f"--{name}", value.format(tmp_path=tmp_path)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMHOUSE_", "AWS_"))}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            told = []
            for line in process.stderr:
                told.append(line)
                if words in line:
                    break
            assert not any(line.startswith("error:") for line in told), told
            assert "waiting for" in told[-1], told
            assert "hunter2" not in "".join(told)
            assert process.poll() is None
            process.terminate()
            rest = process.stderr.read()
            assert process.wait() == 0, "it is not told of the store any more: it stops as it was asked to"
            assert rest.splitlines()[-1].startswith("stopped: it was not ready yet"), rest
        finally:
            process.kill()
