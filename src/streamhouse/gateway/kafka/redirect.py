"""The leader of a partition that is not led here, as answers name it, so that the client goes there (KIP-951)."""

from __future__ import annotations

from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Call
from streamhouse.gateway.kafka.hot.leaders import CurrentLeader, NodeEndpoint


def current_leader(call: Call, key: PartitionKey, *, may_be_here: bool = False) -> CurrentLeader | None:
    """None when no other agent is known to lead it: a client then asks for metadata.

    ``may_be_here``: the client came to the right place with an old epoch, and is to come again with the new one.
    """
    view = call.broker.view
    leader = view.leader(key)
    if leader is None or not leader.node.listens or (leader.node.node_id == view.node_id and not may_be_here):
        return None
    endpoint = view.endpoint(leader.node, call.client.listener)
    return CurrentLeader(
        leader_epoch=leader.epoch,
        endpoint=NodeEndpoint(
            node_id=leader.node.node_id, host=endpoint.host, port=endpoint.port, rack=leader.node.rack or None
        ),
    )
