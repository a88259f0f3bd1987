"""A fleet's agent on PostgreSQL and S3, beside what the S3 server alone can do in the same run.

    python bench/versus/s3.py [--seconds 5] [--only java,large,latency,default,delays,idle,crowd,pair]

One agent, the private servers of the tests, real clients. The agent's write-ahead log is in memory where the machine
has /dev/shm: a test machine has one disk for the S3 server and the log, and the log would take from the server's rate.
Targets of latency are counted in rounds: one PUT of 64 KiB and one commit, medians of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from confluent_kafka.admin import AdminClient, NewTopic
from obstore.store import S3Store
from prometheus_client.parser import text_string_to_metric_families

from report import heading, row
from streamhouse.testing.services.ports import free_ports
from streamhouse.testing.services.postgres import PostgresService, start_postgres
from streamhouse.testing.services.s3 import S3Service, start_s3
from versus.measured import MB, client
from versus.rows import perf_test
from versus.slow_s3 import delayed
from versus.targets import Target, wait_until_answered
from versus.watch import age_s, usage

KIB, MIB = 1024, 1024 * 1024
USD_PER_PUT = 0.005 / 1000
MONTH_S = 30 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What the S3 server does without us."""

    put_ms: float
    mb_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    postgres: PostgresService
    s3: S3Service
    bucket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    target: Target
    admin: str

    def figure(self, name: str) -> float:
        """A metric, summed over its labels; of a histogram, ``_sum`` or ``_count``."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return sum(each.value for each in samples if each.name == f"streamhouse_{name}")


async def measure_alone(s3: S3Service, bucket: str) -> Alone:
    store = S3Store(
        bucket,
        endpoint=s3.endpoint_url,
        access_key_id=s3.access_key,
        secret_access_key=s3.secret_key,
        region=s3.region,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    small, large = os.urandom(64 * KIB), os.urandom(8 * MIB)
    took = []
    for number in range(60):
        at = time.perf_counter()
        await store.put_async(f"alone/small-{number}", small)
        took.append((time.perf_counter() - at) * 1000)

    async def several(first: int) -> None:
        for number in range(first, 32, 4):
            await store.put_async(f"alone/large-{number}", large)

    at = time.perf_counter()
    await asyncio.gather(*(several(first) for first in range(4)))
    rate = 32 * len(large) / MB / (time.perf_counter() - at)
    return Alone(put_ms=statistics.median(took), mb_s=rate)


@contextlib.contextmanager
def agent(fleet: Fleet, *options: str, endpoint: str = "", dsn: str | None = None, name: str = "a") -> Iterator[Agent]:
    port, admin_port = free_ports(2)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    home = Path(tempfile.mkdtemp(prefix="bench-s3-", dir=memory))
    bootstrap, admin = f"127.0.0.1:{port}", f"127.0.0.1:{admin_port}"
    database = dsn or fleet.postgres.create_database()
    command = [
        *(str(Path(sys.executable).with_name("streamhouse")), "agent", f"--data-dir={home}", f"--agent-id={name}"),
        *(f"--metadata-url={database}", f"--store-url=s3://{fleet.bucket}/{home.name if dsn is None else 'pair'}"),
        *(f"--kafka-listen={bootstrap}", f"--admin-listen={admin}", "--wal-max-bytes=2GiB", *options),
    ]
    environment = {**os.environ, **fleet.s3.environment(), **({"AWS_ENDPOINT_URL": endpoint} if endpoint else {})}
    log = home / "agent.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_until_answered(bootstrap, process)
        yield Agent(
            target=Target(name="agent", bootstrap=bootstrap, pid=process.pid, ready_s=age_s(process.pid)), admin=admin
        )
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(home, ignore_errors=True)


def topic(target: Target, name: str, partitions: int) -> str:
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])[name].result(30)
    return name


def commit_ms(running: Agent) -> float:
    """The mean of this agent's commits so far."""
    return 1000 * running.figure("commit_seconds_sum") / max(running.figure("commit_seconds_count"), 1)


def java(fleet: Fleet, alone: Alone, seconds: float) -> None:
    heading("Java's defaults (idempotent, 16 KB batches, 5 requests under way), profile fast")
    with agent(fleet, "--profile=fast") as running:
        for partitions, goal in ((1, 5), (4, 15)):
            name = topic(running.target, f"java-{partitions}", partitions)
            perf_test(running.target, name, int(1000 * seconds))
            rate = perf_test(running.target, name, int(8000 * seconds))
            row(f"{partitions} partitions", f"{rate:.1f} MB/s", target=f"≥ {goal} MB/s")


