"""A command that waits for its metadata store says so before anyone wonders, on stderr."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_mistyped_postgresql_port_is_told_while_the_command_still_waits_and_may_be_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "streamhouse", "agent", "--data-dir", str(tmp_path / "data")]
    command += ["--metadata-url", "postgresql://streamhouse:hunter2@127.0.0.1:1/streamhouse"]
    command += ["--store-url", f"file://{tmp_path}/objects"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STREAMHOUSE_")}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            told = []
            for line in process.stderr:
                told.append(line)
                if "waiting for PostgreSQL at 127.0.0.1:1/streamhouse: connection refused" in line:
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
