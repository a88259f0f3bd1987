"""What is asked of every client: the features of the table, and the scenarios that show them.

A scenario runs a client's program against a target and gives cells: a feature, its outcome, and what the client saw, in
a form that must be the same on StreamHouse and on Apache Kafka. Names of topics and groups are the same on every
target, so what clients see can be compared as it is.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from client_dataset import CODECS, STEP_MS, difference, records_for
from client_roster import Answer, Client, Run
from client_targets import Target

OK, FAILED, UNSUPPORTED = "ok", "failed", "unsupported"
PARTITIONS: Final = 6
IDEMPOTENT_RECORDS: Final = 45


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    feature: str
    outcome: str
    detail: str = ""
    seen: Any = None
    """What must be the same on both targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One client on one target."""

    client: Client
    target: Target
    admin: Client
    """Makes the topics for every client that is tested: not every client can."""
    base_ms: int

    def name(self, story: str) -> str:
        return f"{story}-{self.client.name.lower()}"

    def run(
        self, scenario: str, topic: str = "", *, bootstrap: str = "", timeout_s: float = 120, **args: Any
    ) -> Answer:
        where = bootstrap or self.target.bootstrap
        return Run(self.client, scenario, where, topic, args, timeout_s)()

    def create(self, topic: str, partitions: int) -> str:
        step = {"do": "create_topic", "topic": topic, "partitions": partitions}
        made = Run(self.admin, "admin", self.target.bootstrap, "", {"steps": [step]})()
        if not made.ok or "ok" not in made.value[0]:
            raise RuntimeError(f"topic {topic} was not created: {made.value} {made.stderr}")
        return topic

    def fill(self, topic: str, batches: list[dict[str, Any]]) -> None:
        made = Run(self.admin, "produce", self.target.bootstrap, topic, {"batches": batches})()
        if not made.ok:
            raise RuntimeError(f"topic {topic} was not filled: {made.value} {made.stderr}")

    def read_all(self, topic: str, count: int) -> list[dict[str, Any]]:
        """Read with the client that all others are measured with."""
        args = {"count": count, "timeout_ms": 20_000}
        answer = Run(self.admin, "consume", self.target.bootstrap, topic, args)()
        if not answer.ok:
            raise RuntimeError(f"topic {topic} was not read: {answer.value} {answer.stderr}")
        records: list[dict[str, Any]] = answer.value["records"]
        return records


Scenario = Callable[[Ground], Iterator[Cell]]


def not_ok(feature: str, answer: Answer) -> Cell:
    if answer.kind == "unsupported":
        return Cell(feature=feature, outcome=UNSUPPORTED, detail=str(answer.value))
    return Cell(feature=feature, outcome=FAILED, detail=f"{answer.value} | {answer.stderr[-400:]}".strip(" |"))


def check(feature: str, problem: str | None, seen: Any) -> Cell:
    return Cell(feature=feature, outcome=FAILED if problem else OK, detail=problem or "", seen=seen)


# Writing and reading back.


def write_topic(client: Client) -> str:
    return f"write-{client.name.lower()}"


def written(client: Client, base_ms: int) -> dict[int, list[dict[str, Any]]]:
    """Write, to each partition with one codec, and return the records by partition."""
    return {number: records_for(codec, client.cannot, base_ms) for number, codec in enumerate(CODECS)}


def by_partition(records: Iterable[Mapping[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(record["partition"], []).append(dict(record))
    return found


def codecs(ground: Ground) -> Iterator[Cell]:
    """Each codec into a partition of its own, then all of it back by the same client."""
    topic = ground.create(write_topic(ground.client), len(CODECS))
    wanted = written(ground.client, ground.base_ms)
    answers = {}
    for number, codec in enumerate(CODECS):
        batch = {"codec": codec, "partition": number, "records": wanted[number]}
        answers[number] = ground.run("produce", topic, batches=[batch])
    good = [number for number, answer in answers.items() if answer.ok]
    back = ground.run("consume", topic, count=sum(len(wanted[number]) for number in good), timeout_ms=20_000)
    read = by_partition(back.value["records"]) if back.ok else {}
    for number, codec in enumerate(CODECS):
        if not answers[number].ok:
            yield not_ok(codec, answers[number])
        elif not back.ok:
            yield not_ok(codec, back)
        else:
            problem = difference(wanted[number], read.get(number, []))
            offsets = answers[number].value["offsets"] or [None]
            yield check(codec, problem, {"first": offsets[0], "last": offsets[-1], "count": len(offsets)})
    yield from _parts(wanted, read, ground)


def _parts(
    wanted: dict[int, list[dict[str, Any]]], read: dict[int, list[dict[str, Any]]], ground: Ground
) -> Iterator[Cell]:
    parts = {
        "keys": ("key",),
        "null and empty values": ("value",),
        "headers": ("headers",),
        "timestamps": ("timestamp",),
    }
    for feature, names in parts.items():
        if feature == "timestamps" and "timestamp" in ground.client.cannot:
            yield Cell(feature=feature, outcome=UNSUPPORTED, detail="it sets none")
            continue
        asked = [[record.get(name) for name in names] for number in wanted for record in wanted[number]]
        found = [[record.get(name) for name in names] for number in wanted for record in read.get(number, [])]
        yield check(feature, None if asked == found else "not as written", None)


def acks(ground: Ground) -> Iterator[Cell]:
    topic = ground.create(ground.name("acks"), 1)
    records = [{"key": None, "value": "YQ==", "headers": []} for _ in range(5)]
    for level in ("0", "1", "all"):
        answer = ground.run("produce", topic, batches=[{"partition": 0, "records": records}], acks=level)
        yield check(f"acks={level}", None, answer.value) if answer.ok else not_ok(f"acks={level}", answer)
    count = len(ground.read_all(topic, 15))
    yield check("acks, all written", None if count == 15 else f"{count} of 15 records are in the log", count)


def positions(ground: Ground) -> Iterator[Cell]:
    """Read from the start, a time and the end of a topic whose every partition has records in several batches."""
    topic = ground.create(ground.name("positions"), 3)
    for start in (0, 4):
        ground.fill(topic, [_timed(ground.base_ms, number, start, 4) for number in range(3)])
    whole = ground.run("consume", topic, count=24, timeout_ms=20_000)
    yield _places("from start", whole, 24, ground)
    # The middle of a batch, by a time between two records, in lz4 and gzip batches too.
    late = ground.run(
        "consume", topic, count=15, timeout_ms=20_000, start={"timestamp": ground.base_ms + 2 * STEP_MS + 1}
    )
    yield _places("from a time", late, 15, ground)
    new = ground.run(
        "tail", topic, partitions=3, records=[{"key": None, "value": "bmV3", "headers": []}], timeout_ms=20_000
    )
    if not new.ok:
        yield not_ok("from the end", new)
        return
    places = [[record["partition"], record["offset"], record["value"]] for record in new.value["records"]]
    yield check("from the end", None if places == [[0, 8, "bmV3"]] else f"read {places}", places)


def _timed(base_ms: int, partition: int, start: int, count: int) -> dict[str, Any]:
    records = [
        {"key": None, "value": "eA==", "headers": [], "timestamp": base_ms + number * STEP_MS}
        for number in range(start, start + count)
    ]
    return {"codec": ("none", "gzip", "lz4")[partition], "partition": partition, "records": records}


def _places(feature: str, answer: Answer, count: int, ground: Ground) -> Cell:
    if not answer.ok:
        return not_ok(feature, answer)
    places = [
        [record["partition"], record["offset"], record["timestamp"] - ground.base_ms]
        for record in answer.value["records"]
    ]
    return check(feature, None if len(places) == count else f"{len(places)} records instead of {count}", places)


# Groups.


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStory:
    feature: str
    args: Mapping[str, Any]
    lost: int | None = None
    exact: bool = True
    """Whether who gets which partition is fixed by the assignor, and not by history."""


GROUP_STORIES: Final = (
    GroupStory(feature="range", args={"assignor": "range"}, lost=PARTITIONS),
    GroupStory(feature="round-robin", args={"assignor": "roundrobin"}, lost=PARTITIONS),
    GroupStory(
        feature="cooperative-sticky", args={"assignor": "cooperative-sticky"}, lost=PARTITIONS // 2, exact=False
    ),
    GroupStory(feature="static members", args={"assignor": "range", "static": True}),
    GroupStory(feature="KIP-848", args={"protocol": "consumer"}, lost=PARTITIONS // 2, exact=False),
    GroupStory(
        feature="KIP-848, range", args={"protocol": "consumer", "assignor": "range"}, lost=PARTITIONS // 2, exact=False
    ),
    GroupStory(feature="KIP-848, static", args={"protocol": "consumer", "static": True}, exact=False),
    GroupStory(
        feature="KIP-848, pattern",
        args={"protocol": "consumer", "pattern": "^{topic}$"},
        lost=PARTITIONS // 2,
        exact=False,
    ),
)


def groups(ground: Ground) -> Iterator[Cell]:
    topic = ground.create(ground.name("groups"), PARTITIONS)
    for story in GROUP_STORIES:
        yield _group(ground, topic, story)


def groups_lean(ground: Ground) -> Iterator[Cell]:
    topic = ground.create(ground.name("groups"), PARTITIONS)
    for story in GROUP_STORIES:
        if story.feature in ("range", "static members", "KIP-848"):
            yield _group(ground, topic, story)


def _group(ground: Ground, topic: str, story: GroupStory) -> Cell:
    args = {name: value.format(topic=topic) if isinstance(value, str) else value for name, value in story.args.items()}
    group = ground.name(f"group-{story.feature.replace(' ', '').replace(',', '-')}")
    answer = ground.run("rebalance", topic, group=group, partitions=PARTITIONS, **args)
    if not answer.ok:
        return not_ok(story.feature, answer)
    result = dict(answer.value)
    together = result.pop("together")
    result["sizes"] = [len(part) for part in together]
    if story.exact and ground.client.exact_assignments:
        result["together"] = together
    everything = list(range(PARTITIONS))
    problems = [
        "the first member did not own everything" if result["alone"] != everything else "",
        f"shared as {together}" if result["sizes"] != [PARTITIONS // 2] * 2 else "",
    ]
    if story.args.get("static"):
        problems += [
            "" if result["same"] else "the restarted member got other partitions",
            f"the other member was disturbed {result['disturbed']} times" if result["disturbed"] else "",
        ]
    else:
        problems += [
            "" if result["after"] == everything else f"after the second left: {result['after']}",
            f"{result['lost']} partitions taken" if result["lost"] not in (None, story.lost) else "",
        ]
    return check(story.feature, "; ".join(filter(None, problems)) or None, result)


def resume(ground: Ground) -> Iterator[Cell]:
    topic = ground.create(ground.name("resume"), 1)
    records = [{"key": None, "value": "eA==", "headers": []} for _ in range(8)]
    ground.fill(topic, [{"partition": 0, "records": records}])
    for feature, protocol in (("commit and resume", "classic"), ("commit and resume, KIP-848", "consumer")):
        group = ground.name(f"resume-{protocol}")
        answer = ground.run("resume", topic, group=group, first=3, total=8, protocol=protocol, timeout_ms=30_000)
        if not answer.ok:
            yield not_ok(feature, answer)
            continue
        seen = answer.value
        whole = seen["first"] + seen["second"] == list(range(8)) and len(seen["first"]) == 3
        told = seen["committed"] in (None, 3) and seen["committed_after"] in (None, 8)
        yield check(feature, None if whole and told else str(seen), seen)


# Retries.


def idempotence(ground: Ground) -> Iterator[Cell]:
    """Write through a proxy that loses requests and answers: every record is there once, in order."""
    feature = "idempotence under retries"
    proxy = ground.target.proxy
    if proxy is None:
        return
    topic = ground.create(ground.name("idempotence"), 1)
    values = [f"{number:04d}" for number in range(IDEMPOTENT_RECORDS)]
    records = [{"key": None, "value": _b64(value), "headers": []} for value in values]
    batch = {"partition": 0, "records": records}
    lost = proxy.lost_answers, proxy.lost_requests
    answer = ground.run(
        "produce", topic, bootstrap=ground.target.lossy_bootstrap, batches=[batch], idempotent=True, pause_ms=20
    )
    if not answer.ok:
        yield not_ok(feature, answer)
        return
    lost = proxy.lost_answers - lost[0], proxy.lost_requests - lost[1]
    found = [record["value"] for record in ground.read_all(topic, len(values))]
    problem = None
    if not all(lost):
        problem = f"the proxy lost {lost[0]} answers and {lost[1]} requests: nothing was tried"
    elif found != [record["value"] for record in records]:
        problem = f"{len(found)} records in the log, {len(set(found))} different, {len(values)} sent"
    yield check(feature, problem, len(found))


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
