"""What a deliberately broken variant is, and how it is hunted. mutants.py lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from simulator.anomalies import Kind, SimAnomaly
from simulator.dice import Dice
from simulator.errands import Errands
from simulator.run import SeedOutcome, run_seed
from simulator.scenario import Scenario, draw_scenario
from simulator.world import World

Break = Callable[[ExitStack, World, Errands], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    rule: str
    story: str
    """What was taken out."""
    shows_as: frozenset[Kind]
    """How it is expected to show."""
    breaks: Break
    applies: Callable[[Scenario], bool] = lambda scenario: True
    """Scenarios in which it could matter at all; the others are not run."""
    needs: Callable[[Scenario, Dice], Scenario] = lambda scenario, dice: scenario
    """What is added to a scenario, where only a rare one would show it."""

    def run(self, seed: int, *, keep_notes: bool = False) -> SeedOutcome | None:
        """None where it does not apply."""
        scenario = draw_scenario(seed)
        if not self.applies(scenario):
            return None
        scenario = self.needs(scenario, Dice(seed).child("needs"))
        with ExitStack() as stack:
            return run_seed(
                seed,
                scenario=scenario,
                keep_notes=keep_notes,
                prepare=lambda world, errands: self.breaks(stack, world, errands),
            )

    def shown_in(self, outcome: SeedOutcome) -> list[SimAnomaly]:
        return [anomaly for anomaly in outcome.anomalies if anomaly.kind in self.shows_as]

    def hunt(self, seeds: Iterable[int]) -> SeedOutcome | None:
        """The first run that shows it, as expected; None when none does."""
        for seed in seeds:
            outcome = self.run(seed)
            if outcome is not None and self.shown_in(outcome):
                return outcome
        return None