def large(fleet: Fleet, alone: Alone, seconds: float) -> None:
    for profile in ("fast", "default", "cheap"):
        heading(
            f"As fast as librdkafka goes, 4 partitions, profile {profile}; the S3 server alone: {alone.mb_s:.0f} MB/s"
        )
        with agent(fleet, f"--profile={profile}") as running:
            for name, options in (
                ("idempotent, lz4, 1 MB batches", ("--idempotent", "--codec=lz4", "--linger-ms=5")),
                ("1 KB, not idempotent", ()),
            ):
                where = topic(running.target, f"large-{len(options)}", 4)
                client(running.target, where, "produce", "--seconds=1", *options)
                puts, stored = running.figure("flush_puts_total"), running.figure("produced_bytes_total")
                made = client(running.target, where, "produce", f"--seconds={seconds}", *options)
                puts = running.figure("flush_puts_total") - puts
                stored = running.figure("produced_bytes_total") - stored
                rate = stored / MB / made["wall_s"]
                per_gib = puts / (stored / 1024**3)
                row(
                    name,
                    f"{rate:.0f} MB/s stored",
                    target="≥ 80 %",
                    ratio=f"{100 * rate / alone.mb_s:.0f} % of the server's",
                )
                row("  PUTs for a GiB", f"{per_gib:.0f} = {per_gib * USD_PER_PUT:.4f} USD")
            row("memory after", f"{usage(running.target.pid).rss_mb:.0f} MB", target="≤ 300 MB")


def latency(fleet: Fleet, alone: Alone, seconds: float) -> None:
    heading(f"Latency, profile fast; PUT of 64 KiB alone {alone.put_ms:.1f} ms")
    with agent(fleet, "--profile=fast") as running:
        name = topic(running.target, "latency", 1)
        client(running.target, name, "latency", "--seconds=2", "--rate=1000")
        _latency_rows(running, alone, seconds, name)


def _latency_rows(running: Agent, alone: Alone, seconds: float, name: str) -> None:
    for rate in (100, 5000):
        for linger in (0, 1, 5, 100):
            for idempotent in (True, False):
                options = [f"--rate={rate}", f"--linger-ms={linger}", "--size=100", f"--seconds={seconds}"]
                found = client(running.target, name, "latency", *options, *(["--idempotent"] if idempotent else []))
                round_ms = alone.put_ms + commit_ms(running)
                p50, p99 = found["p50_ms"], found["p99_ms"]
                most50, most99 = linger + 3 * round_ms, linger + 5 * round_ms
                row(
                    f"{rate}/s, linger {linger}, {'idempotent' if idempotent else 'plain'}",
                    f"p50 {p50:.1f}  p99 {p99:.1f} ms",
                    target=f"≤ {most50:.0f} / {most99:.0f} ms",
                    ratio=f"{p50 / most50:.2f} / {p99 / most99:.2f} ×",
                )


def default(fleet: Fleet, alone: Alone, seconds: float) -> None:
    heading("Profile default: 20 PUTs per second")
    with agent(fleet) as running:
        name = topic(running.target, "default", 1)
        for rate in (100, 5000):
            for linger in (0, 5):
                client(running.target, name, "latency", "--seconds=2", f"--rate={rate}", f"--linger-ms={linger}")
                puts, at = running.figure("flush_puts_total"), time.perf_counter()
                options = (f"--rate={rate}", f"--linger-ms={linger}", "--size=100", f"--seconds={seconds}")
                found = client(running.target, name, "latency", *options)
                per_s = (running.figure("flush_puts_total") - puts) / (time.perf_counter() - at)
                row(
                    f"{rate}/s, linger {linger}",
                    f"p50 {found['p50_ms']:.0f} ms, {per_s:.1f} PUT/s",
                    target="≤ 100 ms, ≤ 20 PUT/s",
                    ratio=f"{per_s * MONTH_S * USD_PER_PUT:.0f} USD a month",
                )


