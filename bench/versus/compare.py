"""StreamHouse beside Apache Kafka: the same librdkafka client, alternating, in one run.

    python bench/versus/compare.py [--rounds 7] [--seconds 5] [--only throughput,latency,…]
    python bench/versus/compare.py --checkout ../earlier    # beside another checkout of ours, set up in its own .venv

Every figure is a median over the rounds. Each row has two: ours, and that of the other server. Ours runs on embedded
defaults, its write-ahead log synced before every acknowledgement; Kafka runs with its own defaults, which leave that to
the page cache. Both are started once and warmed up with a round that is not counted. CPU is the server's, of all its
threads. Another checkout serves as the other server where two versions of ours are to be compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import heading, row
from versus import rows
from versus.measured import MB, PARTITIONS, Figures, Found, client, figures_of, fresh_topic, show
from versus.targets import Target, start_apache_kafka, start_checkout, start_streamhouse
from versus.watch import usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    options: tuple[str, ...]


THROUGHPUT = (
    Case(name="1 KB, acks=all", options=("--size=1000", "--acks=all")),
    Case(name="1 KB, acks=1", options=("--size=1000", "--acks=1")),
    Case(name="1 KB, acks=all, lz4", options=("--size=1000", "--acks=all", "--codec=lz4")),
    Case(name="100 B, acks=all", options=("--size=100", "--acks=all")),
    Case(name="100 B, acks=all, lz4", options=("--size=100", "--acks=all", "--codec=lz4")),
    Case(name="1 KB, acks=all, linger 0", options=("--size=1000", "--acks=all", "--linger-ms=0")),
)
LATENCY = (
    Case(name="1 KB, acks=all", options=("--size=1000", "--acks=all")),
    Case(name="1 KB, acks=1", options=("--size=1000", "--acks=1")),
)


def throughput_round(target: Target, case: Case, topic: str, seconds: float, figures: Figures) -> None:
    with fresh_topic(target, topic):
        before = usage(target.pid)
        made = client(target, topic, "produce", f"--seconds={seconds}", *case.options)
        between = usage(target.pid)
        read = client(target, topic, "consume", *case.options)
        after = usage(target.pid)
        if read["records"] != made["records"]:
            sys.exit(f"{target.name}: {made['records']} records written, {read['records']} read")
        size_mb = made["bytes"] / MB
        figures.add("produce_mb_s", size_mb / made["wall_s"])
        figures.add("produce_cpu_ms", (between.cpu_s - before.cpu_s) * 1000 / size_mb)
        figures.add("consume_mb_s", size_mb / read["wall_s"])
        figures.add("consume_cpu_ms", (after.cpu_s - between.cpu_s) * 1000 / size_mb)
        figures.add("rss_mb", after.rss_mb)


def latency_round(target: Target, case: Case, topic: str, seconds: float, figures: Figures) -> None:
    with fresh_topic(target, topic):
        for name, value in client(target, topic, "latency", f"--seconds={seconds}", *case.options).items():
            figures.add(name, value)


Round = Callable[[Target, Case, str, float, Figures], None]


def alternate(targets: tuple[Target, Target], case: Case, one_round: Round, *, rounds: int, seconds: float) -> Found:
    found = figures_of(targets)
    for number in range(-1, rounds):
        # Who goes first changes from round to round: the second finds a warmer machine.
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for which in order:
            into = found[which] if number >= 0 else Figures(of=targets[which].name)
            one_round(targets[which], case, f"bench-{abs(hash((case.name, number)))}", seconds, into)
    return found


def start_other(checkout: Path | None) -> AbstractContextManager[Target]:
    return start_apache_kafka() if checkout is None else start_checkout(checkout)


ROWS = {"raw": rows.raw_ceiling, "java": rows.java_defaults, "crowd": rows.crowd, "slow": rows.slow_reader}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--only", default="throughput,latency,raw,java,crowd,slow,cold")
    parser.add_argument("--checkout", type=Path, help="a checkout of StreamHouse to compare with, not Apache Kafka")
    arguments = parser.parse_args()
    wanted = set(arguments.only.split(","))
    with start_streamhouse() as ours, start_other(arguments.checkout) as theirs:
        heading(f"Start to a first answered request; every row: ours / {theirs.name}'s")
        row("ready after", f"{ours.ready_s:.2f} / {theirs.ready_s:.2f} s", target="≤ 1.5 s")
        pace = {"rounds": arguments.rounds, "seconds": arguments.seconds}
        if "throughput" in wanted:
            for case in THROUGHPUT:
                heading(f"{case.name}, {PARTITIONS} partitions")
                found = alternate((ours, theirs), case, throughput_round, **pace)
                show("produce", found, "produce_mb_s", "MB/s", "≥ 1.0 ×")
                show("produce, server CPU", found, "produce_cpu_ms", "ms/MB", "≤ 0.5 ×", digits=2)
                show("consume", found, "consume_mb_s", "MB/s", "≥ 1.0 ×")
                show("consume, server CPU", found, "consume_cpu_ms", "ms/MB", "≤ 1.5 ×", digits=2)
                show("memory after", found, "rss_mb", "MB", "≤ 200 MB")
        if "latency" in wanted:
            for case in LATENCY:
                heading(f"Latency at 5,000 records/s, {case.name}")
                found = alternate((ours, theirs), case, latency_round, **pace)
                show("p50", found, "p50_ms", "ms", "", digits=2)
                show("p99", found, "p99_ms", "ms", "≤ 1.0 ×", digits=2)
                show("p99.9", found, "p999_ms", "ms", "", digits=2)
        for name, compare in ROWS.items():
            if name in wanted:
                compare((ours, theirs), **pace)
    if "cold" in wanted:
        rows.cold_consume(seconds=arguments.seconds)


if __name__ == "__main__":
    main()
