"""A storm: all of maintenance at once, beside writers and readers, each in a process that is killed again and again.

    writer         a leased log on its WAL                            storm_writers.py
    staller        uploads, stalls, and commits too late              storm_writers.py
    agent          a whole agent: writes, and does all its upkeep     storm_agent.py
    compactors     two of small objects, one of keys                  storm_maintainers.py
    vacuum, retention, verifier                                       storm_maintainers.py
    readers        through a reader; by list, with a pin or without   storm_readers.py
    going reader   lists what goes right after                        storm_going_reader.py

How long: STORM_SECONDS (`make test-storm` takes 300), and at least until each kind of work was done. Time is let pass
in steps of many minutes, so that vacuum's graces, leases and claims end in the middle of everything. SEED=n brings the
same schedule of kills and of time again, not the same instants.

At the end all others are gone, maintenance runs to its end, and then every acknowledged record must be where it was
acknowledged, or superseded where that is allowed; and the bucket must hold exactly what entries refer to.

MUTANT=name puts a fault into the platform's processes (storm_mutants.py), and the storm must fail. It was seen to find
each of these on SQLite, as a rule within a minute (it once missed horizon_past_pins for two):

    grace_from_creation     R7    the going reader: an object that it has listed is missing
    upkeep_without_grace    R7    the same, by the vacuum of the agent
    pins_ignored            R7    the going reader with a pin
    horizon_past_pins       R6    the staller: refused under its live pin
    references_not_read     R24   every reader
    sources_not_compared    R17   compactors, which break at entries that are gone
    tombstones_at_once      P.4   readers of the compacted topic
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from typing import Final

import pytest
from storm_agent import run_agent
from storm_end import settle
from storm_going_reader import consume_going
from storm_history import Promises
from storm_maintainers import clean, compact, compact_keys, retain, verify
from storm_place import MINUTE_MS, StormPlace
from storm_processes import Role, in_child, nothing
from storm_readers import consume, consume_listed, consume_pinned
from storm_scene import PIN_MS, Scene, live, set_the_scene
from storm_writers import stall, write

SEED: Final = int(os.environ.get("SEED") or int.from_bytes(os.urandom(4), "big"))
STORM_SECONDS: Final = float(os.environ.get("STORM_SECONDS") or 20)
MUTANT: Final = os.environ.get("MUTANT") or None
WORK: Final[dict[str, int]] = {
    "appends": 20,
    "appends to the agent": 20,
    "compactions": 3,
    "compactions refused": 1,
    "key compactions": 2,
    "keyed logs read": 3,
    "logs read": 5,
    "log starts moved": 1,
    "objects deleted": 10,
    "pinned reads": 3,
    "reads by list": 3,
    "stalled commits": 1,
    "superseded records": 10,
    "tombstones gone": 1,
    "upkeep: compactions": 1,
    "upkeep: key compactions": 1,
    "upkeep: retention passes": 1,
    "upkeep: vacuums": 1,
    "verifications": 2,
}
"""What was done at least before a storm may end: else it proves nothing."""
if STORM_SECONDS >= 60:
    WORK.update({"pinned reads of what is dereferenced": 1, "reads of what is dereferenced": 1})
LONGEST_S: Final = STORM_SECONDS + 300
"""Then a storm ends in any case, and says what it lacks."""
WILD_TURNS: Final = 10
"""After so many turns in which time is let pass come ``CALM_TURNS`` in which it is not: what lives for minutes, as the
grace of readers does, must live for a while."""
CALM_TURNS: Final = 15
STARTS_PER_TURN: Final = 2
"""A turn is as long as this many starts of a process, at least: roles must get to work on a busy machine as well."""
LET_PASS: Final = (1 * MINUTE_MS, 6 * MINUTE_MS, 35 * MINUTE_MS, 70 * MINUTE_MS)


@pytest.mark.timeout(LONGEST_S + 600)
def test_r6_r7_r24_a_storm_of_kills_loses_no_acknowledged_record_and_leaves_no_garbage(
    place: StormPlace, tell: Callable[[str], None]
) -> None:
    scene = Scene(place=place, seed=SEED, mutant=MUTANT)
    in_child(set_the_scene, scene)
    log = place.directory / "processes.log"
    roles = [
        Role("writer", live, scene, write, log=log),
        Role("staller", live, scene, stall, log=log),
        Role("agent", live, scene, run_agent, log=log),
        Role("compactor-1", live, scene, compact, "compactor-1", log=log),
        Role("compactor-2", live, scene, compact, "compactor-2", log=log),
        Role("key-compactor", live, scene, compact_keys, log=log),
        Role("vacuum", live, scene, clean, log=log),
        Role("retention", live, scene, retain, log=log),
        Role("verifier", live, scene, verify, log=log),
        Role("reader", live, scene, consume, log=log),
        Role("listing reader", live, scene, consume_listed, log=log),
        Role("pinned reader", live, scene, consume_pinned, log=log),
        Role("going reader", live, scene, consume_going, log=log),
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
        _rest(rng.uniform(0.1, 0.6))
        turn_of_both = turn % (WILD_TURNS + CALM_TURNS)
        if turn_of_both == WILD_TURNS:
            in_child(scene.place.let_pass, PIN_MS + 10 * MINUTE_MS)  # the pins of the dead end: they keep all that goes
        elif turn_of_both < WILD_TURNS and rng.random() < 0.6:
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


def _rest(least_s: float) -> None:
    begun_s = time.monotonic()
    in_child(nothing)
    time.sleep(max(least_s, STARTS_PER_TURN * (time.monotonic() - begun_s)))
