"""A storm: all of maintenance at once, beside writers and readers, each in a process that is killed again and again.

How long: STORM_SECONDS (`make test-storm` takes 300), and at least until each kind of work was done. Time is let pass
in steps of many minutes, so that vacuum's graces, leases and claims end in the middle of everything. SEED=n brings the
same schedule of kills and of time again, not the same instants.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from typing import Final

import pytest
from storm_ground import MINUTE_MS
from storm_history import Promises
from storm_place import StormPlace
from storm_processes import Role, in_child
from storm_roles import (
    Scene,
    clean,
    compact,
    consume,
    consume_listed,
    consume_pinned,
    live,
    retain,
    set_the_scene,
    settle,
    stall,
    verify,
    write,
)

SEED: Final = int(os.environ.get("SEED") or int.from_bytes(os.urandom(4), "big"))
STORM_SECONDS: Final = float(os.environ.get("STORM_SECONDS") or 20)
WORK: Final = {
    "appends": 20,
    "compactions": 3,
    "compactions refused": 1,
    "logs read": 5,
    "log starts moved": 1,
    "objects deleted": 10,
    "pinned reads": 3,
    "reads by list": 3,
    "stalled commits": 1,
    "verifications": 2,
}
"""What was done at least before a storm may end: else it proves nothing."""
LONGEST_S: Final = STORM_SECONDS + 300
"""Then a storm ends in any case, and says what it lacks."""
CALM_TURNS: Final = 10
"""After so many turns in which time is let pass come as many in which it is not."""
LET_PASS: Final = (1 * MINUTE_MS, 6 * MINUTE_MS, 35 * MINUTE_MS, 70 * MINUTE_MS)


@pytest.mark.timeout(LONGEST_S + 600)
def test_r6_r7_r24_a_storm_of_kills_loses_no_acknowledged_record_and_leaves_no_garbage(
    place: StormPlace, tell: Callable[[str], None]
) -> None:
    scene = Scene(place=place, seed=SEED)
    in_child(set_the_scene, scene)
    log = place.directory / "processes.log"
    roles = [
        Role("writer", live, scene, write, log=log),
        Role("staller", live, scene, stall, log=log),
        Role("compactor-1", live, scene, compact, "compactor-1", log=log),
        Role("compactor-2", live, scene, compact, "compactor-2", log=log),
        Role("vacuum", live, scene, clean, log=log),
        Role("retention", live, scene, retain, log=log),
        Role("verifier", live, scene, verify, log=log),
        Role("reader", live, scene, consume, log=log),
        Role("listing reader", live, scene, consume_listed, log=log),
        Role("pinned reader", live, scene, consume_pinned, log=log),
    ]
    try:
        blow(scene, roles)
    finally:
        for role in roles:
            role.kill()
    tally = scene.tally()
    promises = Promises.read(scene.histories)
    tell(
        f"SEED={SEED}; {sum(role.kills for role in roles)} kills; {promises.count} records acknowledged; "
        + ", ".join(f"{count} {what}" for what, count in sorted(tally.items()))
    )
    errors = log.read_text() if log.exists() else ""
    assert scene.problems() == [], f"SEED={SEED}\n{errors[-4000:]}"
    assert in_child(settle, scene) == [], f"SEED={SEED}"
    lacking = {what: tally[what] for what, least in WORK.items() if tally[what] < least}
    assert lacking == {}, f"the story proves nothing, SEED={SEED}\n{errors[-4000:]}"


def blow(scene: Scene, roles: list[Role]) -> None:
    """Kill and start processes, and let time pass, by a schedule that the seed makes."""
    rng = random.Random(scene.seed)
    for role in roles:
        role.start()
    begun_s = time.monotonic()
    for turn in itertools.count():
        if scene.problems():
            return
        time.sleep(rng.uniform(0.1, 0.6))
        is_calm = turn // CALM_TURNS % 2  # what lives for minutes, as a reader's grace does, must live for a while
        if not is_calm and rng.random() < 0.6:
            in_child(scene.place.let_pass, rng.choice(LET_PASS))
        else:
            victim = rng.choice(roles)
            victim.kill()
            victim.start()
        for role in roles:
            if not role.alive:
                role.start()
        passed_s = time.monotonic() - begun_s
        if passed_s > LONGEST_S:
            return
        if passed_s > STORM_SECONDS:
            tally = scene.tally()
            if all(tally[what] >= least for what, least in WORK.items()):
                return
