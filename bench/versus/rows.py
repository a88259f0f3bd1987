"""The rows beside plain throughput and latency: a server's own ceiling, Java's defaults, crowds, slow readers."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from report import heading, row
from streamhouse.testing.services.kafka_jars import find_kafka
from versus.measured import MB, client, figures_of, fresh_topic, show
from versus.targets import Target, start_streamhouse
from versus.watch import usage

_RAW = Path(__file__).with_name("raw.py")
Both = tuple[Target, Target]


def raw_ceiling(targets: Both, *, rounds: int, seconds: float) -> None:
    heading("A raw loader, 256 KB batches, 8 requests under way")
    for acks, name in ((-1, "acks=all"), (1, "acks=1")):
        found = figures_of(targets)
        for number in range(rounds):
            for target, figures in zip(targets, found, strict=True):
                with fresh_topic(target, f"raw-{acks}-{number}") as topic:
                    before = usage(target.pid)
                    made = _raw(target, "produce", f"--topic={topic}", f"--acks={acks}", f"--seconds={seconds}")
                    size_mb = made["bytes"] / MB
                    figures.add("mb_s", size_mb / made["wall_s"])
                    figures.add("cpu_ms", (usage(target.pid).cpu_s - before.cpu_s) * 1000 / size_mb)
        show(f"produce, {name}", found, "mb_s", "MB/s", "")
        show(f"produce, {name}, server CPU", found, "cpu_ms", "ms/MB", "", digits=2)


def java_defaults(targets: Both, *, rounds: int, seconds: float) -> None:
    heading("kafka-producer-perf-test with Java's defaults (idempotent, acks=all, 16 KB batches)")
    found = figures_of(targets)
    records = int(seconds * 100_000)
    for number in range(rounds):
        for target, figures in zip(targets, found, strict=True):
            with fresh_topic(target, f"java-{number}") as topic:
                figures.add("mb_s", perf_test(target, topic, records))
    show("produce", found, "mb_s", "MB/s", "≥ 1.0 ×")


def crowd(targets: Both, *, rounds: int, seconds: float) -> None:
    heading("Beside 1,000 idle connections")
    found = figures_of(targets)
    for number in range(rounds):
        for target, figures in zip(targets, found, strict=True):
            before = usage(target.pid)
            with _standing(target, "idle"), fresh_topic(target, f"crowd-{number}") as topic:
                figures.add("rss_mb", usage(target.pid).rss_mb - before.rss_mb)
                made = client(target, topic, "produce", f"--seconds={seconds}")
                figures.add("mb_s", made["bytes"] / MB / made["wall_s"])
    show("produce", found, "mb_s", "MB/s", "≥ 1.0 ×")
    show("memory they take", found, "rss_mb", "MB", "", digits=1)


def slow_reader(targets: Both, *, rounds: int, seconds: float) -> None:
    heading("Beside a reader that asks for everything and takes nothing")
    found = figures_of(targets)
    for number in range(rounds):
        for target, figures in zip(targets, found, strict=True):
            with fresh_topic(target, f"slow-{number}") as topic:
                made = client(target, topic, "produce", f"--seconds={seconds}")
                with _standing(target, "slow", f"--topic={topic}"):
                    read = client(target, topic, "consume")
                figures.add("mb_s", made["bytes"] / MB / read["wall_s"])
                figures.add("rss_mb", usage(target.pid).rss_mb)
    show("consume", found, "mb_s", "MB/s", "≥ 1.0 ×")
    show("memory after", found, "rss_mb", "MB", "≤ 200 MB")


def cold_consume(*, seconds: float) -> None:
    heading("Consume after a restart, nothing in our memory, beside the same before it (ours alone)")
    with tempfile.TemporaryDirectory(prefix="bench-cold-") as home:
        directory = Path(home) / "data"
        directory.mkdir()
        with start_streamhouse(directory=directory) as target, fresh_topic(target, "cold", keep=True) as topic:
            made = client(target, topic, "produce", f"--seconds={seconds}")
            warm = client(target, topic, "consume")
        with start_streamhouse(directory=directory) as target:
            cold = client(target, "cold", "consume")
            if cold["records"] != made["records"]:
                sys.exit(f"{made['records']} records were written, {cold['records']} are there after a restart")
            row(
                "consume, cold / warm",
                f"{made['bytes'] / MB / cold['wall_s']:,.0f} / {made['bytes'] / MB / warm['wall_s']:,.0f} MB/s",
                ratio=f"{warm['wall_s'] / cold['wall_s']:.2f} ×",
            )
            row("start with that data to a first answer", f"{target.ready_s:.2f} s", target="≤ 1.5 s")


def _raw(target: Target, work: str, *options: str) -> dict[str, float]:
    command = [sys.executable, str(_RAW), work, f"--bootstrap={target.bootstrap}", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(f"{target.name}, raw {work}: {done.stderr or done.stdout}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


@contextlib.contextmanager
def _standing(target: Target, work: str, *options: str) -> Iterator[None]:
    """A raw client that is there while the block runs."""
    command = [sys.executable, str(_RAW), work, f"--bootstrap={target.bootstrap}", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"there\n":
            sys.exit(f"{target.name}: the {work} client did not get through")
        try:
            yield
        finally:
            process.kill()


def perf_test(target: Target, topic: str, records: int) -> float:
    arguments = [
        *("--topic", topic, "--num-records", str(records), "--record-size", "1000", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={target.bootstrap}"),
    ]
    command = find_kafka().java_argv("org.apache.kafka.tools.ProducerPerformance", *arguments, options=["-Xmx512m"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = re.findall(r"\(([\d.]+) MB/sec\)", done.stdout)
    if done.returncode or not found:
        sys.exit(f"{target.name}, perf-test: {done.stderr or done.stdout}")
    return float(found[-1])
