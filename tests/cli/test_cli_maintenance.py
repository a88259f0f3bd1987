"""`streamhouse compact`, `retain`, `vacuum` and `verify` as an operator runs them, on clusters with real records."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streamhouse.cli.exit_codes import ExitCode
from streamhouse.metadata.contract import ScanRange
from streamhouse.testing.services import PostgresService, S3Service

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.append(here)

from maintained_cluster import HOUR_MS, OLD_MS, Cluster, local_cluster, remote_cluster

PROGRAM = [sys.executable, "-m", "streamhouse"]
BRIEF = ["--writer-grace", "30m", "--reader-grace", "5m"]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return local_cluster(tmp_path / "data")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a cluster with one topic and some garbage; to be copied."""
    data_dir = tmp_path_factory.mktemp("small") / "data"
    made = local_cluster(data_dir)

    async def fill() -> None:
        await made.fill("orders", flushes=1)
        await made.put_garbage()

    with ThreadPoolExecutor(1) as other_thread:  # this one may have an event loop
        other_thread.submit(asyncio.run, fill()).result()
    return data_dir


@pytest.fixture
def small_cluster(small: Path, tmp_path: Path) -> Cluster:
    shutil.copytree(small, tmp_path / "data")
    return local_cluster(tmp_path / "data")


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMHOUSE_", "AWS_"))}
    return {**kept, "COLUMNS": "200"}


