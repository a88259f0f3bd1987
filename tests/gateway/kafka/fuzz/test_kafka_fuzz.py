"""Mutated frames of every API: no crash, no hang, memory flat, others served throughout (10⁶ in `make fuzz`).

Produce requests carry record batches, valid and damaged ones (fuzz_batches.py), to topics that exist.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from fuzz_batches import PARTITIONS, TOPICS, Batches
from fuzz_frames import KEYS, mutated
from fuzzing import HANG_S, Report, Victim, ask, fuzz

from streamhouse.core.errors import StreamHouseError
from streamhouse.wire.records import decode_records

FRAMES = int(os.environ.get("FRAMES", "10000"))
SEED = int(os.environ.get("SEED", "1"))
MAX_GROWTH_BYTES = 24 << 20
CREATING = (19, 37)
"""CreateTopics, CreatePartitions."""


@contextmanager
def stub_victim() -> Iterator[tuple[Victim, subprocess.Popen[str]]]:
    command = [sys.executable, str(Path(__file__).with_name("fuzz_victim.py"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            yield Victim(int(child.stdout.readline()), child.pid), child
        finally:
            if child.poll() is None:
                child.kill()


@contextmanager
def platform_victim(directory: Path) -> Iterator[tuple[Victim, Path]]:
    """The whole platform with all its handlers, on embedded defaults, and where it writes its log."""
    log = directory / "log.txt"
    command = [
        *(sys.executable, "-m", "streamhouse", "dev"),
        *("--kafka-listen", "127.0.0.1:0", "--data-dir", str(directory / "data")),
        # Full after a few frames, so that what grows afterwards is a leak.
        *("--memory-tail-cache-bytes", "1MiB", "--memory-block-cache-bytes", "1MiB"),
    ]
    with log.open("w") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as child:
        try:
            yield Victim(_kafka_port(child, log), child.pid), log
            child.terminate()
            assert child.wait(60) == 0, log.read_text()[-3000:]
        finally:
            if child.poll() is None:
                child.kill()


def _kafka_port(child: subprocess.Popen[bytes], log: Path) -> int:
    for _ in range(1200):
        text = log.read_text()
        if "\nready" in text and (found := re.search(r"^kafka +127\.0\.0\.1:(\d+)$", text, re.MULTILINE)):
            return int(found[1])
        assert child.poll() is None, text
        time.sleep(0.05)
    raise AssertionError(f"not ready after a minute: {text}")


def frames(
    count: int, *, only: Container[int] = (), never: Container[int] = (), topic_ids: Mapping[str, UUID] | None = None
) -> Iterator[bytes]:
    """``only``, ``never``: API keys as the server reads them, whatever the damage made of the frame."""
    rng = Random(SEED)
    batches = Batches(rng, topic_ids or {})
    keys = [key for key in KEYS if not only or key in only]
    while count:
        frame = mutated(rng, keys, batches)
        key = int.from_bytes(frame[4:6], "big")
        if key not in never and (not only or key in only):
            count -= 1
            yield frame


def create_topics(victim: Victim) -> dict[str, UUID]:
    """The topics that Produce requests write to, and their ids."""
    wanted = [
        {
            "name": name,
            "num_partitions": PARTITIONS,
            "replication_factor": -1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        for name, configs in TOPICS.items()
    ]
    made = ask(victim, 19, 7, topics=wanted, timeout=int(HANG_S * 1000)).topics
    assert [topic.error_code for topic in made] == [0] * len(TOPICS)
    return {topic.name: topic.topic_id for topic in made}


def written(victim: Victim) -> dict[str, int]:
    """The end of partition 0 of each topic."""
    latest: dict[str, Any] = {"partitions": [{"partition_index": 0, "timestamp": -1}]}
    found = ask(victim, 2, 7, replica_id=-1, topics=[{"name": name, **latest} for name in TOPICS]).topics
    return {topic.name: topic.partitions[0].offset for topic in found}


def assert_unharmed(report: Report, count: int) -> None:
    if "FRAMES" in os.environ:
        sys.stderr.write(f"\n{report}\n")
    assert report.frames == count
    assert report.rss_end_bytes - report.rss_start_bytes < MAX_GROWTH_BYTES, report


def test_most_batches_are_valid_and_the_rest_fails_at_every_check() -> None:
    batches = Batches(Random(SEED), {})
    outcomes: Counter[str] = Counter()
    for _ in range(1000):
        records = batches.records() or b""
        try:
            decode_records(records, max_inflated_bytes=1 << 20)
            outcomes["read"] += 1
        except StreamHouseError as error:
            outcomes["checksum" if "CRC" in str(error) else "behind it"] += 1
    assert outcomes["read"] > 600, outcomes
    assert min(outcomes["checksum"], outcomes["behind it"]) > 20, outcomes


def test_every_api_by_its_schema() -> None:
    assert len(KEYS) > 50
    with stub_victim() as (victim, child):
        report = fuzz(victim, frames(FRAMES), warm_up=FRAMES // 4)
        assert_unharmed(report, FRAMES)
        counted, complaints = child.communicate(timeout=30)
    stats = json.loads(counted)
    assert child.returncode == 0
    assert stats["closed"].get("failed", 0) == 0, complaints
    assert complaints == ""
    assert report.outcomes["answered"] > FRAMES // 20, "most of the damage must pass the first check to be worth doing"
    assert report.outcomes["closed"] > FRAMES // 20


def test_every_handler_on_a_running_platform(tmp_path: Path) -> None:
    """Long polls are in order here, so a frame without an answer is left behind; the good client must never wait.
    Damaged requests for topics come last: one that asks for thirty thousand partitions and gets them takes memory."""
    with platform_victim(tmp_path) as (victim, log):
        topic_ids = create_topics(victim)
        sent = frames(FRAMES, never=CREATING, topic_ids=topic_ids)
        report = fuzz(victim, sent, warm_up=FRAMES // 2, wait_s=0.05)
        assert_unharmed(report, FRAMES)
        ends = written(victim)
        assert min(ends.values()) > FRAMES // 200, f"batches must reach the log to be worth sending: {ends}"
        fuzz(victim, frames(FRAMES // 20, only=CREATING), warm_up=0, wait_s=0.05)
    assert "Traceback" not in log.read_text(), log.read_text()[-5000:]
    assert report.outcomes["answered"] > FRAMES // 20
