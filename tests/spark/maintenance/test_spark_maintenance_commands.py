"""`streamhouse spark compact`, `key-compact`, `retain`, `vacuum` and `verify` as an operator runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spark_pass_ground import Cluster

from streamhouse.cli.exit_codes import ExitCode
from streamhouse.wire.records import Record

from maintained_cluster import HOUR_MS, OLD_MS, local_cluster  # isort: skip  # found by the ground

PROGRAM = [sys.executable, "-m", "streamhouse", "spark"]
BRIEF = ["--writer-grace", "30m", "--reader-grace", "5m"]
LOCAL = ["--master", "local[2]", "--conf", "spark.driver.memory=512m"]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return local_cluster(tmp_path / "data")


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMHOUSE_", "AWS_"))}
    return {**kept, "COLUMNS": "200"}


def run(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*PROGRAM, *arguments, *cluster.flags],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def document(cluster: Cluster, *arguments: str, code: ExitCode = ExitCode.OK) -> dict[str, Any]:
    done = run(cluster, *arguments, "--output", "json")
    assert done.returncode == code, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


async def fill_with_keys(cluster: Cluster) -> None:
    async with cluster.open() as sh:
        await sh.create_topic("state", 1, configs={"cleanup.policy": "compact"})
        for number in range(4):
            records = [Record(key=b"%d" % each, value=b"%d" % number, timestamp_ms=OLD_MS) for each in range(5)]
            await sh.produce_batch("state", 0, records)
            await sh.flush()


async def test_p_4_every_pass_runs_from_the_command_line(cluster: Cluster) -> None:
    """One story, because a start of Spark takes seconds."""
    await cluster.fill("orders")
    await cluster.fill("old", at_ms=OLD_MS)
    await fill_with_keys(cluster)
    garbage = await cluster.put_garbage()
    before = await cluster.read("orders")
    compacted = document(cluster, "compact", "orders", "--min-entries", "2", *LOCAL)
    assert (compacted["pass"], compacted["ended"], compacted["partitions"]) == ("compact", "complete", [])
    assert compacted["summary"]["entries_replaced"] == 6
    assert compacted["summary"]["request_cost_usd"] > 0
    keys = document(cluster, "key-compact", "--shuffle-above", "1", *LOCAL)
    assert (keys["pass"], keys["summary"]["records_dropped"], keys["summary"]["entries_replaced"]) == (
        "key-compact",
        10,
        3,
    )
    (moved,) = document(cluster, "retain", *LOCAL)["partitions"]
    assert (moved["topic"], moved["outcome"], moved["records"]) == ("old", "applied", 18)
    cluster.pass_time(2 * HOUR_MS)
    vacuumed = document(cluster, "vacuum", "--yes", *BRIEF, *LOCAL)
    assert vacuumed["summary"]["phase"] == "done"
    assert not garbage & await cluster.objects()
    referenced = set(await cluster.referenced("orders")) | set(await cluster.referenced("state"))
    assert await cluster.objects() == referenced
    assert await cluster.read("orders") == before
    verified = document(cluster, "verify", *LOCAL)
    assert (verified["summary"]["findings"], verified["summary"]["partitions"]) == (0, 3)
    (key,) = await cluster.referenced("orders")
    (cluster.settings.data_dir / "objects" / key).unlink()
    damaged = document(cluster, "verify", *LOCAL, code=ExitCode.DAMAGED)
    assert {finding["kind"] for finding in damaged["findings"]} == {"missing-object"}


async def test_p_4_a_plan_needs_no_spark_and_changes_nothing(cluster: Cluster) -> None:
    await cluster.fill("orders")
    await fill_with_keys(cluster)
    nowhere = ["--master", "spark://127.0.0.1:1"]
    few = ["--plan", "--min-entries", "2", *nowhere]
    assert document(cluster, "compact", "orders", *few)["summary"]["entries_replaced"] == 6
    planned = document(cluster, "key-compact", "--plan", *nowhere)
    assert planned["plan_only"]
    (row,) = planned["partitions"]
    assert (row["topic"], row["outcome"], row["worth"]) == ("state", "planned", "keys, by ratio")
    assert document(cluster, "retain", "--plan", *nowhere)["summary"]["moved_partitions"] == 0
    assert document(cluster, "vacuum", "--plan", *nowhere)["plan_only"]
    assert document(cluster, "verify", "--plan", *nowhere)["plan_only"]
    assert len(await cluster.referenced("orders")) == 6
    assert len(await cluster.referenced("state")) == 4


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["compact", "order"], ExitCode.NOT_FOUND, "there is no topic 'order' (did you mean orders?)"),
        (["vacuum", "orders", "--yes"], ExitCode.USAGE, "vacuum takes no topic (orders)"),
        (["vacuum"], ExitCode.USAGE, "pass --yes (nothing was changed)"),
        (["compact", "--conf", "x"], ExitCode.USAGE, "--conf 'x' is not NAME=VALUE"),
        (["verify", "--master", "sc://host:1"], ExitCode.USAGE, "cannot use the Connect server sc://host:1"),
        (["verify", "--master", "spark://host:1"], ExitCode.USAGE, "is on this machine alone"),
        (["verify", "--master", "locally"], ExitCode.FAILURE, "Spark did not start on locally: "),
        (["key-compact", "--map-size", "1"], ExitCode.USAGE, "let it have 32 to"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
async def test_what_is_wrong_is_one_line(cluster: Cluster, arguments: list[str], code: ExitCode, words: str) -> None:
    await cluster.fill("orders", flushes=1)
    done = run(cluster, *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr.splitlines()[-1]


INTERRUPTED = """
import asyncio
from streamhouse.cli.conventions import note
from streamhouse.cli.main import main
from streamhouse.spark.maintenance.jobs import SparkTasks

real = SparkTasks._submit

def submit(self, group, work):
    note("waits")
    return real(self, group, work)

SparkTasks._submit = submit
main()
"""
"""The program, which says when it sends a work to Spark."""


def interrupted(cluster: Cluster) -> tuple[int, str, str]:
    """Press Ctrl-C when the pass has sent its first work: its exit code, stdout and stderr."""
    command = [sys.executable, "-c", INTERRUPTED, "spark", "compact", "--min-entries", "2", "--output", "json"]
    with subprocess.Popen(
        [*command, *LOCAL, *cluster.flags],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        try:
            while (line := process.stderr.readline()) != "waits\n":
                assert line, "it ended before it came to that step"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
    return process.returncode, out, err


async def test_p_4_ctrl_c_ends_a_pass_and_leaves_nothing_half_done(cluster: Cluster) -> None:
    await cluster.fill("orders", partitions=2)
    before = [await cluster.read("orders", 0), await cluster.read("orders", 1)]
    code, out, err = interrupted(cluster)
    assert code == ExitCode.INTERRUPTED, err
    assert "Traceback" not in err
    assert json.loads(out)["ended"] == "interrupted"
    async with cluster.open(embedded_agent=False) as sh:
        assert await sh.stores.metadata.list_compactions() == []
        assert await sh.stores.metadata.list_claims() == []
        assert await sh.stores.metadata.list_pins() == []
    assert [await cluster.read("orders", 0), await cluster.read("orders", 1)] == before
