"""What is asked of every admin client: steps in an order that works, and which feature of the table each belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from client_dataset import STEP_MS
from client_features import FAILED, OK, UNSUPPORTED, Cell, Ground, not_ok

_MUST_FAIL = "must fail"


def steps_for(ground: Ground, filled: str) -> list[tuple[str, dict[str, Any], bool]]:
    """(feature, step, whether it must fail)"""
    topic, group = ground.name("admin"), ground.name("admin-group")
    here = {"topic": filled, "partition": 0}
    keys = ["max.message.bytes", "cleanup.policy", "min.insync.replicas"]
    told = [
        ("describe the cluster", {"do": "describe_cluster"}),
        ("create topics", {"do": "create_topic", "topic": topic, "partitions": 2, "configs": {keys[0]: "500000"}}),
        ("create topics", {"do": "create_topic", "topic": topic, "partitions": 2, _MUST_FAIL: True}),
        ("create topics", {"do": "create_topic", "topic": "b/d", "partitions": 1, _MUST_FAIL: True}),
        ("list and describe topics", {"do": "list_topics", "prefix": filled}),
        ("list and describe topics", {"do": "describe_topic", "topic": filled}),
        ("grow topics", {"do": "grow", "topic": topic, "total": 4}),
        ("grow topics", {"do": "grow", "topic": topic, "total": 1, _MUST_FAIL: True}),
        ("grow topics", {"do": "describe_topic", "topic": topic}),
        ("describe configs", {"do": "describe_configs", "topic": topic, "keys": keys}),
        ("alter configs", {"do": "alter_configs", "topic": topic, "set": {keys[1]: "compact"}, "delete": [keys[0]]}),
        ("alter configs", {"do": "describe_configs", "topic": topic, "keys": keys}),
        ("alter configs", {"do": "alter_configs", "topic": topic, "set": {"no.such": "1"}, _MUST_FAIL: True}),
        ("alter configs", {"do": "alter_configs", "topic": topic, "set": {keys[1]: "x"}, _MUST_FAIL: True}),
        ("list offsets", {"do": "list_offsets", **here, "at": "earliest"}),
        ("list offsets", {"do": "list_offsets", **here, "at": "latest"}),
        ("list offsets", {"do": "list_offsets", **here, "at": ground.base_ms + 3 * STEP_MS - 500}),
        ("list offsets", {"do": "list_offsets", **here, "at": ground.base_ms + 999 * STEP_MS}),
        ("offset of the newest time", {"do": "list_offsets", **here, "at": "max_timestamp"}),
        ("delete records", {"do": "delete_records", **here, "before": 4}),
        ("delete records", {"do": "list_offsets", **here, "at": "earliest"}),
        ("delete records", {"do": "delete_records", **here, "before": 99, _MUST_FAIL: True}),
        ("commit from outside a group", {"do": "commit", "group": group, **here, "offset": 5}),
        ("list and describe groups", {"do": "list_groups", "prefix": group}),
        ("list and describe groups", {"do": "describe_group", "group": group}),
        ("list group offsets", {"do": "group_offsets", "group": group}),
        ("alter group offsets", {"do": "alter_group_offsets", "group": group, **here, "offset": 7}),
        ("alter group offsets", {"do": "group_offsets", "group": group}),
        ("delete group offsets", {"do": "delete_group_offsets", "group": group, **here}),
        ("delete group offsets", {"do": "group_offsets", "group": group}),
        ("delete groups", {"do": "delete_group", "group": group}),
        ("delete groups", {"do": "delete_group", "group": group, _MUST_FAIL: True}),
        ("delete groups", {"do": "list_groups", "prefix": group}),
        ("delete topics", {"do": "delete_topic", "topic": topic}),
        ("delete topics", {"do": "delete_topic", "topic": topic, _MUST_FAIL: True}),
        ("delete topics", {"do": "list_topics", "prefix": topic}),
    ]
    return [(feature, step, bool(step.pop(_MUST_FAIL, False))) for feature, step in told]


def admin(ground: Ground) -> Iterator[Cell]:
    filled = ground.create(ground.name("admin-filled"), 1)
    records = [
        {"key": None, "value": "eA==", "headers": [], "timestamp": ground.base_ms + number * STEP_MS}
        for number in range(9)
    ]
    ground.fill(filled, [{"partition": 0, "records": records}])
    steps = steps_for(ground, filled)
    answer = ground.run("admin", steps=[step for _, step, _ in steps])
    features = list(dict.fromkeys(feature for feature, _, _ in steps))
    if not answer.ok:
        yield from (not_ok(feature, answer) for feature in features)
        return
    both = list(zip(steps, answer.value, strict=True))
    for feature in features:
        yield _judge(feature, [(step, must_fail, got) for (name, step, must_fail), got in both if name == feature])


def _judge(feature: str, told: list[tuple[dict[str, Any], bool, dict[str, Any]]]) -> Cell:
    """The first step is the feature itself, those after it look at what it did."""
    if "unsupported" in told[0][2]:
        return Cell(feature=feature, outcome=UNSUPPORTED, detail="the client has no such call")
    problems = [f"{step['do']}: {got}" for step, must_fail, got in told if "error" in got and not must_fail]
    # How a client tells a refusal is its own affair; that it is the same as on Kafka shows in what was seen.
    seen = [got for _, _, got in told]
    return Cell(feature=feature, outcome=FAILED if problems else OK, detail="; ".join(problems), seen=seen)
