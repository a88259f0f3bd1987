"""How long producers wait while maintenance runs, against an agent that does none.

A real agent (SQLite, local disk, durability=wal) and real clients (librdkafka), processes of their own. With and
without maintenance alternate, and so does which of them begins a round. Each has a new agent, a copy of the same
directory, and the same load:

    measured   1,000 records of 1 KB a second. ``retention.bytes`` is 1 MiB: retention deletes all the time
    keyed      1,000 records a second, 500 keys, ``cleanup.policy=compact``, always dirty: key compaction every second
    backlog    256 MB in objects of 512 KB, written before: compaction has work for eight seconds, at 32 MiB a second

Intervals of retention and compaction are a second. Vacuum does not run: its interval is a minute at least. Single nodes
delete dereferenced objects beyond 1 MiB at once, which deletes all the time too. A round says what maintenance did.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from maintenance_logs import MB, batches_of, load
from report import heading, row
from streamhouse.app.platform import StreamHouse
from streamhouse.testing.services.ports import free_ports
from versus.measured import client
from versus.targets import Target, start_streamhouse
from versus.watch import usage

_CLIENT = Path(__file__).parent / "versus" / "client.py"
_RATE = 1_000
_BACKLOG_BATCH_BYTES = 512_000
_LONGER = 10
"""So many times longer than a measurement would the load last, if it were not ended: busy machines take their time."""
_WITH = (
    "--maintenance-retention-interval=1s",
    "--maintenance-compaction-interval=1s",
    "--maintenance-garbage-max-bytes=1MiB",
)
_WITHOUT = ("--no-maintenance-enabled",)
_TOPICS: Mapping[str, Mapping[str, str]] = {
    "measured": {"retention.bytes": str(1024 * 1024)},
    "keyed": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
}
_TARGET = 1.3
_FIGURES = {
    "passes of maintenance that ended": ("maintenance_passes_total", {}),
    "bytes that retention deleted": ("retention_deleted_bytes_total", {}),
    "bytes that key compaction read": ("key_compaction_read_bytes_total", {}),
    "objects that both compactions committed": ("metadata_call_seconds_count", {"call": "apply_compaction"}),
}
"""Each with its metric and labels. Compaction counts its bytes at the end of a pass, which may be after the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    p50_ms: float
    p99_ms: float
    cpu_s: float
    """What the agent took meanwhile, for writes and for maintenance."""
    did: Mapping[str, float]
    """What maintenance did meanwhile."""


def produce(*, rounds: int, seconds: float, backlog_mb: int) -> None:
    heading(f"Produce while maintenance runs, {rounds} rounds of {seconds:g} s each; {load()}")
    with tempfile.TemporaryDirectory(prefix="bench-maintenance-") as directory:
        written = Path(directory) / "written"
        asyncio.run(_write_backlog(written, max(1, backlog_mb * MB // _BACKLOG_BATCH_BYTES)))
        _compare(written, rounds=rounds, seconds=seconds)


async def _write_backlog(directory: Path, count: int) -> None:
    """Each batch becomes an object of its own."""
    async with StreamHouse.open(data_dir=str(directory), maintenance_enabled=False) as sh:
        topic = await sh.create_topic("backlog", 1)
        (key,) = topic.partition_keys()
        await sh.agent.wait_leading([key], timeout_s=300)
        batches = batches_of(_BACKLOG_BATCH_BYTES, 16)
        for number in range(count):
            await sh.agent.log.append(key, batches[number % len(batches)], acks=-1).done
            await sh.flush()


def _compare(written: Path, *, rounds: int, seconds: float) -> None:
    without: list[Waited] = []
    beside: list[Waited] = []
    for number in range(rounds):
        sides = [(without, _WITHOUT), (beside, _WITH)]
        for waited, options in sides if number % 2 else reversed(sides):
            waited.append(_round(written, options, seconds))
    for name, alone, both, target in (
        ("p50", [each.p50_ms for each in without], [each.p50_ms for each in beside], ""),
        ("p99", [each.p99_ms for each in without], [each.p99_ms for each in beside], f"≤ {_TARGET} ×"),
    ):
        ratio = statistics.median(both) / statistics.median(alone)
        row(
            f"{name} with / without, medians",
            f"{statistics.median(both):.2f} / {statistics.median(alone):.2f} ms",
            target=target,
            ratio=f"{ratio:.2f} ×",
        )
        row(f"  {name} by round, with", "", ratio=" ".join(f"{each:.2f}" for each in both))
        row(f"  {name} by round, without", "", ratio=" ".join(f"{each:.2f}" for each in alone))
    with_s = statistics.median(each.cpu_s for each in beside)
    without_s = statistics.median(each.cpu_s for each in without)
    row("CPU of the agent, with / without", f"{with_s:.1f} / {without_s:.1f} s", ratio=f"{with_s / without_s:.2f} ×")
    for figure in _FIGURES:
        row(f"{figure}, a round", f"{statistics.median(each.did[figure] for each in beside):,.0f}")
    row("load afterwards", load())


def _round(written: Path, options: tuple[str, ...], seconds: float) -> Waited:
    home = written.with_name("running")
    shutil.copytree(written, home)
    try:
        return _measure(home, options, seconds)
    finally:
        shutil.rmtree(home)


def _measure(home: Path, options: tuple[str, ...], seconds: float) -> Waited:
    (admin_port,) = free_ports(1)
    admin = f"127.0.0.1:{admin_port}"
    with start_streamhouse(f"--admin-listen={admin}", *options, directory=home) as target:
        _create_topics(target)
        with _load(target, "keyed", seconds, "--keys=500"):
            client(target, "measured", "latency", "--seconds=2", f"--rate={_RATE}")  # warms up; retention has begun
            before, cpu_s = _done(admin), usage(target.pid).cpu_s
            found = client(target, "measured", "latency", f"--seconds={seconds}", f"--rate={_RATE}")
            cpu_s = usage(target.pid).cpu_s - cpu_s
            did = {name: figure - before[name] for name, figure in _done(admin).items()}
    return Waited(p50_ms=found["p50_ms"], p99_ms=found["p99_ms"], cpu_s=cpu_s, did=did)


def _done(admin: str) -> dict[str, float]:
    """What the agent's maintenance has done so far."""
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {
        figure: sum(
            each.value
            for each in samples
            if each.name == f"streamhouse_{metric}" and labels.items() <= each.labels.items()
        )
        for figure, (metric, labels) in _FIGURES.items()
    }


@contextmanager
def _load(target: Target, topic: str, seconds: float, *options: str) -> Iterator[None]:
    """A producer until the block ends."""
    command = [sys.executable, str(_CLIENT), "latency", f"--bootstrap={target.bootstrap}", f"--topic={topic}"]
    command += [f"--seconds={_LONGER * seconds + 60}", f"--rate={_RATE}", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            sys.exit(f"the producer to {topic} ended with {process.returncode} before the measurement did")
    finally:
        process.kill()
        process.wait()


def _create_topics(target: Target) -> None:
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    topics = [
        NewTopic(name, num_partitions=1, replication_factor=1, config=dict(configs))
        for name, configs in _TOPICS.items()
    ]
    for created in admin.create_topics(topics).values():
        created.result(30)
