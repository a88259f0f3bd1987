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
