"""The demo: three agents, a death and a departure, on SQLite and a directory, and on PostgreSQL with real S3."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamhouse.app import story
from streamhouse.app.demo import DEMO_TOPICS, RECORDS_PER_PARTITION
from streamhouse.app.story import ZONES, tell_story
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import CorruptData
from streamhouse.core.randomness import SystemRandomness
from streamhouse.core.settings import load_settings
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record, build_batch

# Deaths noticed in two seconds instead of six: the story is the same.
QUICK = {
    "lease.ttl": "1500ms",
    "lease.renew_interval": "400ms",
    "agent.heartbeat_interval": "400ms",
    "agent.liveness_timeout": "1500ms",
    "assigner.interval": "400ms",
}
QUICK_FLAGS = [part for key, value in QUICK.items() for part in (f"--{key.replace('.', '-').replace('_', '-')}", value)]
PARTITIONS = sorted((demo.name, number) for demo in DEMO_TOPICS for number in range(demo.partition_count))


def streamhouse(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamhouse", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_s1_19_demo_topics_have_the_documents_shape() -> None:
    assert [(demo.name, demo.partition_count) for demo in DEMO_TOPICS] == [
        ("orders", 3),
        ("user-events", 2),
        ("metrics", 4),
    ]
    assert len(set(ZONES)) == 3


def check_steps(steps: Sequence[dict[str, Any]]) -> None:
    agents, shared, written, after_death, after_leave, landed = (step["rows"] for step in steps)
    names = [f"agent-{zone}" for zone in ZONES]
    assert [row["agent_id"] for row in agents] == names
    for rows in (shared, after_death, after_leave):
        assert [(row["topic"], row["partition_id"]) for row in rows] == PARTITIONS
    assert len({row["leader_agent_id"] for row in shared}) >= 2, "spread over at least two agents"
    assert names[0] not in {row["leader_agent_id"] for row in after_death}
    assert {row["leader_agent_id"] for row in after_leave} == {names[2]}
    for earlier, later in ((shared, after_death), (after_death, after_leave)):
        for before, after in zip(earlier, later, strict=True):
            moved = before["leader_agent_id"] != after["leader_agent_id"]
            assert after["epoch"] == before["epoch"] + moved, "an epoch grows with a new leader and only then"
    assert len({row["high_watermark"] for row in written}) == 1
    ends = {}
    for row in landed:
        key = (row["topic"], row["partition_id"])
        assert row["base_offset"] == ends.get(key, 0), "entries have no gaps"
        ends[key] = row["end_offset"] + 1
    assert sorted(ends) == PARTITIONS
    assert {end % (3 * RECORDS_PER_PARTITION) for end in ends.values()} == {0}


def test_s1_2_the_demo_runs_end_to_end_and_again(tmp_path: Path) -> None:
    for run in (1, 2):
        done = streamhouse("demo", "--data-dir", str(tmp_path), "--output", "json", *QUICK_FLAGS)
        assert done.returncode == 0, done.stderr
        steps = json.loads(done.stdout)
        check_steps(steps)
        ends = [row["end_offset"] for row in steps[-1]["rows"]]
        assert max(ends) == run * 3 * RECORDS_PER_PARTITION - 1
    with sqlite3.connect(f"file:{tmp_path}/demo/metadata.db?mode=ro", uri=True) as db:
        found = db.execute("SELECT topic, partition_id FROM partitions ORDER BY 1, 2").fetchall()
    db.close()
    assert found == PARTITIONS


async def test_s1_19_the_story_on_postgres_and_s3(
    postgres_service: Any, postgres_database: str, s3_service: Any, tmp_path: Path
) -> None:
    settings = load_settings(
        flags={
            "data_dir": str(tmp_path),
            "metadata.url": postgres_database,
            "store.url": f"s3://{s3_service.create_bucket()}/demo",
            "store.endpoint_url": s3_service.endpoint_url,
            "store.region": s3_service.region,
            "store.access_key_id": s3_service.access_key,
            "store.secret_access_key": s3_service.secret_key,
            **QUICK,
        }
    ).settings
    steps: list[dict[str, Any]] = []

    def tell(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> None:
        steps.append({"step": heading, "rows": [dict(zip(columns, row, strict=True)) for row in rows]})

    await tell_story(settings, clock=SystemClock(), randomness=SystemRandomness(), tell=tell)
    check_steps(steps)
    # The document's own query, word for word.
    shown = postgres_service.psql(
        """SELECT topic, partition_id, leader_agent_id,
                  lease_expires_at - extract(epoch from now())*1000 as ttl_ms,
                  epoch
           FROM partition_leases;""",
        dsn=postgres_database,
    )
    assert shown.count("agent-us-east-1c") == len(PARTITIONS)


async def test_the_story_fails_when_a_record_reads_back_with_another_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets are right, so only a comparison of the records finds it."""

    def altered(records: list[Record], *, codec: Codec) -> bytes:
        changed = [replace(record, value=b"other") if number == 7 else record for number, record in enumerate(records)]
        return build_batch(changed, codec=codec)

    monkeypatch.setattr(story, "build_batch", altered)
    settings = load_settings(flags={"data_dir": str(tmp_path), "durability": "object", **QUICK}).settings
    with pytest.raises(CorruptData, match=r"offset 7 was acknowledged as .*, and reads .*other"):
        await tell_story(settings, clock=SystemClock(), randomness=SystemRandomness(), tell=lambda *told: None)


ANY_PORT = ("--kafka-listen", "127.0.0.1:0")


def test_the_demo_shows_tables_on_stdout_and_remarks_on_stderr(tmp_path: Path) -> None:
    done = streamhouse("demo", "--data-dir", str(tmp_path), *QUICK_FLAGS)
    assert done.returncode == 0, done.stderr
    assert "LEADER_AGENT_ID" in done.stdout
    assert "took over after" in done.stderr
    assert "took over after" not in done.stdout


def test_the_demo_in_an_impossible_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    done = streamhouse("demo", "--data-dir", str(tmp_path / "file" / "data"))
    assert done.returncode != 0
    assert f"is inside {tmp_path / 'file'}, which is a file" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_dev_loads_the_demo_and_stops_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "streamhouse", "dev", "--demo", "--data-dir", str(tmp_path), *ANY_PORT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("ready"):
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert "HIGH_WATERMARK" in out
    assert "stopped" in err
    with sqlite3.connect(f"file:{tmp_path}/metadata.db?mode=ro", uri=True) as db:
        (committed,) = db.execute("SELECT sum(high_watermark) FROM partitions").fetchone()
    db.close()
    assert committed == len(PARTITIONS) * RECORDS_PER_PARTITION, "everything acknowledged is in the log"
