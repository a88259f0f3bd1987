"""The demo and the Python API it uses, on the embedded defaults and on PostgreSQL with a real S3 server."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamhouse.app.demo import DEMO_TOPICS, RECORDS_PER_BATCH, run_demo
from streamhouse.app.platform import StreamHouse
from streamhouse.core.errors import InvalidTopicConfig, TopicExists, TopicNotFound, UnknownSetting
from streamhouse.metadata.contract import WriteMode

PARTITIONS = [(demo.name, number) for demo in DEMO_TOPICS for number in range(demo.partition_count)]


def streamhouse(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamhouse", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_s1_19_demo_topics_have_the_documents_shape() -> None:
    assert [(demo.name, demo.partition_count) for demo in DEMO_TOPICS] == [
        ("orders", 3),
        ("user-events", 2),
        ("metrics", 4),
    ]


async def test_s1_3_create_topic_makes_topic_and_partitions(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path / "data")) as sh:
        topic = await sh.create_topic("clicks", 4, configs={"retention.ms": "1000"})
        assert [key.partition for key in topic.partition_keys()] == [0, 1, 2, 3]
        assert len(await sh.stores.metadata.get_partitions(topic.partition_keys())) == 4
        with pytest.raises(TopicExists):
            await sh.create_topic("clicks", 1)
        with pytest.raises(InvalidTopicConfig, match=r"retention\.ms"):
            await sh.create_topic("other", 1, configs={"retention.mss": "1"})
        await sh.delete_topic("clicks")
        with pytest.raises(TopicNotFound):
            await sh.topic("clicks")


async def test_r19_write_mode_follows_diskless_enable(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path / "data")) as sh:
        topic = await sh.create_topic("cheap", 1, configs={"diskless.enable": "true"})
        assert topic.write_mode is WriteMode.LEADERLESS


async def test_unknown_keyword_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UnknownSetting, match="--data-dir"):
        async with StreamHouse.open(data_dri=str(tmp_path)):
            pass


async def test_demo_on_postgres_and_s3(postgres_database: str, s3_service: Any) -> None:
    async with StreamHouse.open(
        metadata_url=postgres_database,
        store_url=f"s3://{s3_service.create_bucket()}/demo",
        store_endpoint_url=s3_service.endpoint_url,
        store_region=s3_service.region,
        store_access_key_id=s3_service.access_key,
        store_secret_access_key=s3_service.secret_key,
    ) as sh:
        first = await run_demo(sh)
        second = await run_demo(sh)
        keys = [info.key async for info in sh.stores.objects.list("topics/")]
    assert [(row.topic, row.partition) for row in first] == PARTITIONS
    assert {row.high_watermark for row in first} == {2 * RECORDS_PER_BATCH}
    assert {row.high_watermark for row in second} == {4 * RECORDS_PER_BATCH}
    assert sorted(keys) == sorted(row.object_key for row in first + second)


def test_demo_command_writes_reads_and_continues(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    for run in (1, 2):
        done = streamhouse("demo", "--data-dir", str(directory), "--output", "json")
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)
        assert [(row["topic"], row["partition"]) for row in rows] == PARTITIONS
        assert all(row["records_read"] == 2 * RECORDS_PER_BATCH for row in rows)
        assert all(row["high_watermark"] == run * 2 * RECORDS_PER_BATCH for row in rows)
        assert all(row["epoch"] == run for row in rows)
        assert all((directory / "objects" / row["object_key"]).is_file() for row in rows)
        assert all(json.loads(row["sample"]) for row in rows)
    with sqlite3.connect(f"file:{directory}/metadata.db?mode=ro", uri=True) as db:
        found = db.execute("SELECT topic, partition_id, high_watermark FROM partitions").fetchall()
    db.close()
    assert {(topic, number) for topic, number, _ in found} == set(PARTITIONS)


def test_demo_command_shows_tables_on_stdout_and_notes_on_stderr(tmp_path: Path) -> None:
    done = streamhouse("demo", "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 0
    assert "HIGH_WATERMARK" in done.stdout
    assert "sqlite3 -readonly" in done.stderr
    assert "sqlite3" not in done.stdout


def test_demo_command_in_an_impossible_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    done = streamhouse("demo", "--data-dir", str(tmp_path / "file" / "data"))
    assert done.returncode != 0
    assert "cannot make the directory" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
