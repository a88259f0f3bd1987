"""DescribeClientQuotas (48), versions 0–1: always empty. There are no quotas; AlterClientQuotas is not served."""

from __future__ import annotations

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(48, (0, 1))
async def describe_client_quotas(call: Call, request: Message) -> Fields:
    return {"error_message": None, "entries": []}
