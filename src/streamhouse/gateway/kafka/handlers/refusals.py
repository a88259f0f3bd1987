"""How a handler puts an error into its answer: the error's Kafka code, its words where there is room for them, and the
leader to ask instead (KIP-951)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Iterable
from typing import Final, TypeVar

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Call, Fields
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.hot.leaders import CurrentLeader, NodeEndpoint

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

FINE: Final[Fields] = {"error_code": 0, "error_message": None}


def refusal(code: int, message: str) -> Fields:
    return {"error_code": code, "error_message": message}


NO_ACCESS_CONTROL: Final[Fields] = refusal(
    ErrorCode.SECURITY_DISABLED, "there is no access control: every client may do everything"
)


def refused(error: StreamHouseError) -> Fields:
    return refusal(error.kafka_code, str(error))


async def attempt(what: str, work: Awaitable[T]) -> T | Fields:
    """The result, or the error as fields of the answer. A defect goes to the log, and to the client as -1."""
    try:
        return await work
    except StreamHouseError as error:
        return refused(error)
    except Exception:
        _log.exception("%s failed", what)
        return refusal(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what} failed; the broker's log says why")


def repeated(names: Iterable[T]) -> set[T]:
    """Return the names that a request has more than once, which Kafka refuses."""
    return {name for name, count in Counter(names).items() if count > 1}


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
