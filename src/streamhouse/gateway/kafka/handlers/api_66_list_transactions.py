"""ListTransactions (66), versions 0–2: always empty, until transactions exist. State names that Kafka does not know are
returned as such.
"""

from __future__ import annotations

from typing import Final

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.wire.message import Message

_STATES: Final = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)


@cold_api(66, (0, 2))
async def list_transactions(call: Call, request: Message) -> Fields:
    unknown = [state for state in dict.fromkeys(request.state_filters) if state not in _STATES]
    return {"unknown_state_filters": unknown, "transaction_states": []}
