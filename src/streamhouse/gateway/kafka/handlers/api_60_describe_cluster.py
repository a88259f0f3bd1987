"""DescribeCluster (60), versions 0–2: the cluster's id, its live brokers, and the broker that is called the controller.

Fenced brokers do not exist: an agent is alive or it is not listed. Controllers (endpoint type 2) are not a kind of
process here, so that asking for them answers MISMATCHED_ENDPOINT_TYPE, as a Kafka broker does.
"""

from __future__ import annotations

from typing import Final

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.operations import CLUSTER_OPERATIONS
from streamhouse.gateway.kafka.handlers.refusals import refusal
from streamhouse.gateway.kafka.hot.metadata import NO_OPERATIONS
from streamhouse.gateway.kafka.wire.message import Message

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


@cold_api(60, (0, 2))
async def describe_cluster(call: Call, request: Message) -> Fields:
    view = call.broker.view
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return {
            **refusal(code, "this is a broker: ask for endpoint type 1"),
            "endpoint_type": _BROKERS,
            "cluster_id": view.cluster_id,
            "brokers": [],
        }
    controller = view.controller()
    brokers: list[Fields] = []
    for node in view.nodes():
        endpoint = view.endpoint(node, call.client.listener)
        brokers.append({"broker_id": node.node_id, "host": endpoint.host, "port": endpoint.port, "rack": node.rack})
    wants_operations = request.include_cluster_authorized_operations
    return {
        "endpoint_type": _BROKERS,
        "cluster_id": view.cluster_id,
        "controller_id": -1 if controller is None else controller.node_id,
        "brokers": brokers,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if wants_operations else NO_OPERATIONS,
    }
