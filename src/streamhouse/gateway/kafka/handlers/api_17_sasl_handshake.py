"""SaslHandshake (17), versions 0–1: refused with 34, because this listener has no authentication.

Apache Kafka answers the same on a PLAINTEXT listener. A client that is set up for SASL then says so, instead of
reporting a lost connection.
"""

from __future__ import annotations

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(17, (0, 1))
async def sasl_handshake(call: Call, request: Message) -> Fields:
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}
