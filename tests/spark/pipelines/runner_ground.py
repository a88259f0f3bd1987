"""A runner in a process of its own, as people run it: to be killed, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

PATIENCE_S = 150


class RunnerProcess:
    """`streamhouse pipeline run`. ``log`` keeps what it says."""

    def __init__(self, data_dir: str, log: Path, *more: str) -> None:
        self._log = log.open("ab")
        self.log = log
        command = [sys.executable, "-m", "streamhouse", "pipeline", "run", "--data-dir", data_dir, "--fast-start"]
        command += ["--master", "local[2]", "--conf", "spark.driver.memory=640m"]
        command += ["--conf", "spark.sql.shuffle.partitions=2", *more]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMHOUSE_")}
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True, env=kept
        )

    def kill(self, *, all_of_it: bool) -> None:
        """The runner alone, whose JVM notices and ends; or the JVM and all workers with it."""
        if all_of_it:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(30)
        self._log.close()

    def end(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self._log.close()
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)


def wait_until(what: Callable[[], bool], runner: RunnerProcess) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert runner.process.poll() is None, f"the runner has ended\n{runner.log.read_text()[-4_000:]}"
        assert time.monotonic() < until, runner.log.read_text()[-4_000:]
        time.sleep(0.1)


def batches_done(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        there = connection.execute("SELECT to_regclass('streamhouse.pipeline_progress')").fetchone()
        if there == (None,):
            return -1
        row = connection.execute(
            "SELECT max((progress::json->>'batch')::int) FROM streamhouse.pipeline_progress"
        ).fetchone()
    return -1 if row is None or row[0] is None else int(row[0])
