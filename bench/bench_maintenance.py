"""Maintenance: what compaction, key compaction and vacuum cost, what producers notice of it, what readers gain by it.

    python bench/bench_maintenance.py                                        all, some three minutes at most
    python bench/bench_maintenance.py --only keys --records 10000000         the sizes of the targets
    python bench/bench_maintenance.py --only vacuum --objects 1000000

Figures are CPU time wherever possible, so that they stand on a busy machine. The load is printed beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence

from maintenance_compaction import compaction
from maintenance_keys import key_compaction
from maintenance_loop import loop_steps
from maintenance_produce import produce
from maintenance_reads import read_amplification
from maintenance_vacuum import vacuum
from streamhouse.app.process import tune


def main(arguments: Sequence[str] = ()) -> None:
    given = _parse(arguments)
    tune()  # as an agent does
    parts: dict[str, Callable[[], None]] = {
        "compaction": lambda: asyncio.run(compaction(log_mb=given.log_mb, rounds=given.rounds)),
        "keys": lambda: key_compaction(records=given.records),
        "vacuum": lambda: vacuum(objects=given.objects),
        "vacuum-postgres": lambda: vacuum(objects=given.objects, on_postgres=True),
        "loop": loop_steps,
        "produce": lambda: produce(rounds=given.produce_rounds, seconds=given.seconds, backlog_mb=given.backlog_mb),
        "reads": lambda: asyncio.run(read_amplification(log_mb=given.s3_mb)),
    }
    only = given.only.split(",") if given.only else list(parts)
    if unknown := set(only) - set(parts):
        sys.exit(f"--only: there is no {', '.join(sorted(unknown))}; choose from {', '.join(parts)}")
    for name in only:
        parts[name]()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The benchmarks of maintenance.")
    parser.add_argument("--only", default="", help="parts, with commas between them; all of them if not given")
    parser.add_argument("--log-mb", type=_log_mb, default=64, help="compaction: the size of the log, 1 to 128")
    parser.add_argument("--rounds", type=_positive, default=5, help="compaction: how often each is measured")
    parser.add_argument("--records", type=_positive, default=1_000_000, help="key compaction: records of the log")
    parser.add_argument("--objects", type=_positive, default=100_000, help="vacuum: objects of the bucket")
    parser.add_argument("--produce-rounds", type=_positive, default=3, help="produce: rounds with and without")
    parser.add_argument("--seconds", type=_positive, default=5, help="produce: how long a round measures")
    parser.add_argument("--backlog-mb", type=_positive, default=256, help="produce: what compaction finds")
    parser.add_argument("--s3-mb", type=_positive, default=32, help="read amplification: the size of the log")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few: 1 is the least")
    return number


def _log_mb(text: str) -> int:
    number = _positive(text)
    if number > 128:
        raise argparse.ArgumentTypeError(f"{number} MB do not become one object: 128 are the most")
    return number


if __name__ == "__main__":
    main(sys.argv[1:])
