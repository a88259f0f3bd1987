"""Deliberately broken variants of the code under test: what the simulator must be able to find.

Each takes one rule of docs/safety.md out, by replacing a function for the length of a run; nothing in the product knows
of it. A simulator that misses one of them has not proven the rule either. docs/simulation.md lists them.
"""

from __future__ import annotations

from typing import Final

from simulator import (
    mutants_adoption,
    mutants_log,
    mutants_losses,
    mutants_metadata,
    mutants_producers,
    mutants_wal,
)
from simulator.mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    *mutants_log.MUTANTS,
    *mutants_producers.MUTANTS,
    *mutants_adoption.MUTANTS,
    *mutants_metadata.MUTANTS,
    *mutants_wal.MUTANTS,
    *mutants_losses.MUTANTS,
)
MOST_SEEDS: Final = 500
"""Within so many each of them must be found."""
LIKELY_SEEDS: Final = {
    "46 for a gap": 62,
    "clock that stops in a pause": 53,
    "comes back under a new id": 129,
    "commit below the horizon": 53,
    "commit expiry ignores the horizon": 432,
    "commits expire at once": 432,
    "deadline from the reply": 133,
    "directory not synced": 36,
    "doubtful adoption forgotten": 305,
    "epoch checked before the commit": 85,
    "failed at the time-out counts as written": 10,
    "forgotten producer gets 45": 35,
    "full disk ends the process": 72,
    "lost commits are called corruption": 27,
    "lost commits leave no leadership": 181,
    "new epoch starts anywhere": 171,
    "no local deadline": 112,
    "old epochs accepted": 372,
    "old values come back": 116,
    "producers not rolled back": 85,
    "recycled frames accepted": 93,
    "time-out counts as written": 50,
    "torn frames accepted": 404,
    "unknown producer starts anywhere in dedup": 185,
    "vacuum without horizon": 53,
}
"""Seeds that have shown a variant which takes long to find. Tests try them first, and search if the code has moved on
since. ``python -m simulator --mutants`` always searches."""
