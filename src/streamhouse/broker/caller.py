"""The caller of a broker operation: who asks, from where, and through which front end.

Every operation takes one, as a keyword without a default (tests/broker/test_caller.py looks at all of them). Only what
this agent has in memory is shown without one: the agents, topics and leaders of cluster_view.py, and the log start
beside the answer to a write. Nothing is decided by it yet; access control, quotas and audit logs will be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's name for a client that has not authenticated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    principal: str = ANONYMOUS
    address: str = ""
    """The client's host; empty for a caller in this process."""
    client_id: str = ""
    """The name that the client gives itself."""
    protocol: str
    """``kafka`` or ``python``."""
