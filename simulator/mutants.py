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
    mutants_maintenance,
    mutants_metadata,
    mutants_producers,
    mutants_wal,
)
from simulator.mutant import Mutant
from simulator.run import SeedOutcome

MUTANTS: Final[tuple[Mutant, ...]] = (
    *mutants_log.MUTANTS,
    *mutants_producers.MUTANTS,
    *mutants_adoption.MUTANTS,
    *mutants_metadata.MUTANTS,
    *mutants_wal.MUTANTS,
    *mutants_losses.MUTANTS,
    *mutants_maintenance.MUTANTS,
)
MOST_SEEDS: Final = 500
"""Each variant must be found within so many seeds."""
LIKELY_SEEDS: Final = {
    "46 for a gap": 62,
    "WAL settled too early": 4,
    "ack before WAL sync": 8,
    "ack before commit": 5,
    "acknowledges what it drops": 26,
    "adopted before its commit": 64,
    "adopted twice": 3,
    "clock that stops in a pause": 112,
    "comes back under a new id": 50,
    "commit before upload": 13,
    "commit below the horizon": 53,
    "commit expiry ignores the horizon": 243,
    "commit without epoch fence": 30,
    "commits expire at once": 243,
    "commits out of order": 4,
    "compaction committed before its upload ends": 0,
    "compaction cursor moves anywhere": 17,
    "compaction drops epochs": 0,
    "compaction leaves its last batch out": 0,
    "compaction without a look at its sources": 0,
    "deadline from the reply": 283,
    "directory not synced": 77,
    "doubtful adoption forgotten": 305,
    "emptied end of a range is left out": 17,
    "epoch checked before the commit": 30,
    "epoch reset on release": 3,
    "every manifest counts": 8,
    "everything comes back": 14,
    "failed at the time-out counts as written": 116,
    "followers of a refused batch get 45": 39,
    "foreign epochs ignored": 15,
    "forgotten producer gets 45": 76,
    "full disk ends the process": 92,
    "grace from the object's age": 0,
    "half of retention.bytes stays": 12,
    "horizon raised after the listing": 28,
    "key compaction takes the newest record": 4,
    "later batch overtakes a waiting one": 3,
    "lost commits are called corruption": 27,
    "lost commits leave no leadership": 462,
    "lost intent counts as written": 2,
    "new epoch starts anywhere": 412,
    "no local deadline": 112,
    "offsets given twice": 43,
    "old epochs accepted": 372,
    "old values come back": 116,
    "oldest record decides": 0,
    "out of range from memory": 9,
    "pending compaction without a reference": 112,
    "pins ignored": 6,
    "producers forgotten": 9,
    "producers not rolled back": 85,
    "reader past the visible end": 15,
    "recycled frames accepted": 114,
    "repack after doubt": 3,
    "restart at the watermark": 4,
    "retention takes one entry more": 1,
    "retry before its original": 9,
    "sequence noted before the batch is taken": 1,
    "shared blob forgotten with its first partition": 6,
    "store clock goes back": 3,
    "time-out counts as written": 9,
    "tombstones go early": 19,
    "topics by name": 16,
    "torn frames accepted": 404,
    "uncommitted uploads ignored on a full disk": 17,
    "unknown producer starts anywhere": 185,
    "unknown producer starts anywhere in dedup": 185,
    "vacuum raises no horizon": 37,
    "vacuum without horizon": 53,
}
"""A seed that has shown each variant. ``python -m simulator --likely`` prints this table anew."""


def hunt_likely_first(mutant: Mutant) -> SeedOutcome | None:
    """The first run that shows it. To search takes long, so its likely seed comes first: the code may not have moved on
    since. ``python -m simulator --mutants`` always searches."""
    likely = [LIKELY_SEEDS[mutant.name]] if mutant.name in LIKELY_SEEDS else []  # a new variant has none yet
    return mutant.hunt([*likely, *range(MOST_SEEDS)])
