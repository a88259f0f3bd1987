"""A runner in a process of its own, as people run it: to be killed, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
from pipeline_ground import PER_MINUTE, SCHEMA, make_topics, write_orders

from streamhouse.testing.plugin import RunningStreamHouse

WAIT_S = 400


class RunnerProcess:
    """`streamhouse pipeline run`. ``log`` keeps what it says."""

    def __init__(self, data_dir: str, log: Path, *more: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "streamhouse", "pipeline", "run", "--data-dir", data_dir, "--fast-start"]
        command += ["--master", "local[2]", "--conf", "spark.driver.memory=640m"]
        command += ["--conf", "spark.sql.shuffle.partitions=2", *more]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMHOUSE_")}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, env=kept
            )

    def kill(self, *, all_of_it: bool) -> None:
        """The runner alone, whose JVM notices and ends; or the JVM and all workers with it."""
        if all_of_it:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(30)

    def kill_spark(self) -> None:
        """Its JVM; the runner lives."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and b"java" in (entry / "cmdline").read_bytes().split(b"\0")[0]:
                    os.kill(int(entry.name), signal.SIGKILL)
                    return
        raise AssertionError("the runner has no JVM")

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(200)


def wait_until(what: Callable[[], bool], runner: RunnerProcess) -> None:
    until = time.monotonic() + WAIT_S
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


COUNT = 1_400


def definitions(dsn: str) -> str:
    return f"""\
pipelines:
  - name: per-minute
    sources:
      orders:
        schema: "{SCHEMA}"
        watermark: {{column: at, delay: 10 minutes}}
        options: {{maxOffsetsPerTrigger: 200}}
    sql: |
      {PER_MINUTE}
    output_mode: update
    target:
      postgres: {{url: "{dsn}", table: per_minute, key: [minute, product]}}
"""


class Shop:
    def __init__(self, running: RunningStreamHouse, directory: Path, dsn: str) -> None:
        self.data_dir = str(running.api.settings.data_dir)
        self.dsn = dsn
        self.directory = directory
        self.runners: list[RunnerProcess] = []
        self.file = directory / "pipelines.yaml"
        self.file.write_text(definitions(dsn))
        make_topics(running, orders=2)
        write_orders(running, 0, COUNT)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "streamhouse", *words, "--data-dir", self.data_dir],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def runner(self, *more: str) -> RunnerProcess:
        self.runners.append(RunnerProcess(self.data_dir, self.directory / "runner.log", *more))
        return self.runners[-1]

    def close(self) -> None:
        for runner in self.runners:
            runner.kill(all_of_it=True)
