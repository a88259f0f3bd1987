"""``python -m simulator``: run seeds, replay one, hunt broken variants. ``make sim SEEDS=n`` calls it.

--seeds 2000                  run seeds 0 to 1999 of the real code; exit code 1 if one fails
--seeds 100 --first 500       from another seed on
--seed 130 --trace            replay one, with everything that happened in it
--mutants                     hunt every broken variant, each within 500 seeds; exit code 1 if one is not found
--mutants "epoch"             those with this in their name
--seed 130 --mutants "epoch"  run one seed with a broken variant
--likely                      hunt every broken variant, likely seeds first, and print LIKELY_SEEDS (mutants.py) anew
--likely --mutants "epoch"    the same for those with this in their name
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Final

from simulator.mutant import Mutant
from simulator.mutants import MOST_SEEDS, MUTANTS, hunt_likely_first
from simulator.run import SeedOutcome, run_seed

_REPORT_EVERY: Final = 100
_WIDTH: Final = 240


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulator", description=(__doc__ or ""))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: show everything that happened")
    parser.add_argument(
        "--mutants", nargs="?", const="", metavar="NAME", help="broken variants instead of the real code"
    )
    parser.add_argument("--likely", action="store_true", help="print the seeds that show each broken variant")
    chosen = parser.parse_args(arguments)
    logging.getLogger("streamhouse").addHandler(logging.NullHandler())  # faults are expected here
    mutants = [] if chosen.mutants is None else [each for each in MUTANTS if chosen.mutants in each.name]
    if chosen.mutants is not None and not mutants:
        parser.error(f"no variant has {chosen.mutants!r} in its name; there are: {', '.join(m.name for m in MUTANTS)}")
    if chosen.seed is not None:
        return _replay(chosen.seed, mutants, trace=chosen.trace)
    if chosen.likely:
        return _print_likely(mutants or MUTANTS)
    if mutants:
        return _hunt(mutants)
    return _run(range(chosen.first, chosen.first + chosen.seeds))


def _run(seeds: range) -> int:
    failed = 0
    for number, seed in enumerate(seeds, start=1):
        outcome = run_seed(seed)
        if not outcome.passed:
            failed += 1
            _say(f"seed {seed} FAILED (replay: python -m simulator --seed {seed} --trace)")
            _show_anomalies(outcome)
        if number % _REPORT_EVERY == 0 or number == len(seeds):
            _say(f"{number} seeds, {failed} failed")
    return 1 if failed else 0


def _replay(seed: int, mutants: Sequence[Mutant], *, trace: bool) -> int:
    runs: list[tuple[str, Callable[[], SeedOutcome | None]]] = [
        ("the real code", lambda: run_seed(seed, keep_notes=trace))
    ]
    if mutants:
        runs = [(mutant.name, lambda mutant=mutant: mutant.run(seed, keep_notes=trace)) for mutant in mutants]  # type: ignore[misc]
    failed = 0
    for name, run in runs:
        outcome = run()
        if outcome is None:
            _say(f"seed {seed}, {name}: does not apply to this seed's scenario")
            continue
        for note in outcome.notes:
            _say(f"{note.at_ms:9.1f}  {note.text}")
        _say(f"{outcome.scenario}")
        _say(
            f"seed {seed}, {name}: {'passed' if outcome.passed else 'FAILED'}; trace {outcome.trace},"
            f" {outcome.steps} steps, {outcome.virtual_ms:.0f} ms, {outcome.acknowledged} of {outcome.writes} writes"
            f" acknowledged, {outcome.reads} reads, {outcome.leaderships} leaderships"
            f", {outcome.compactions} compactions, {outcome.trims} trims, {outcome.objects_deleted} objects deleted"
        )
        _show_anomalies(outcome)
        failed += not outcome.passed
    return 1 if failed else 0


def _hunt(mutants: Sequence[Mutant]) -> int:
    missed = 0
    for mutant in mutants:
        outcome = mutant.hunt(range(MOST_SEEDS))
        if outcome is None:
            missed += 1
            _say(f"{mutant.name} ({mutant.rule}): NOT FOUND within {MOST_SEEDS} seeds")
        else:
            _say(f"{mutant.name} ({mutant.rule}): seed {outcome.seed}: {_cut(mutant.shown_in(outcome)[0])}")
    return 1 if missed else 0


def _print_likely(mutants: Sequence[Mutant]) -> int:
    missed = 0
    for mutant in sorted(mutants, key=lambda mutant: mutant.name):
        outcome = hunt_likely_first(mutant)
        missed += outcome is None
        _say(f"    # {mutant.name}: not found" if outcome is None else f'    "{mutant.name}": {outcome.seed},')
    return 1 if missed else 0


def _show_anomalies(outcome: SeedOutcome) -> None:
    for anomaly in outcome.anomalies:
        _say(f"    {_cut(anomaly)}")


def _cut(thing: object) -> str:
    text = str(thing)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