def delays(fleet: Fleet, alone: Alone, seconds: float) -> None:
    for delay_ms in (30, 250):
        heading(f"{delay_ms} ms added to every answer of S3, profile fast")
        with (
            delayed(fleet.s3.ports[0], delay_ms) as port,
            agent(fleet, "--profile=fast", endpoint=f"http://127.0.0.1:{port}") as running,
        ):
            name = topic(running.target, "delayed", 1)
            perf_test(running.target, name, 500)
            rate = perf_test(running.target, name, int(1000 * seconds * 30 / delay_ms))
            row("Java's defaults, 1 partition", f"{rate:.2f} MB/s", target="≥ 1 MB/s" if delay_ms == 30 else "")
            for linger in (0, 5):
                options = ("--rate=5000", f"--linger-ms={linger}", "--size=100", f"--seconds={seconds}")
                found = client(running.target, name, "latency", *options)
                goal = "≤ 120 ms" if delay_ms == 30 else ""
                row(
                    f"5,000/s, linger {linger}", f"p50 {found['p50_ms']:.0f}  p99 {found['p99_ms']:.0f} ms", target=goal
                )


def idle(fleet: Fleet, alone: Alone, seconds: float) -> None:
    heading("PUTs of what is quiet, profile fast")
    with agent(fleet, "--profile=fast") as running:
        name = topic(running.target, "quiet", 1000)
        client(running.target, name, "latency", "--seconds=2", "--rate=2000")
        time.sleep(2)
        puts = running.figure("flush_puts_total")
        time.sleep(10)
        row("1,000 partitions", f"{(running.figure('flush_puts_total') - puts) / 10:.1f} PUT/s", target="0")


def crowd(fleet: Fleet, alone: Alone, seconds: float) -> None:
    heading("1,000 producers with 10 records per second each, one agent, profile fast")
    with agent(fleet, "--profile=fast") as running:
        name = topic(running.target, "crowd", 16)
        for rate in (2, 6, 10):
            command = [sys.executable, str(Path(__file__).with_name("crowd.py"))]
            command += [f"--bootstrap={running.target.bootstrap}", f"--topic={name}", f"--rate={rate}"]
            before = usage(running.target.pid)
            done = subprocess.run(
                [*command, f"--seconds={2 * seconds}"], capture_output=True, text=True, timeout=300, check=False
            )
            if done.returncode:
                sys.exit(f"the crowd failed: {done.stderr or done.stdout}")
            found: dict[str, Any] = json.loads(done.stdout)
            cpu = (usage(running.target.pid).cpu_s - before.cpu_s) / found["wall_s"]
            round_ms = alone.put_ms + commit_ms(running)
            row(
                f"{1000 * rate}/s in all",
                f"p50 {found['p50_ms']:.0f}  p99 {found['p99_ms']:.0f} ms",
                target=f"≤ {3 * round_ms:.0f} ms" if rate == 10 else "",
                ratio=f"{cpu:.2f} core",
            )


def pair(fleet: Fleet, alone: Alone, seconds: float) -> None:
    heading(f"Two agents, a producer for each; the S3 server alone: {alone.mb_s:.0f} MB/s")
    dsn = fleet.postgres.create_database()
    with (
        agent(fleet, "--profile=fast", dsn=dsn, name="a") as first,
        agent(fleet, "--profile=fast", dsn=dsn, name="b"),
    ):
        names = [topic(first.target, f"pair-{number}", 4) for number in range(2)]
        time.sleep(5)
        command = [sys.executable, str(Path(__file__).with_name("client.py")), "produce", f"--seconds={seconds}"]
        command.append(f"--bootstrap={first.target.bootstrap}")
        started = [subprocess.Popen([*command, f"--topic={name}"], stdout=subprocess.PIPE, text=True) for name in names]
        made = [json.loads(process.communicate(timeout=300)[0]) for process in started]
        rate = sum(each["bytes"] / MB / each["wall_s"] for each in made)
        row("1 KB, not idempotent", f"{rate:.0f} MB/s", ratio=f"{100 * rate / alone.mb_s:.0f} % of the server's")


PARTS = {each.__name__: each for each in (java, large, latency, default, delays, idle, crowd, pair)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--only", default=",".join(PARTS))
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if unknown := [name for name in wanted if name not in PARTS]:
        sys.exit(f"no such part: {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    with start_postgres(durable=True) as postgres, start_s3() as s3:
        fleet = Fleet(postgres=postgres, s3=s3, bucket=s3.create_bucket())
        alone = asyncio.run(measure_alone(s3, fleet.bucket))
        heading(f"The {s3.kind} server alone")
        row("PUT of 64 KiB", f"{alone.put_ms:.1f} ms")
        row("PUTs of 8 MiB, four at a time", f"{alone.mb_s:.0f} MB/s")
        for name in wanted:
            PARTS[name](fleet, alone, arguments.seconds)


if __name__ == "__main__":
    main()
