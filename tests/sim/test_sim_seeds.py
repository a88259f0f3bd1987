"""The real code under every seed of a range. A failing one is replayed with what the message says."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.mutant import Mutant
from simulator.mutants import LIKELY_SEEDS, MOST_SEEDS, MUTANTS, hunt_likely_first
from simulator.run import SeedOutcome, run_seed
from simulator.scenario import Errand, Mischief, draw_scenario

pytestmark = pytest.mark.timeout(1800)  # a hunt takes minutes on a machine that is busy with other things
SEEDS = 300
CHUNK = 50


@cache
def outcome_of(seed: int) -> SeedOutcome:
    return run_seed(seed)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_the_real_code_passes_every_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = outcome_of(seed)
        found = "\n".join(map(str, outcome.anomalies))
        assert outcome.passed, f"replay: python -m simulator --seed {seed} --trace\n{found}"


def test_the_seeds_meet_what_they_are_for() -> None:
    """A pass says nothing if nothing happened: leaders change, writes are acknowledged, readers read."""
    outcomes = [outcome_of(seed) for seed in range(25)]
    assert sum(outcome.acknowledged for outcome in outcomes) > 300
    assert sum(outcome.reads for outcome in outcomes) > 100
    assert sum(outcome.leaderships for outcome in outcomes) > 150
    scenarios = [draw_scenario(seed) for seed in range(SEEDS)]
    compacted = [seed for seed, scenario in enumerate(scenarios) if scenario.compacted]
    assert sum(outcome_of(seed).acknowledged for seed in compacted[:5]) > 50
    starved = [seed for seed, scenario in enumerate(scenarios) if scenario.starved_ms]
    assert sum(outcome_of(seed).acknowledged for seed in starved[:5]) > 50
    maintained = [outcome_of(seed) for seed, scenario in enumerate(scenarios) if scenario.maintenance][:20]
    assert sum(outcome.acknowledged for outcome in maintained) > 300
    assert sum(outcome.compactions for outcome in maintained) > 50
    assert sum(outcome.trims for outcome in maintained) > 20
    assert sum(outcome.objects_deleted for outcome in maintained) > 200
    assert {mischief for scenario in scenarios for mischief in scenario.mischief} == set(Mischief)
    assert {errand for scenario in scenarios for errand in scenario.errands} == set(Errand)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_every_broken_variant_is_found(mutant: Mutant) -> None:
    """The simulator proves a rule only if it finds out when the rule is not kept."""
    assert hunt_likely_first(mutant) is not None, f"not found within {MOST_SEEDS} seeds"


def test_there_are_enough_broken_variants_and_each_has_its_own_name() -> None:
    assert len(MUTANTS) >= 12
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert set(LIKELY_SEEDS) <= {mutant.name for mutant in MUTANTS}


def test_the_command_line_tells_how_to_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3"]) == 0
    assert capsys.readouterr().out == "3 seeds, 0 failed\n"
    assert main(["--seed", "2", "--trace"]) == 0
    shown = capsys.readouterr().out
    assert "everything heals" in shown
    assert f"trace {run_seed(2).trace}" in shown
    assert main(["--mutants", "ack before commit"]) == 0
    assert capsys.readouterr().out.startswith("ack before commit (acks=all): seed ")
    assert main(["--likely", "--mutants", "topics by name"]) == 0
    seed = LIKELY_SEEDS["topics by name"]
    assert capsys.readouterr().out == f'    "topics by name": {seed},\n', "the table is up to date for this one"
    with pytest.raises(SystemExit):
        main(["--mutants", "no such thing"])


def test_the_docs_list_every_broken_variant() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    for mutant in MUTANTS:
        assert f"| {mutant.name} | {mutant.rule} | {mutant.story} |" in docs
