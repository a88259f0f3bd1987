"""FindCoordinator (10), versions 0–6: which broker coordinates a group. Many groups at once from version 4 on.

The coordinator of a group is whoever holds its slot's lease; while nobody does, 15, after waiting for a moment: clients
ask again after half a second, and a slot is handed over in less. Transactions are not there yet: 53,
so that a client gives up at once. Share groups (key type 2) are not served: 42.
"""

from __future__ import annotations

from typing import Final

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import FINE, refusal
from streamhouse.gateway.kafka.wire.message import Message

_MANY_FROM: Final = 4
_GROUP, _TRANSACTION = 0, 1
_HAND_OVER_S: Final = 0.5  # what stands behind it on its connection waits, too
_NOBODY: Final[Fields] = {"node_id": -1, "host": "", "port": -1}


@cold_api(10, (0, 6))
async def find_coordinator(call: Call, request: Message) -> Fields:
    keys = [request.key] if call.version < _MANY_FROM else request.coordinator_keys
    if request.key_type == _GROUP:
        slots = {call.broker.groups.slot_of(key) for key in keys}
        await call.broker.view.wait_coordinated(slots, timeout_s=_HAND_OVER_S)
    if call.version < _MANY_FROM:
        return _coordinator(call, request.key_type, request.key)
    return {
        "coordinators": [
            {"key": key, **_coordinator(call, request.key_type, key)} for key in dict.fromkeys(request.coordinator_keys)
        ]
    }


def _coordinator(call: Call, key_type: int, key: str) -> Fields:
    if key_type == _TRANSACTION:
        message = "transactions are not supported yet"
        return {**_NOBODY, **refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message)}
    if key_type != _GROUP:
        return {**_NOBODY, **refusal(ErrorCode.INVALID_REQUEST, f"no coordinators of type {key_type}")}
    view = call.broker.view
    node = view.coordinator(call.broker.groups.slot_of(key))
    if node is None:
        message = "nobody coordinates this group at the moment"
        return {**_NOBODY, **refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)}
    endpoint = view.endpoint(node, call.client.listener)
    return {"node_id": node.node_id, "host": endpoint.host, "port": endpoint.port, **FINE}
