"""SaslAuthenticate (36), versions 0–2: refused with 34, as SaslHandshake (17) is."""

from __future__ import annotations

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import refusal
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(36, (0, 2))
async def sasl_authenticate(call: Call, request: Message) -> Fields:
    return refusal(ErrorCode.ILLEGAL_SASL_STATE, "this listener has no authentication; set security.protocol=PLAINTEXT")
