"""DescribeUserScramCredentials (50), version 0: there is no authentication yet, so no user has credentials.

All users: an empty list. A named one: RESOURCE_NOT_FOUND (91), as Kafka answers for a user without credentials.
"""

from __future__ import annotations

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import refusal, repeated
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(50, (0, 0))
async def describe_user_scram_credentials(call: Call, request: Message) -> Fields:
    asked = [user.name for user in request.users or []]
    twice = repeated(asked)
    results = [{"user": name, "credential_infos": [], **_outcome(name, twice)} for name in dict.fromkeys(asked)]
    return {"error_message": None, "results": results}


def _outcome(name: str, twice: set[str]) -> Fields:
    if name in twice:
        return refusal(ErrorCode.DUPLICATE_RESOURCE, "the user is named twice in one request")
    return refusal(
        ErrorCode.RESOURCE_NOT_FOUND, f"user {name[:100]} has no credentials: there is no authentication yet"
    )
