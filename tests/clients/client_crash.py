"""Three brokers, one killed in the middle: nothing acknowledged is lost or written twice, and the reader sees all."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from typing import Final

from client_features import Cell, Ground, check, not_ok
from client_roster import Run

FEATURE: Final = "one of three brokers killed"
COUNT: Final = 600
PARTITIONS: Final = 6
RATE_PER_S: Final = 100


def crash(ground: Ground) -> Iterator[Cell]:
    target = ground.target
    assert target.kill_one
    assert target.heal
    topic = ground.create(ground.name("crash"), PARTITIONS)
    killed: list[int] = []

    def on_progress(acked: int) -> None:
        if acked >= COUNT // 3 and not killed:
            killed.append(acked)
            target.kill_one()  # type: ignore[misc]

    args = {
        "group": ground.name("crash-group"),
        "count": COUNT,
        "partitions": PARTITIONS,
        "rate_per_s": RATE_PER_S,
        "timeout_ms": 60_000,
        "assignor": "roundrobin",
    }
    try:
        answer = Run(ground.client, "soak", target.bootstrap, topic, args, 240, on_progress)()
    finally:
        target.heal()
    if not answer.ok:
        yield not_ok(FEATURE, answer)
        return
    seen = answer.value
    log = ground.read_all(topic, seen["acked"])
    values = Counter(record["value"] for record in log)
    sent = {base64.b64encode(str(number).encode()).decode() for number in range(COUNT)}
    problems = [
        "" if killed else "no broker was killed",
        f"failed: {seen['failed']}" if seen["failed"] else "",
        f"{COUNT - seen['acked']} not acknowledged" if seen["acked"] != COUNT else "",
        f"the reader missed {seen['missing']}" if seen["missing"] else "",
        f"{len(sent - values.keys())} of {COUNT} are not in the log" if sent - values.keys() else "",
        f"{sum(count - 1 for count in values.values())} duplicates" if len(log) != len(values) else "",
        "" if _ordered(log) else "out of order",
    ]
    yield check(FEATURE, "; ".join(filter(None, problems)) or None, {"acked": seen["acked"], "failed": seen["failed"]})


def _ordered(log: list[dict[str, object]]) -> bool:
    last: dict[object, int] = {}
    for record in log:
        number = int(base64.b64decode(str(record["value"])))
        if number < last.get(record["partition"], -1):
            return False
        last[record["partition"]] = number
    return True
