"""What all comparisons share: one client run, one fresh topic, figures by round, one printed line."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from report import row
from versus.targets import Target

_CLIENT = Path(__file__).with_name("client.py")
PARTITIONS = 4
MB = 1_000_000


@dataclass(slots=True, kw_only=True)
class Figures:
    """The values of each figure of one server, one for each round."""

    of: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])


Found = tuple[Figures, Figures]


def figures_of(targets: tuple[Target, Target]) -> Found:
    return Figures(of=targets[0].name), Figures(of=targets[1].name)


def client(target: Target, topic: str, work: str, *options: str) -> dict[str, float]:
    command = [sys.executable, str(_CLIENT), work, f"--bootstrap={target.bootstrap}", f"--topic={topic}", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(f"{target.name}, {work}: {done.stderr or done.stdout}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


@contextlib.contextmanager
def fresh_topic(target: Target, name: str, *, keep: bool = False) -> Iterator[str]:
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)])[name].result(30)
    try:
        yield name
    finally:
        if not keep:
            admin.delete_topics([name])[name].result(30)


def show(name: str, found: Found, figure: str, unit: str, target: str, *, digits: int = 0) -> None:
    ours, theirs = (each.median(figure) for each in found)
    ratio = f"{ours / theirs:.2f} × {found[1].of}'s" if theirs else ""
    row(name, f"{ours:,.{digits}f} / {theirs:,.{digits}f} {unit}", target=target, ratio=ratio)
