"""CreateAcls (30), versions 1–3: each is refused with 54, because there is no access control. See DescribeAcls (29)."""

from __future__ import annotations

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.refusals import NO_ACCESS_CONTROL
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(30, (1, 3))
async def create_acls(call: Call, request: Message) -> Fields:
    return {"results": [NO_ACCESS_CONTROL for _ in request.creations]}
