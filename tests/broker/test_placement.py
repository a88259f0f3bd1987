"""Which agent will lead a partition, and which placements of a client agree with that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from streamhouse import StreamHouse
from streamhouse.broker.caller import Caller
from streamhouse.broker.placement import check_brokers, leaders_to_be
from streamhouse.broker.topics import WantedTopic
from streamhouse.cluster.assigner import DRAINING, Assigner
from streamhouse.core.errors import InvalidReplicaAssignment
from streamhouse.core.ids import TopicId
from streamhouse.metadata.contract import RegisteredAgent, Topic, WriteMode

CALLER = Caller(protocol="test")


def agent(number: int, *, group: str = "default", **metadata: Any) -> RegisteredAgent:
    return RegisteredAgent(
        agent_id=f"agent-{number}",
        incarnation=None,
        node_id=number,
        listeners={},
        availability_zone="",
        agent_group=group,
        last_heartbeat_ms=0,
        started_at_ms=0,
        metadata=metadata,
    )


def topic(name: str, partitions: int, **configs: str) -> Topic:
    return Topic(
        topic_id=TopicId(UUID(int=sum(name.encode()))),
        name=name,
        partition_count=partitions,
        configs=configs,
        write_mode=WriteMode.LEASED,
        created_at_ms=0,
        version=1,
    )


def test_the_ring_says_where_a_new_topic_will_be() -> None:
    agents, others, new = [agent(1), agent(2), agent(3)], [topic("a", 30), topic("b", 5)], topic("new", 12)
    wish = Assigner().wish({(each.agent_group, each.agent_id) for each in agents}, [*others, new])
    found = leaders_to_be(agents, others, new)
    assert [f"agent-{number}" for number in found] == [wish.leader_of[key] for key in new.partition_keys()]
    assert len(set(found)) > 1


def test_a_topic_that_grows_counts_once() -> None:
    agents, before = [agent(1), agent(2)], topic("a", 3)
    grown = topic("a", 9)
    assert leaders_to_be(agents, [before, topic("b", 4)], grown) == leaders_to_be(agents, [topic("b", 4)], grown)


def test_agents_of_other_groups_and_those_that_leave_lead_nothing() -> None:
    agents = [agent(1), agent(2, group="heavy"), agent(3, **{DRAINING: True})]
    assert leaders_to_be(agents, [], topic("a", 4)) == [1] * 4
    assert leaders_to_be(agents, [], topic("a", 2, **{"agent.group": "heavy"})) == [2] * 2
    assert leaders_to_be(agents, [], topic("a", 2, **{"agent.group": "none"})) == [None] * 2


def test_one_broker_that_leads_is_the_only_placement() -> None:
    check_brokers("t/0", [3], 3)
    for brokers, leader, words in (
        ([2], 3, "t/0 cannot be placed on brokers 2: broker 3 leads it"),
        ([3, 2], 3, "brokers 3, 2: broker 3 leads it"),
        ([], 3, "no broker: broker 3 leads it"),
        ([3], None, "no agent leads it now"),
    ):
        with pytest.raises(InvalidReplicaAssignment, match=words):
            check_brokers("t/0", brokers, leader)


@asynccontextmanager
async def fleet_agent(directory: Path, dsn: str, name: str) -> AsyncIterator[StreamHouse]:
    async with StreamHouse.open(
        data_dir=str(directory / name),
        metadata_url=dsn,
        store_url=f"file://{directory}/objects",
        agent_id=name,
        wal_file_bytes="1MiB",
    ) as sh:
        yield sh


@pytest.mark.timeout(180)
async def test_a_topic_of_a_fleet_is_made_again_with_the_placement_it_had(
    tmp_path: Path, postgres_database: str
) -> None:
    """The story of a script: it writes down where the partitions are, and makes the topic anew with that placement."""
    async with fleet_agent(tmp_path, postgres_database, "a") as a, fleet_agent(tmp_path, postgres_database, "b"):
        topics, view = a.broker.topics, a.broker.view
        made = await topics.create(WantedTopic(name="t", partition_count=8, configs={}), caller=CALLER)
        found = await view.leaders_to_be(made)
        assert len(set(found)) == 2
        async with asyncio.timeout(60):
            while [leader and leader.node.node_id for leader in map(view.leader, made.partition_keys())] != found:
                await view.wait_changed(1)
        placed = {number: [leader] for number, leader in enumerate(found) if leader is not None}
        for number, brokers in placed.items():
            await topics.check_reassignment("t", number, brokers, caller=CALLER)
        await topics.delete(made, caller=CALLER)
        swapped = {number: placed[7 - number] for number in placed}
        with pytest.raises(InvalidReplicaAssignment, match="leads it"):
            await topics.create(WantedTopic(name="t", brokers=swapped, configs={}), caller=CALLER)
        again = await topics.create(WantedTopic(name="t", brokers=placed, configs={}), caller=CALLER)
        assert again.partition_count == 8
