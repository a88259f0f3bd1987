"""Which partitions a service looks after (S2.12)."""

from __future__ import annotations

from uuid import UUID

from streamhouse.core.ids import TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.maintenance.service.targets import Targets, TaskKind, targets_of
from streamhouse.metadata.contract import Topic, WriteMode


def topic(name: str, partitions: int = 1, *, number: int | None = None, **configs: str) -> Topic:
    return Topic(
        topic_id=TopicId(UUID(int=number or sum(map(ord, name)))),
        name=name,
        partition_count=partitions,
        configs={key.replace("_", "."): value for key, value in configs.items()},
        write_mode=WriteMode.LEASED,
        created_at_ms=0,
        version=1,
    )


def test_s2_12_discovery_adds_topics_and_partitions_and_counts_what_is_new() -> None:
    targets = Targets(None)
    assert targets.discover([topic("orders", 2)]).new == 2
    assert targets.discover([topic("orders", 2)]).new == 0
    assert targets.discover([topic("orders", 3), topic("payments")]).new == 2
    assert (len(targets), targets.topics) == (4, 2)


def test_s2_12_a_deleted_topic_leaves_and_one_of_its_name_is_another() -> None:
    targets = Targets(None)
    targets.discover([topic("orders", number=1)])
    assert targets.discover([topic("orders", number=2)]).new == 1
    assert len(targets) == 1
    assert targets.get(topic("orders", number=1).partition_keys()[0]) is None
    assert targets.name_of(topic("orders", number=1).topic_id) is None
    assert targets.name_of(topic("orders", number=2).topic_id) == "orders"
    assert targets.discover([]).new == 0
    assert len(targets) == 0


def test_s2_12_only_the_chosen_topics_are_looked_after() -> None:
    targets = Targets(["orders"])
    assert targets.discover([topic("orders", 2), topic("other", 5)]).new == 2
    assert targets.wants(topic("orders"))
    assert not targets.wants(topic("other"))
    assert targets.discover([topic("orders", 4), topic("other", 5)]).new == 2, "a chosen topic may grow"


def test_the_kind_follows_the_cleanup_policy_and_a_change_is_told() -> None:
    targets = Targets(None)
    targets.discover([topic("orders"), topic("table", cleanup_policy="compact")])
    assert (targets.count(TaskKind.SMALL_OBJECTS), targets.count(TaskKind.KEYS)) == (1, 1)
    found = targets.discover(
        [topic("orders", cleanup_policy="compact,delete"), topic("table", cleanup_policy="compact")]
    )
    assert found.changed == set(topic("orders").partition_keys())
    assert targets.count(TaskKind.KEYS) == 2


def test_nothing_is_compacted_of_a_topic_whose_configs_cannot_be_read() -> None:
    assert targets_of(topic("strange", cleanup_policy="no such policy")) == []


def test_s2_12_the_order_is_another_in_each_pass_and_has_each_partition_once() -> None:
    targets, randomness = Targets(None), SeededRandomness(1)
    targets.discover([topic("orders", 50)])
    first, second = targets.shuffled(randomness), targets.shuffled(randomness)
    assert first != second
    assert (
        {target.key for target in first}
        == {target.key for target in second}
        == set(topic("orders", 50).partition_keys())
    )
    assert len(first) == len(second) == 50
