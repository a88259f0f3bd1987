"""FindCoordinator (10), versions 0–6: which broker coordinates a group. Many groups at once from version 4 on.

The coordinator of a group is the agent that holds the lease of its slot. Unless this agent holds it, the lease is read
from the metadata store. While no agent holds it, or this agent hands it over, the answer waits up to 50 ms. After that
the answer is 15, or this agent if the slot still changes hands here: then the requests of the group wait here.
Transactions are not supported yet: the answer is 53, so that a client gives up at once. Share groups (key type 2) are
not supported: 42.
"""

from __future__ import annotations

from typing import Final

from streamhouse.broker.cluster_view import Node
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import FINE, refusal
from streamhouse.gateway.kafka.wire.message import Message

_MANY_FROM: Final = 4
_GROUP, _TRANSACTION = 0, 1
_NO_NODE: Final[Fields] = {"node_id": -1, "host": "", "port": -1}


@cold_api(10, (0, 6))
async def find_coordinator(call: Call, request: Message) -> Fields:
    keys = [request.key] if call.version < _MANY_FROM else request.coordinator_keys
    found: dict[str, Node | None] = {}
    if request.key_type == _GROUP:
        found = await call.broker.groups.find_coordinators(keys, caller=call.client.caller)
    if call.version < _MANY_FROM:
        return _coordinator(call, request.key_type, found.get(request.key))
    return {
        "coordinators": [
            {"key": key, **_coordinator(call, request.key_type, found.get(key))}
            for key in dict.fromkeys(request.coordinator_keys)
        ]
    }


def _coordinator(call: Call, key_type: int, node: Node | None) -> Fields:
    if key_type == _TRANSACTION:
        message = "transactions are not supported yet"
        return {**_NO_NODE, **refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message)}
    if key_type != _GROUP:
        return {**_NO_NODE, **refusal(ErrorCode.INVALID_REQUEST, f"key type {key_type} is not supported; 0 is a group")}
    if node is None:
        message = "no agent coordinates this group now; try again"
        return {**_NO_NODE, **refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)}
    endpoint = call.broker.view.endpoint(node, call.client.listener)
    return {"node_id": node.node_id, "host": endpoint.host, "port": endpoint.port, **FINE}
