"""kill -9 after every step of maintenance, and another process that goes on: consumers see the same log, byte for byte.

A step is a call to the metadata store or to the object store that has returned; each chunk of entries that a move of
the log start drops is one too. The same prepared state is brought back before each kill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from storm_machines import MACHINES
from storm_place import StormPlace
from storm_prepared import prepare, run_survivor, run_victim
from storm_processes import KilledBySignal, in_child

NEEDED: Final = {
    "compaction": {"begin_compaction", "apply_compaction", "complete", "acquire_claim", "get_range"},
    "retention": {"advance_log_start", "drop a chunk"},
    "vacuum": {"purge_deleted_topics", "raise_gc_horizon", "delete", "forget_objects", "find_unreferenced", "list"},
}
"""Steps that a pass must have, or it proves nothing."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", MACHINES)
def test_s2_8_s2_45_after_kill_9_at_any_step_another_process_finishes_and_the_log_is_the_same(
    place: StormPlace, machine: str, tell: Callable[[str], None]
) -> None:
    prepared = in_child(prepare, place)
    steps: list[str] = in_child(run_victim, place, prepared, machine, None)
    assert NEEDED[machine] <= set(steps), steps
    assert in_child(run_survivor, place, prepared) == []
    killed: Counter[str] = Counter()
    for last in range(1, len(steps) + 1):
        with pytest.raises(KilledBySignal):
            in_child(run_victim, place, prepared, machine, last)
        assert in_child(run_survivor, place, prepared) == [], f"killed after step {last} of {len(steps)}"
        killed[steps[last - 1]] += 1
    tell(f"{killed.total()} kills in {len(steps)} steps ({', '.join(f'{n} {c}' for n, c in sorted(killed.items()))})")
