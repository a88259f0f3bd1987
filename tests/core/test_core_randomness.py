"""Randomness: a seed replays, the system's does not."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.randomness import Randomness, SeededRandomness, SystemRandomness


def draw(randomness: Randomness) -> list[str]:
    return [*(str(randomness.uuid()) for _ in range(3)), repr(randomness.uniform(0.0, 1.0))]


@given(st.integers(0, 2**64))
def test_the_same_seed_gives_the_same_sequence(seed: int) -> None:
    assert draw(SeededRandomness(seed)) == draw(SeededRandomness(seed))


def test_another_seed_gives_another_sequence() -> None:
    assert draw(SeededRandomness(1)) != draw(SeededRandomness(2))


def test_a_seed_replays_in_another_process() -> None:
    program = "from streamhouse.core.randomness import SeededRandomness as S; s = S(7); print(s.uuid(), s.uuid())"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    here = SeededRandomness(7)
    assert printed == [str(here.uuid()), str(here.uuid())]


def test_system_uuids_are_version_4_and_never_repeat() -> None:
    randomness = SystemRandomness()
    drawn = [randomness.uuid() for _ in range(1000)]
    assert len(set(drawn)) == 1000
    assert {each.version for each in drawn} == {4}


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_uniform_stays_in_its_range(low: float, width: float) -> None:
    for randomness in (SystemRandomness(), SeededRandomness(1)):
        assert low <= randomness.uniform(low, low + width) <= low + width
