"""DescribeAcls (29), versions 1–3: refused with 54, because there is no access control, as on a Kafka without an
authorizer.
"""

from __future__ import annotations

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.refusals import NO_ACCESS_CONTROL
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(29, (1, 3))
async def describe_acls(call: Call, request: Message) -> Fields:
    return {**NO_ACCESS_CONTROL, "resources": []}
