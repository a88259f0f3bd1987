"""Placement: which agent leads a partition, compared with what a client asks for. Pure.

Kafka's clients may place partitions by hand: with CreateTopics, CreatePartitions and AlterPartitionReassignments. Here
the agents share the partitions by the ring (cluster/ring.py), and a partition has one leader and no other replica. So
a placement is accepted if it says what is so anyway, and nothing has to be done then. Scripts that write down the
placement they find, or that place everything on the only broker, work. Any other placement is refused.

For a partition that does not exist yet, the ring is asked: it depends only on the names of agents and topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamhouse.cluster.assigner import Assigner, is_draining
from streamhouse.core.errors import InvalidReplicaAssignment
from streamhouse.metadata.contract import RegisteredAgent, Topic


def leaders_to_be(agents: Iterable[RegisteredAgent], topics: Iterable[Topic], topic: Topic) -> list[int | None]:
    """The node id of the agent that the ring names for each partition of ``topic``; None if its group has no agent.

    ``topics`` are all that exist; ``topic`` is new, or takes the place of the one with its id.
    """
    live = [agent for agent in agents if not is_draining(agent)]
    node_ids = {agent.agent_id: agent.node_id for agent in live}
    members = {(agent.agent_group, agent.agent_id) for agent in live}
    others = [each for each in topics if each.topic_id != topic.topic_id]
    leader_of = Assigner().wish(members, [*others, topic]).leader_of
    found = [leader_of.get(key) for key in topic.partition_keys()]
    return [None if agent_id is None else node_ids[agent_id] for agent_id in found]


def check_brokers(name: str, brokers: Sequence[int], leader: int | None) -> None:
    """Raises InvalidReplicaAssignment unless ``brokers`` is the leader of the partition and no other."""
    if leader is not None and list(brokers) == [leader]:
        return
    wanted = f"brokers {', '.join(map(str, brokers[:10]))}" if brokers else "no broker"
    fact = "no agent leads it now" if leader is None else f"broker {leader} leads it, and there are no other replicas"
    raise InvalidReplicaAssignment(f"{name} cannot be placed on {wanted}: {fact}")
