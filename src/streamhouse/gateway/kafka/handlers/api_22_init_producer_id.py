"""InitProducerId (22), versions 0–5: an id for an idempotent producer, never given out before, at epoch 0.

A producer that asks again, with the id and epoch it has, gets a new id: without a transactional id no other can mean
the same producer, so there is nothing to fence. Apache Kafka does the same.

Transactional ids are refused with 53 until transactions exist: librdkafka takes other codes for a reason to wait.
"""

from __future__ import annotations

from typing import Final

from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.message import Message

_NONE: Final = -1


@cold_api(22, (0, 5))
async def init_producer_id(call: Call, request: Message) -> Fields:
    if request.transactional_id is not None:
        empty = not request.transactional_id
        return _refused(ErrorCode.INVALID_REQUEST if empty else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        return _refused(ErrorCode.INVALID_REQUEST)
    try:
        return {"producer_id": await call.broker.producer_ids.next(caller=call.client.caller), "producer_epoch": 0}
    except StreamHouseError:
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # every client asks again a little later


def _refused(code: ErrorCode) -> Fields:
    return {"error_code": code, "producer_id": _NONE, "producer_epoch": _NONE}