def run(cluster: Cluster, *arguments: str, stdin: Any = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *arguments, *cluster.flags]
    done = subprocess.run(
        command, env=environment(), stdin=stdin, capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def document(cluster: Cluster, *arguments: str, code: ExitCode = ExitCode.OK) -> dict[str, Any]:
    done = run(cluster, *arguments, "--output", "json")
    assert done.returncode == code, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def contents(cluster: Cluster) -> tuple[list[str], set[tuple[str, int]]]:
    """All rows of the metadata but the clock, and all files of the object store."""
    data_dir = Path(cluster.chosen["data_dir"])
    with closing(sqlite3.connect(data_dir / "metadata.db")) as database:
        rows = [line for line in database.iterdump() if not line.startswith('INSERT INTO "store_info"')]
    files = {(str(path), path.stat().st_size) for path in (data_dir / "objects").rglob("*") if path.is_file()}
    return rows, files


# Plans.


@pytest.mark.parametrize(
    ("arguments", "finds"),
    [
        (["compact", "--min-entries", "2"], {"objects_written": 2, "entries_replaced": 12}),
        (["retain"], {"moved_partitions": 1, "records": 18}),
        (["vacuum", *BRIEF], {"objects": 0, "undecided_objects": 1}),
        (["verify"], {"partitions": 2}),
        (["verify", "--repair"], {"partitions": 2, "findings": 0, "damaged_entries": 0}),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
async def test_s2_16_a_plan_says_what_would_be_done_and_changes_nothing(
    cluster: Cluster, arguments: list[str], finds: dict[str, int]
) -> None:
    await cluster.fill("orders")
    await cluster.fill("old", at_ms=OLD_MS)
    await cluster.put_garbage()
    before = contents(cluster)
    planned = document(cluster, *arguments, "--plan")
    assert contents(cluster) == before
    assert (planned["plan_only"], planned["ended"]) == (True, "complete")
    assert {name: planned["summary"][name] for name in finds} == finds


# What each does.


async def test_s2_16_compact_joins_small_objects_of_the_named_topics_and_consumers_read_the_same_bytes(
    cluster: Cluster,
) -> None:
    await cluster.fill("orders", partitions=2)
    await cluster.fill("other")
    before = [await cluster.read("orders", 0), await cluster.read("orders", 1)]
    assert document(cluster, "compact", "orders")["summary"]["objects_written"] == 0, "six are too few and too young"
    done = document(cluster, "compact", "orders", "--min-entries", "6")
    assert {name: done["summary"][name] for name in ("objects_written", "entries_replaced", "failed_partitions")} == {
        "objects_written": 2,
        "entries_replaced": 12,
        "failed_partitions": 0,
    }
    assert done["summary"]["request_cost_usd"] > 0
    assert len(await cluster.referenced("orders")) == 2
    assert len(await cluster.referenced("other")) == 6
    assert [await cluster.read("orders", 0), await cluster.read("orders", 1)] == before


async def test_s2_16_compact_takes_few_objects_once_they_are_old(cluster: Cluster) -> None:
    await cluster.fill("orders")
    await cluster.fill("by_key", cleanup_policy="compact")
    cluster.pass_time(2 * HOUR_MS)
    assert document(cluster, "compact", "orders", "--max-age", "3h")["summary"]["objects_written"] == 0
    done = document(cluster, "compact", "orders")
    assert done["summary"]["objects_written"] == 1
    assert len(await cluster.referenced("by_key")) == 6, "it was not named"


async def test_compact_keeps_the_newest_record_of_each_key_where_the_policy_says_so(cluster: Cluster) -> None:
    await cluster.fill("by_key", cleanup_policy="compact")
    (planned,) = document(cluster, "compact", "--plan")["partitions"]
    assert (planned["topic"], planned["outcome"], planned["worth"]) == ("by_key", "planned", "keys, by ratio")
    assert len(await cluster.referenced("by_key")) == 6
    done = document(cluster, "compact")["summary"]
    assert (done["objects_written"], done["failed_partitions"]) == (1, 0)
    assert done["records_dropped"] > 0
    assert len(await cluster.referenced("by_key")) == 2, "the newest entry is never rewritten (R18)"


async def test_s3_2_retain_deletes_what_a_topic_no_longer_keeps(cluster: Cluster) -> None:
    await cluster.fill("old", at_ms=OLD_MS)
    await cluster.fill("new")
    await cluster.fill("compacted", at_ms=OLD_MS, cleanup_policy="compact")
    assert document(cluster, "retain", "new", "compacted")["summary"]["records"] == 0, "old was not named"
    done = document(cluster, "retain")
    (row,) = done["partitions"]
    assert (row["topic"], row["partition"], row["outcome"], row["records"], row["by"]) == (
        "old",
        0,
        "applied",
        18,
        "time",
    )
    assert done["summary"]["records"] == 18
    assert await cluster.referenced("old") == []
    assert len(await cluster.referenced("new")) == len(await cluster.referenced("compacted")) == 6


async def test_s2_45_vacuum_deletes_exactly_the_garbage(cluster: Cluster) -> None:
    await cluster.fill("orders")
    before = await cluster.read("orders")
    replaced = set(await cluster.referenced("orders"))
    document(cluster, "compact", "--min-entries", "2")
    garbage = await cluster.put_garbage()
    everything = await cluster.objects()
    done = document(cluster, "vacuum", "--yes")
    assert done["summary"]["objects"] == 1
    assert await cluster.objects() == everything - garbage, "what was just replaced has readers yet"
    cluster.pass_time(2 * HOUR_MS)
    fresh = await cluster.put_fresh_upload()
    done = document(cluster, "vacuum", "--yes", *BRIEF)
    assert await cluster.objects() == everything - garbage - replaced | fresh
    assert done["garbage"] == [
        {
            "cause": "dereferenced",
            "kind": "shared blob" if next(iter(replaced)).startswith("wal-shared/") else "segment",
            "objects": len(replaced),
            "size_bytes": done["summary"]["size_bytes"],
        }
    ]
    assert done["summary"]["saved_usd_per_month"] > 0
    assert await cluster.read("orders") == before


async def test_s2_16_the_whole_round_on_postgresql_and_s3(
    tmp_path: Path, postgres_service: PostgresService, s3_service: S3Service
) -> None:
    cluster = remote_cluster(tmp_path / "data", postgres_service, s3_service)
    await cluster.fill("orders", partitions=2)
    await cluster.fill("old", at_ms=OLD_MS)
    before = [await cluster.read("orders", 0), await cluster.read("orders", 1)]
    assert document(cluster, "compact", "orders", "--min-entries", "2")["summary"]["objects_written"] == 2
    assert document(cluster, "retain")["summary"]["records"] == 18
    garbage = await cluster.put_garbage()
    cluster.pass_time(2 * HOUR_MS)
    planned = document(cluster, "vacuum", "--plan", *BRIEF)
    assert garbage <= await cluster.objects()
    done = document(cluster, "vacuum", "--yes", *BRIEF)
    assert planned["summary"]["undecided_objects"] > 0, "no vacuum has raised the horizon so far"
    assert done["summary"]["objects"] > 1
    assert await cluster.objects() == set(await cluster.referenced("orders"))
    assert document(cluster, "verify", "--deep")["summary"]["entries"] == 2
    assert [await cluster.read("orders", 0), await cluster.read("orders", 1)] == before


# Verify.


async def damage(cluster: Cluster, name: str, *, at: int | None = None) -> str:
    """Change one byte of the first object of the topic, in the middle of its entry's bytes or at a place in the object.
    Returns the object's key."""
    async with cluster.open(embedded_agent=False) as sh:
        (key,) = (await sh.topic(name)).partition_keys()
        (page,) = await sh.stores.metadata.scan_entries([ScanRange(key=key, from_offset=0)], limit=1)
    entry = page.entries[0]
    path = Path(cluster.chosen["data_dir"]) / "objects" / entry.object_key
    stored = bytearray(path.read_bytes())
    stored[entry.byte_offset + entry.byte_length // 2 if at is None else at] ^= 1
    path.chmod(0o600)
    path.write_bytes(stored)
    return entry.object_key


async def test_verify_finds_damage_and_ends_with_its_own_code(cluster: Cluster) -> None:
    await cluster.fill("orders", flushes=2)
    await cluster.fill("other", flushes=2)
    assert document(cluster, "verify")["summary"]["entries"] == 4
    key = await damage(cluster, "orders")
    found = document(cluster, "verify", code=ExitCode.DAMAGED)
    assert {finding["object"] for finding in found["findings"]} == {key}
    assert {(finding["topic"], finding["partition"]) for finding in found["findings"]} == {("orders", 0)}
    assert all(finding["advice"] for finding in found["findings"])
    assert document(cluster, "verify", "--quick")["summary"]["findings"] == 0, "it reads no bytes"
    assert document(cluster, "verify", "other")["summary"]["findings"] == 0
    shown = run(cluster, "verify")
    assert shown.returncode == ExitCode.DAMAGED
    assert key in shown.stdout
    assert "quick" not in shown.stderr


async def test_i5_repair_writes_anew_what_lost_no_record_and_says_why_it_leaves_the_rest(cluster: Cluster) -> None:
    await cluster.fill("orders", flushes=2)
    await cluster.fill("other", flushes=2)
    before = await cluster.read("orders")
    whole = await damage(cluster, "orders", at=1)  # the magic of its object
    lost = await damage(cluster, "other")
    rows_and_files = contents(cluster)

    planned = document(cluster, "verify", "--repair", "--plan", code=ExitCode.DAMAGED)
    assert contents(cluster) == rows_and_files
    assert {row["object"]: row["outcome"] for row in planned["repairs"]} == {
        whole: "repairable",
        lost: "not repairable",
    }
    done = document(cluster, "verify", "--repair", code=ExitCode.DAMAGED)
    (repaired, left) = sorted(done["repairs"], key=lambda row: str(row["topic"]))
    assert (repaired["topic"], repaired["outcome"], repaired["object"]) == ("orders", "repaired", whole)
    assert repaired["new_object"] == (await cluster.referenced("orders"))[0]
    assert (left["topic"], left["outcome"], left["new_object"]) == ("other", "not repairable", "")
    assert left["reason"] in {f"{found['kind']}: {found['problem']}" for found in done["findings"]}
    sums = ("damaged_entries", "repaired_entries", "not_repairable_entries")
    assert [done["summary"][name] for name in sums] == [2, 1, 1]
    assert {whole, lost} <= await cluster.objects(), "vacuum deletes what nothing refers to"

    assert document(cluster, "verify", "orders")["summary"]["findings"] == 0
    assert await cluster.read("orders") == before


async def test_a_repair_of_all_that_was_found_ends_with_0(cluster: Cluster) -> None:
    await cluster.fill("orders", flushes=2)
    await damage(cluster, "orders", at=1)
    shown = run(cluster, "verify", "--repair")
    assert shown.returncode == ExitCode.OK, shown.stderr
    assert "  repaired  " in shown.stdout
    assert run(cluster, "verify").returncode == ExitCode.OK
    assert document(cluster, "verify", "--repair")["repairs"] == []


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["compact", "order"], ExitCode.NOT_FOUND, "there is no topic 'order' (did you mean orders?)"),
        (["retain", "orders", "zzz"], ExitCode.NOT_FOUND, "there is no topic 'zzz'"),
        (["verify", "order", "--plan"], ExitCode.NOT_FOUND, "did you mean orders?"),
        (["vacuum", "orders", "--yes"], ExitCode.USAGE, "vacuum takes no topic (orders): an object may hold records"),
        (["vacuum"], ExitCode.USAGE, "pass --yes (nothing was changed)"),
        (["vacuum", "--yes", "--writer-grace", "1m"], ExitCode.USAGE, "wait for 30m or longer"),
        (["vacuum", "--yes", "--reader-grace", "soon"], ExitCode.USAGE, "'soon' is not a duration"),
        (["retain", "order", "zzz"], ExitCode.NOT_FOUND, "there are no topics 'order', 'zzz' (did you mean orders?)"),
        (
            ["verify", *(f"x{number}" for number in range(13))],
            ExitCode.NOT_FOUND,
            "'x9' and 3 more (this cluster has orders)",
        ),
        (
            ["compact", "--min-entries", "0"],
            ExitCode.USAGE,
            "one entry alone gains nothing, and one object takes the place of 2,000 at most (give 2 to 2000)",
        ),
        (["verify", "--quick", "--deep"], ExitCode.USAGE, "give one of them"),
        (["verify", "--quick", "--repair"], ExitCode.USAGE, "leave --quick out"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_is_wrong_is_one_line_and_changes_nothing(
    small_cluster: Cluster, arguments: list[str], code: ExitCode, words: str
) -> None:
    before = contents(small_cluster)
    done = run(small_cluster, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr.splitlines()[-1]
    assert contents(small_cluster) == before


@pytest.mark.parametrize(
    "command", [["compact"], ["retain"], ["vacuum", "--yes"], ["verify"]], ids=lambda each: each[0]
)
def test_no_cluster_is_made_by_mistake(cluster: Cluster, command: list[str]) -> None:
    done = run(cluster, *command)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "there is no metadata in" in done.stderr
    assert not Path(cluster.chosen["data_dir"]).exists()


@pytest.mark.parametrize("inside", [False, True], ids=["a file", "in a file"])
def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path, inside: bool) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    chosen = file / "data" if inside else file
    done = subprocess.run(
        [*PROGRAM, "compact"],
        env={**environment(), "STREAMHOUSE_DATA_DIR": str(chosen)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    what = f"is inside {file}, which is a file" if inside else "is a file"
    assert done.stderr == (
        f"error: data_dir from environment STREAMHOUSE_DATA_DIR must be a directory; {chosen} {what}"
        " (name a directory with --data-dir or STREAMHOUSE_DATA_DIR; it is made if it does not exist)\n"
    )
    assert file.read_text() == "mine"


# A pass without work says why.


async def test_a_pass_that_does_nothing_says_why(cluster: Cluster) -> None:
    await cluster.fill("orders", partitions=2)
    await cluster.fill("by_key", cleanup_policy="compact", min_cleanable_dirty_ratio="1")
    for plan in ([], ["--plan"]):
        done = document(cluster, "compact", *plan)
        (why,) = done["notes"]
        assert why.startswith("nothing to do: 3 partitions looked at; 12 small entries wait: compaction takes 500 in a")
        assert "; 5 entries to be compacted by key wait for the topic's min.cleanable.dirty.ratio" in why
        assert done["summary"]["entries_waiting"] == 17, "the newest entry of a compacted log is never looked at (R18)"
        (why,) = document(cluster, "retain", *plan)["notes"]
        assert why.startswith(
            "nothing to do: 3 partitions looked at: 2 are within their limits, 1 keeps everything (no delete"
        )
    (why,) = document(cluster, "vacuum", "--yes")["notes"]
    assert why.startswith("nothing to delete: no object is older than the horizon, 20")


async def test_s2_45_vacuum_shows_what_waits_and_which_pins_hold_it(cluster: Cluster) -> None:
    await cluster.fill("orders")
    async with cluster.open(embedded_agent=False) as sh:
        await sh.stores.metadata.create_pin(sh.randomness.uuid(), owner="a long query", ttl_ms=3 * HOUR_MS)
    document(cluster, "compact", "--min-entries", "2")
    for command in (["vacuum", "--plan"], ["vacuum", "--yes"]):
        done = document(cluster, *command)
        seen = done["summary"]
        assert (seen["objects"], seen["waiting_objects"], seen["pinned_objects"]) == (0, 6, 6)
        assert seen["waiting_bytes"] == seen["pinned_bytes"] > 0
        assert seen["waiting_until_ms"] > seen["horizon_ms"] + HOUR_MS
        told = "\n".join(done["notes"])
        assert f"6 objects ({seen['waiting_bytes']:,} bytes) that the log needs no more wait: the graces end by" in told
        assert "stay until these pins end: a long query (since" in told
    cluster.pass_time(4 * HOUR_MS)
    done = document(cluster, "vacuum", "--yes")
    assert (done["summary"]["waiting_objects"], done["summary"]["waiting_until_ms"]) == (0, None)
    assert done["summary"]["objects"] == 6
    assert done["notes"] == []


@pytest.mark.parametrize(("typed", "deleted"), [("y\n", True), ("n\n", False), ("\n", False)])
async def test_vacuum_asks_on_a_terminal(small_cluster: Cluster, typed: str, deleted: bool) -> None:
    cluster = small_cluster
    before = await cluster.objects()
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    done = run(cluster, "vacuum", stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert "deletes for ever from file://" in done.stderr
    assert (done.returncode == 0) == deleted
    assert (await cluster.objects() < before) == deleted


async def test_a_pass_that_could_not_do_everything_fails_and_names_it(cluster: Cluster) -> None:
    await cluster.fill("orders")
    await damage(cluster, "orders")
    done = document(cluster, "compact", "--min-entries", "2", code=ExitCode.FAILURE)
    (row,) = done["partitions"]
    assert (row["topic"], row["outcome"]) == ("orders", "failed")
    assert done["summary"]["damaged"] == 1


FAILING = """
from streamhouse.cli.main import main
from streamhouse.core.errors import StoreUnavailable
from streamhouse.maintenance.vacuum.vacuum import Vacuum

async def fail(self):
    raise StoreUnavailable("the object store does not answer")

Vacuum._delete_unreferenced = fail
main()
"""


def test_an_error_in_the_middle_is_told_after_what_was_done(small_cluster: Cluster) -> None:
    command = [sys.executable, "-c", FAILING, "vacuum", "--yes", "--output", "json", *small_cluster.flags]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == ExitCode.UNAVAILABLE
    shown = json.loads(done.stdout)
    assert (shown["ended"], shown["summary"]["phase"]) == ("failed", "listing the object store")
    assert "the object store does not answer" in shown["error"]
    assert done.stderr.splitlines()[-1].startswith("error: the object store does not answer")
    assert "Traceback" not in done.stderr


# Ctrl-C.

INTERRUPTED = """
import asyncio, sys
from streamhouse.cli.conventions import note
from streamhouse.cli.main import main
from streamhouse.maintenance.{module} import {cls}
from streamhouse.maintenance.retention import passes

passes.PARTITIONS_AT_A_TIME = 1  # so that one is done before the next is begun
real = {cls}.{method}
seen = 0

async def slow(self, *args, **more):
    global seen
    seen += 1
    if seen == {call}:
        note("waits")
        await asyncio.sleep(600)
    return await real(self, *args, **more)

{cls}.{method} = slow
main()
"""
"""The program, in which one step of a pass takes ten minutes."""


def interrupted(
    cluster: Cluster, arguments: list[str], *, code: ExitCode = ExitCode.INTERRUPTED, **where: object
) -> dict[str, Any]:
    """Run a command, press Ctrl-C while it is at the given step, and return what it says that it did."""
    command = [sys.executable, "-c", INTERRUPTED.format(**where), *arguments, "--output", "json", *cluster.flags]
    with subprocess.Popen(
        command,
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
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert code is not ExitCode.INTERRUPTED or err.splitlines()[-1].startswith("interrupted: ")
    done: dict[str, Any] = json.loads(out)
    assert done["ended"] == "interrupted"
    return done


async def test_ctrl_c_ends_a_compaction_and_leaves_nothing_half_done(cluster: Cluster) -> None:
    await cluster.fill("orders", partitions=2)
    before = [await cluster.read("orders", 0), await cluster.read("orders", 1)]
    where = {"module": "compaction.commit", "cls": "ItemCompaction", "method": "_rewrite", "call": 2}
    interrupted(cluster, ["compact", "--min-entries", "2"], **where)
    async with cluster.open(embedded_agent=False) as sh:
        assert await sh.stores.metadata.list_compactions() == []
        assert await sh.stores.metadata.list_claims() == []
    assert [await cluster.read("orders", 0), await cluster.read("orders", 1)] == before


async def test_ctrl_c_in_the_middle_of_a_commit_finishes_it(cluster: Cluster) -> None:
    await cluster.fill("orders")
    before = await cluster.read("orders")
    where = {
        "module": "compaction.commit",
        "cls": "ItemCompaction",
        "method": "_surely",
        "call": 2,
    }  # begun, not applied
    done = interrupted(cluster, ["compact", "--min-entries", "2"], **where)
    assert done["summary"]["recovered"] == 1
    async with cluster.open(embedded_agent=False) as sh:
        assert await sh.stores.metadata.list_compactions() == []
        assert await sh.stores.metadata.list_claims() == []
    assert len(await cluster.referenced("orders")) == 1
    assert await cluster.read("orders") == before


async def test_ctrl_c_ends_retention_and_says_what_it_did(cluster: Cluster) -> None:
    await cluster.fill("old", partitions=2, at_ms=OLD_MS)
    where = {"module": "retention.passes", "cls": "Retention", "method": "apply", "call": 2}
    done = interrupted(cluster, ["retain"], **where)
    assert done["summary"]["moved_partitions"] == 1
    assert len(await cluster.referenced("old")) == 6
    assert document(cluster, "retain")["summary"]["moved_partitions"] == 1


async def test_ctrl_c_ends_vacuum_and_the_next_one_does_the_rest(cluster: Cluster) -> None:
    await cluster.fill("orders")
    replaced = set(await cluster.referenced("orders"))
    document(cluster, "compact", "--min-entries", "2")
    cluster.pass_time(2 * HOUR_MS)
    garbage = await cluster.put_garbage()
    where = {"module": "vacuum.vacuum", "cls": "Vacuum", "method": "_delete_unreferenced", "call": 1}
    done = interrupted(cluster, ["vacuum", "--yes", *BRIEF], **where)
    assert done["summary"]["objects"] == len(replaced)
    assert garbage <= await cluster.objects()
    assert document(cluster, "vacuum", "--yes", *BRIEF)["summary"]["objects"] == 1


async def test_ctrl_c_ends_a_verification_and_gives_its_pin_back(cluster: Cluster) -> None:
    await cluster.fill("orders")
    where = {"module": "verify.verifier", "cls": "Verifier", "method": "_read", "call": 3}
    done = interrupted(cluster, ["verify"], **where)
    assert done["summary"]["partitions"] == 0
    async with cluster.open(embedded_agent=False) as sh:
        assert await sh.stores.metadata.list_pins() == []


async def test_ctrl_c_in_the_middle_of_a_repair_finishes_what_was_begun(cluster: Cluster) -> None:
    await cluster.fill("orders")
    before = await cluster.read("orders")
    await damage(cluster, "orders", at=1)
    where = {"module": "compaction.commit", "cls": "ItemCompaction", "method": "_surely", "call": 2}  # begun
    interrupted(cluster, ["verify", "--repair"], code=ExitCode.DAMAGED, **where)
    async with cluster.open(embedded_agent=False) as sh:
        assert await sh.stores.metadata.list_compactions() == []
        assert await sh.stores.metadata.list_claims() == []
        assert await sh.stores.metadata.list_pins() == []
    assert document(cluster, "verify")["summary"]["findings"] == 0
    assert await cluster.read("orders") == before


# People.


def on_a_terminal(cluster: Cluster, *arguments: str) -> tuple[int, bytes, bytes]:
    """Run a command whose stderr is a terminal: its exit code, its stdout, and what the terminal got."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def listen() -> None:
        with contextlib.suppress(OSError):  # a pty ends with EIO once the other side is gone
            while chunk := os.read(ours, 65536):
                shown.append(chunk)

    listener = threading.Thread(target=listen)
    listener.start()
    with subprocess.Popen(
        [*PROGRAM, *arguments, *cluster.flags],
        env={**environment(), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        out, _ = process.communicate(timeout=300)
    listener.join(60)
    os.close(ours)
    return process.returncode, out, b"".join(shown)


async def test_a_terminal_gets_a_progress_bar_and_a_pipe_does_not(cluster: Cluster) -> None:
    await cluster.fill("orders")
    piped = run(cluster, "compact", "--min-entries", "2")
    assert piped.stderr == ""
    assert "objects_written" in piped.stdout
    code, out, shown = on_a_terminal(cluster, "verify")
    assert code == 0
    assert b"verifying" in shown
    assert b"100%" in shown
    assert b"\x1b" not in out


def shown_on_a_terminal(cluster: Cluster, *arguments: str) -> tuple[int, list[str]]:
    """Run a command whose stdout is a terminal of 80 columns: its exit code, and the lines that the terminal got."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with ThreadPoolExecutor(1) as listener:
        heard = listener.submit(listen_until_closed, ours)
        done = subprocess.run(
            [*PROGRAM, *arguments, *cluster.flags],
            env={**environment(), "TERM": "dumb", "COLUMNS": "80"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            timeout=300,
            check=False,
        )
        os.close(theirs)
        lines = heard.result(60).decode().splitlines()
    os.close(ours)
    return done.returncode, lines


def listen_until_closed(ours: int) -> bytes:
    shown: list[bytes] = []
    with contextlib.suppress(OSError):  # a pty ends with EIO once the other side is gone
        while chunk := os.read(ours, 65536):
            shown.append(chunk)
    return b"".join(shown)


async def test_rows_of_verify_fit_a_terminal_and_a_pipe_gets_all_of_them(cluster: Cluster) -> None:
    await cluster.fill("orders", flushes=2)
    key = await damage(cluster, "orders")
    code, lines = shown_on_a_terminal(cluster, "verify", "--repair", "--plan")
    assert code == ExitCode.DAMAGED
    rows = [line for line in lines if "orders " in line]
    assert len(rows) >= 2, "a finding, and what becomes of its entry"
    assert all(line.rstrip().endswith("…") for line in rows)
    assert max(map(len, lines)) <= 80
    piped = run(cluster, "verify", "--repair", "--plan").stdout
    assert key in piped
    assert "…" not in piped
